"""Channels last: networks and inputs in that format, and what convolutions of it return on meta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.layers.tensors import is_channels_last
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.source import Source

CONVOLUTIONS = frozenset(("conv2d", "conv3d", "convolution", "conv_transpose2d", "conv_transpose3d"))
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def laid_out(output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a convolution as devices lay it out: channels last where its input or weights are.

    Source: `cudnn_conv_suggest_memory_format` and `mkldnn_conv_use_channels_last` (ATen/native/ConvUtils.h).
    Tensors with values have been laid out already.
    """
    if not isinstance(output, Tensor) or not output.is_meta or output.dim() not in FORMATS:
        return output
    operands = [*args[:2], kwargs.get("input"), kwargs.get("weight")]
    tensors = [one for one in operands if isinstance(one, Tensor) and one.dim() == output.dim()]
    last = any(map(is_channels_last, tensors))
    return output.contiguous(memory_format=FORMATS[output.dim()]) if last else output


def channels_last(tensor: Tensor) -> Tensor:
    """Images, volumes and the weights that convolve them in channels last; other tensors as they are."""
    form = FORMATS.get(tensor.dim()) if tensor.is_floating_point() else None
    return tensor if form is None else tensor.contiguous(memory_format=form)


def with_channels_last(source: Source) -> Source:
    """The network with its weights and its inputs in channels last.

    Building it raises InputError where no weight has such a format.
    """

    def construct(dtype: torch.dtype) -> nn.Module:
        module = source.construct(dtype)
        shaped = [one for one in module.parameters() if one.dim() in FORMATS]
        if not shaped:
            raise InputError(
                f"memory format channels_last: {source.name} has no convolution of images; leave it out"
            )
        for parameter in shaped:
            parameter.data = channels_last(parameter.data)
        return module

    def examples(module: nn.Module, request: InputRequest) -> Inputs:
        return source.examples(module, request).mapped(channels_last)

    return replace(source, construct=construct, examples=examples)
