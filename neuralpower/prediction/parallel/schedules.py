"""Pipeline schedules: in which order a stage runs its micro-batches, and how long a step then takes.

    gpipe        all forward passes, then all backward passes (Huang et al., "GPipe", 2019)
    1f1b         as many forward passes as stages follow, then one backward for one forward, so that fewer
                 activations are kept (Narayanan et al., "PipeDream", 2019, with flushes)
    interleaved  the same with several pieces of the network on each rank: shorter waits, more messages
                 (Narayanan et al., "Efficient Large-Scale Language Model Training", 2021, section 2.2)

A stage runs its next pass while it sends its result; the next stage waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuralpower.devices.cluster import Layout
from neuralpower.errors import InputError
from neuralpower.prediction.streams import At, Plan, Rank, Times, times_of

ROUNDS = 4  # micro-batches for each stage: with more, a stage holds no more
STEADY = 2  # times the stages: from this number of micro-batches on, each takes as long as the one before


class Work(NamedTuple):
    """One pass of one micro-batch through one piece of a rank."""

    piece: int  # of the rank, from 0
    batch: int  # micro-batch, from 0
    backward: bool


@dataclass(frozen=True)
class Pipeline:
    """Pieces of a network in the order in which they run: piece k lies on rank k modulo `ranks`."""

    forward_s: Sequence[float]  # [pieces] of one micro-batch
    backward_s: Sequence[float]  # [pieces]; zeros in inference
    send_s: Sequence[float]  # [pieces] to the next one, and of a gradient the way back; the last is not used
    ranks: int
    schedule: str = "1f1b"

    @property
    def pieces(self) -> int:
        return len(self.forward_s) // self.ranks


def step_s(pipeline: Pipeline, batches: int) -> float:
    """Seconds from the first micro-batch's begin to the last one's end; raises InputError as `orders`."""
    return max(ends_s(pipeline, batches))


def ends_s(pipeline: Pipeline, batches: int) -> list[float]:
    """[ranks] when each has done its passes, in seconds; raises InputError as `orders`.

    From STEADY times the stages on, as many micro-batches as there are stages take as long as those before
    them: the others are not laid out.
    """
    p = pipeline.ranks
    few = STEADY * p + batches % p
    if batches <= few + p:
        return _ends_s(pipeline, batches)
    rounds = (batches - few) // p
    pairs = zip(_ends_s(pipeline, few), _ends_s(pipeline, few - p), strict=True)
    return [most + rounds * (most - before) for most, before in pairs]


def _ends_s(pipeline: Pipeline, batches: int) -> list[float]:
    return [float(times.end_s[: len(works)].max()) for works, times in laid_out(pipeline, batches)]


def orders(pipeline: Pipeline, batches: int) -> list[list[Work]]:
    """What each rank runs, in order.

    Raises:
        InputError: a schedule in pieces needs a whole number of rounds over the ranks.
    """
    p, pieces = pipeline.ranks, pipeline.pieces
    if pieces > 1 and batches % p:
        raise InputError(
            f"{batches} micro-batches: interleaved goes over {p} stages in rounds; choose a multiple of {p}"
        )
    forward = [_turn(number, p, pieces, False) for number in range(batches * pieces)]
    if not any(pipeline.backward_s):
        return [list(forward) for _ in range(p)]
    backward = [_turn(number, p, pieces, True) for number in range(batches * pieces)]
    works = []
    for rank in range(p):
        first = _first(pipeline, rank, batches)
        order = forward[:first]
        for ahead, back in zip(forward[first:], backward, strict=False):
            order += (ahead, back)
        works.append([*order, *backward[len(forward) - first :]])
    return works


def order_of(layout: Layout, batches: int) -> list[list[Work]]:
    """What each rank runs in a training step, as far as it says how many activations a rank holds.

    Raises:
        InputError: as `orders`.
    """
    p = layout.pipeline
    ones = [1.0] * (p * layout.interleave)
    return orders(Pipeline(ones, ones, ones, p, layout.schedule), min(batches, ROUNDS * p))


def _first(pipeline: Pipeline, rank: int, batches: int) -> int:
    """Forward passes of a rank before its first backward pass, but for the one right before it."""
    p, pieces = pipeline.ranks, pipeline.pieces
    every = batches * pieces
    if pipeline.schedule == "gpipe":
        return every
    ahead = p - rank - 1
    return min(2 * ahead + (pieces - 1) * p if pieces > 1 else ahead, every)


def _turn(number: int, ranks: int, pieces: int, backward: bool) -> Work:
    """The pass that is due: `ranks` micro-batches through one piece, then through the next."""
    turn, place = divmod(number, ranks * pieces)
    piece, batch = divmod(place, ranks)
    if pieces == 1:
        return Work(0, number, backward)
    return Work(pieces - 1 - piece if backward else piece, turn * ranks + batch, backward)


def laid_out(pipeline: Pipeline, batches: int) -> list[tuple[list[Work], Times]]:
    """The passes of each rank in order, and when each runs, then its sends on a stream of their own."""
    order = orders(pipeline, batches)
    at = {(r, *work): i for r, works in enumerate(order) for i, work in enumerate(works)}
    p, last = pipeline.ranks, len(pipeline.forward_s) - 1
    ranks, waits = [], []
    for r, works in enumerate(order):
        seconds: list[float] = []
        sends: list[float] = []
        for i, work in enumerate(works):
            k = work.piece * p + r
            seconds.append((pipeline.backward_s if work.backward else pipeline.forward_s)[k])
            to = k - 1 if work.backward else k + 1
            if 0 <= to <= last:
                send = len(works) + len(sends)
                sends.append(pipeline.send_s[min(k, to)])
                waits.append((At(r, send), At(r, i)))
                other = to % p
                waits.append((At(other, at[other, to // p, work.batch, work.backward]), At(r, send)))
        stream = np.repeat([0, 1], [len(works), len(sends)])
        ranks.append(Rank(np.array([*seconds, *sends]), stream=stream))
    return list(zip(order, times_of(Plan(ranks, waits)), strict=True))


def held(order: Iterable[Work]) -> dict[int, int]:
    """The micro-batches of each piece whose activations a rank holds when it holds the most, in all."""
    now: dict[int, int] = {}
    most: dict[int, int] = {}
    for work in order:
        now[work.piece] = now.get(work.piece, 0) + (-1 if work.backward else 1)
        if sum(now.values()) > sum(most.values()):
            most = dict(now)
    return most
