"""Whose each moment of a trace is: what runs alone or first, and why nothing runs."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from neuralpower.traces.events import Mark, Ran, Recording
from neuralpower.traces.likeness import COMMUNICATION, kernel_kind

DATA, SYNC, HOST = "waiting for data", "synchronisation", "launched one by one"
BETWEEN, UNKNOWN, LATENCY = "between operators", "of unknown cause", "latency of the device"
NEAR_US = 10.0  # between the end of a wait and the launch that it kept back
LEAST_US = 0.5  # gaps below are the device's own
# Kernels this short end before the next is launched: a graph or a compiler launches them together.
SHORT_US = 25.0


@dataclass(frozen=True)
class Gap:
    start: float  # us
    end: float
    cause: str

    @property
    def took(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """The span from the first to the last that ran, shared out: [ran] microseconds, and gaps."""

    start: float
    end: float
    owned: Sequence[float]  # of each, without what ran at the same time and comes first
    gaps: Sequence[Gap]


def timeline(recording: Recording) -> Timeline:
    """Share out each moment: what computes comes before copies, and these before communication."""
    ran = recording.ran
    owned = _owned(ran)
    gaps, end = [], ran[0].start
    causes = _Causes(recording)
    for one in ran:
        if one.start > end:
            gaps.append(Gap(end, one.start, causes.of(end, one)))
        end = max(end, one.end)
    return Timeline(ran[0].start, end, owned, gaps)


def _owned(ran: Sequence[Ran]) -> list[float]:
    """Microseconds of each, in order of their starts: each moment belongs to one of those that run then."""
    owned = [0.0] * len(ran)
    active: list[tuple[int, float, int]] = []  # order, start, position

    def spend(start: float, end: float) -> None:
        while active and start < end:
            _, _, i = active[0]
            until = min(end, ran[i].end)
            if until > start:
                owned[i] += until - start
                start = until
            if ran[i].end <= start:
                heapq.heappop(active)

    at = -math.inf
    for i, one in enumerate(ran):
        spend(at, one.start)
        at = one.start
        heapq.heappush(active, (_order(one), one.start, i))
    spend(at, math.inf)
    return owned


def _order(one: Ran) -> int:
    if one.over_bus or one.name.startswith(("Memcpy", "Memset")):
        return 1
    return 2 if kernel_kind(one.name) == COMMUNICATION else 0


class _Causes:
    """Why nothing ran before something did."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.loads = sorted(
            (mark for mark in recording.marks if "DataLoader" in mark.name), key=lambda mark: mark.start
        )
        self.waits = sorted(recording.waits, key=lambda mark: mark.end)
        self.ends = [mark.end for mark in self.waits]

    def of(self, start: float, after: Ran) -> str:
        """The cause of a gap from `start` to what ran after it."""
        if self._loading(start, after.start) > (after.start - start) / 2:
            return DATA
        if self.recording.on_cpu:
            return BETWEEN
        if not self.recording.clocks_agree or math.isnan(after.launched):
            return UNKNOWN
        if after.launched < start - NEAR_US or after.start - start < LEAST_US:
            return LATENCY
        i = bisect.bisect_right(self.ends, after.launched) - 1
        waited = i >= 0 and self.ends[i] >= start - NEAR_US
        return SYNC if waited and self._kept(self.waits[i], start) else HOST

    def _kept(self, wait: Mark, start: float) -> bool:
        """Whether the host waited for what ran before the gap."""
        return wait.start <= start <= wait.end + NEAR_US

    def _loading(self, start: float, end: float) -> float:
        return sum(max(min(end, mark.end) - max(start, mark.start), 0.0) for mark in self._near(start, end))

    def _near(self, start: float, end: float) -> Sequence[Mark]:
        first = max(bisect.bisect_left(self.loads, start, key=lambda mark: mark.start) - 1, 0)
        last = bisect.bisect_right(self.loads, end, key=lambda mark: mark.start)
        return self.loads[first:last]
