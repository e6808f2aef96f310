"""Convolution over one axis, as in speech and text networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind


@layer_kind("conv1d", "aten.conv1d")
@dataclass(frozen=True, kw_only=True)
class Conv1d(Convolution):
    """One call of torch.nn.functional.conv1d."""

    in_length: int
    kernel_length: int
    stride_length: int
    padding_length: int
    dilation_length: int

    axes = ("length",)
    function = F.conv1d
    largest_input = 16384
    sweep_share = 1.5
    short_s = 5e-4
