"""Find operator calls that a Python loop repeats, so that their code and operands are in the caches.

A network's layers are timed cold, as blocks that follow each other find them. A step of a loop over time
finds what the step before has just used, and takes a fifth as long. Next to such calls, views take time, too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from neuralpower.layers import Layer
from neuralpower.layers.base import NEAR_BYTES
from neuralpower.layers.movement import ALIAS, Movement
from neuralpower.trace.records import LayerCall

OFTEN = 8  # calls that are alike: fewer are blocks of a network
NEW_BYTES = 4096  # of parameters, that a step may read for the first time: a row for its position

VIEW = Movement(function=ALIAS, elements=1, recurs=True)


class View(NamedTuple):
    """An operator call that returns memory it was given."""

    at: int  # as LayerCall.at
    path: str
    operator: str
    again: bool  # as LayerCall.again


class Called(NamedTuple):
    """The facts of an operator call that reveal a loop."""

    name: Hashable  # what calls that are alike have in common
    size: int  # B that it goes through
    new: int = 0  # B of parameters that it, or a view since the call before, is the first to read


def recurring(calls: Sequence[Called]) -> list[bool]:
    """Whether each of the calls, in order, repeats one just before.

    A call recurs where OFTEN and more are alike, no more than NEAR_BYTES went through the caches since the
    last one, and no new parameters were read: blocks that follow each other are alike, too, but have their
    own.
    """
    often = Counter(call.name for call in calls)
    last: dict[Hashable, tuple[int, int]] = {}
    recurs, passed, new = [], 0, 0
    for call in calls:
        new += call.new
        before = last.get(call.name) if often[call.name] >= OFTEN else None
        recurs.append(
            before is not None and passed - before[0] <= NEAR_BYTES and new - before[1] <= NEW_BYTES
        )
        last[call.name] = passed, new
        passed += call.size
    return recurs


def looped(
    calls: Sequence[LayerCall], views: Iterable[View], read: Iterable[tuple[int, int]]
) -> Sequence[LayerCall]:
    """The calls; those that a loop repeats say so, and the views before each of them are among them.

    `read`: (operator call, bytes) of what each is the first to read of the parameters.
    """
    often = Counter((call.path, call.operator) for call in calls)
    if max(often.values(), default=0) < OFTEN:
        return calls
    size = {layer: int(sum(layer.bytes())) for layer in {call.layer for call in calls}}
    new, before = deque(read), deque(views)
    called = [
        Called((c.path, c.operator, c.layer), size[c.layer], sum(count for _, count in _until(new, c.at)))
        for c in calls
    ]
    with_views: list[LayerCall] = []
    for call, recurs in zip(calls, recurring(called), strict=True):
        passed = _until(before, call.at)
        if recurs:
            with_views += (LayerCall(v.path, VIEW, v.operator, at=v.at, again=v.again) for v in passed)
        with_views.append(in_loop(call) if recurs else call)
    return with_views


def _until(noted: deque[Any], at: int) -> list[Any]:
    """Take what was noted of operator calls up to this one, `at` first of each."""
    taken = []
    while noted and noted[0][0] <= at:
        taken.append(noted.popleft())
    return taken


def in_loop(call: LayerCall) -> LayerCall:
    """The call as a loop makes it."""
    return replace(call, layer=layer_in_loop(call.layer))


@lru_cache(2**12)
def layer_in_loop(layer: Layer) -> Layer:
    return replace(layer, recurs=True)
