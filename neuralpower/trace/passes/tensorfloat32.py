"""TensorFloat-32: float32 products on units that round their operands to 19 bits."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.layers.base import in_tf32
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace


@trace_pass(place="types", applies=lambda _, asked: asked.dtype == TENSORFLOAT32)
def tensorfloat32(trace: Trace, question: Question) -> Trace:
    """Let each product compute in TensorFloat-32, whose units round float32 operands to 19 bits."""
    return replace(trace, tasks=tuple(replace(task, layer=in_tf32(task.layer)) for task in trace.tasks))
