"""Activation checkpointing: a repeated block keeps its input alone and runs again in the backward pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import pattern, prefixes
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import LayerCall, Trace, run_again


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
