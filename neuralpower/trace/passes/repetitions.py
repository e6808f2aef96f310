"""What runs several times: micro-batches before a step of the optimizer, a pipeline's denoiser in a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import module_of
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.steps.gradients import addition
from neuralpower.trace.steps.sparse_gradients import joined, stored


def _something_is_kept(trace: Trace, question: Question) -> bool:
    """Whether a step has several micro-batches, or gradients of rows, which even one has to store."""
    return question.phase == TRAINING and (question.recipe.accumulation > 1 or bool(trace.sparse))


@trace_pass(place="micro-batches", applies=_something_is_kept)
def accumulation(trace: Trace, question: Question) -> Trace:
    """Repeat the tasks for each micro-batch, and add its gradients to those of the ones before it."""
    count = question.recipe.accumulation
    tasks = [
        task
        for number in range(count)
        for task in (*_repeated(trace, number == count - 1), *_accumulated(trace, question, number))
    ]
    unmodelled = tuple(one for one in trace.unmodelled for _ in range(count))
    return replace(trace, tasks=tuple(tasks), unmodelled=unmodelled)


def further(trace: Trace, recipe: Recipe) -> Iterator[Layer]:
    """Additions of one more micro-batch's gradients; weights with masters have them as they are made."""
    for dtype, numbers in trace.trained:
        if recipe.gradient_dtype(dtype) == dtype:
            yield addition(dtype, numbers)


def _repeated(trace: Trace, last: bool) -> Iterator[Task]:
    """The tasks of one micro-batch: exchanges between replicas follow the last one alone."""
    return (task for task in trace.tasks if last or not task.last)


def _accumulated(trace: Trace, question: Question, number: int) -> Iterator[Task]:
    """Calls that add a micro-batch's gradients, by its number from 0, to those before it."""
    if number:
        yield from (Task("", layer, BACKWARD) for layer in further(trace, question.recipe))
    for name, rows in trace.sparse:
        layers = joined(rows.times(number + 1)) if number else stored(rows)
        yield from (Task(module_of(name), layer, BACKWARD) for layer in layers)


@trace_pass(place="micro-batches", applies=lambda trace, _: trace.picture is not None)
def repeated_parts(trace: Trace, question: Question) -> Trace:
    """Count the tasks of each part as often as it runs."""
    times = trace.picture.times if trace.picture and question.phase == FORWARD else {}
    tasks = (
        replace(task, share=task.share * times.get(task.path.partition(".")[0], 1)) for task in trace.tasks
    )
    return replace(trace, tasks=tuple(tasks))
