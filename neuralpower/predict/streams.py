"""Streams: when each call runs, given which stream it is on, when its host issues it and what it waits for.

A rank is one device and its host. The host issues the rank's calls one after the other, and waits for
nothing; a stream of the device runs its calls in the order in which they were issued. A call starts when
all of these are done:

    its host's issue of it                        host   += issue_i
    the call before it on its stream              start_i = max(host, stream, what it waits for)
    each call that it waits for (an event)        stream  = start_i + seconds_i
    and, at a barrier, the same of all members    they start together

The whole takes until the last stream of the last rank has ended. One stream whose calls are all there
from the beginning takes their sum; with a host that issues them, these are two clocks, and the later one
sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuralpower.errors import InputError

Array = np.ndarray


class At(NamedTuple):
    """One call, by its rank and its number among the rank's calls, both from 0."""

    rank: int
    call: int


@dataclass(frozen=True)
class Rank:
    """The calls of one device as its host issues them; raises InputError for what cannot be."""

    seconds: Array  # [calls], on the device
    issue_s: Array | None = None  # [calls], of the host; None: all calls are there from the beginning
    stream: Array | None = None  # [calls], which stream runs each, from 0; None: one runs all

    def __post_init__(self) -> None:
        """Check shapes and signs."""
        for name in ("seconds", "issue_s", "stream"):
            value = getattr(self, name)
            if value is None:
                continue
            given = np.asarray(value)
            if given.shape != (len(self.seconds),):
                calls = f"{len(self.seconds)} calls"
                raise InputError(f"{name} of shape {given.shape} for {calls}: give one number a call")
            wrong = ~((given >= 0) & (given < np.inf))  # NaN, too
            if wrong.any():
                what = f"{name} holds {given[wrong][0]}"
                raise InputError(f"{what}: times and streams are finite numbers of at least 0")
            if name == "stream" and given.dtype.kind not in "iu":
                what = f"stream holds numbers of type {given.dtype}"
                raise InputError(f"{what}: streams are counted; give whole numbers")

    @property
    def issued_s(self) -> Array:
        """[calls], when the host has issued each."""
        return np.zeros(len(self.seconds)) if self.issue_s is None else np.cumsum(self.issue_s)


@dataclass(frozen=True)
class Plan:
    """Calls on streams of ranks, and what they wait for; raises InputError for a call that is not there."""

    ranks: Sequence[Rank]
    waits: Sequence[tuple[At, At]] = ()  # (a call, one that must have ended before it starts), on any ranks
    barriers: Sequence[Sequence[At]] = ()  # calls that start together, as those of a collective do

    def __post_init__(self) -> None:
        """Check that each call is there, and at one barrier at most."""
        members = [member for barrier in self.barriers for member in barrier]
        for rank, call in (*(one for pair in self.waits for one in pair), *members):
            if not (0 <= rank < len(self.ranks) and 0 <= call < len(self.ranks[rank].seconds)):
                what = f"call {call} of rank {rank} is waited for, and there is none"
                raise InputError(f"{what}; name one of the plan")
        if len(set(members)) < len(members):
            raise InputError("a call is at two barriers; give the calls that start together as one")


class Times(NamedTuple):
    """When the calls of a rank run, each [calls] in seconds from the beginning."""

    issued_s: Array
    start_s: Array
    end_s: Array


def end_s(plan: Plan) -> float:
    """When the last stream of the last rank ends, in seconds; 0 without calls."""
    return max((float(times.end_s.max()) for times in times_of(plan) if len(times.end_s)), default=0.0)


def times_of(plan: Plan) -> list[Times]:
    """When each call runs, a `Times` for each rank.

    Raises:
        InputError: calls that wait for one another in a circle.
    """
    if plan.waits or plan.barriers:
        return _followed(plan)
    return [_apart(rank) for rank in plan.ranks]


def _apart(rank: Rank) -> Times:
    """Of a rank whose streams wait for its host alone.

    A call ends when the one that was waited for longest has let all after it run: max over j up to i of
    (issued_j + the seconds of j to i).
    """
    issued, seconds = rank.issued_s, np.asarray(rank.seconds, dtype=float)
    start, end = np.empty(len(seconds)), np.empty(len(seconds))
    streams: Iterable[Array] = [np.arange(len(seconds))]
    if rank.stream is not None:
        streams = [np.flatnonzero(rank.stream == one) for one in np.unique(rank.stream)]
    for at in streams:
        done = np.cumsum(seconds[at])
        end[at] = done + np.maximum.accumulate(issued[at] - (done - seconds[at]))
        start[at] = np.maximum(issued[at], np.concatenate([np.zeros(1), end[at]])[:-1])
    return Times(issued, start, end)


def _followed(plan: Plan) -> list[Times]:
    """The same where calls wait for others: one call, or all of a barrier, after what they wait for."""
    first = np.cumsum([0, *(len(rank.seconds) for rank in plan.ranks)])
    count = int(first[-1])
    seconds = np.concatenate([np.asarray(rank.seconds, dtype=float) for rank in plan.ranks])
    start = np.concatenate([rank.issued_s for rank in plan.ranks])  # not before
    issued = start.copy()
    together = [[i] for i in range(count)]
    for barrier in plan.barriers:
        members = [int(first[rank]) + call for rank, call in barrier]
        for i in members:
            together[i] = members
    after: list[list[int]] = [[] for _ in range(count)]
    missing = np.zeros(count, dtype=int)  # calls that have to end first
    for one, other in (
        *_queues(plan, first),
        *((first[a.rank] + a.call, first[b.rank] + b.call) for b, a in plan.waits),
    ):
        after[one].append(int(other))
        missing[other] += 1
    end = np.full(count, np.nan)
    ready = [i for i in range(count) if not missing[i]]
    while ready:
        i = ready.pop()
        members = together[i]
        if not np.isnan(end[i]) or missing[members].any():  # the barrier's last member starts all
            continue
        start[members] = start[members].max()
        end[members] = start[members] + seconds[members]
        for done in members:
            for other in after[done]:
                start[other] = max(start[other], end[done])
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
    if np.isnan(end).any():
        rank = int(np.searchsorted(first, np.flatnonzero(np.isnan(end))[0], side="right")) - 1
        raise InputError(f"calls of rank {rank} wait for one another in a circle; leave one of the waits out")
    return [Times(issued[a:b], start[a:b], end[a:b]) for a, b in zip(first[:-1], first[1:], strict=True)]


def _queues(plan: Plan, first: Array) -> list[tuple[int, int]]:
    """(a call, the next one on its stream), counted over all ranks."""
    pairs: list[tuple[int, int]] = []
    for begin, rank in zip(first, plan.ranks, strict=False):
        last: dict[int, int] = {}
        for i in range(len(rank.seconds)):
            stream = 0 if rank.stream is None else int(rank.stream[i])
            if stream in last:
                pairs.append((last[stream], int(begin) + i))
            last[stream] = int(begin) + i
    return pairs
