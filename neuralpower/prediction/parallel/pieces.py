"""The pieces of a network on their ranks: the tasks of each, and what a predictor says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neuralpower.devices.layout import ONE
from neuralpower.layers.base import BACKWARD
from neuralpower.layers.collective import Collective
from neuralpower.learn.network_estimates import Answer, ask
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.compose import Whole
from neuralpower.prediction.parallel.schedules import Pipeline, ends_s
from neuralpower.prediction.parallel.timing import FURTHER, Timing, timed_part
from neuralpower.prediction.rows import Interval
from neuralpower.trace.parts.exchanges import exchanged_by_ends, sent
from neuralpower.trace.parts.stages import Part
from neuralpower.trace.passes import applied
from neuralpower.trace.passes.repetitions import further
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING
from neuralpower.trace.records import Task, Trace


def one_micro_batch(question: Question) -> Question:
    """The same question of one micro-batch on one device: what is followed for every layout."""
    return replace(question, layout=ONE, recipe=replace(question.recipe, accumulation=1))


@dataclass(frozen=True)
class Piece:
    """One piece, its tasks for one micro-batch and how long they take."""

    part: Part
    work: Trace
    answer: Answer
    timing: Timing


def pieces_of(parts: Sequence[Part], predictor: Predictor, question: Question) -> list[Piece]:
    """The pieces of a network; equal ones are asked about once."""
    known: dict[tuple[object, ...], tuple[Answer, Timing]] = {}
    pieces = []
    for number, part in enumerate(parts):
        work = _work(part, number, len(parts), question)
        whole = _key(work)
        if whole not in known:
            answer = ask(predictor, work, question)
            known[whole] = answer, timed_part(answer)
        pieces.append(Piece(part, work, *known[whole]))
    return pieces


def _key(work: Trace) -> tuple[object, ...]:
    """What makes two works take the same time."""
    numbers: dict[object, int] = {}
    known: dict[int, int] = {}  # by identity: most layers are the same object, and comparing them takes time

    def number(task: Task) -> int:
        layer = task.layer
        if id(layer) not in known:
            known[id(layer)] = numbers.setdefault(layer, len(numbers))
        return known[id(layer)]

    order = tuple((number(t), t.step, t.share, t.stream, bool(t.waits), t.last, t.asked) for t in work.tasks)
    return order, tuple(numbers), len(work.unmodelled)


def _work(part: Part, number: int, count: int, question: Question) -> Trace:
    """The tasks of a piece for one micro-batch, then what further ones add."""
    single = replace(question, recipe=replace(question.recipe, accumulation=1))
    work = applied(part.trace, single)
    if question.phase != TRAINING:
        dtype, numbers = part.output
        if numbers:  # the next stage waits for it
            send = Task("", sent(question, number % question.layout.pipeline, dtype, numbers))
            work = replace(work, tasks=(*work.tasks, send))
        return work
    tasks = list(work.tasks)
    if part.twice and number in (0, count - 1):
        dtype = part.trace.weights[0].dtype if part.trace.weights else question.dtype
        layer = exchanged_by_ends(question, question.recipe.gradient_dtype(dtype), part.twice)
        at = next((i for i, task in enumerate(tasks) if task.step == OPTIMIZER), len(tasks))
        tasks.insert(at, Task("", layer, BACKWARD, last=True))
    sums = further(part.trace, question.recipe)
    tasks += (Task("", layer, BACKWARD, event=FURTHER) for layer in sums)
    return replace(work, tasks=tuple(tasks))


def sends_s(outputs: Sequence[tuple[str, int]], predictor: Predictor, question: Question) -> list[float]:
    """[pieces] seconds in which each sends a micro-batch's result to the next one; 0 of the last.

    Args:
        outputs: (dtype, numbers) of each result, but for the last piece's.
        predictor: of one of the devices.
        question: its layout and its cluster say how far neighbours are apart.
    """
    if not outputs:
        return [0.0]
    stages = question.layout.pipeline
    layers = [sent(question, i % stages, dtype, max(size, 1)) for i, (dtype, size) in enumerate(outputs)]
    found = predictor.estimate_network(layers, np.ones(len(layers)))
    return [*found.runtime_s.tolist(), 0.0]


@dataclass(frozen=True)
class Course:
    """How the ranks of a layout run their pieces: a pass, or a step of several micro-batches.

    Args:
        question: its layout, schedule and micro-batches; in inference these are batches in flight.
        predictor: of one of the devices.
        timings: [pieces] of each.
        outputs: [pieces - 1] (dtype, numbers) of what each hands to the next.
    """

    question: Question
    predictor: Predictor
    timings: Sequence[Timing]
    outputs: Sequence[tuple[str, int]]

    @property
    def trains(self) -> bool:
        return self.question.phase == TRAINING

    @property
    def ranks(self) -> int:
        return self.question.layout.pipeline

    @property
    def count(self) -> int:
        """How often a piece runs in what `runtime_s` is of."""
        return self.question.recipe.accumulation if self.trains else 1

    def of_rank(self, rank: int) -> Sequence[Timing]:
        return self.timings[rank :: self.ranks]

    @cached_property
    def pipeline(self) -> Pipeline:
        """The schedule's numbers; exchanges between stages of an inference are tasks of its pieces."""
        further = (self.question.recipe.accumulation - 1) / self.question.recipe.accumulation
        return Pipeline(
            forward_s=[timing.forward_s for timing in self.timings],
            backward_s=[timing.backward_s + further * timing.further_s for timing in self.timings],
            send_s=sends_s(self.outputs, self.predictor, self.question)
            if self.trains
            else [0.0] * len(self.timings),
            ranks=self.ranks,
            schedule=self.question.layout.schedule,
        )

    @cached_property
    def busy_s(self) -> list[float]:
        """[ranks] what each works without waits for others."""
        return [
            sum(timing.alone_s(self.count) for timing in self.of_rank(rank)) for rank in range(self.ranks)
        ]

    @property
    def endings_s(self) -> list[float]:
        """[ranks] what each does after its last micro-batch."""
        return [sum(timing.ending_s for timing in self.of_rank(rank)) for rank in range(self.ranks)]

    @cached_property
    def runtime_s(self) -> float:
        """The time of the pass or the step."""
        if not self.trains:
            return sum(self.busy_s)
        if self.ranks == 1:
            return self.busy_s[0]
        ends = ends_s(self.pipeline, self.count)
        return max(end + ending for end, ending in zip(ends, self.endings_s, strict=True))

    @property
    def slowest(self) -> int:
        return max(range(self.ranks), key=lambda rank: self.busy_s[rank])

    @property
    def exposed_s(self) -> float:
        """The part of the slowest rank's exchanges that nothing hides."""
        return sum(timing.exposed_s(self.count) for timing in self.of_rank(self.slowest))

    @property
    def cycle_s(self) -> tuple[float, float]:
        """Until the next step, or the next batches in flight, are done; how long the slowest rank waits."""
        batches = 1 if self.trains else self.question.recipe.accumulation
        work = batches * self.busy_s[self.slowest]
        cycle_s = max(work, self.runtime_s) if batches > 1 else self.runtime_s
        return cycle_s, max(cycle_s - work, 0.0)


def repeats_of(answer: Answer, count: int) -> list[int]:
    """[tasks] how often each runs in a step of `count` micro-batches."""

    def times(task: Task) -> int:
        if task.event == FURTHER:
            return count - 1
        return 1 if task.last or task.step == OPTIMIZER else count

    return [times(task) for task in answer.tasks]


def merged(pieces: Sequence[Piece]) -> Trace:
    """The work of all pieces of a rank as one."""
    first, *others = (piece.work for piece in pieces)
    every = (first, *others)
    return replace(
        first,
        calls=tuple(call for one in every for call in one.calls),
        tasks=tuple(task for one in every for task in one.tasks),
        unmodelled=tuple(call for one in every for call in one.unmodelled),
        parameters=sum(one.parameters for one in every),
        parameter_bytes=sum(one.parameter_bytes for one in every),
    )


def times_of_rank(answer: Answer, timings: Sequence[Timing], count: int, runtime_s: float) -> Whole:
    """How long all takes, and the rows of a rank with pieces of `timings` in a step of `runtime_s`."""
    repeats = repeats_of(answer, count)
    inline = _exchange_s(answer, repeats, beside=False)
    beside = _exchange_s(answer, repeats, beside=True)
    exposed = max(sum(one.exposed_s(count) for one in timings) - inline, 0.0)
    factor = min(exposed / beside, 1.0) if beside else 1.0
    shown = [factor if task.stream else 1.0 for task in answer.tasks]
    bounds = Interval(1.0, *(bound / answer.busy[0] for bound in answer.busy[1:]))
    busy = sum(one.busy_s(count) for one in timings) - beside * (1 - factor)
    return Whole(bounds.times(runtime_s), bounds.times(min(busy, runtime_s)), repeats, shown)


def _exchange_s(answer: Answer, repeats: Sequence[int], *, beside: bool) -> float:
    """Seconds of exchanges on other streams, or on the layers' own."""
    return math.fsum(
        float(seconds) * times
        for task, seconds, times in zip(answer.tasks, answer.device_s, repeats, strict=True)
        if isinstance(task.layer, Collective) and bool(task.stream) == beside
    )
