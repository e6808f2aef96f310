"""Transposed convolution over an image: each input position adds a scaled kernel to the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from neuralpower.layers.columns import same_rank
from neuralpower.layers.convolution import Convolution
from neuralpower.layers.registry import layer_kind
from neuralpower.layers.sweep import Draw

TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


@layer_kind("conv_transpose2d", "aten.conv_transpose2d", "aten.conv_transpose1d")
@dataclass(frozen=True, kw_only=True)
class ConvTranspose2d(Convolution):
    """One call of torch.nn.functional.conv_transpose2d; those of one axis have height 1, as PyTorch runs them."""

    in_height: int
    in_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    output_padding_height: int = 0
    output_padding_width: int = 0
    dilation_height: int
    dilation_width: int

    axes = ("height", "width")
    sweep_share = 1.2
    function = F.conv_transpose2d
    argument_order = TRANSPOSED

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv_transposeNd(x, W, b, stride, padding, output_padding, groups, dilation)`."""
        if operator != "aten.conv_transpose1d":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(cls.argument_order, args, strict=False)), **kwargs}
        given |= {name: given[name].unsqueeze(-2) for name in ("input", "weight")}
        for name, of_height in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            given[name] = (of_height, *same_rank(name, given.get(name, of_height), 1))
        return super().from_call(operator, output.unsqueeze(-2), **given)

    @property
    def out_sizes(self) -> tuple[Any, ...]:
        """Output size per axis (torch.nn.ConvTranspose2d)."""
        names = ("in", "padding", "output_padding", "dilation", "kernel", "stride")
        return tuple(
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
            for size, padding, extra, dilation, kernel, stride in zip(
                *(self.sizes(n) for n in names), strict=True
            )
        )

    @property
    def mac_positions(self) -> Any:
        """Input positions: each meets every weight."""
        return math.prod(self.sizes("in"))

    def weight(self, device: torch.device) -> Tensor:
        """[in_channels, out_channels / groups, *kernel]."""
        return self.tensor(
            self.in_channels, self.out_channels // self.groups, *self.sizes("kernel"), device=device
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Upsampling by 2, 4 or 8 and learned smoothing, from small maps."""
        stride = draw.choice((1, 2, 2, 2, 4, 8))
        kernel = draw.choice((stride, 2 * stride, 3, 4, 5)) if stride <= 4 else stride
        kernel = max(kernel, stride)
        size = draw.octaves(4, 64)
        both = {
            "in": size,
            "kernel": kernel,
            "stride": stride,
            "padding": (kernel - stride) // 2,
            "dilation": 1,
        }
        fields: dict[str, Any] = {
            f"{name}_{axis}": value for name, value in both.items() for axis in cls.axes
        }
        return cls(
            batch=draw.choice((1, 1, 2, 4)),
            in_channels=draw.size(8, 512),
            out_channels=draw.size(1, 512),
            groups=1,
            bias=draw.chance(0.6),
            **fields,
        )
