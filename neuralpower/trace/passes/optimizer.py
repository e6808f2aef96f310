"""The optimizer's step: once for all micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from neuralpower.errors import InputError
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import Optimizer
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import module_of
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING, Recipe
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.sparse_gradients import check_sparse, grows, step_of_rows


@trace_pass(place="update", applies=lambda _, asked: asked.phase == TRAINING)
def optimizer(trace: Trace, question: Question) -> Trace:
    """Add one step over all parameters with dense gradients, and over the rows of the others.

    Raises:
        InputError: no parameter of the model is trained, or the optimizer does not take its gradients.
    """
    recipe, granted = question.recipe, trace.granted
    if not trace.trained and not trace.sparse:
        nothing = "no parameter of the model requires a gradient: nothing to train"
        raise InputError(f"{nothing}; choose phase forward")
    rows = [name for name, _ in trace.sparse]
    check_sparse(recipe.optimizer, recipe.implementation, rows, trace.trained_names)
    if rows and recipe.optimizer == "sgd":
        granted = (*granted, grows(trace.sparse, recipe.accumulation))
    return replace(trace, tasks=(*trace.tasks, *_step(trace, recipe)), granted=granted)


def _step(trace: Trace, recipe: Recipe) -> Iterator[Task]:
    """The tasks of the step."""
    how: dict[str, Any] = {"function": recipe.optimizer, "implementation": recipe.implementation}
    for dtype in dict.fromkeys(dtype for dtype, _ in trace.trained):
        sizes = [numbers for other, numbers in trace.trained if other == dtype]
        kept = recipe.gradient_dtype(dtype)
        step = Optimizer(dtype=kept, tensors=len(sizes), elements=sum(sizes), **how)
        yield Task("", step, OPTIMIZER)
        if kept != dtype:  # the weights become the masters, rounded
            yield Task("", Movement(dtype=dtype, function="cast", elements=sum(sizes)), OPTIMIZER)
    for name, rows in trace.sparse:
        parts = step_of_rows(recipe.optimizer, rows.times(recipe.accumulation))
        yield from (Task(module_of(name), layer, OPTIMIZER) for layer in parts)
