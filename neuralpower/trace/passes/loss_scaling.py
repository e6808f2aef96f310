"""Loss scaling: small gradients of float16 would round to 0, so a scaled loss makes larger ones.

Before the step, one pass scales the gradients of all weights with float32 masters back, and looks for
overflows (`torch._amp_foreach_non_finite_check_and_unscale_`).
"""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.elementwise import Elementwise
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.passes.masters import with_masters
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING
from neuralpower.trace.records import Task, Trace

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
