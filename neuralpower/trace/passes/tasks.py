"""Tasks of the forward pass, then of the calls that a gradient goes through, the last one first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from neuralpower.layers.base import BACKWARD, GRADIENT
from neuralpower.layers.training import backward_of
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import block_of
from neuralpower.trace.question import Knows, Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import LayerCall, Task, Trace, backward_calls


@trace_pass(place="forward", applies=lambda _, asked: asked.phase != BACKWARD)
def forward(trace: Trace, question: Question) -> Trace:
    """Make a task of each call."""
    tasks = (
        Task(c.path, c.layer, share=c.share, operator=c.operator, at=c.at, parts=c.parts) for c in trace.calls
    )
    return replace(trace, tasks=(*trace.tasks, *tasks))


@trace_pass(place="backward", applies=lambda _, asked: asked.phase in (BACKWARD, TRAINING))
def backward(trace: Trace, question: Question) -> Trace:
    """Add the backward pass: what runs again, the calls in reverse, and the additions of gradients.

    A kind whose backward pass was not measured does what its formulas say, as forward passes. What is not
    modelled takes as long backward as forward, so a step of training has it twice.
    """
    again, sums = by_block(trace.repeated), by_block(trace.gradients)
    tasks: list[Task] = []
    passed = backward_calls(trace.calls, trace.own_backward)
    for block, calls in groupby(passed, key=lambda call: block_of(call.path)):
        tasks += [_own(call) for call in again.pop(block, ())]
        for call in calls:
            tasks += _reversed(call, question.knows) if call.gradient else [_own(call)]
        if block:
            tasks += [_sum(call) for call in reversed(sums.pop(block, ()))]
    tasks += [_own(call) for some in again.values() for call in some]
    tasks += [_sum(call) for some in reversed([*sums.values()]) for call in reversed(some)]
    twice = question.phase == TRAINING
    unmodelled = tuple(one for one in trace.unmodelled for _ in range(2 if twice and not one.once else 1))
    return replace(trace, tasks=(*trace.tasks, *tasks), unmodelled=unmodelled)


def by_block(calls: Iterable[LayerCall]) -> dict[str, list[LayerCall]]:
    """The calls of each repeated block, and of "" those in none."""
    found: dict[str, list[LayerCall]] = {}
    for call in calls:
        found.setdefault(block_of(call.path), []).append(call)
    return found


def _sum(call: LayerCall) -> Task:
    """An addition of gradients, right after the backward pass of the block that makes them."""
    return Task(call.path, call.layer, BACKWARD)


def _own(call: LayerCall) -> Task:
    """A call that a backward pass makes unchanged: its own call, or one that runs again."""
    again = call.again
    return Task(call.path, call.layer, BACKWARD, again=again, operator=call.operator, parts=call.parts)


def _reversed(call: LayerCall, knows: Knows) -> Iterator[Task]:
    """A share of the pass that was measured as a whole; else the calls that make each needed gradient.

    A bias alone asks for none of the products that a measured pass is mostly made of.
    """
    layer, parts, share = call.layer, backward_of(call.layer, call.asked), call.gradient
    of_products = not layer.multiplies or call.asked is None or any(part.kind == layer.kind for part in parts)
    if knows(layer.kind, BACKWARD) and of_products and not layer.training.in_parts(layer):
        whole = replace(layer, phase=BACKWARD)
        yield Task(call.path, whole, BACKWARD, share, operator=call.operator, asked=call.asked)
        return
    for part in parts:
        single = replace(part, phase=GRADIENT)
        yield Task(call.path, single, BACKWARD, share if call.asked is None else 1.0, operator=call.operator)
