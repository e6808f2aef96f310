"""Whether a network fits under an engine: the engine's pool in place of one pass's cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neuralpower.errors import InputError
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL
from neuralpower.prediction.memory.engines import (
    ACTIVATIONS,
    IMAGES,
    WEIGHTS,
    EngineMemory,
    check_layout,
    check_ranks,
    check_stages,
    served,
)
from neuralpower.prediction.memory.peak import Memory, MemoryLine

if TYPE_CHECKING:
    from neuralpower.prediction.request import Request


def check_engine(request: Request) -> None:
    """Raise InputError for what an engine does not do; before the network is built."""
    asked, layout = request.engine, request.layout
    assert asked is not None
    if request.trains:
        raise InputError(
            f"--engine {asked.engine} with --phase training: engines serve and do not train; leave one out"
        )
    if request.batch_size != 1:
        raise InputError(
            f"--batch-size {request.batch_size} with --engine {asked.engine}: the engine chooses its "
            f"batches; say --concurrency {request.batch_size}"
        )
    if request.margin is not None:
        raise InputError(
            f"--margin {request.margin:g} with --engine {asked.engine}: the engine keeps memory free by "
            "itself; say --gpu-memory-utilization or --mem-fraction-static"
        )
    check_layout(layout, asked.engine)
    if request.platform.name == "cpu":
        raise InputError(
            f"--engine {asked.engine}: pools are of GPUs, and the device is a CPU; choose --device h100"
        )
    asked.settings()


def check_ranks_of(request: Request, module: nn.Module, name: str) -> None:
    """Raise InputError where the request's engine cannot share out `module`, the unsharded model `name`."""
    config: Any = getattr(module, "config", None)
    if request.engine is not None and hasattr(config, "get_text_config"):
        check_ranks(config.get_text_config(decoder=True), request.layout, request.engine.engine, name)


def engine_memory(
    request: Request,
    module: nn.Module,
    dtype: torch.dtype,
    room_bytes: float,
    weights_bytes: int | None = None,
    whole: nn.Module | None = None,
) -> EngineMemory:
    """The memory of one device under the request's engine.

    Args:
        request: with an engine; a decode step's context, or a prompt, is the length of the sequences.
        module: one rank, on the meta device.
        dtype: the request's.
        room_bytes: the device's memory, as on its sheet.
        weights_bytes: of quantised weights; None: as the module has them.
        whole: the unsharded model, where `module` is one rank of several.

    Raises:
        InputError: a model without a cache, or options that the engine refuses.
    """
    assert request.engine is not None
    asked, length = request.engine, length_of(request)
    most = asked.options.get("max_model_len")
    if length is not None and most is not None and length > most:
        raise InputError(
            f"--max-model-len {most}: the request has sequences of {length} tokens; choose {length} or more"
        )
    if most is None and length is not None:
        asked = replace(asked, options={**asked.options, "max_model_len": length})
    name = str(request.model)
    network = served(module, InputRequest(dtype=dtype), name, weights_bytes, request.layout, whole)
    check_stages(network)
    memory = asked.memory(network, room_bytes)
    if most is not None and 0 < memory.longest < most and asked.settings().starts_with_longest:
        raise InputError(
            f"--max-model-len {most}: {asked.engine} starts only if its pool holds a sequence of that "
            f"length; choose --max-model-len {memory.longest} or less"
        )
    if length is None or most is None:
        return memory
    return replace(memory, length=length)


def memory_of(memory: EngineMemory, phase: str) -> Memory:
    """The engine's memory in the parts of a pass: its pool is the cache."""
    weights, run = memory.part(WEIGHTS), memory.part(ACTIVATIONS) + memory.part(IMAGES)
    others = [part for part in memory.parts if part.name not in (WEIGHTS, ACTIVATIONS, IMAGES)]
    return Memory(
        phase=phase,
        weights_bytes=weights,
        gradients_bytes=0,
        optimizer_bytes=0,
        cache_bytes=max(memory.pool_bytes, 0),
        inputs_bytes=0,
        activations_bytes=run,
        workspace_bytes=0,
        framework_bytes=sum(part.value_bytes for part in others),
        heap_bytes=0,
        margin_bytes=0,  # where parts are larger, the pool is smaller
        tensor_bytes=weights + max(memory.pool_low_bytes, 0),
        lines=tuple(MemoryLine(**vars(part)) for part in others),
    )


def length_of(request: Request) -> int | None:
    """Tokens of a sequence that the request's phase names; None where it names none."""
    name, length = request.phase.name, request.length
    if length is None or name not in (PREFILL, DECODE, GENERATE):
        return None
    return length + (1 if name == DECODE else request.phase.new_tokens or 0)
