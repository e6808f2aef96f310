"""The pieces of a network on their ranks: the tasks of each, and what a predictor says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.devices.layout import ONE
from neuralpower.layers.base import BACKWARD
from neuralpower.learn.network_estimates import Answer, ask
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.parallel.timing import FURTHER, Timing, timed_part
from neuralpower.trace.exchanges import exchanged_by_ends, sent
from neuralpower.trace.passes import applied
from neuralpower.trace.passes.accumulation import further
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.stages import Part


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
    found = []
    for number, part in enumerate(parts):
        work = _work(part, number, len(parts), question)
        whole = _key(work)
        if whole not in known:
            answer = ask(predictor, work, question)
            known[whole] = answer, timed_part(answer)
        found.append(Piece(part, work, *known[whole]))
    return found


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
