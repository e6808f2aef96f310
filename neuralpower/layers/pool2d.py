"""Pooling over an image, by window or to a given output size; one-dimensional pooling has height 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.layers.base import Bytes, Call, Draw, Hardware, Layer, memory_terms, same_rank
from neuralpower.layers.convolution import image, is_channels_last
from neuralpower.layers.registry import layer_kind

FUNCTIONS: dict[str, Any] = {
    "max": F.max_pool2d,
    "avg": F.avg_pool2d,
    "adaptive_avg": F.adaptive_avg_pool2d,
    "adaptive_max": F.adaptive_max_pool2d,
}
OPERATORS = {
    f"aten.{name}_pool{rank}d{suffix}": name
    for name in FUNCTIONS
    for rank in (1, 2)
    for suffix in ("", "_with_indices")
    if not suffix or name == "max"
}
OPERATORS["aten.mkldnn_max_pool2d"] = "max"
OPERATORS["aten.avg_pool3d"] = "avg"  # along one axis, as normalisation over neighbouring channels has it


@layer_kind("pool2d", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Pool2d(Layer):
    """x [batch, channels, in_height, in_width]; adaptive pooling records the window that its output size amounts to.

    Its windows, and the last of ceil mode, need not come out even: then the map is the one that holds them all.
    """

    function: str
    batch: int
    channels: int
    in_height: int
    in_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    channels_last: bool = False

    dimensions = ("images", "out_positions", "window")
    sweep_share = 1.2

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.max_pool2d(x, kernel, stride, padding, ...)`, `aten.adaptive_avg_pool2d(x, output_size)` and their like."""
        function, x = OPERATORS[operator], args[0]
        y = output[0] if isinstance(output, (tuple, list)) else output
        if operator == "aten.avg_pool3d":
            return cls._along_depth(x, y, *args[1:], **kwargs)
        rank = 1 if "pool1d" in operator else 2
        shape = (1,) * (rank + 2 - x.dim()) + tuple(x.shape)
        if len(shape) != rank + 2:
            raise Unmodelled(f"{operator} of a tensor with {x.dim()} axes")
        sizes, out = ((1, *s)[-2:] for s in (shape[2:], y.shape[-rank:]))
        if function.startswith("adaptive"):
            kernel: tuple[int, ...] = tuple(-(-s // o) for s, o in zip(sizes, out, strict=True))
            stride: tuple[int, ...] = kernel
            padding: tuple[int, ...] = (0, 0)
        else:

            def read(name: str, position: int, default: Any) -> tuple[int, ...]:
                value = args[position] if len(args) > position else kwargs.get(name, default)
                return same_rank(name, default if value == [] else value, rank)

            kernel = read("kernel_size", 1, None)
            stride, padding = read("stride", 2, kernel), read("padding", 3, 0)
            if rank == 1:
                kernel, stride, padding = (1, *kernel), (1, *stride), (0, *padding)
            # a window in ceil mode may reach beyond the map; what it reads is the map
            kernel = tuple(min(k, s + 2 * p) for k, s, p in zip(kernel, sizes, padding, strict=True))
        # where windows overlap by less than a whole number, or the last in ceil mode is cut: a map with as many whole ones
        axes = zip(sizes, out, kernel, stride, padding, strict=True)
        sizes = tuple(s if (s + 2 * p - k) // t + 1 == o else (o - 1) * t + k - 2 * p for s, o, k, t, p in axes)
        return cls(
            function=function,
            batch=shape[0],
            channels=shape[1],
            in_height=sizes[0],
            in_width=sizes[1],
            kernel_height=kernel[0],
            kernel_width=kernel[1],
            stride_height=stride[0],
            stride_width=stride[1],
            padding_height=padding[0],
            padding_width=padding[1],
            channels_last=x.dim() > 2 and is_channels_last(x),
        )

    @classmethod
    def _along_depth(
        cls, x: Tensor, y: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, *rest: Any, **others: Any
    ) -> Self:
        """X [batch, channels, depth, height, width] as maps of depth x (height width)."""
        kernel, step, around = (
            same_rank("pooling", value, 3) for value in (kernel_size, stride or kernel_size, padding)
        )
        if x.dim() != 5 or (*kernel[1:], *step[1:], *around[1:]) != (1, 1, 1, 1, 0, 0):
            raise Unmodelled(f"pooling with a window of {kernel}: of three axes only the first is described")
        width = x.shape[3] * x.shape[4]
        return cls(
            function="avg",
            batch=x.shape[0],
            channels=x.shape[1],
            in_height=x.shape[2],
            in_width=width,
            kernel_height=kernel[0],
            kernel_width=1,
            stride_height=step[0],
            stride_width=1,
            padding_height=around[0],
            padding_width=0,
        )

    @property
    def images(self) -> Any:
        """Independent maps."""
        return self.batch * self.channels

    @property
    def window(self) -> Any:
        """Numbers that one output reads."""
        return self.kernel_height * self.kernel_width

    @property
    def out_positions(self) -> Any:
        """Outputs per map."""
        height = (self.in_height + 2 * self.padding_height - self.kernel_height) // self.stride_height + 1
        return height * ((self.in_width + 2 * self.padding_width - self.kernel_width) // self.stride_width + 1)

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

    def build(self, device: torch.device) -> Call:
        """The functional call."""
        x = image(self, self.batch, self.channels, (self.in_height, self.in_width), device)
        function = FUNCTIONS[self.function]
        if self.function.startswith("adaptive"):
            size = (self.in_height // self.stride_height, self.in_width // self.stride_width)
            return Call(function, (x, tuple(max(s, 1) for s in size)), warm=(x,))
        options = {
            "kernel_size": (self.kernel_height, self.kernel_width),
            "stride": (self.stride_height, self.stride_width),
            "padding": (self.padding_height, self.padding_width),
        }
        return Call(function, (x,), options, warm=(x,))

    def flops(self) -> int:
        """One comparison or addition per number read."""
        return self.images * self.out_positions * self.window

    def bytes(self) -> Bytes:
        """The maps in and out."""
        return Bytes(
            self.itemsize * self.images * self.in_height * self.in_width,
            0,
            self.itemsize * self.images * self.out_positions,
        )

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Reads by size of the window; outputs; rows of the input."""
        reads = self.flops()
        return {
            "reads": reads,
            "reads_small_window": reads * (self.window <= 9),
            "reads_large_window": reads * (self.window > 9),
            "inputs": self.images * self.in_height * self.in_width,
            "outputs": self.images * self.out_positions,
            "outputs_channels_last": self.images * self.out_positions * self.channels_last,
            **memory_terms(self, hardware),
        }

    def features(self) -> dict[str, Any]:
        """The window and how it moves."""
        return {
            "kernel_width": self.kernel_width,
            "stride_width": self.stride_width,
            "padding": self.padding_width,
            "in_width": np.log2(self.in_width),
            "channels_last": self.channels_last,
        }

    def group(self) -> Any:
        """The four functions are four kernels."""
        return np.asarray(self.function)
