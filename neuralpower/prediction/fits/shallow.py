"""Passes of a deep network from those of a shallow one, which has a few of its equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from torch import nn

from neuralpower.errors import NeuralPowerError
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.fits.deepening import SHORT, Deepening, History, IrregularError, ranked
from neuralpower.prediction.fits.shortened import repeated
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.records import Trace

LEAST = 3  # times as many blocks as the shallow network: below, two of these take as long as the deep one


class Passed(NamedTuple):
    """A pass or a step, and its number of operator calls."""

    found: Trace | StepLifetimes
    calls: int

    @property
    def history(self) -> History:
        """When its memory lived."""
        found = self.found
        if isinstance(found, Trace):
            last = max((max(one.birth, one.death or 0) for one in found.storages), default=0)
            return History(found.storages, (last,))
        steps = found.end > found.passes[-1]
        return History(found.storages, (*found.passes, found.end) if steps else found.passes, steps)


Run = Callable[[nn.Module], Passed]
"""Follows the pass of a network, the whole one or a shallow one."""


class Shallow:
    """A network with a few of its blocks, in place of the whole.

    It is used for a pass only after the whole network's has been followed once, and was the very same: a
    network may do other things in its later blocks.
    """

    def __init__(self, module: nn.Module, build: Callable[[int], nn.Module], platform: Platform) -> None:
        """`module` is the whole network; `build` gives one with the first blocks alone, by their number."""
        self.blocks = repeated(module)
        enough = self.blocks.blocks >= LEAST * self.blocks.with_groups(SHORT)
        # glibc's heap depends on calls that make nothing, too, which a deepened history does not count
        self.useful = bool(self.blocks.path) and enough and platform.family != CPU.family
        self._known: dict[str, tuple[Deepening, int]] = {}  # name of a pass -> with the calls of one block
        self.network = cache(lambda groups: build(self.blocks.with_groups(groups)))

    def stands_for(self, name: str, run: Run, whole: Passed) -> bool:
        """Whether a pass is that of the whole network to the byte, and call."""
        passed = self(name, run)
        if passed is None or passed.calls != whole.calls:
            return False
        return list(passed.found.storages) == list(ranked(whole.history).storages)

    def __call__(self, name: str, run: Run) -> Passed | None:
        """The pass of the whole network; None where its blocks do not repeat, or do not run alone.

        Args:
            name: of the pass; one that is known needs no second network at other sizes.
            run: follows it.
        """
        if not self.useful:
            return None
        try:
            four = run(self.network(SHORT))
            deepening, calls = self._deepening(name, four, run)
            storages = deepening.storages(self.blocks.groups)
        except (IrregularError, NeuralPowerError):  # such as a network that reads one of its later blocks
            return None
        calls = four.calls + (self.blocks.groups - SHORT) * calls
        if isinstance(four.found, Trace):
            return Passed(replace(four.found, storages=tuple(storages)), calls)
        ends = deepening.ends(self.blocks.groups)
        passes, end = (ends[:-1], ends[-1]) if four.history.steps else (ends, ends[-1])
        return Passed(four.found._replace(storages=tuple(storages), passes=passes, end=end), calls)

    def _deepening(self, name: str, four: Passed, run: Run) -> tuple[Deepening, int]:
        """What puts blocks in, and the calls of one; raises IrregularError."""
        history = four.history
        if name in self._known:
            deepening, calls = self._known[name]
            if (like := deepening.like(history)) is not None:
                return like, calls
        five = run(self.network(SHORT + 1))
        where, lead, each = self.blocks.path, self.blocks.lead, self.blocks.each
        found = Deepening(where, history, five.history, lead, each), five.calls - four.calls
        self._known[name] = found
        return found
