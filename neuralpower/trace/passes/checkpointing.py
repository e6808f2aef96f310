"""Activation checkpointing: a repeated block keeps its input alone and runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import block_of
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import LayerCall, Trace, run_again


@trace_pass(place="calls", applies=lambda _, asked: asked.phase == TRAINING and asked.recipe.checkpointing)
def checkpointing(trace: Trace, question: Question) -> Trace:
    """Mark the calls of repeated blocks that run again in the backward pass: a block keeps its input alone.

    The model's own use of `torch.utils.checkpoint` is marked when the pass is recorded.
    """
    blocks = [[*block] for _, block in groupby(trace.calls, key=lambda call: block_of(call.path))]
    if question.recipe.selective:
        blocks = [core for block in blocks for core in scores(block)]
    again = {call.at for block in blocks for call in run_again(block)}
    calls = tuple(replace(c, again=True) if block_of(c.path) and c.at in again else c for c in trace.calls)
    return replace(trace, calls=calls)


def scores(block: Sequence[LayerCall]) -> Iterator[list[LayerCall]]:
    """The calls of a block between query, key and value, and attention's result: what selective runs again.

    That is a fused kernel, or a product of two activations, a softmax and the next such product (Korthikanti
    et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 5).
    """
    begin: int | None = None
    softmax = False
    for i, call in enumerate(block):
        kind = call.layer.kind
        if kind == "attention":
            yield [call]
        elif kind == "softmax":
            softmax = begin is not None
        elif kind == "matmul" and not call.weight:
            if begin is not None and softmax:
                yield [*block[begin : i + 1]]
                begin, softmax = None, False
            else:
                begin = i
