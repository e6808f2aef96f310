"""Sizes of llama.cpp: weights by their mixture, a cache for every slot from the start, a compute buffer.

    cache    tokens of a slot x slots x bytes of a token, in blocks of 32 numbers where it is quantised
    compute  micro-batch x (vocabulary + hidden size) x 4 B with flash attention

Source: src/llama-context.cpp (`graph_reserve`), src/llama-kv-cache.cpp and ggml/src/ggml-common.h of
llama.cpp, build 6500 and later. The buffer that follows for Llama 3 8B is the 258.5 MiB that it logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from neuralpower.errors import InputError, unknown
from neuralpower.prediction.memory.engines.board import GIB, Board
from neuralpower.prediction.memory.engines.caches import CROSS, FULL, SLIDING, STATE
from neuralpower.prediction.memory.engines.engine_memory import (
    ACTIVATIONS,
    WEIGHTS,
    EngineMemory,
    Part,
    Pool,
    longest_held,
)
from neuralpower.prediction.memory.engines.network import Served

FOLLOWS = "llama.cpp b6500"
DTYPES = {
    **{"auto": 2.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0},
    **{
        "q8_0": 34 / 32,
        "q5_1": 24 / 32,
        "q5_0": 22 / 32,
        "q4_1": 20 / 32,
        "q4_0": 18 / 32,
        "iq4_nl": 18 / 32,
    },
}  # bytes of a number, scales of blocks of 32 included
MICRO_BATCH = 512  # tokens: --ubatch-size
PADDED = 256  # tokens of a cache
# CUDA's context and cuBLAS, which llama.cpp does not log.
CONTEXT, CONTEXT_MOST = 0.45 * GIB, 0.7 * GIB


@dataclass(frozen=True)
class LlamaCppSettings:
    """llama.cpp's arguments; None: the engine chooses."""

    cache_dtype: str = "auto"  # f16
    max_model_len: int | None = None  # --ctx-size of one slot: the model's positions

    starts_with_longest: ClassVar[bool] = False

    def check(self, served: Served) -> None:
        """Raise InputError for what the engine refuses."""
        if self.cache_dtype not in DTYPES:
            raise unknown("cache dtype of llama.cpp", self.cache_dtype, DTYPES)
        if not served.layout.alone:
            raise InputError(f"{served.layout}: llama.cpp is predicted on one device; choose --engine vllm")
        served.check_length(self.max_model_len)

    def memory(self, served: Served, board: Board, concurrency: int | None) -> EngineMemory:
        """The memory under llama.cpp; raises InputError as `check`."""
        self.check(served)
        length = self.max_model_len or served.positions or 4096
        compute = MICRO_BATCH * (served.vocabulary + served.hidden) * 4
        compute = max(compute, MICRO_BATCH * (served.block_numbers + served.hidden) * 4)
        parts = (
            Part(WEIGHTS, served.weights_bytes, served.weights_bytes, "types of the mixture"),
            Part(
                ACTIVATIONS, compute, 2 * compute, f"compute buffer of a micro-batch of {MICRO_BATCH} tokens"
            ),
            Part("context", int(CONTEXT), int(CONTEXT_MOST), "CUDA and cuBLAS"),
        )
        room = board.total_bytes - sum(part.value_bytes for part in parts)
        pool = _pool(served, max(room, 0), DTYPES[self.cache_dtype])
        return EngineMemory(
            engine="llama.cpp",
            follows=FOLLOWS,
            device=board.name,
            devices=1,
            total_bytes=board.total_bytes,
            budget_bytes=board.total_bytes,
            parts=parts,
            pool_bytes=room,
            pool_low_bytes=board.total_bytes - sum(part.high_bytes for part in parts),
            cache_dtype="f16" if self.cache_dtype == "auto" else self.cache_dtype,
            pool=pool,
            length=length,
            most_sequences=None,
            positions=served.positions,
            concurrency=concurrency,
            notes=("all layers and the cache are on the GPU, with flash attention",),
        )


def _pool(served: Served, room: int, width: float) -> Pool:
    """What `room` bytes hold; the cache of a slot is as long as its context from the start."""

    def bytes_of(length: int) -> int:
        padded = math.ceil(length / PADDED) * PADDED
        total = 0
        for layer in served.layers:
            if layer.kind == STATE:
                total += layer.state_bytes(4, 4)  # llama.cpp keeps states in float32
                continue
            kept = {FULL: padded, CROSS: layer.tokens}.get(layer.kind, padded)
            if layer.kind == SLIDING:
                kept = min(padded, math.ceil((layer.window + MICRO_BATCH) / PADDED) * PADDED)
            total += math.ceil(layer.token_numbers * kept * width)
        return total

    token = math.ceil(sum(la.token_numbers for la in served.layers if la.kind == FULL) * width)
    tokens = longest_held(lambda length: room // max(bytes_of(length), 1), 2**24)
    return Pool(1, token, tokens, tokens, lambda length: room // max(bytes_of(length), 1), bytes_of)
