"""Convolution over a video or a volume."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind


@layer_kind("conv3d", "aten.conv3d")
@dataclass(frozen=True, kw_only=True)
class Conv3d(Convolution):
    """One call of torch.nn.functional.conv3d."""

    in_depth: int
    in_height: int
    in_width: int
    kernel_depth: int
    kernel_height: int
    kernel_width: int
    stride_depth: int
    stride_height: int
    stride_width: int
    padding_depth: int
    padding_height: int
    padding_width: int
    dilation_depth: int
    dilation_height: int
    dilation_width: int

    axes = ("depth", "height", "width")
    sweep_share = 2.0
    function = F.conv3d
    largest_input = 48
