"""Convolution over an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from typing_extensions import Self

from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import BY_OPERATOR, layer_kind

GENERAL = (
    "input",
    "weight",
    "bias",
    "stride",
    "padding",
    "dilation",
    "transposed",
    "output_padding",
    "groups",
)


@layer_kind("conv2d", "aten.conv2d", "aten.convolution")
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

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv2d`; `aten.convolution`, of which convolutions of complex numbers are made, is the kind of its axes."""
        if operator != "aten.convolution":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(GENERAL, args, strict=False)), **kwargs}
        name = f"aten.conv{'_transpose' if given['transposed'] else ''}{given['weight'].dim() - 2}d"
        return BY_OPERATOR[name].from_call(name, output, **given)  # type: ignore[return-value]  # of any axes
