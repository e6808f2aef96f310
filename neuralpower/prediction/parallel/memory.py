"""What one rank holds of a network: parts of weights and states, activations in flight, buffers.

weights, gradients, states   of the rank's own pieces; shared out among replicas as the layout says
activations                  what a backward pass needs of each micro-batch in flight, and what else lives
                             while one piece runs forward or backward
cache                        keys and values of each batch in flight
communication                buffers of each group's communicator, and of gradients on their way
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from neuralpower.devices.cluster import GROUPS, Layout
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.memory.peak import (
    Memory,
    MemoryLine,
    alive,
    forward_memory,
    kept_line,
    memory_of,
    overhead_lines,
)
from neuralpower.prediction.parallel.schedules import held, order_of
from neuralpower.quantisation.weights import EXPERTS, OTHER
from neuralpower.trace.followed import Followed
from neuralpower.trace.lifetimes import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    WORKSPACE,
    StepLifetimes,
    Storage,
    on_library,
)
from neuralpower.trace.parts.stages import Part, cut
from neuralpower.trace.passes.data_parallel import ZERO_BUCKET, Parameter, parameters_of
from neuralpower.trace.paths import block_of, module_of
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.records import Trace

# Bytes of one communicator: NCCL_BUFFSIZE, 4 MiB by default, for each of up to 32 channels (NCCL 2.x,
# "Environment Variables", NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS).
COMMUNICATOR = 32 * 4 * 2**20
NOTE = "each communicator is assumed to take 128 MiB, as NCCL's 32 channels of 4 MiB do"


def communicators(layout: Layout) -> int:
    """Groups with other ranks that one rank belongs to."""
    return sum(layout.size(group) > 1 for group in GROUPS)


def communicator_bytes(layout: Layout, platform: Platform) -> int:
    """Buffers of a rank's communicators; processes of a CPU have sockets."""
    return 0 if platform.family == CPU.family else communicators(layout) * COMMUNICATOR


def _groups_line(layout: Layout, platform: Platform) -> MemoryLine:
    """The buffers of all groups that exchange something."""
    size = communicator_bytes(layout, platform)
    return MemoryLine("communicators", size, size, "NCCL's 32 channels of 4 MiB for each group")


def serving_memory(parts: Sequence[Part], layout: Layout, platform: Platform, in_flight: int) -> Memory:
    """The memory of a rank in a forward pass, with `in_flight` batches."""
    found = [forward_memory(part.trace, platform=platform) for part in parts]
    most = max(found, key=lambda one: one.value_bytes)
    weights = sum(one.weights_bytes for one in found)
    cache = in_flight * sum(one.cache_bytes for one in found)
    more = weights + cache - most.weights_bytes - most.cache_bytes
    buffers = communicator_bytes(layout, platform)
    lines = (*most.lines, _groups_line(layout, platform)) if most.lines else ()
    return replace(
        most,
        lines=lines,
        weights_bytes=weights,
        cache_bytes=cache,
        communication_bytes=buffers,
        tensor_bytes=most.tensor_bytes + more + buffers,
    )


@dataclass(frozen=True)
class Activations:
    """Activations of one piece of the network, in bytes."""

    saved: int  # of one micro-batch, from its forward to its backward pass
    more: int  # the most that lives in addition while it runs


def activations_of(step: StepLifetimes, parts: Sequence[Part], platform: Platform) -> list[Activations]:
    """The activations of each part, from the lifetimes of a step with one micro-batch."""
    begun, forward, backward = dict(step.blocks), step.passes[0], step.passes[1]
    begins = [0, *(begun[part.blocks[0]] + 1 for part in parts[1:]), forward + 1]
    kinds = (ACTIVATIONS, WORKSPACE)
    storages = [one for one in on_library(step.storages, platform.library) if one.part in kinds]
    activations = []
    for first, after in pairwise(begins):
        own = [one for one in storages if first <= one.birth < after]
        saved = [one for one in own if one.death is None or one.death > forward]
        ends = [one.death for one in saved if one.death is not None] or [backward]
        later = [one for one in storages if forward < one.birth <= backward]
        total = alive([*own, *later], backward + 2)
        low, high = min(ends), min(max(ends), backward)
        most = max(int(total[first:after].max(initial=0)), int(total[low : high + 1].max(initial=0)))
        kept = sum(one.bytes for one in saved)
        activations.append(Activations(kept, max(most - kept, 0)))
    return activations


@dataclass(frozen=True)
class StepMemory:
    """What the ranks of a step have in common: it does not depend on the layout."""

    process: Memory  # a rank takes its share besides tensors: code, libraries, the driver
    inputs: int  # bytes
    state: float  # bytes of an optimizer's state for each byte of gradients
    update: float  # that an optimizer's step makes for a while, for each byte of gradients
    named: Mapping[str, int]  # bytes of parameters and buffers, quantised where they are

    @classmethod
    def of(cls, step: StepLifetimes, platform: Platform) -> StepMemory:
        """The common part, from the lifetimes of one micro-batch of the whole network.

        No allocator is replayed: what it keeps of freed memory is a share of a rank's own tensors.
        """
        bare = replace(platform, allocator="")
        process = memory_of(step.storages, TRAINING, platform=bare, compiler=step.compiler)
        end = step.passes[-1]
        gradients = max(sum(storage.bytes for storage in step.storages if storage.part == GRADIENTS), 1)
        states = sum(storage.bytes for storage in step.storages if storage.part == OPTIMIZER)
        made: list[Storage] = [
            storage for storage in step.storages if storage.part == ACTIVATIONS and storage.birth > end
        ]
        most = int(alive(made).max(initial=0)) if made else 0
        inputs = sum(storage.bytes for storage in step.storages if storage.part == INPUTS)
        process = replace(process, assumed=not platform.allocator)
        named = {storage.name: storage.bytes for storage in step.storages if storage.name}
        return cls(process, inputs, states / gradients, most / gradients, named)


def training_rank_memory(
    step: StepMemory,
    parts: Sequence[Part],
    pieces: Sequence[Activations],
    held: Mapping[int, int],
    question: Question,
) -> Memory:
    """The memory of a rank in a step of training.

    Args:
        step: what all ranks have in common.
        parts: the pieces that the rank has.
        pieces: their activations.
        held: the micro-batches of each piece, by number, when the rank holds the most.
        question: its layout says how states are shared out, its recipe in which types they are kept.
    """
    layout, platform = question.layout, question.platform
    states = _States.of(step, parts, layout, question.recipe)
    saved = sum(pieces[number].saved * count for number, count in held.items())
    more = max((pieces[number].more for number in held), default=0)
    activations = max(saved + more, states.update)
    tensors = states.weights + states.gradients + states.optimizer + activations + step.inputs
    buffers = communicator_bytes(layout, platform) + states.buffers
    moving = states.gradients + activations
    margin, lines = int(platform.framework.margin_bytes(TRAINING, moving, tensors)), tuple[MemoryLine, ...]()
    if platform.overheads:
        lines = (*overhead_lines(platform), _groups_line(layout, platform), kept_line(platform, 0, moving))
        margin = sum(line.high_bytes - line.value_bytes for line in lines)
    return replace(
        step.process,
        weights_bytes=states.weights,
        gradients_bytes=states.gradients,
        optimizer_bytes=states.optimizer,
        inputs_bytes=step.inputs,
        activations_bytes=activations,
        workspace_bytes=0,
        communication_bytes=buffers,
        margin_bytes=margin,
        tensor_bytes=tensors + buffers,
        lines=lines,
    )


@dataclass(frozen=True)
class _States:
    """Bytes of what a rank keeps of its parameters."""

    weights: int
    gradients: int
    optimizer: int
    update: int  # that the optimizer's step makes for a while
    buffers: int  # of gradients or weights on their way

    @classmethod
    def of(cls, step: StepMemory, parts: Sequence[Part], layout: Layout, recipe: Recipe) -> _States:
        """The states of some parts of the network."""
        shard = layout.shard
        trained = [one for part in parts for one in parameters_of(part.trace, recipe)]

        def share(one: Parameter, size: int) -> int:
            """A rank's part of a parameter's bytes."""
            return -(-size // (layout.expert_replicas if one.experts else layout.data))

        whole = sum(one.bytes for one in trained)
        divided = sum(share(one, one.bytes) for one in trained)
        every = {one.name: one for part in parts for one in part.trace.weights}
        weights = sum(step.named.get(name, one.bytes) for name, one in every.items())
        gradients = divided if shard in ("zero2", "zero3") else whole
        stepped = divided if shard else whole
        buffers = 0
        if shard == "zero3":
            weights -= sum(one.weight_bytes - share(one, one.weight_bytes) for one in trained)
            frozen = every.keys() - {one.name for one in trained}
            others = {
                name: step.named.get(name, every[name].bytes) for name in frozen if every[name].sort != OTHER
            }
            for name, size in others.items():
                replicas = layout.expert_replicas if every[name].sort == EXPERTS else layout.data
                weights -= size - -(-size // replicas)
            # the block that runs, and the one that is gathered
            buffers = 2 * _largest_block({**others, **{one.name: one.bytes for one in trained}})
        elif shard:
            buffers = min(whole, ZERO_BUCKET * 4)
        elif layout.data > 1 or layout.expert_replicas > 1:
            buffers = whole  # gradients are copied into their buckets
        return cls(weights, gradients, round(step.state * stepped), round(step.update * stepped), buffers)


def _largest_block(parameters: Mapping[str, int]) -> int:
    """Bytes of the block with the largest parameters, given the bytes of each by name."""
    sizes: dict[str, int] = {}
    for name, size in parameters.items():
        block = block_of(module_of(name))
        sizes[block] = sizes.get(block, 0) + size
    return max(sizes.values(), default=0)


# ---- How much memory each stage of a layout takes, without its times: what `fit` asks for ----


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


def stage_memories(followed: Followed, question: Question) -> list[Memory]:
    """[stages] the memory of one device of each; none where a step's lifetimes are not known.

    Args:
        followed: one micro-batch of one rank's module, followed for `one_micro_batch(question)`.
        question: with the layout, and in `recipe.accumulation` the micro-batches.

    Raises:
        InputError: more stages than blocks.
    """
    layout, platform = question.layout, question.platform
    if question.phase != TRAINING:
        return serving_memories(followed.work, question)
    count, stages = question.recipe.accumulation, layout.pipeline
    parts = cut(followed.trace, layout)
    step = followed.lifetimes
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
