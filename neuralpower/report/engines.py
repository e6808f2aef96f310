"""The answer of `fit` under an engine, as lines."""

from __future__ import annotations

from neuralpower.files.terminal import styled, visible
from neuralpower.prediction.explore.fit import Fit
from neuralpower.prediction.memory.engines import LONGEST, EngineMemory
from neuralpower.prediction.request import Request
from neuralpower.report.grid import note_lines
from neuralpower.report.number_format import binary, counted


def engine_lines(found: Fit, engine: EngineMemory, request: Request) -> list[str]:
    """Whether the engine starts, what its pool is left, and what that holds."""
    several = "" if request.layout.alone else f", {request.layout}"
    verdict = "fits" if engine.fits else f"does not fit: {engine.reason}"
    parts = [f"{part.name} {binary(part.value_bytes)}" for part in engine.parts]
    budget = f"{binary(engine.budget_bytes)} of {binary(engine.total_bytes)} that the driver gives"
    stages = request.layout.pipeline
    stage = f", on stage {engine.stage} of {stages}, which has the fewest blocks" if stages > 1 else ""
    lines = [
        visible(f"{request.called}, {request.dtype}, under {engine.follows}, on {engine.device}{several}"),
        *([] if found.weights is None else [found.weights.line]),
        styled(verdict, "bold" if engine.fits else "bad"),
        f"budget {budget}{stage}: {', '.join(parts)}",
    ]
    if engine.pool_bytes > 0:
        lines += _pool_lines(engine)
    return [*lines, *note_lines(found.notes)]


def _pool_lines(engine: EngineMemory) -> list[str]:
    """What the pool holds."""
    pool = engine.pool
    each = " on each device" if engine.devices * engine.replicas > 1 else ""
    low = binary(max(engine.pool_low_bytes, 0))
    blocks = f"{counted(pool.blocks, 'block')} of {pool.block_size}" if pool.block_size > 1 else ""
    held = f"{blocks}: {pool.tokens:,} tokens" if blocks else f"{pool.tokens:,} tokens"
    most = None if engine.most_sequences is None else engine.most_sequences * engine.replicas
    replicas = f" in {engine.replicas} replicas" if engine.replicas > 1 else ""
    capped = f" (runs at most {most} at once)" if most is not None and engine.sequences > most else ""
    limit = " (limit: the model's positions)" if engine.longest == engine.positions else ""
    longest = f"longest sequence: {engine.longest:,} tokens{limit}"
    one = binary(pool.sequence_bytes(engine.length))
    return [
        f"pool {binary(engine.pool_bytes)} ({low} at least){each}, cache {engine.cache_dtype}: {held}",
        f"sequences of {engine.length:,} tokens, {one} each: {engine.sequences}{replicas}{capped}",
        "longest sequence: any length" if engine.longest >= LONGEST else longest,
    ]
