"""Which kernel of attention a GPU runs in training, for the memory of a step that is followed on a CPU.

`scaled_dot_product_attention` on a CPU keeps all scores where it drops some of them or where a mask has a
gradient. CUDA's fused kernels never do (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp):

    flash       16 bits, no mask, heads of one size; keys and values may have fewer heads
    efficient   else, if all have the same number of heads; keeps a logarithm for each row of scores
    math        else; it repeats keys and values, and keeps all scores
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from neuralpower.platforms import Platform

FLASH_HEAD = 256  # largest size of a head that flash attention takes
HALVES = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def gpu_attention(platform: Platform) -> Iterator[None]:
    """Call the kernels that CUDA would call, where the platform has them; blocks that run again do, too."""
    if platform.name != "nvidia":
        yield
        return
    usual = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = partial(_attention, usual)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = usual


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
