"""vLLM's pool, by the rules of version 0.19.0 (engine V1).

    budget = total memory x gpu_memory_utilization
    pool   = budget - weights - peak of a profile run - memory outside PyTorch
    blocks = pool // (bytes of a page of one layer x layers of a group)

The profile run passes `max_num_batched_tokens` through the model and samples for `max_num_seqs` sequences
(vllm/v1/worker: gpu_worker.determine_available_memory, gpu_model_runner._dummy_run, _dummy_sampler_run).
CUDA graphs are captured after the pool has its size, so up to version 0.20 they do not make it smaller.
Their memory, 0.5 to 1.9 GiB, comes out of what the budget leaves; later versions take an estimate off the
pool. Memory outside PyTorch is what comes after CUDA's context and before the end of the profile run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuralpower.errors import InputError, unknown
from neuralpower.predict.memory.engines.board import GIB, Board
from neuralpower.predict.memory.engines.caches import CROSS, FULL, SLIDING, STATE, CacheLayer
from neuralpower.predict.memory.engines.engine_memory import (
    ACTIVATIONS,
    CACHE_BYTES,
    WEIGHTS,
    EngineMemory,
    Part,
    Pool,
)
from neuralpower.predict.memory.engines.served import Served

FOLLOWS = "vLLM 0.19.0"
BLOCK_SIZES = (16, 32, 64, 128, 256)  # multiples of 16: FlashAttention's pages
LARGE = 70 * GIB  # from here on, more sequences and tokens (vllm/engine/arg_utils.py)
CHUNK = 16 * 1024  # tokens that a mixture's kernel takes at once (VLLM_FUSED_MOE_CHUNK_SIZE)
PADDED = 64  # vocabularies are padded to a multiple of it
# What CUDA's modules and graphs of the profile run leave outside of PyTorch. Servers' GPUs: 0.24 to 0.27 GiB
# in 30 published runs of 0.19.0 on an H100, 0.46 in three. Boards on PCI Express: what one run of 0.19.0 on
# a GeForce RTX 4090 leaves in addition to the peak that is computed here.
OUTSIDE, OUTSIDE_MOST = {True: 0.25 * GIB, False: 0.61 * GIB}, 0.3 * GIB


@dataclass(frozen=True)
class VllmSettings:
    """vLLM's arguments; None: the engine chooses, by the device and the model."""

    gpu_memory_utilization: float = 0.9
    block_size: int | None = None  # tokens; 16, of latent caches 64
    cache_dtype: str = "auto"
    max_num_seqs: int | None = None  # 256; from 70 GiB on 1024
    max_num_batched_tokens: int | None = None  # 2048; from 70 GiB on 8192
    max_model_len: int | None = None  # the model's positions

    def check(self, served: Served) -> None:
        """Raise InputError for what the engine refuses."""
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InputError(
                f"--gpu-memory-utilization {self.gpu_memory_utilization:g}: a share of the memory, "
                "above 0 and at most 1; choose 0.9"
            )
        if self.cache_dtype not in CACHE_BYTES:
            raise unknown("cache dtype of vllm", self.cache_dtype, CACHE_BYTES)
        if self.block_size is not None and self.block_size not in BLOCK_SIZES:
            raise InputError(
                f"--block-size {self.block_size}: vllm takes {', '.join(map(str, BLOCK_SIZES))}; choose 16"
            )
        served.check_length(self.max_model_len)

    def memory(self, served: Served, board: Board, concurrency: int | None) -> EngineMemory:
        """The memory under vLLM; raises InputError as `check`."""
        self.check(served)
        seqs, batched = self._batch(board)
        length = self.max_model_len or served.positions or batched
        width = CACHE_BYTES[self.cache_dtype] or served.itemsize
        parts = _parts(served, board, seqs, batched)
        budget = int(board.total_bytes * self.gpu_memory_utilization)
        room = budget - sum(part.value_bytes for part in parts)
        pages = Pages.of(served, self.block_size or usual_block(served), width, batched, length)
        pool = pages.pool(max(room, 0))
        notes = () if pages.note is None else (pages.note,)
        return EngineMemory(
            engine="vllm",
            follows=FOLLOWS,
            device=board.name,
            devices=served.tensor,
            total_bytes=board.total_bytes,
            budget_bytes=budget,
            parts=parts,
            pool_bytes=room,
            pool_low_bytes=budget - sum(part.high_bytes for part in parts),
            cache_dtype=self.cache_dtype,
            pool=pool,
            length=length,
            most_sequences=seqs,
            positions=served.positions,
            concurrency=concurrency,
            refused=_refused(budget, board, served.tensor),
            notes=notes,
        )

    def _batch(self, board: Board) -> tuple[int, int]:
        """(sequences, tokens) of the largest step; raises InputError where the tokens are fewer."""
        large = board.total_bytes >= LARGE and "A100" not in board.name
        batched = self.max_num_batched_tokens or max(8192 if large else 2048, 0)
        seqs = self.max_num_seqs or min(1024 if large else 256, batched)
        if batched < seqs:
            raise InputError(
                f"--max-num-batched-tokens {batched} is below max-num-seqs {seqs}: each sequence takes a "
                f"token of a step; choose --max-num-batched-tokens {seqs} or more"
            )
        return seqs, batched


def _refused(budget: int, board: Board, ranks: int) -> str:
    """Why vLLM does not start: it wants its whole budget to be free."""
    free = board.free_bytes(ranks)
    if budget <= free:
        return ""
    share = math.floor(100 * free / board.total_bytes) / 100
    return (
        f"vllm wants {budget / GIB:.2f} GiB, and CUDA leaves {free / GIB:.2f} GiB; choose "
        f"--gpu-memory-utilization {share:g}"
    )


def usual_block(served: Served) -> int:
    """Tokens of a block: 16, and 64 for latent caches, as FlashMLA reads them."""
    latent = {layer.token_numbers for layer in served.layers if layer.kind == FULL}
    return 64 if latent == {576} else 16


def _parts(served: Served, board: Board, seqs: int, batched: int) -> tuple[Part, ...]:
    """What the pool does not get."""
    run = profile_run(served, board, seqs, batched)
    outside = OUTSIDE[board.linked] + board.exchange_bytes(served.tensor)
    weights = served.weights_bytes + served.rotary_bytes
    return (
        Part(WEIGHTS, weights, weights, "parameters, and tables of rotary embeddings"),
        Part(ACTIVATIONS, run, int(1.1 * run), f"a profile run of {batched} tokens and {seqs} sequences"),
        Part("outside PyTorch", int(outside), int(outside + OUTSIDE_MOST), "CUDA's modules, graphs, NCCL"),
    )


def profile_run(served: Served, board: Board, seqs: int, batched: int) -> int:
    """Bytes of the peak of the profile run, without the weights.

    The forward pass holds the widest block's products and the hidden state three times: a block's input, its
    residual and what the attention gave. The sampler holds logits in the model's type and in float32,
    probabilities and random numbers in float32, and a row of logits for each program of its top-k kernel
    (vllm/v1/sample/ops/topk_topp_sampler.py, topk_topp_triton.py). Work space of a mixture stays to the end.
    """
    hidden = batched * served.hidden * served.itemsize
    forward = batched * served.block_numbers * served.itemsize + 3 * hidden
    words = PADDED * math.ceil(served.vocabulary / PADDED)
    rows = seqs * words
    programs = min(1 << (min(board.cores, seqs) - 1).bit_length(), board.cores)
    sampler = rows * (served.itemsize + 3 * 4) + programs * words * 4
    sampler += hidden + seqs * served.hidden * served.itemsize
    return max(forward, sampler) + _mixture(served, batched) + board.workspace_bytes


def _mixture(served: Served, batched: int) -> int:
    """Two buffers of a mixture of experts, each as wide as the widest that it holds in turn."""
    if served.experts is None:
        return 0
    rows = min(batched, CHUNK) * served.experts.chosen
    first = max(served.experts.wide, served.hidden)
    return rows * (first + max(served.experts.inner, served.hidden)) * served.itemsize


@dataclass(frozen=True)
class Pages:
    """How layers share the pool: equal pages, and groups of equally many layers.

    A block holds one page for each layer of a group; a sequence has blocks of its own in each group.

    Source: vllm/v1/core/kv_cache_utils.py, `_get_kv_cache_groups_uniform_page_size`.
    """

    block_size: int  # tokens, of layers with the widest pages
    page_bytes: int
    group_size: int  # layers
    groups: tuple[tuple[CacheLayer, int], ...]  # (a layer of it, tokens of its block)
    batched: int
    note: str | None = None

    @classmethod
    def of(cls, served: Served, block: int, width: float, batched: int, length: int) -> Pages:
        """The pages of a model; `width` is bytes of a number in the cache."""
        state = max((_state_page(layer, served) for layer in served.layers), default=0)
        tokens = [math.ceil(la.token_numbers * width) for la in served.layers if la.kind != STATE]
        note = None
        if tokens and state:  # blocks grow until a page holds a state
            block = block * math.ceil(state / (block * min(tokens)))
            note = f"blocks are {block} tokens, so that a page holds a state"
        if not tokens:
            block = length
        page = max([block * max(tokens, default=0), state])
        counts = Counter(served.layers)
        if len({layer.kind for layer in counts}) == 1 and len(counts) > 1:
            page = sum(block * math.ceil(la.token_numbers * width) * n for la, n in counts.items())
            return cls(block, page, 1, ((next(iter(counts)), block),), batched, note)
        size = _group_size(list(counts.values()))
        groups = []
        for layer, count in counts.items():
            own = block if layer.kind == STATE else page // math.ceil(layer.token_numbers * width)
            groups += [(layer, own)] * math.ceil(count / size)
        return cls(block, page, size, tuple(groups), batched, note)

    def pool(self, room: int) -> Pool:
        """The pool of this many bytes."""
        each = self.page_bytes * self.group_size
        blocks = room // each
        return Pool(
            block_size=self.block_size,
            block_bytes=each,
            blocks=blocks,
            tokens=blocks // len(self.groups) * self.block_size,
            sequences=lambda length: blocks // max(self.blocks_of(length), 1),
            sequence_bytes=lambda length: self.blocks_of(length) * each,
        )

    def blocks_of(self, length: int) -> int:
        """Blocks that a sequence takes; a window slides by whole blocks while a step appends to it."""
        total = 0
        for layer, block in self.groups:
            if layer.kind == SLIDING:
                kept = min(layer.window - 1 + self.batched, length)
                total += math.ceil(kept / block) + 1
            elif layer.kind == STATE:
                total += 1
            else:
                total += math.ceil((layer.tokens if layer.kind == CROSS else length) / block)
        return total


def _state_page(layer: CacheLayer, served: Served) -> int:
    """Bytes of a state: in the model's type, unless its configuration names float32."""
    return layer.state_bytes(4 if served.wide_state else served.itemsize, served.itemsize)


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: those of the rarest sort; of the commonest if it has less than 1.5 times as many."""
    least, most = min(counts), max(counts)
    return most if most < 1.5 * least else least
