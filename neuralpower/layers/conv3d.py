"""Convolution over a video or a volume; a transposed one is the gradient of the convolution that leads back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from neuralpower.layers.conv_transpose2d import TRANSPOSED
from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind


@layer_kind("conv3d", "aten.conv3d", "aten.conv_transpose3d")
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

    @classmethod
    def from_call(cls, operator: str, output: Tensor, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv3d`, and `aten.conv_transpose3d` as the convolution from its output to its input: as many products."""
        if operator != "aten.conv_transpose3d":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(TRANSPOSED, args, strict=False)), **kwargs}
        return super().from_call("aten.conv3d", given["input"], **{**given, "input": output})
