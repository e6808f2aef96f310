"""The backward pass: of the calls that a gradient goes through, the last one first, and gradients' sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import block_of
from neuralpower.trace.question import Learnt, Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import LayerCall, Task, Trace, backward_calls


@trace_pass(place="backward", applies=lambda _, asked: asked.phase in (BACKWARD, TRAINING))
def backward(trace: Trace, question: Question) -> Trace:
    """Add the backward pass: what runs again, the calls in reverse, and the additions of gradients.

    A kind whose backward pass was not measured does what its formulas say, as forward passes. What is not
    modelled takes as long backward as forward, so a step of training has it twice.
    """
    again: dict[str, list[LayerCall]] = {}  # by block, the last one first
    for call in reversed([call for call in trace.calls if call.again]):
        again.setdefault(block_of(call.path), []).insert(0, call)
    tasks: list[Task] = []
    for call in backward_calls(trace.calls, trace.own_backward):
        if (block := block_of(call.path)) in again:
            tasks += [_own(one) for one in again.pop(block)]
        tasks += _reversed(call, question.learnt) if call.gradient else [_own(call)]
    tasks += [_own(call) for block in again.values() for call in block]
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
