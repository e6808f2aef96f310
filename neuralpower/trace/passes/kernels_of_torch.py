"""Kernels that torch itself runs on an accelerator: products in TensorFloat-32, and its own attention."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.layers.attention import Attention, by_torch
from neuralpower.layers.base import in_tf32
from neuralpower.platforms import CPU
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.records import Trace


@trace_pass(place="types", applies=lambda _, asked: asked.dtype == TENSORFLOAT32)
def tensorfloat32(trace: Trace, question: Question) -> Trace:
    """Let each product compute in TensorFloat-32, whose units round float32 operands to 19 bits."""
    return replace(trace, tasks=tuple(replace(task, layer=in_tf32(task.layer)) for task in trace.tasks))


def _runs_torchs(trace: Trace, question: Question) -> bool:
    """Whether attention runs on an accelerator, and no engine runs it."""
    accelerated = question.platform.family != CPU.family and question.run != ENGINE
    return accelerated and any(isinstance(task.layer, Attention) for task in trace.tasks)


@trace_pass(place="types", applies=_runs_torchs)
def torchs_attention(trace: Trace, question: Question) -> Trace:
    """Let attention be torch's own kernels on an accelerator: they reach less than those of engines."""
    return replace(trace, tasks=tuple(replace(task, layer=by_torch(task.layer)) for task in trace.tasks))
