"""vLLM's pool, by the rules of version 0.19.0 (engine V1).

    budget = total memory x gpu_memory_utilization
    pool   = budget - weights - peak of a profile run - memory outside PyTorch
    blocks = pool // (bytes of a page of one layer x layers of a group)

The profile run passes `max_num_batched_tokens` through the model and samples for `max_num_seqs` sequences
(vllm/v1/worker: gpu_worker.determine_available_memory, gpu_model_runner._dummy_run, _dummy_sampler_run).
Memory outside PyTorch is what comes after CUDA's context and before the end of the profile run.

Versions differ: before 0.17 the sampler sorts, before 0.18 less lies outside of PyTorch, and from 0.21 on an
estimate of CUDA graphs' memory comes off the pool, and the usual share is 0.92. Before that, graphs take what
the budget leaves. The estimate is a measurement: two graphs of a sort are captured, the others extrapolated
from these.

Each of `data` replicas is an engine of its own, but experts of a mixture lie on all tensor and data ranks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from neuralpower.errors import InputError, unknown
from neuralpower.prediction.memory.engines.board import GIB, MIB, Board
from neuralpower.prediction.memory.engines.engine_memory import (
    ACTIVATIONS,
    CACHE_BYTES,
    GRAPHS,
    IMAGES,
    WEIGHTS,
    EngineMemory,
    Part,
)
from neuralpower.prediction.memory.engines.network import Served
from neuralpower.prediction.memory.engines.pages import Pages, usual_block
from neuralpower.prediction.memory.engines.shares import PADDED, middle_first
from neuralpower.trace.passes.fusion import CAPTURED, captured_sizes

# ---- The profile run: the peak of a pass over the largest step, and of a sampler over all sequences ----
# The forward pass holds the widest block's products and the hidden state three times: a block's input, its
# residual and what the attention gave. The sampler holds logits in the model's type and in float32,
# probabilities and random numbers in float32, and a row of logits for each program of its top-k kernel
# (vllm/v1/sample/ops/topk_topp_sampler.py, topk_topp_triton.py). Before version 0.17 it sorted them. Work
# space of a mixture stays to the end. Only the last pipeline stage samples. The others return the hidden
# state and its residual, and all but the first have buffers for both.


CHUNK = 16 * 1024  # tokens that a mixture's kernel takes at once (VLLM_FUSED_MOE_CHUNK_SIZE)
SAMPLED = 3 * 4  # bytes of a logit in float32: itself, its probability, a random number
# The sort before version 0.17 kept sorted logits (4), their places (8), probabilities and their sums (8), and
# places to scatter to (4) in addition: 5.64 GiB instead of 2.23 of Qwen3-14B on an H100.
SORTED = SAMPLED + 24


def profile_run(served: Served, board: Board, seqs: int, batched: int, *, sorts: bool = False) -> int:
    """Bytes of the peak of the profile run of one stage, without the weights.

    Args:
        served: the stage.
        board: where it runs.
        seqs: sequences that it samples for.
        batched: tokens of the step.
        sorts: whether the sampler sorts, in place of a top-k kernel.
    """
    hidden = batched * served.hidden * served.itemsize
    held = 0 if served.first else 2 * hidden
    forward = batched * served.block_numbers * served.itemsize + 3 * hidden
    forward += 0 if served.last else 2 * hidden
    sampler = 0
    if served.last:
        words = PADDED * math.ceil(served.vocabulary / PADDED)
        programs = 0 if sorts else min(1 << (min(board.cores, seqs) - 1).bit_length(), board.cores)
        sampler = seqs * words * (served.itemsize + (SORTED if sorts else SAMPLED)) + programs * words * 4
        sampler += hidden + seqs * served.hidden * served.itemsize
    return held + max(forward, sampler) + _mixture(served, batched) + board.workspace_bytes


def _mixture(served: Served, batched: int) -> int:
    """Two buffers of a mixture of experts, each as wide as the widest that it holds in turn.

    Replicas gather the tokens of all before they run experts of their own.
    """
    if served.experts is None:
        return 0
    gathered = batched * served.layout.data
    rows = min(gathered, CHUNK) * served.experts.chosen
    first = max(served.experts.wide, served.hidden)
    buffers = rows * (first + max(served.experts.inner, served.hidden)) * served.itemsize
    return buffers + (gathered - batched) * served.hidden * served.itemsize


# ---- The pool ----


USUAL = "0.19.0"
OLDEST, COUNTS_GRAPHS, OTHER_RUNNER = (0, 8), (0, 21), (0, 25)
BLOCK_SIZES = (16, 32, 64, 128, 256)  # multiples of 16: FlashAttention's pages
LARGE = 70 * GIB  # from here on, more sequences and tokens (vllm/engine/arg_utils.py)
# What CUDA's modules of the profile run leave outside of PyTorch: 0.24 to 0.27 GiB in 30 published runs of
# 0.19.0 on an H100, 0.46 in three; 0.23 on four L40S, 0.13 and 0.32 on an A100. GeForce boards: what a run on
# an RTX 4090 leaves in addition to the peak that is computed here; a run on an RTX 3090 leaves the same.
OUTSIDE, OUTSIDE_MOST = {False: 0.25 * GIB, True: 0.61 * GIB}, 0.3 * GIB  # by whether it is a GeForce
SAMPLER = 0.18 * GIB  # of it, the sampler's modules: 0.07 GiB are left on the first of 2 and of 4 stages
# Before 0.18: 0.13 GiB of Qwen3-14B on an H100 in 0.15 to 0.17; 0.02 on an RTX 4090 in 0.10.2.
OLDER = {False: 0.13 * GIB, True: 0.02 * GIB}
# Estimates of CUDA graphs in published logs of 0.19 to 0.27: 0.26 GiB of 5 graphs, 0.35 of 9, and 0.33 to
# 2.73 of 86 to 102, 0.83 in the median of thirteen.
GRAPH_START, GRAPH_EACH, GRAPH_MOST = 0.24 * GIB, 7 * MIB, 29 * MIB


@dataclass(frozen=True)
class VllmSettings:
    """vLLM's arguments; None: the engine chooses, by the device and the model."""

    gpu_memory_utilization: float | None = None  # 0.9; from version 0.21 on 0.92
    block_size: int | None = None  # tokens; 16, of latent caches 64
    cache_dtype: str = "auto"
    max_num_seqs: int | None = None  # 256; from 70 GiB on 1024
    max_num_batched_tokens: int | None = None  # 2048; from 70 GiB on 8192
    max_model_len: int | None = None  # the model's positions
    kv_cache_memory_bytes: int | None = None  # of the pool, whatever the share and the profile run say
    enforce_eager: bool = False  # without CUDA graphs
    engine_version: str = USUAL

    starts_with_longest: ClassVar[bool] = True  # whether the pool must hold a sequence of `max_model_len`

    def check(self, served: Served) -> None:
        """Raise InputError for what the engine refuses."""
        if not 0 < self.share <= 1:
            raise InputError(
                f"--gpu-memory-utilization {self.share:g}: a share of the memory, "
                "above 0 and at most 1; choose 0.9"
            )
        if self.cache_dtype not in CACHE_BYTES:
            raise unknown("cache dtype of vllm", self.cache_dtype, CACHE_BYTES)
        if self.block_size is not None and self.block_size not in BLOCK_SIZES:
            raise InputError(
                f"--block-size {self.block_size}: vllm takes {', '.join(map(str, BLOCK_SIZES))}; choose 16"
            )
        if self._version < OLDEST:
            raise InputError(
                f"--engine-version {self.engine_version}: the rules of vllm are known from 0.8 on; choose "
                f"{USUAL}"
            )
        served.check_length(self.max_model_len)

    @property
    def share(self) -> float:
        """The share of the memory that it takes; raises InputError for what is not a version."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        return 0.9 if self._version < COUNTS_GRAPHS else 0.92

    @property
    def _version(self) -> tuple[int, int]:
        """Major and minor number; raises InputError for any other text."""
        found = re.match(r"v?(\d+)\.(\d+)(\.|$)", self.engine_version)
        if found is None:
            raise InputError(
                f"--engine-version {self.engine_version}: write a version as two numbers, such as {USUAL}"
            )
        return int(found[1]), int(found[2])

    def memory(self, served: Served, board: Board, concurrency: int | None) -> EngineMemory:
        """The memory under vLLM; raises InputError as `check`."""
        self.check(served)
        seqs, batched = self._batch(board)
        length = self.max_model_len or served.positions or batched
        width = CACHE_BYTES[self.cache_dtype] or served.itemsize
        budget = int(board.total_bytes * self.share)
        pages = Pages.of(served, self.block_size or usual_block(served), width, batched, length)
        whole = served.experts_over(served.tensor * served.layout.data)
        stages = whole.stages(middle_first(len(served.places.blocks), served.layout.pipeline))
        parts = [self._parts(stage, board, seqs, batched, length) for stage in stages]
        taken = [sum(part.value_bytes for part in own) for own in parts]
        pool_bytes = self.kv_cache_memory_bytes
        if pool_bytes is not None:
            budget = pool_bytes + max(taken)
        rooms = [budget - own if pool_bytes is None else pool_bytes for own in taken]
        sizes = [pages.block_bytes(stage.layers) for stage in stages]
        blocks = [max(room, 0) // each if each else room for room, each in zip(rooms, sizes, strict=True)]
        fullest = min(range(len(stages)), key=lambda stage: (blocks[stage], rooms[stage]))
        later = "from 0.25 on another runner makes the profile run: expect larger errors"
        notes = (*whole.notes, pages.note, later if self._version >= OTHER_RUNNER else None)
        return EngineMemory(
            engine="vllm",
            follows=f"vLLM {self.engine_version.lstrip('v')}",
            device=board.name,
            devices=served.layout.tensor * served.layout.pipeline,
            replicas=served.layout.data,
            stage=fullest + 1,
            total_bytes=board.total_bytes,
            budget_bytes=budget,
            parts=parts[fullest],
            pool_bytes=rooms[fullest],
            pool_low_bytes=pool_bytes or budget - sum(part.high_bytes for part in parts[fullest]),
            cache_dtype=self.cache_dtype,
            pool=pages.pool(blocks[fullest], sizes[fullest]),
            length=length,
            most_sequences=seqs,
            most_tokens=batched,
            positions=served.positions,
            concurrency=concurrency,
            refused=_refused(budget, board, served.tensor, pool_bytes),
            notes=tuple(filter(None, notes)),
        )

    def _batch(self, board: Board) -> tuple[int, int]:
        """(sequences, tokens) of the largest step; raises InputError where the tokens are fewer."""
        large = board.total_bytes >= LARGE and "A100" not in board.name
        batched = self.max_num_batched_tokens or (8192 if large else 2048)
        seqs = self.max_num_seqs or min(1024 if large else 256, batched)
        if batched < seqs:
            raise InputError(
                f"--max-num-batched-tokens {batched} is below max-num-seqs {seqs}: each sequence takes a "
                f"token of a step; choose --max-num-batched-tokens {seqs} or more"
            )
        return seqs, batched

    def _parts(self, stage: Served, board: Board, seqs: int, batched: int, length: int) -> tuple[Part, ...]:
        """What the pool of a stage does not get."""
        run = profile_run(stage, board, seqs, batched, sorts=self._version < (0, 17))
        usual = OLDER if self._version < (0, 18) else OUTSIDE
        outside = max(usual[board.gaming] - (0 if stage.last else SAMPLER), 0)
        outside += board.exchange_bytes(2) if stage.exchanges else 0
        weights = stage.weights_bytes + stage.rotary_bytes
        parts = [
            Part(WEIGHTS, weights, weights, "parameters, and tables of rotary embeddings"),
            Part(ACTIVATIONS, run, int(1.1 * run), f"a profile run of {batched} tokens and {seqs} sequences"),
            Part(
                "outside PyTorch", int(outside), int(outside + OUTSIDE_MOST), "CUDA's modules, graphs, NCCL"
            ),
        ]
        if (images := stage.images) is not None:
            parts.append(_images_part(images.images(batched, seqs, length), stage, run))
        if self._version >= COUNTS_GRAPHS and not self.enforce_eager:
            count = graphs(seqs)
            value, high = (int(GRAPH_START + count * each) for each in (GRAPH_EACH, GRAPH_MOST))
            parts.append(Part(GRAPHS, value, high, f"{count} graphs, by what published logs estimate"))
        return tuple(parts)


def graphs(seqs: int) -> int:
    """Graphs that vLLM captures: in pieces up to twice the sequences, and whole up to the sequences."""
    sizes = captured_sizes(min(2 * seqs, CAPTURED))
    return len(sizes) + len([size for size in sizes if size <= seqs])


def _images_part(count: int, stage: Served, run: int) -> Part:
    """What images add to the peak: those that are held, or the encoder's own peak where it is higher."""
    images = stage.images
    assert images is not None
    held, alone = images.held_bytes(count, stage.itemsize), images.run_bytes(count, stage.itemsize)
    more = max(held, alone - run)
    return Part(IMAGES, more, max(more, int(1.5 * alone) - run), f"a profile run of {count} images")


def _refused(budget: int, board: Board, ranks: int, pool_bytes: int | None) -> str:
    """Why vLLM does not start: it wants its whole budget to be free."""
    free = board.free_bytes(ranks)
    if budget <= free:
        return ""
    if pool_bytes is not None:
        most = max(pool_bytes - budget + free, 0)
        return (
            f"a pool of {pool_bytes / GIB:.2f} GiB and the other parts take {budget / GIB:.2f} GiB, and CUDA "
            f"leaves {free / GIB:.2f} GiB; choose --kv-cache-memory-bytes {most} or less"
        )
    share = math.floor(100 * free / board.total_bytes) / 100
    return (
        f"vllm wants {budget / GIB:.2f} GiB, and CUDA leaves {free / GIB:.2f} GiB; choose "
        f"--gpu-memory-utilization {share:g}"
    )
