"""How much memory each stage of a layout takes, without its times: what `fit` asks for."""

from __future__ import annotations

from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.parallel.memory import (
    StepMemory,
    activations_of,
    serving_memory,
    training_rank_memory,
)
from neuralpower.prediction.parallel.schedules import held, order_of
from neuralpower.trace.followed import Followed
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import Trace
from neuralpower.trace.stages import cut


def serving_memories(work: Trace, question: Question) -> list[Memory]:
    """[stages] the memory of one device of each in a forward pass.

    Args:
        work: of one micro-batch of one rank's module, with its tasks.
        question: as in `stage_memories`.

    Raises:
        InputError: more stages than blocks.
    """
    layout, stages = question.layout, question.layout.pipeline
    parts, count = cut(work, layout), question.recipe.accumulation
    return [serving_memory(parts[rank::stages], layout, question.platform, count) for rank in range(stages)]


def stage_memories(found: Followed, question: Question) -> list[Memory]:
    """[stages] the memory of one device of each; none where a step's lifetimes are not known.

    Args:
        found: one micro-batch of one rank's module, followed for `one_micro_batch(question)`.
        question: with the layout, and in `recipe.accumulation` the micro-batches.

    Raises:
        InputError: more stages than blocks.
    """
    layout, platform = question.layout, question.platform
    if question.phase != TRAINING:
        return serving_memories(found.work, question)
    count, stages = question.recipe.accumulation, layout.pipeline
    parts = cut(found.trace, layout)
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
