"""Refuse networks that cannot be traced operator by operator, and mixed types that PyTorch refuses."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from neuralpower.errors import InputError, ModelError, first_line, said
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.known_values import tensors_within
from neuralpower.networks.inputs.size_limits import overflows


def check_followable(model: nn.Module, inputs: Any) -> None:
    """Raise ModelError for TorchScript and weights without a shape, InputError for tensors not dense."""
    name = type(model).__name__
    for path, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"{path or name}: it is TorchScript ({type(part).__name__}), whose forward cannot be "
                "followed; give the module that it was made from"
            )
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{name}: {path} has no shape before its layer has seen an input; "
                "call the module once on an example, then ask again"
            )
    attributes = (v for part in model.modules() for v in vars(part).values() if isinstance(v, Tensor))
    for tensor in (*model.parameters(), *model.buffers(), *attributes, *tensors_within(inputs)):
        if tensor.is_nested and tensor.layout != torch.jagged:
            raise InputError(
                f"{name}: a tensor is nested, and only those of one shape are followed; give it padded, or "
                "with layout=torch.jagged"
            )
        if tensor.layout not in (torch.strided, torch.jagged):
            raise InputError(
                f"{name}: a tensor of {tuple(tensor.shape)} is {tensor.layout}, and only dense ones are "
                "followed; give its to_dense()"
            )


SAYING = {
    "does not require grad": "it takes the gradient of what depends on no tensor that requires one; "
    "call requires_grad_() on its input first",
    "fullgraph=True": "a part of it runs compiled alone, and cannot be followed; give it uncompiled",
    "combine_mode='pointwise'": "give combine_mode='generic', which computes the same",
    "does not support sparse weights": "give its layer sparse=False, or another mode",
    "Only CUDA tensors are currently supported": "a part of it, as sparse weights of 2:4, asks for a GPU's "
    "tensors, which a trace has not; give it with dense weights",
    **dict.fromkeys(
        ("Sparse", "sparse tensor", "NestedTensor", "nested tensor"),
        "it makes tensors that are sparse or nested, and only dense ones of one shape are followed; "
        "make them dense",
    ),
}
"""A part of an error's text -> the way out."""
MISSING = "required positional argument"  # as Python says it
SIZES = "(batch size, sequence length, input shape)"


def all_inputs(model: nn.Module) -> str:
    """How to give the inputs of a network that needs several; "" for one that needs at most one."""
    needed = [
        one.name
        for one in inspect.signature(model.forward).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) < 2:
        return ""
    try:
        file = Path(inspect.getfile(type(model))).name
    except (TypeError, OSError):  # a class that was typed in
        file = "the model's file"
    return f"define example_inputs(batch_size) in {file}, which returns the tuple ({', '.join(needed)})"


def way_out(error: BaseException | None, made: bool, model: nn.Module | None = None) -> str:
    """What to do where a forward pass fails on inputs that neuralpower has `made`, or that were given."""
    for words, way in SAYING.items():
        if words in said(error):
            return way
    if "unexpected keyword argument" in said(error) and not made:
        return "a mapping of inputs holds keywords; where forward takes a mapping itself, give (mapping,)"
    if error is not None and not isinstance(error, Exception):
        return "a forward pass must not end the program; let it return its output, or raise an ordinary error"
    if isinstance(error, RecursionError):
        return "its modules lie too deep in one another, or call themselves without end; nest fewer"
    if overflows(error):
        return f"no memory holds a tensor of that size: choose smaller sizes {SIZES}"
    if made and MISSING in said(error) and model is not None and (way := all_inputs(model)):
        return way
    if made:
        return (
            f"the inputs that were made do not fit it: choose other sizes {SIZES}, or define "
            "example_inputs(batch_size) in a model file; in Python: predict(model, inputs)"
        )
    return f"check the inputs {SIZES} against what the model takes"


# ---- Refuse mixed types that PyTorch refuses for real tensors, but accepts for tensors without values ----
# Meta and fake tensors pass through a linear layer of whole numbers, or a mask of floats, which no device
# would run. Products take one type. Other calls that mix types, or work on whole numbers, are tried on small
# real tensors.


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
