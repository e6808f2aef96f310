"""Float32 masters of 16-bit weights: their gradients are added in float32, as Megatron-LM does.

The product that makes a weight's gradient adds to float32 numbers as it writes, in each micro-batch
(Megatron-LM's `gradient_accumulation_fusion`). So it reads and writes these instead of writing 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neuralpower.dtypes import DTYPES
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING
from neuralpower.trace.records import Task, Trace


def with_masters(trace: Trace, question: Question) -> dict[str, int]:
    """By type: the numbers of trained weights whose gradients have a wider type."""
    found: dict[str, int] = {}
    for dtype, numbers in trace.trained:
        if question.recipe.gradient_dtype(dtype) != dtype:
            found[dtype] = found.get(dtype, 0) + numbers
    return found


@trace_pass(
    place="backward",
    applies=lambda trace, asked: asked.phase == TRAINING and bool(with_masters(trace, asked)),
)
def masters(trace: Trace, question: Question) -> Trace:
    """Have products add the gradients of 16-bit weights to float32 ones."""
    tasks = (Task("", layer, BACKWARD) for layer in _additions(trace, question))
    return replace(trace, tasks=(*trace.tasks, *tasks))


def _additions(trace: Trace, question: Question) -> Iterator[Layer]:
    """The bytes that products move besides those of gradients in the weights' types."""
    for dtype, numbers in with_masters(trace, question).items():
        kept = question.recipe.gradient_dtype(dtype)
        own, wide = int(DTYPES[dtype].itemsize), int(DTYPES[kept].itemsize)
        yield FusedPointwise(
            dtype=kept, bytes_read=wide * numbers, bytes_written=(wide - own) * numbers, operations=numbers
        )


# ---- Loss scaling: small gradients of float16 would round to 0, so a scaled loss makes larger ones ----
# Before the step, one pass scales the gradients of all weights with float32 masters back, and looks for
# overflows (`torch._amp_foreach_non_finite_check_and_unscale_`).

SCALED = "float16"  # bfloat16 has float32's range


@trace_pass(
    place="update",
    applies=lambda trace, asked: asked.phase == TRAINING and SCALED in with_masters(trace, asked),
)
def loss_scaling(trace: Trace, question: Question) -> Trace:
    """Scale the gradients of float16 weights back before the step."""
    layer = Elementwise(
        dtype=question.recipe.gradient_dtype(SCALED),
        function="mul",
        elements=with_masters(trace, question)[SCALED],
        operands=1,
        broadcast=False,
        inplace=True,
    )
    return replace(trace, tasks=(*trace.tasks, Task("", layer, OPTIMIZER)))
