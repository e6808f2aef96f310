"""Memory during a pass or a step, operator call by call, and what is alive at its peak.

The calls are those of a pass or step that is not the first: the optimizer's state is there from the
beginning. PyTorch's caching allocator for CUDA then has all segments that it needs, and keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuralpower.layers.base import BACKWARD, FORWARD, TRAINING
from neuralpower.platforms import Platform
from neuralpower.prediction.memory.cuda_allocator import replayed
from neuralpower.prediction.memory.peak import alive, products, steady
from neuralpower.trace.lifetimes import PARTS, WORKSPACE, StepLifetimes, Storage, on_library
from neuralpower.trace.records import Trace

KEPT = "kept by the allocator"
STEP = "step"  # of the optimizer
CUDA = "cuda"  # the allocator that gives nothing back


class Lived(NamedTuple):
    """The lifetimes of one pass or step on a device."""

    model: str
    name: str  # of the pass: forward, prefill, training
    phase: str  # FORWARD or TRAINING: which memory it is
    storages: tuple[Storage, ...]  # with the work space of the device's library alone
    platform: Platform
    passes: tuple[int, ...] = ()  # ends of a step's passes, forward and backward in turn
    calls: int = 0  # operator calls

    @property
    def handles(self) -> tuple[int, ...]:
        """Bytes of the work spaces for products that stay."""
        return products(self.phase, self.platform)

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """(last operator call before it, name) of each part of the pass or step."""
        if not self.passes:
            return ((0, self.name),)
        names = (FORWARD, BACKWARD)
        found = [(begin, names[i % 2]) for i, begin in enumerate((0, *self.passes[:-1]))]
        return (*found, (self.passes[-1], STEP)) if self.calls > self.passes[-1] else tuple(found)

    def part_at(self, call: int) -> str:
        """The part of the pass or step that an operator call, from 1, belongs to."""
        return next((name for begin, name in reversed(self.marks) if begin < call), self.marks[0][1])


def lived(model: str, name: str, found: Trace | StepLifetimes, platform: Platform) -> Lived:
    """What lives when in a pass or a step, with the work space of the platform's library."""
    own = tuple(one for one in on_library(found.storages, platform.library) if one.bytes)
    if isinstance(found, StepLifetimes):
        return Lived(model, name, TRAINING, own, platform, found.passes, found.end)
    last = max((max(one.birth, one.death or 0) for one in own), default=0)
    return Lived(model, name, FORWARD, own, platform, calls=last)


@dataclass(frozen=True)
class OverTime:
    """Bytes at each operator call, from 0, which is before the first."""

    parts: Mapping[str, np.ndarray]  # by part, without empty parts; KEPT is last
    at: int  # the call of the peak
    alive: tuple[Storage, ...]  # then, the largest first

    @property
    def total(self) -> np.ndarray:
        return np.asarray(np.sum([*self.parts.values()], axis=0, dtype=np.int64))

    @property
    def peak_bytes(self) -> int:
        return int(self.total[self.at])


def over_time(lived: Lived) -> OverTime:
    """Memory over time; at the peak, its parts are those of `peak.memory_of`."""
    storages, calls = steady(lived.storages), lived.calls + 1
    calls = max(calls, len(alive(storages)))
    parts = {part: alive([s for s in storages if s.part == part], calls) for part in PARTS}
    parts[WORKSPACE] = parts[WORKSPACE] + sum(lived.handles)
    tensors = np.sum([*parts.values()], axis=0)
    at = int(np.argmax(tensors))
    if lived.platform.allocator == CUDA:
        held = replayed(
            lived.storages, handles=lived.handles
        ).reserved  # from the second step on: nothing goes back
        parts[KEPT] = np.maximum(held - tensors, 0)
    living = [s for s in storages if s.birth <= at and (s.death is None or at <= s.death)]
    living.sort(key=lambda storage: (-storage.bytes, storage.birth))
    return OverTime({part: size for part, size in parts.items() if size.any()}, at, tuple(living))


def fullest(some: Sequence[Lived]) -> Lived:
    return max(some, key=lambda one: int(alive(steady(one.storages)).max()))
