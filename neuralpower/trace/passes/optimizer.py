"""The optimizer's step: once for all micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import MEASURED, STATES, Optimizer
from neuralpower.optimizers.registry import KNOWN, LOOP, States, possible
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import module_of
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING, Recipe
from neuralpower.trace.records import Task, Trace
from neuralpower.trace.steps.sparse_gradients import check_sparse, grows, step_of_rows


@trace_pass(place="update", applies=lambda _, asked: asked.phase == TRAINING)
def optimizer(trace: Trace, question: Question) -> Trace:
    """Add one step over all parameters with dense gradients, and over the rows of the others.

    Raises:
        InputError: no parameter of the model is trained, or the optimizer does not take its gradients.
    """
    recipe, granted = question.recipe, trace.granted
    if not trace.trained and not trace.sparse:
        if (stages := question.layout.pipeline) > 1:
            raise InputError(f"pipeline {stages}: a stage has no parameter to train; choose fewer stages")
        nothing = "no parameter of the model requires a gradient: nothing to train"
        raise InputError(f"{nothing}; choose phase forward")
    rows = [name for name, _ in trace.sparse]
    check_sparse(recipe.optimizer, recipe.implementation, rows, trace.trained_names)
    if rows and recipe.optimizer == "momentum":
        granted = (*granted, grows(trace.sparse, recipe.accumulation))
    if recipe.known not in MEASURED:
        granted = (*granted, _said(recipe))
    return replace(trace, tasks=(*trace.tasks, *_step(trace, recipe)), granted=granted)


def _step(trace: Trace, recipe: Recipe) -> Iterator[Task]:
    for dtype in dict.fromkeys(dtype for dtype, _ in trace.trained):
        sizes = [numbers for other, numbers in trace.trained if other == dtype]
        kept = recipe.gradient_dtype(dtype)
        yield Task("", _update(recipe, kept, len(sizes), sum(sizes)), OPTIMIZER)
        if kept != dtype:  # the weights become the masters, rounded
            yield Task("", Movement(dtype=dtype, function="cast", elements=sum(sizes)), OPTIMIZER)
    for name, rows in trace.sparse:
        parts = step_of_rows(recipe.optimizer, rows.times(recipe.accumulation))
        yield from (Task(module_of(name), layer, OPTIMIZER) for layer in parts)


def _update(recipe: Recipe, dtype: str, tensors: int, numbers: int) -> Optimizer:
    """The step over all dense gradients; an optimizer without a regressor moves its bytes as another does."""
    how: dict[str, Any] = {"dtype": dtype, "tensors": tensors, "implementation": recipe.implementation}
    if recipe.known in MEASURED:
        return Optimizer(function=MEASURED[recipe.known], elements=numbers, **how)
    itemsize = DTYPES[dtype].itemsize
    states = _state_bytes(recipe, itemsize) / itemsize
    function = MEASURED[_stand_in(recipe)]
    # parameters and states in and out, gradients in
    share = (3 + 2 * states) / (3 + 2 * STATES[function])
    if not possible(function, recipe.implementation):
        how["implementation"] = LOOP
    return Optimizer(function=function, elements=max(round(share * numbers), tensors), **how)


def _state_bytes(recipe: Recipe, itemsize: float) -> float:
    """Bytes of states per parameter whose own type has `itemsize` bytes."""
    if isinstance(recipe.states, States):
        return recipe.states.numbers * (
            DTYPES[recipe.states.dtype].itemsize if recipe.states.dtype else itemsize
        )
    known = KNOWN[recipe.known]
    return known.states * itemsize + known.state_bytes


def _stand_in(recipe: Recipe) -> str:
    """The optimizer with a regressor whose step is taken: by its bytes in float32."""
    return "momentum" if _state_bytes(recipe, 4.0) < 6 else "adamw"


def _said(recipe: Recipe) -> str:
    matrices = "; its matrix products are not included" if recipe.known and KNOWN[recipe.known].rest else ""
    plain = "; write momentum for sgd with momentum" if recipe.known == "sgd" else ""
    return (
        f"the time of {recipe.optimizer}'s step is assumed: that of {_stand_in(recipe)} over as many "
        f"bytes{matrices}{plain}"
    )
