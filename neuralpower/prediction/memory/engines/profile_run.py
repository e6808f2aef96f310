"""vLLM's profile run: the peak of a pass over the largest step, and of a sampler over all sequences.

The forward pass holds the widest block's products and the hidden state three times: a block's input, its
residual and what the attention gave. The sampler holds logits in the model's type and in float32,
probabilities and random numbers in float32, and a row of logits for each program of its top-k kernel
(vllm/v1/sample/ops/topk_topp_sampler.py, topk_topp_triton.py). Before version 0.17 it sorted them. Work space
of a mixture stays to the end. Only the last pipeline stage samples. The others return the hidden state and
its residual, and all but the first have buffers for both.
"""

from __future__ import annotations

import math

from neuralpower.prediction.memory.engines.board import Board
from neuralpower.prediction.memory.engines.network import Served
from neuralpower.prediction.memory.engines.shares import PADDED

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
