"""PyTorch's fused attention of `nn.MultiheadAttention`, as the operators that it is made of.

In evaluation, without gradients, torch runs a whole attention as one operator: it weighs in place and
averages the weights of all heads. The conditions are torch's own (`why_not_fast_path`), but for the device:
meta tensors stand for those of any device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation

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
