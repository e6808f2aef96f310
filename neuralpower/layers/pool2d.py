"""Pooling over an image, by window or to a given output size; one-dimensional pooling has height 1."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import Self

from neuralpower.layers.pooling import FUNCTIONS, Pooling
from neuralpower.layers.registry import layer_kind
from neuralpower.layers.sweep import Draw

OPERATORS = [f"aten.{function}_pool{rank}d" for function in FUNCTIONS for rank in (1, 2)]
OPERATORS += ["aten.max_pool1d_with_indices", "aten.max_pool2d_with_indices", "aten.mkldnn_max_pool2d"]


@layer_kind("pool2d", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Pool2d(Pooling):
    """One call of torch.nn.functional.max_pool2d and its like; x [batch, channels, in_height, in_width]."""

    in_height: int
    in_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    channels_last: bool = False

    axes = ("height", "width")
    sweep_share = 1.2

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Windows of 2 and 3 as classic networks have them, larger ones, and global pooling."""
        function = draw.choice(("max", "max", "avg", "adaptive_avg", "adaptive_avg", "adaptive_max"))
        size = draw.octaves(2, 256)
        width = size if draw.chance(0.9) else draw.octaves(2, 256)
        batch, channels = draw.choice((1, 1, 2, 4, 8, draw.octaves(1, 32))), draw.size(3, 2048)
        if function.startswith("adaptive"):
            out = draw.choice([o for o in (1, 1, 1, 2, 7) if size % o == 0 and width % o == 0])
            kernel, stride, padding = (size // out, width // out), (size // out, width // out), 0
        else:
            side = min(draw.choice((2, 2, 3, 3, 3, 5, 7)), size, width)
            step = draw.choice((1, 2, 2, side))
            kernel, stride, padding = (side, side), (step, step), draw.choice((0, side // 2))
        return cls(
            function=function,
            batch=batch,
            channels=channels,
            in_height=size,
            in_width=width,
            kernel_height=kernel[0],
            kernel_width=kernel[1],
            stride_height=stride[0],
            stride_width=stride[1],
            padding_height=padding,
            padding_width=padding,
        )
