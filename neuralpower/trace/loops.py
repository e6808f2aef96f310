"""Find operator calls that a Python loop repeats, so that their code and operands are in the caches.

A network's layers are timed cold, as blocks that follow each other find them. A step of a loop over time
finds what the step before has just used, and takes a fifth as long. Next to such calls, views take time, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from neuralpower.layers.base import NEAR_BYTES

OFTEN = 8  # calls that are alike: fewer are blocks of a network
NEW_BYTES = 4096  # of parameters, that a step may read for the first time: a row for its position


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
    found, passed, new = [], 0, 0
    for call in calls:
        new += call.new
        before = last.get(call.name) if often[call.name] >= OFTEN else None
        found.append(before is not None and passed - before[0] <= NEAR_BYTES and new - before[1] <= NEW_BYTES)
        last[call.name] = passed, new
        passed += call.size
    return found
