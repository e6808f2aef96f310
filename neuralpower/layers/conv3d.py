"""Convolution over a video or a volume; a transposed one is the gradient of the convolution that leads back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from neuralpower.layers.base import Bytes, check_output
from neuralpower.layers.call import Call
from neuralpower.layers.conv_transpose2d import TRANSPOSED
from neuralpower.layers.convolution import Convolution, image
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
    transposed: bool = (
        False  # it leads back, from what the other fields call its output to what they call its input
    )

    axes = ("depth", "height", "width")
    later = frozenset({"transposed"})
    sweep_share = 2.0
    function = F.conv3d
    largest_input = 48

    @classmethod
    def from_call(cls, operator: str, output: Tensor, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv3d`, and `aten.conv_transpose3d` as the convolution from its output to its input: as many products."""
        if operator != "aten.conv_transpose3d":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(TRANSPOSED, args, strict=False)), **kwargs}
        back = super().from_call("aten.conv3d", given["input"], **{**given, "input": output})
        check_output(back, "aten.conv3d", given["input"])
        return replace(back, transposed=True)

    @property
    def made(self) -> tuple[Any, ...]:
        """[batch, channels, depth, height, width] of the side that it leads to."""
        there, back = (self.out_channels, *self.out_sizes), (self.in_channels, *self.sizes("in"))
        return self.batch, *(a + self.transposed * (b - a) for a, b in zip(there, back, strict=True))

    def bytes(self) -> Bytes:
        """Input, weights and output, once each."""
        read, weights, written = super().bytes()
        more = self.transposed * (written - read)
        return Bytes(read + more, weights, written - more)

    def build(self, device: torch.device) -> Call:
        """The functional call; a transposed one adds to its output what its stride leaves open."""
        if not self.transposed:
            return super().build(device)
        x = image(self, self.batch, self.out_channels, self.out_sizes, device)
        bias = self.tensor(self.in_channels, device=device) if self.bias else None
        names = ("in", "kernel", "stride", "padding", "dilation")
        extra = tuple(
            (size + 2 * padding - dilation * (kernel - 1) - 1) % stride
            for size, kernel, stride, padding, dilation in zip(*map(self.sizes, names), strict=True)
        )
        settings = (self.sizes("stride"), self.sizes("padding"), extra, self.groups, self.sizes("dilation"))
        return Call(F.conv_transpose3d, (x, self.weight(device), bias, *settings), warm=(x,))
