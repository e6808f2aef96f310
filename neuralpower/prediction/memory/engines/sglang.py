"""SGLang's pool, by the rules of version 0.5.

    left   = memory that is free before weights are loaded
    pool   = left x mem_fraction_static - weights
    tokens = pool // bytes of a token in all layers

Source: python/sglang/srt/server_args.py (`_handle_gpu_memory_settings`) and model_executor/model_runner.py
(`profile_max_num_token`, `set_num_token_hybrid`).
It runs no profile: activations and graphs take what is left.

With expert ranks, attention has replicas, and the experts lie on all ranks (`--enable-dp-attention`). Without
them, each replica has all experts. The pipeline stage with the fewest tokens decides for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from neuralpower.errors import InputError, unknown
from neuralpower.prediction.memory.engines.board import GIB, MIB, Board
from neuralpower.prediction.memory.engines.caches import CROSS, FULL, SLIDING, STATE
from neuralpower.prediction.memory.engines.engine_memory import (
    CACHE_BYTES,
    WEIGHTS,
    EngineMemory,
    Part,
    Pool,
)
from neuralpower.prediction.memory.engines.network import Served
from neuralpower.prediction.memory.engines.shares import last_more

FOLLOWS = "SGLang 0.5"
# A process of SGLang before it loads weights: 78.4 to 78.8 of 79.2 GiB are free on an H100.
CONTEXT, CONTEXT_MOST = 0.6 * GIB, 0.9 * GIB
# (MiB of a GPU below which the row holds, tokens of a chunk, batch of the largest graph with up to 3 ranks,
# with more ranks)
BY_MEMORY = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
    (math.inf, 16384, 512, 512),
)
META, A_TOKEN, A_GRAPH, RANKS, LEAST, LARGE = 512, 1.5, 2, 1024 / 8, 10 * 1024, 60 * 1024  # MiB
WINDOW_SHARE = 0.8  # swa_full_tokens_ratio: tokens of sliding layers for each of the others
STATE_SHARE = 0.9  # mamba_full_memory_ratio: bytes of states for each byte of keys and values
FEWEST, MOST, AT_FULL = 2048, 4096, 512  # max_running_requests


@dataclass(frozen=True)
class SglangSettings:
    """SGLang's arguments; None: the engine chooses."""

    mem_fraction_static: float | None = None  # by the device's memory
    block_size: int = 1  # page size, tokens
    cache_dtype: str = "auto"
    max_num_seqs: int | None = None  # max-running-requests
    max_num_batched_tokens: int | None = None  # chunked-prefill-size
    max_model_len: int | None = None  # context-length

    starts_with_longest: ClassVar[bool] = False

    def check(self, served: Served) -> None:
        """Raise InputError for what the engine refuses."""
        if self.mem_fraction_static is not None and not 0 < self.mem_fraction_static < 1:
            raise InputError(
                f"--mem-fraction-static {self.mem_fraction_static:g}: a share of the memory, above 0 and "
                "below 1; choose 0.85"
            )
        if self.cache_dtype not in CACHE_BYTES:
            raise unknown("cache dtype of sglang", self.cache_dtype, CACHE_BYTES)
        chunk = self.max_num_batched_tokens
        if chunk is not None and chunk % self.block_size:
            raise InputError(
                f"--max-num-batched-tokens {chunk}: a chunk has whole pages of {self.block_size} tokens; "
                f"choose {chunk // self.block_size * self.block_size or self.block_size}"
            )
        served.check_length(self.max_model_len)

    def memory(self, served: Served, board: Board, concurrency: int | None) -> EngineMemory:
        """The memory under SGLang; raises InputError as `check`."""
        self.check(served)
        length = self.max_model_len or served.positions or 8192
        layout = served.layout
        context = int(CONTEXT) + board.exchange_bytes(served.tensor)
        left = board.total_bytes - context
        ranks = served.tensor * (layout.data if layout.expert > 1 else 1)
        share = self.mem_fraction_static
        if share is None:
            share = usual_share(board, ranks * layout.pipeline, self.max_num_batched_tokens)
        width = CACHE_BYTES[self.cache_dtype] or served.itemsize
        shared = served.experts_over(ranks)
        stages = shared.stages(last_more(len(served.places.blocks), layout.pipeline))
        rooms = [int(left * share) - stage.weights_bytes - stage.rotary_bytes for stage in stages]
        sized = zip(stages, rooms, strict=True)
        pools = [_pool(stage, max(room, 0), self.block_size, width) for stage, room in sized]
        fullest = min(range(len(stages)), key=lambda stage: (pools[stage].tokens, rooms[stage]))
        room, pool = rooms[fullest], pools[fullest]
        weights = stages[fullest].weights_bytes + stages[fullest].rotary_bytes
        most = self.max_num_seqs or min(max(pool.tokens * AT_FULL // max(length, 1), FEWEST), MOST)
        lost = int((CONTEXT_MOST - CONTEXT) * share)
        return EngineMemory(
            engine="sglang",
            follows=FOLLOWS,
            device=board.name,
            devices=served.tensor * layout.pipeline,
            replicas=layout.data,
            stage=fullest + 1,
            total_bytes=board.total_bytes,
            budget_bytes=int(left * share) + context,
            parts=(
                Part(WEIGHTS, weights, weights, "parameters, and tables of rotary embeddings"),
                Part("context", context, context + lost, "CUDA, and NCCL with several ranks"),
            ),
            pool_bytes=room,
            pool_low_bytes=room - lost,
            cache_dtype=self.cache_dtype,
            pool=pool,
            length=length,
            most_sequences=most,
            most_tokens=self.max_num_batched_tokens or _by_memory(board)[1],
            positions=served.positions,
            concurrency=concurrency,
            notes=(
                *shared.notes,
                f"mem-fraction-static {share:g}: activations and CUDA graphs have what is left",
            ),
        )


def _by_memory(board: Board) -> tuple[float, int, int, int]:
    """The row of `BY_MEMORY` for a GPU."""
    return next(row for row in BY_MEMORY if board.sheet_bytes / MIB < row[0])


def usual_share(board: Board, ranks: int, chunk: int | None = None) -> float:
    """The share for weights and pool that SGLang chooses by the memory of a GPU."""
    size = board.sheet_bytes / MIB
    _, tokens, few, many = _by_memory(board)
    graph = few if ranks < 4 else many
    kept = META + max(chunk or tokens, 2048) * A_TOKEN + graph * A_GRAPH + ranks * RANKS
    if size > LARGE:
        kept = max(kept, LEAST)
    return round((size - kept) / size, 3)


def _pool(served: Served, room: int, page: int, width: float) -> Pool:
    """The pool of this many bytes: states first, then tokens of all other layers."""
    kinds = {kind: [la for la in served.layers if la.kind == kind] for kind in (FULL, SLIDING, STATE, CROSS)}
    token = {kind: sum(la.token_bytes(width) for la in kinds[kind]) for kind in kinds}
    fixed = token[CROSS] * max((la.tokens for la in kinds[CROSS]), default=0)
    wide = 4  # mamba_ssm_dtype is float32
    state = sum(la.state_bytes(wide, served.itemsize) for la in kinds[STATE])
    states = room if not token[FULL] + token[SLIDING] else room * STATE_SHARE / (1 + STATE_SHARE)
    slots = int(states // state) if state else None
    share = WINDOW_SHARE if token[FULL] else 1.0
    each = token[FULL] + math.ceil(share * token[SLIDING])
    room = room - (slots or 0) * state if each else 0
    tokens = room // each // page * page if each else 0
    window = max((la.window for la in kinds[SLIDING]), default=0)

    def sequences(length: int) -> int:
        """Sequences of this length; each limit that the model has."""
        limits = [] if slots is None else [slots]
        paged = math.ceil(max(length, 1) / page) * page
        if token[FULL]:
            extra = math.ceil(fixed / each)
            limits.append(tokens // (paged + extra))
        if token[SLIDING]:
            limits.append(int(share * tokens) // min(paged, math.ceil(window / page) * page + page))
        return min(limits, default=0)

    def bytes_of(length: int) -> int:
        """Bytes that one sequence of this length takes."""
        paged = math.ceil(length / page) * page
        return state + fixed + token[FULL] * paged + token[SLIDING] * min(paged, window or paged)

    return Pool(
        page, page * each or state, tokens // page if each else slots or 0, tokens, sequences, bytes_of
    )
