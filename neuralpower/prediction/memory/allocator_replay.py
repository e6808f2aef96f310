"""Lifetimes of tensors -> how large a heap gets over passes or steps, and what each fetches from the system.

Small objects decide whether neighbouring holes join. `Habits` models them: objects that come and go with an
operator call, that live as long as a tensor, or for a share of the step as autograd's nodes do, and those
that a convolution's library keeps for every shape. How long each lives is drawn from fixed seeds; the answer
is the mean. The habits were chosen by the heap's real size, see docs/memory.md.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from neuralpower.prediction.memory.glibc_allocator import Heap
from neuralpower.trace.lifetimes import CACHE, INPUTS, OPTIMIZER, WEIGHTS, WORKSPACE, Storage

# before and while fresh memory is counted: some passes of a network fetch twice as much as others, by chance
WARM_RUNS, COUNTED_RUNS = 2, 6
RUNS = 3  # passes or steps: the first makes the optimizer's state, the second finds a heap with holes
THRESHOLD = 1_925_120  # for mapping, after torch has been imported, as seen
HOLES = 40  # of each size below, that importing leaves: small objects need not break into a tensor's hole
HOLE_BYTES = (40, 56, 88, 120, 200, 312, 520, 1032, 2056, 4104, 8200, 16392)
BESIDE = (24, 96)  # bytes of objects that live as long as a tensor
# that a new convolution leaves, for each of its copies
KEPT = 100, 100, 100, 56, 56, 24, 24, 8000, 4000, 20_000


@dataclass(frozen=True)
class Habits:
    """Small objects of a kind of run."""

    passing: tuple[int, ...]  # bytes of those that are there during every operator call
    lasting_bytes: int  # of one that some calls leave behind
    share: float  # of calls that do
    life: float  # of it on average, as a share of the run
    draws: int = 1  # replays of which the mean is taken


PASS = Habits((40, 40, 40, 24, 24), 40, 0.3, 0.1, 3)
STEP = Habits((40, 24), 40, 1.0, 0.07)


def heap_peak(storages: Sequence[Storage], habits: Habits) -> int:
    """Bytes that a process's memory grows by, at most, over `RUNS` passes or steps (one of a decoder)."""
    plan = _Plan(storages)
    peaks = []
    for seed in range(habits.draws):
        replay = _Replay(plan, habits, random.Random(seed))
        peaks.append(replay.run(plan.runs).peak - replay.start)
    return round(fmean(peaks))


class Fetched(NamedTuple):
    """What a repeated pass or step fetches from the system, on average, and the threshold that it raised."""

    bytes: int
    threshold_bytes: int


def fetched(storages: Sequence[Storage], habits: Habits) -> Fetched:
    """Fresh memory of each of many passes or steps, after the first ones."""
    plan, heap, sizes = _Plan(storages), Heap(), []
    for seed in range(habits.draws):
        replay = _Replay(plan, habits, random.Random(seed))
        before = replay.run(WARM_RUNS).fresh_bytes
        heap = replay.run(COUNTED_RUNS)
        sizes.append((heap.fresh_bytes - before) / COUNTED_RUNS)
    return Fetched(round(fmean(sizes)), heap.threshold)


class _Plan:
    """What is born and dies in which call; tensors are places in `sizes`."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self.sizes = [storage.bytes for storage in storages]
        self.end = max((max(s.birth, s.death or 0) for s in storages), default=0) + 1
        self.deaths = [self.end if s.death is None else s.death for s in storages]
        self.before: list[int] = []  # what is there before the first call
        self.born: dict[int, list[int]] = defaultdict(list)
        self.dead: dict[int, list[int]] = defaultdict(list)
        self.work: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self.stays: set[int] = set()  # from the first run on
        replaced = [s for s in storages if s.part == CACHE and s.birth]
        self.runs = 1 if replaced and any(s.part == CACHE and not s.birth for s in storages) else RUNS
        for place, storage in enumerate(storages):
            if storage.part == WORKSPACE:
                self.work[storage.birth].append(storage.blocks or (storage.bytes,))
            elif storage.birth == 0 and storage.part in (WEIGHTS, INPUTS, CACHE):
                self.before.append(place)
                if storage.death is not None and self.runs == 1:
                    self.dead[storage.death].append(place)
            else:
                self.born[storage.birth].append(place)
                if storage.part == OPTIMIZER:
                    self.stays.add(place)
                else:
                    self.dead[self.deaths[place]].append(place)


def _used_heap() -> Heap:
    """The heap of a process after its imports."""
    heap = Heap(THRESHOLD)
    pairs = [(heap.small(size), heap.small(HOLE_BYTES[0])) for size in HOLE_BYTES * HOLES]
    for hole, _ in pairs:
        heap.free(hole)
    heap.peak = heap.bytes
    return heap


class _Replay:
    """A process that runs a plan again and again."""

    def __init__(self, plan: _Plan, habits: Habits, draw: random.Random) -> None:
        self.plan, self.habits, self.draw = plan, habits, draw
        self.heap = _used_heap()
        self.start = self.heap.bytes
        self.living = {place: self.heap.tensor(plan.sizes[place]) for place in plan.before}
        self.known: set[tuple[int, ...]] = set()  # convolutions
        self.first = True

    def run(self, times: int) -> Heap:
        """The heap after further runs."""
        for _ in range(times):
            leaving: dict[int, list[int]] = defaultdict(list)
            for call in range(self.plan.end + 1):
                self._call(call, leaving)
            self.first = False
        return self.heap

    def _call(self, call: int, leaving: dict[int, list[int]]) -> None:
        """One operator call; `leaving`: small objects of this run, by the call after which they go."""
        heap, plan, habits = self.heap, self.plan, self.habits
        passing = [heap.small(size) for size in habits.passing]
        copies = [_copies(heap, blocks, self.known) for blocks in plan.work[call]]
        for place in plan.born[call]:
            if not self.first and place in plan.stays:
                continue
            self.living[place] = heap.tensor(plan.sizes[place])
            leaving[plan.deaths[place]].extend(heap.small(size) for size in BESIDE)
        heap.free_all(copies)
        if habits.share >= 1 or self.draw.random() < habits.share:
            life = int(self.draw.expovariate(1 / (habits.life * plan.end)))
            leaving[min(plan.end, call + life)].append(heap.small(habits.lasting_bytes))
        heap.free_all(passing)
        heap.free_all(self.living.pop(place, None) for place in plan.dead[call])
        heap.free_all(leaving[call])


def _copies(heap: Heap, blocks: tuple[int, ...], known: set[tuple[int, ...]]) -> int | None:
    """Allocate a kernel's copies and free all but the last; the handle of the last, if there is one."""
    new = len(blocks) > 1 and blocks not in known
    known.add(blocks)
    made: list[int | None] = []
    for size in blocks:
        if new:
            for small in KEPT:
                heap.small(small)
        made.append(heap.tensor(size) if size else None)
    heap.free_all(made[:-1])
    return made[-1]
