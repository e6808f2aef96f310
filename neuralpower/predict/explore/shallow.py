"""Passes of a deep network from those of a shallow one, which has a few of its equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from torch import nn

from neuralpower.networks.shortened import repeated
from neuralpower.platforms import CPU, Platform
from neuralpower.trace.deepening import SHORT, Deepening, History, IrregularError
from neuralpower.trace.records import Trace
from neuralpower.trace.step_lifetimes import StepLifetimes

LEAST = 3  # times as many blocks as the shallow network: below, two of these take as long as the deep one


class Passed(NamedTuple):
    """A pass or a step, and its number of operator calls."""

    found: Trace | StepLifetimes
    calls: int


class Shallow:
    """A network with a few of its blocks, in place of the whole."""

    def __init__(self, module: nn.Module, build: Callable[[int], nn.Module], platform: Platform) -> None:
        """`module` is the whole network; `build` gives one with the first blocks alone, by their number."""
        self.blocks = repeated(module)
        # glibc's heap depends on calls that make nothing, too, which a deepened history does not count
        enough = self.blocks.blocks >= LEAST * self.blocks.with_groups(SHORT)
        self._use = bool(self.blocks.path) and enough and platform.family != CPU.family
        self._known: dict[str, tuple[Deepening, int]] = {}  # name of a pass -> with the calls of one block
        self.network = cache(lambda groups: build(self.blocks.with_groups(groups)))

    def __call__(self, name: str, run: Callable[[nn.Module], Passed]) -> Passed | None:
        """The pass of the whole network; None where its blocks do not repeat.

        Args:
            name: of the pass; one that is known needs no second network at other sizes.
            run: follows the pass of a network; its errors are passed on.
        """
        if not self._use:
            return None
        four = run(self.network(SHORT))
        history = _history(four)
        try:
            deepening, calls = self._deepening(name, four, history, run)
            storages = deepening.storages(self.blocks.groups)
        except IrregularError:
            self._use = False
            return None
        calls = four.calls + (self.blocks.groups - SHORT) * calls
        if isinstance(four.found, Trace):
            return Passed(replace(four.found, storages=tuple(storages)), calls)
        return Passed(four.found._replace(storages=tuple(storages)), calls)

    def _deepening(
        self, name: str, four: Passed, history: History, run: Callable[[nn.Module], Passed]
    ) -> tuple[Deepening, int]:
        """What puts blocks in, and the calls of one; raises IrregularError."""
        if name in self._known:
            deepening, calls = self._known[name]
            if (like := deepening.like(history)) is not None:
                return like, calls
        five = run(self.network(SHORT + 1))
        where, lead, each = self.blocks.path, self.blocks.lead, self.blocks.each
        found = Deepening(where, history, _history(five), lead, each), five.calls - four.calls
        self._known[name] = found
        return found


def _history(passed: Passed) -> History:
    """When memory lived."""
    found = passed.found
    if isinstance(found, Trace):
        last = max((max(one.birth, one.death or 0) for one in found.storages), default=0)
        return History(found.storages, (last,))
    steps = found.end > found.passes[-1]
    return History(found.storages, (*found.passes, found.end) if steps else found.passes, steps)
