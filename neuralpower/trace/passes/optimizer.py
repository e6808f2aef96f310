"""The optimizer's step: once for all micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralpower.errors import InputError
from neuralpower.layers.optimizer import Optimizer
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import module_of
from neuralpower.trace.question import Question
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.sparse_gradients import check_sparse, grows, step_of_rows
from neuralpower.trace.training import OPTIMIZER, TRAINING, Recipe


@trace_pass(place="update", applies=lambda trace, question: question.phase == TRAINING)
def optimizer(trace: Trace, question: Question) -> Trace:
    """Add one step over all parameters with dense gradients, and over the rows of the others.

    Raises:
        InputError: no parameter of the model is trained, or the optimizer does not take its gradients.
    """
    recipe = question.recipe
    if not trace.trained and not trace.sparse:
        raise InputError(
            "no parameter of the model requires a gradient: nothing to train; choose phase forward"
        )
    rows = [name for name, _ in trace.sparse]
    check_sparse(recipe.optimizer, recipe.implementation, rows, trace.trained_names)
    granted = trace.granted
    if rows and recipe.optimizer == "sgd":
        granted = (*granted, grows(trace.sparse, recipe.accumulation))
    return replace(trace, tasks=(*trace.tasks, *_step(trace, recipe)), granted=granted)


def _step(trace: Trace, recipe: Recipe) -> list[Task]:
    """The tasks of the step."""
    tasks = []
    function, implementation = recipe.optimizer, recipe.implementation
    for dtype in dict.fromkeys(dtype for dtype, _ in trace.trained):
        sizes = [numbers for other, numbers in trace.trained if other == dtype]
        numbers: dict[str, Any] = {"tensors": len(sizes), "elements": sum(sizes)}
        step = Optimizer(dtype=dtype, function=function, implementation=implementation, **numbers)
        tasks.append(Task("", step, OPTIMIZER))
    for name, rows in trace.sparse:
        parts = step_of_rows(function, rows.times(recipe.accumulation))
        tasks += [Task(module_of(name), layer, OPTIMIZER) for layer in parts]
    return tasks
