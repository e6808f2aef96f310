"""Whether a network fits under an engine: the engine's pool in place of one pass's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.errors import InputError
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL
from neuralpower.predict.memory.engines import EngineMemory, served
from neuralpower.predict.memory.peak import Memory
from neuralpower.trace.recipe import TRAINING

if TYPE_CHECKING:
    from neuralpower.predict.explore.fit import Request, _Probe


def check_engine(request: Request) -> None:
    """Raise InputError for what an engine does not do; before the network is built."""
    asked, layout = request.engine, request.layout
    assert asked is not None
    if request.phase == TRAINING:
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
    if layout.ranks != layout.tensor:
        raise InputError(
            f"--engine {asked.engine} with {layout}: pools are predicted for tensor ranks alone; leave the "
            "other degrees out"
        )
    if request.platform.name == "cpu":
        raise InputError(
            f"--engine {asked.engine}: pools are of GPUs, and the device is a CPU; choose --device h100"
        )
    asked.settings()


def engine_memory(request: Request, probe: _Probe, room_bytes: float) -> EngineMemory:
    """The memory of one device under the request's engine; raises InputError."""
    asked = request.engine
    assert asked is not None
    about = InputRequest(1, None, None, probe.dtype)
    quantised = probe.quantised_bytes()
    found = served(probe.module, about, str(probe.source.name), quantised, request.layout.tensor)
    return asked.memory(found, room_bytes)


def memory_of(found: EngineMemory, phase: str) -> Memory:
    """The engine's memory in the parts of a pass: its pool is the cache."""
    high = sum(part.high_bytes - part.value_bytes for part in found.parts)
    weights, run = found.part("weights"), found.part("profile run") + found.part("compute buffer")
    others = sum(part.value_bytes for part in found.parts) - weights - run
    return Memory(
        phase=phase,
        weights_bytes=weights,
        gradients_bytes=0,
        optimizer_bytes=0,
        cache_bytes=max(found.pool_bytes, 0),
        inputs_bytes=0,
        activations_bytes=run,
        workspace_bytes=0,
        framework_bytes=others,
        heap_bytes=0,
        margin_bytes=high,
        tensor_bytes=weights,
    )


def length_of(request: Request) -> int | None:
    """Tokens of a sequence that the request's phase names; None where it names none."""
    if request.phase == DECODE and request.context is not None:
        return request.context + 1
    if request.phase in (PREFILL, GENERATE) and request.seq_len is not None:
        return request.seq_len + (request.new_tokens or 0)
    return None
