"""The passes that make a forward pass, a backward pass or a step of training of a recorded trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.errors import InputError
from neuralpower.layers.base import BACKWARD, FORWARD, in_tf32
from neuralpower.layers.optimizer import Optimizer
from neuralpower.trace.gradients import addition
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Learnt, Question
from neuralpower.trace.records import (
    LayerCall,
    Task,
    Trace,
    backward_calls,
    module_of,
    pattern,
    prefixes,
    run_again,
)
from neuralpower.trace.sparse_gradients import check_sparse, grows, joined, step_of_rows, stored
from neuralpower.trace.training import OPTIMIZER, TRAINING, Recipe


@trace_pass(place="calls", applies=lambda _, asked: asked.phase == TRAINING and asked.recipe.checkpointing)
def checkpointing(trace: Trace, question: Question) -> Trace:
    """Mark the calls of repeated blocks that run again in the backward pass: a block keeps its input alone.

    The model's own use of `torch.utils.checkpoint` is marked when the pass is recorded.
    """
    again = {call.at for _, block in groupby(trace.calls, key=_block) for call in run_again([*block])}
    calls = tuple(replace(c, again=True) if _block(c) and c.at in again else c for c in trace.calls)
    return replace(trace, calls=calls)


def _block(call: LayerCall) -> str:
    """Path of the repeated block that the call is made in; "" where it is made in none."""
    return next((above for above in (*prefixes(call.path), call.path) if pattern(above) != above), "")


@trace_pass(place="forward", applies=lambda _, asked: asked.phase != BACKWARD)
def forward(trace: Trace, question: Question) -> Trace:
    """Make a task of each call."""
    tasks = (Task(call.path, call.layer, operator=call.operator, at=call.at) for call in trace.calls)
    return replace(trace, tasks=(*trace.tasks, *tasks))


@trace_pass(place="backward", applies=lambda _, asked: asked.phase in (BACKWARD, TRAINING))
def backward(trace: Trace, question: Question) -> Trace:
    """Add the backward pass: what runs again, the calls in reverse, and the additions of gradients.

    A kind whose backward pass was not measured does what its formulas say, as forward passes. What is not
    modelled takes as long backward as forward, so a step of training has it twice.
    """
    tasks = [_own(call) for call in trace.calls if call.again]
    for call in backward_calls(trace.calls, trace.own_backward):
        tasks += _reversed(call, question.learnt) if call.gradient else [_own(call)]
    tasks += [Task(call.path, call.layer, BACKWARD) for call in reversed(trace.gradients)]
    twice = question.phase == TRAINING
    unmodelled = tuple(one for one in trace.unmodelled for _ in range(2 if twice and not one.once else 1))
    return replace(trace, tasks=(*trace.tasks, *tasks), unmodelled=unmodelled)


def _own(call: LayerCall) -> Task:
    """A call that a backward pass makes as it is: one of its own, or one that runs again."""
    return Task(call.path, call.layer, BACKWARD, again=call.again, operator=call.operator)


def _reversed(call: LayerCall, learnt: Learnt) -> Iterator[Task]:
    """A share of the pass that was measured as a whole; else what makes each gradient that is asked for.

    A bias alone asks for none of the products that a measured pass is mostly made of.
    """
    layer, parts, share = call.layer, call.layer.backward_of(call.asked), call.gradient
    of_products = not layer.multiplies or call.asked is None or any(part.kind == layer.kind for part in parts)
    if learnt(layer.kind, BACKWARD) and of_products:
        whole = replace(layer, phase=BACKWARD)
        yield Task(call.path, whole, BACKWARD, share, operator=call.operator, asked=call.asked)
        return
    for part in parts:
        single = replace(part, phase=FORWARD)
        yield Task(call.path, single, BACKWARD, share if call.asked is None else 1.0, operator=call.operator)


def _something_is_kept(trace: Trace, question: Question) -> bool:
    """Whether a step has several micro-batches, or gradients of rows, which even one has to store."""
    return question.phase == TRAINING and (question.recipe.accumulation > 1 or bool(trace.sparse))


@trace_pass(place="micro-batches", applies=_something_is_kept)
def accumulation(trace: Trace, question: Question) -> Trace:
    """Repeat the tasks for each micro-batch, and add its gradients to those of the ones before it."""
    count = question.recipe.accumulation
    tasks = [task for number in range(count) for task in (*trace.tasks, *_accumulated(trace, number))]
    unmodelled = tuple(one for one in trace.unmodelled for _ in range(count))
    return replace(trace, tasks=tuple(tasks), unmodelled=unmodelled)


def _accumulated(trace: Trace, number: int) -> Iterator[Task]:
    """What adds a micro-batch's gradients, by its number from 0, to those before it."""
    if number:
        yield from (Task("", addition(dtype, numbers), BACKWARD) for dtype, numbers in trace.trained)
    for name, rows in trace.sparse:
        layers = joined(rows.times(number + 1)) if number else stored(rows)
        yield from (Task(module_of(name), layer, BACKWARD) for layer in layers)


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
        step = Optimizer(dtype=dtype, tensors=len(sizes), elements=sum(sizes), **how)
        yield Task("", step, OPTIMIZER)
    for name, rows in trace.sparse:
        parts = step_of_rows(recipe.optimizer, rows.times(recipe.accumulation))
        yield from (Task(module_of(name), layer, OPTIMIZER) for layer in parts)


@trace_pass(place="types", applies=lambda _, asked: asked.dtype == TENSORFLOAT32)
def tensorfloat32(trace: Trace, question: Question) -> Trace:
    """Let each product compute in TensorFloat-32, whose units round float32 operands to 19 bits."""
    return replace(trace, tasks=tuple(replace(task, layer=in_tf32(task.layer)) for task in trace.tasks))
