"""Attention as PyTorch runs it: that of `nn.MultiheadAttention` in parts, and a GPU's kernels in training.

In evaluation, without gradients, torch runs a whole attention as one operator: it weighs in place and
averages the weights of all heads. The conditions are torch's own (`why_not_fast_path`), but for the device:
meta tensors stand for those of any device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation

from neuralpower.platforms import Platform
from neuralpower.processes.alone import alone
from neuralpower.trace.operators.undisturbed import swapped

USUAL = nn.MultiheadAttention.forward


@contextlib.contextmanager
def attention_in_parts() -> Iterator[None]:
    """Without fused operators, which hide what they are made of: attention with weights runs its parts.

    Where nobody asks for weights, torch's kernels for CPUs and GPUs differ: `scaled_dot_product_attention`
    stands for them, as in the modules' own forward.
    """
    with alone(), _fast_path(False), swapped(nn.MultiheadAttention, forward=_forward):
        yield


def _forward(self: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Its own forward, which may take the fast path on meta tensors, where it returns weights."""
    needed = args[4] if len(args) > 4 else kwargs.get("need_weights", True)
    query = args[0] if args else kwargs["query"]
    parts = {"_native_multi_head_attention": _parts}
    with (
        _fast_path(needed and query.is_meta),
        swapped(torch, **parts),
        swapped(activation, _check_arg_device=_any_device),
    ):
        return USUAL(self, *args, **kwargs)


@contextlib.contextmanager
def _fast_path(enabled: bool) -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _any_device(_: Tensor | None) -> bool:
    return True


def _parts(query: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """(x [batch, tokens, width], weights) of the operators that ATen's `native_multi_head_attention` calls.

    Queries give their memory to the context, and scores theirs to the weights unless there is a mask. The
    pass that adds the biases and scales queries is a copy here: on meta tensors, nothing has a value.
    """
    _, _, width, heads, weight, _, out_weight, out_bias, mask, _, average, _ = given
    batch, tokens, _ = query.shape
    packed = F.linear(query, weight).view(batch, tokens, 3, heads, width // heads)
    q, k, v = packed.permute(2, 0, 3, 1, 4).contiguous().view(3, batch * heads, tokens, -1)
    del packed
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, tokens, tokens)
    weights = (
        torch._softmax(scores, -1, False)
        if mask is not None
        else torch._softmax(scores, -1, False, out=scores)
    )
    del scores
    context = torch.bmm(weights.view(batch * heads, tokens, tokens), v, out=q)
    merged = context.view(batch, heads, tokens, -1).transpose(1, 2).reshape(batch, tokens, width)
    y = F.linear(merged, out_weight, out_bias)
    if average:
        weights = weights.sum(1)
        weights /= heads
    return y, weights


# ---- Kernels of attention that a GPU runs in training, for a step that is followed on a CPU ----
# `scaled_dot_product_attention` on a CPU keeps all scores where it drops some of them or where a mask has a
# gradient. CUDA's fused kernels never do (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp):
#
#     flash       16 bits, no mask, heads of one size; keys and values may have fewer heads
#     efficient   else, if all have the same number of heads; keeps a logarithm for each row of scores
#     math        else; it repeats keys and values, and keeps all scores

FLASH_HEAD = 256  # largest size of a head that flash attention takes
HALVES = (torch.float16, torch.bfloat16)


def gpu_attention(platform: Platform) -> contextlib.AbstractContextManager[None]:
    """Call the kernels that CUDA would call, where the platform has them; blocks that run again do, too."""
    kernels = partial(_attention, F.scaled_dot_product_attention)
    there = platform.name == "nvidia"
    return swapped(F, scaled_dot_product_attention=kernels) if there else contextlib.nullcontext()


class _Asked(NamedTuple):
    """What `scaled_dot_product_attention` takes."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def _attention(usual: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """[batch, heads, rows, size] of the kernel; PyTorch's own choice for other shapes."""
    asked = _Asked(*args, **kwargs)
    query, key, value, attn_mask, dropout_p, is_causal, scale, _ = asked
    if torch.is_autocast_enabled("cpu"):  # which stands for the GPU's (`neuralpower.trace.operators.casts`)
        low = torch.get_autocast_dtype("cpu")
        query, key, value = (one.to(low) for one in (query, key, value))
    plain: dict[str, Any] = {**asked._asdict(), "query": query, "key": key, "value": value}
    if query.dim() != 4 or not (query.dtype == key.dtype == value.dtype):
        return usual(**plain)
    size = query.shape[-1]
    if attn_mask is None and query.dtype in HALVES and value.shape[-1] == size <= FLASH_HEAD:
        flash: Any = torch.ops.aten._scaled_dot_product_flash_attention
        return cast(Tensor, flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0])
    if not query.shape[1] == key.shape[1] == value.shape[1]:
        math_: Any = torch.ops.aten._scaled_dot_product_attention_math
        return cast(Tensor, math_(**plain)[0])
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    kept = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    return cast(Tensor, efficient(query, key, value, bias, kept, dropout_p, is_causal, scale=scale)[0])


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as numbers that are added, seen as [batch, heads, rows, columns]."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return mask.to(query.dtype).expand(*query.shape[:2], query.shape[2], key.shape[2])
