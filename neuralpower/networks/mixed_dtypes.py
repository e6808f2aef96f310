"""Refuse mixed types that PyTorch refuses for real tensors, but accepts for tensors without values.

Meta and fake tensors pass through a linear layer of whole numbers, or a mask of floats, which no device would
run. Products take one type. Other calls that mix types, or work on whole numbers, are tried on small real
tensors.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map

from neuralpower.errors import first_line
from neuralpower.layers.tensors import tensors_in

PRODUCTS = frozenset(
    """
    linear mm bmm matmul addmm baddbmm mv addmv dot vdot addbmm convolution _convolution conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d
    """.split()
)
GPU_ONLY = ("histc",)  # counts whole numbers there, and none on a CPU
# for other types a GPU may have an implementation that a CPU lacks
WHOLE = r"not implemented for '(Long|Int|Short|Char|Byte|Bool|Float|Double)'"
TYPES = re.compile(rf"dtype|scalar type|only support floating|Boolean inputs not|{WHOLE}")


def refused(name: str, func: Any, args: Any, kwargs: Any) -> str:
    """PyTorch's error for a call's types; "" where they fit."""
    tensors = tensors_in((args, kwargs))
    types = dict.fromkeys(tensor.dtype for tensor in tensors)
    if name in PRODUCTS:
        names = [str(one).removeprefix("torch.") for one in types]
        return f"it takes one dtype, but got {' and '.join(names)}" if len(names) > 1 else ""
    plain = len(types) == 1 and tensors[0].is_floating_point() and name != "index_select"
    if not tensors or plain or name in GPU_ONLY:
        return ""
    try:
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            func(*tree_map(_tiny, args), **tree_map(_tiny, kwargs))
    except Exception as error:
        said = first_line(error)
        return said if TYPES.search(said) else ""
    return ""


def _tiny(value: Any) -> Any:
    """A real tensor of that type, with two numbers along each axis; the CPU for another device."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, Tensor):
        return value
    return torch.zeros((2,) * value.dim(), dtype=value.dtype, device="cpu")
