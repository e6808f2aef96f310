"""Streams: when each call runs, given its stream, when its host issues it and what it waits for.

A rank is one device and its host. The host issues the rank's calls one after the other and waits for nothing;
a stream of the device runs its calls in the order in which they were issued. A call starts when all of these
are done:

    its host's issue of it                        host   += issue_i
    the call before it on its stream              start_i = max(host, stream, what it waits for)
    each call that it waits for (an event)        stream  = start_i + seconds_i
    and, at a barrier, the same of all members    they start together

The whole takes until the last stream of the last rank has ended. One stream whose calls are all there from
the beginning takes their sum; with a host that issues them, there are two clocks, and the later one sets the
pace.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
        for name in ("seconds", "issue_s", "stream"):
            value = getattr(self, name)
            if value is None:
                continue
            given, calls = np.asarray(value), len(self.seconds)
            wrong = ~((given >= 0) & (given < np.inf))  # NaN, too
            said = ""
            if given.shape != (calls,):
                said = f"of shape {given.shape} for {calls} calls: give one number per call"
            elif wrong.any():
                said = f"holds {given[wrong][0]}: times and streams must be finite numbers, 0 or more"
            elif name == "stream" and given.dtype.kind not in "iu":
                said = f"holds numbers of type {given.dtype}: streams must be whole numbers"
            if said:
                raise InputError(f"{name} {said}")

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
                raise InputError(
                    f"call {call} of rank {rank} does not exist, but another waits for it; "
                    "choose one of the plan"
                )
        if len(set(members)) < len(members):
            raise InputError("a call is at two barriers; join the calls that start together in one")


class Times(NamedTuple):
    """When the calls of a rank run, each [calls] in seconds from the beginning."""

    issued_s: Array
    start_s: Array
    end_s: Array


def end_s(plan: Plan) -> float:
    """When the last stream of the last rank ends, in seconds; 0 without calls."""
    return max((float(times.end_s.max()) for times in times_of(plan) if len(times.end_s)), default=0.0)


def times_of(plan: Plan) -> list[Times]:
    """When each call runs, by rank; raises InputError for calls that wait for one another in a circle."""
    return _followed(plan) if plan.waits or plan.barriers else [_apart(rank) for rank in plan.ranks]


def _apart(rank: Rank) -> Times:
    """The times of a rank whose streams wait for its host alone.

    A call ends when the one that was waited for longest has let all after it run: max over j up to i of
    (issued_j + the seconds of j to i).
    """
    issued, seconds = rank.issued_s, np.asarray(rank.seconds, dtype=float)
    start, end = np.empty(len(seconds)), np.empty(len(seconds))
    stream = np.zeros(len(seconds)) if rank.stream is None else rank.stream
    for one in np.unique(stream):
        at = np.flatnonzero(stream == one)
        done = np.cumsum(seconds[at])
        end[at] = done + np.maximum.accumulate(issued[at] - (done - seconds[at]))
        start[at] = np.maximum(issued[at], np.concatenate([np.zeros(1), end[at]])[:-1])
    return Times(issued, start, end)


def _followed(plan: Plan) -> list[Times]:
    """The same where calls wait for others: one call, or all of a barrier, after what they wait for."""
    first = np.cumsum([0, *(len(rank.seconds) for rank in plan.ranks)])
    count = int(first[-1])
    seconds = [float(one) for rank in plan.ranks for one in rank.seconds]  # plain numbers are quicker here
    issued = np.concatenate([rank.issued_s for rank in plan.ranks])
    start = issued.tolist()  # not before
    together = [[i] for i in range(count)]
    for barrier in plan.barriers:
        members = [int(first[rank]) + call for rank, call in barrier]
        for i in members:
            together[i] = members
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count  # calls that have to end first
    events = [(int(first[a.rank]) + a.call, int(first[b.rank]) + b.call) for b, a in plan.waits]
    for one, other in (*_queues(plan, first), *events):
        after[one].append(other)
        missing[other] += 1
    ends: list[float | None] = [None] * count
    ready = [i for i in range(count) if not missing[i]]
    while ready:
        i = ready.pop()
        members = together[i]
        if ends[i] is not None or any(missing[one] for one in members):  # a barrier's last member starts all
            continue
        begin = max(start[one] for one in members)
        for done in members:
            start[done], ended = begin, begin + seconds[done]
            ends[done] = ended
            for other in after[done]:
                start[other] = max(start[other], ended)
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
    begun, end = np.array(start), np.array(ends, dtype=float)
    if np.isnan(end).any():
        rank = int(np.searchsorted(first, np.flatnonzero(np.isnan(end))[0], side="right")) - 1
        raise InputError(f"calls of rank {rank} wait for one another in a circle; remove one of the waits")
    return [Times(issued[a:b], begun[a:b], end[a:b]) for a, b in zip(first[:-1], first[1:], strict=True)]


def _queues(plan: Plan, first: Array) -> list[tuple[int, int]]:
    """(a call, the next one on its stream), counted over all ranks."""
    pairs: list[tuple[int, int]] = []
    for begin, rank in zip(first, plan.ranks, strict=False):
        stream = np.zeros(len(rank.seconds)) if rank.stream is None else rank.stream
        for one in np.unique(stream):
            pairs += itertools.pairwise((int(begin) + np.flatnonzero(stream == one)).tolist())
    return pairs
