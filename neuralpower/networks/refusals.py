"""What cannot be followed operator by operator, said before it is tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neuralpower.errors import InputError, ModelError, said
from neuralpower.networks.promised_values import tensors_within
from neuralpower.networks.size_limits import overflows


def check_followable(model: nn.Module, inputs: Any) -> None:
    """Raise ModelError for TorchScript and weights without a shape, InputError for tensors that are not dense."""
    name = type(model).__name__
    for path, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"{path or name}: it is TorchScript ({type(part).__name__}), whose forward cannot be followed; give the module "
                "that it was made from"
            )
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{name}: {path} has no shape before its layer has seen an input; call the module once on an example, "
                "then ask again"
            )
    attributes = [
        value for part in model.modules() for value in vars(part).values() if isinstance(value, Tensor)
    ]
    for tensor in (*model.parameters(), *model.buffers(), *attributes, *tensors_within(inputs)):
        if tensor.is_nested:
            raise InputError(
                f"{name}: a tensor is nested, and only those of one shape are followed; give it padded"
            )
        if tensor.layout != torch.strided:
            raise InputError(
                f"{name}: a tensor of {tuple(tensor.shape)} is {tensor.layout}, and only dense ones are followed; "
                "give its to_dense()"
            )


def way_out(error: BaseException | None, made: bool) -> str:
    """What to do about what a forward pass raises on inputs that neuralpower has `made`, or the caller has given."""
    if "does not require grad" in said(error):
        return (
            "a trace has no gradients for a forward that takes them itself; give the module that computes what is derived, "
            "and phase backward for the rest"
        )
    if "fullgraph=True" in said(error):
        return (
            "a part of it runs compiled alone, as flex_attention does, and cannot be followed; choose another attention (of a "
            "transformers model MODEL?attn_implementation=sdpa)"
        )
    if "SparseTensorImpl" in said(error) or "NestedTensorImpl" in said(error):
        return "it makes tensors that are sparse or nested, and only dense ones of one shape are followed; make them dense"
    if "does not support sparse weights" in said(error):
        return "give its layer sparse=False, or another mode"
    if "unexpected keyword argument" in said(error) and not made:
        return "a mapping of inputs is keywords; where forward takes a mapping itself, give (mapping,)"
    if error is not None and not isinstance(error, Exception):
        return "a forward pass may not end the program; let it return its output, or raise an ordinary error"
    if isinstance(error, RecursionError):
        return "its modules lie too deep in one another, or call themselves without end; nest fewer"
    if overflows(error):
        return "no memory holds a tensor of that size: ask for smaller sizes (batch size, sequence length, input shape)"
    if made:
        return (
            "neuralpower cannot make inputs that fit it at these sizes: ask for others (batch size, sequence length, input shape), "
            "or give inputs of your own in Python: predict(model, inputs)"
        )
    return "check the inputs (batch size, sequence length, input shape) against what the model takes"
