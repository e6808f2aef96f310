"""Convolution over one axis, as in speech and text networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from typing_extensions import Self

from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind


@layer_kind("conv1d", "aten.conv1d", "aten.conv_tbc")
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

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv1d`, and `aten.conv_tbc(x [length, batch, in], W [kernel, in, out], b, padding)`, which lies otherwise."""
        if operator != "aten.conv_tbc":
            return super().from_call(operator, output, *args, **kwargs)
        x, weight, bias, *padding = args
        given = {"input": x.permute(1, 2, 0), "weight": weight.permute(2, 1, 0), "bias": bias}
        given["padding"] = padding[0] if padding else kwargs.get("pad", 0)
        return super().from_call("aten.conv1d", output.permute(1, 2, 0), **given)
