"""The memory format of a convolution's result, which meta tensors forget: channels last as its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neuralpower.layers.windowed import is_channels_last

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
