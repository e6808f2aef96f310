"""Convolution over an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind


@layer_kind("conv2d", "aten.conv2d")
@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """One call of torch.nn.functional.conv2d."""

    in_height: int
    in_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    dilation_height: int
    dilation_width: int

    axes = ("height", "width")
    sweep_share = 6.0
    function = F.conv2d
    largest_input = 320
