"""How much memory each stage of a layout takes, without its times: what `fit` asks for."""

from __future__ import annotations

from neuralpower.predict.memory.peak import Memory
from neuralpower.predict.parallel.memory import (
    StepMemory,
    activations_of,
    serving_memory,
    training_rank_memory,
)
from neuralpower.predict.parallel.schedules import held, order_of
from neuralpower.trace.follow import Followed
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.stages import cut


def stage_memories(found: Followed, question: Question) -> list[Memory]:
    """[stages] the memory of one device of each; none where a step's lifetimes are not known.

    Args:
        found: one micro-batch of one rank's module, followed for `one_micro_batch(question)`.
        question: with the layout, and in `recipe.accumulation` the micro-batches.

    Raises:
        InputError: more stages than blocks.
    """
    layout, platform = question.layout, question.platform
    count, stages = question.recipe.accumulation, layout.pipeline
    trains = question.phase == TRAINING
    parts = cut(found.trace if trains else found.work, layout)
    if not trains:
        return [serving_memory(parts[rank::stages], layout, platform, count) for rank in range(stages)]
    step = found.lifetimes
    if step is None or len(step.passes) < 2:
        return []
    activations = activations_of(step, parts, platform)
    common, order = StepMemory.of(step, platform), order_of(layout, count)
    return [
        training_rank_memory(
            common, parts[rank::stages], activations[rank::stages], held(order[rank]), question
        )
        for rank in range(stages)
    ]
