"""What the pooling kinds share: sizes named by axis, output sizes, costs, terms.

A kind names its `axes` ("height", "width") and writes its fields out: `in_height`, `kernel_height`, `stride_height`,
`padding_height` and so on.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from typing_extensions import Self

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import Unmodelled
from neuralpower.layers.base import Bytes, Layer, memory_terms
from neuralpower.layers.call import Call
from neuralpower.layers.columns import same_rank
from neuralpower.layers.convolution import along, image, is_channels_last, reader
from neuralpower.layers.terms import floor_div

FUNCTIONS = ("max", "avg", "adaptive_avg", "adaptive_max")
NAME = re.compile(rf"({'|'.join(FUNCTIONS)})_pool(\d)d")
ARGUMENTS = ("input", "kernel_size", "stride", "padding")


@dataclass(frozen=True, kw_only=True)
class Pooling(Layer):
    """A pooling over `axes`, x [batch, channels, *in]; an adaptive one records the window that its output size amounts to.

    Its windows, and the last of ceil mode, need not come out even: then the map is the one that holds them all.
    """

    function: str
    batch: int
    channels: int

    axes: ClassVar[tuple[str, ...]] = ()

    dimensions = ("images", "out_positions", "window")
    words = {"function": FUNCTIONS}
    group_names = FUNCTIONS

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.max_poolNd(x, kernel, stride, padding, ...)`, `aten.adaptive_avg_poolNd(x, output_size)` and their like.

        One over fewer axes than the kind has is of size 1 along the first.
        """
        ((function, digit),) = NAME.findall(operator)
        x, y, rank = args[0], output[0] if isinstance(output, (tuple, list)) else output, int(digit)
        batch, channels, *sizes = (1,) * (rank + 2 - x.dim()) + tuple(x.shape)  # of one sample, perhaps
        if len(sizes) != rank:
            raise Unmodelled(f"{operator} of a tensor with {x.dim()} axes")
        out = y.shape[-rank:]
        if function.startswith("adaptive"):
            kernel = stride = tuple(-(-s // o) for s, o in zip(sizes, out, strict=True))
            padding: tuple[int, ...] = (0,) * rank
        else:
            given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
            kernel = same_rank("kernel_size", given["kernel_size"], rank)
            stride = same_rank("stride", given.get("stride") or kernel, rank)
            padding = same_rank("padding", given.get("padding") or 0, rank)
            # a window in ceil mode may reach beyond the map; what it reads is the map
            kernel = tuple(min(k, s + 2 * p) for k, s, p in zip(kernel, sizes, padding, strict=True))
        # where windows overlap by less than a whole number, or the last in ceil mode is cut: a map with as many whole ones
        axes = zip(sizes, out, kernel, stride, padding, strict=True)
        sizes = [s if (s + 2 * p - k) // t + 1 == o else (o - 1) * t + k - 2 * p for s, o, k, t, p in axes]
        fields: dict[str, Any] = {}
        for name, values in (("in", sizes), ("kernel", kernel), ("stride", stride), ("padding", padding)):
            fields |= dict.fromkeys(along(cls.axes, name), int(name != "padding"))
            fields |= zip(along(cls.axes, name)[-rank:], values, strict=True)
        fields["channels_last"] = x.dim() == rank + 2 and is_channels_last(x)
        return cls(function=function, batch=batch, channels=channels, **fields)

    @property
    @abstractmethod
    def channels_last(self) -> Any:
        """Memory format of the input: a kind's last field, which a table may leave out."""

    def sizes(self, name: str) -> tuple[Any, ...]:
        """The values of `name` ("kernel", "stride", ...) along the axes."""
        return reader(self.axes, name)(self)

    @property
    def images(self) -> Any:
        """Independent maps."""
        return self.batch * self.channels

    @property
    def in_positions(self) -> Any:
        """Numbers in a map."""
        return math.prod(self.sizes("in"))

    @property
    def window(self) -> Any:
        """Numbers that one output reads."""
        return math.prod(self.sizes("kernel"))

    @property
    def out_sizes(self) -> tuple[Any, ...]:
        """Output size per axis."""
        axes = zip(*map(self.sizes, ("in", "padding", "kernel", "stride")), strict=True)
        return tuple(
            [floor_div(size + 2 * padding - kernel, stride) + 1 for size, padding, kernel, stride in axes]
        )

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """[batch, channels, *out]."""
        return self.batch, self.channels, *self.out_sizes

    @property
    def out_positions(self) -> Any:
        """Outputs per map."""
        return math.prod(self.out_sizes)

    def build(self, device: torch.device) -> Call:
        """The functional call."""
        x = image(self, self.batch, self.channels, self.sizes("in"), device)
        function = getattr(F, f"{self.function}_pool{len(self.axes)}d")
        if self.function.startswith("adaptive"):
            axes = zip(self.sizes("in"), self.sizes("stride"), strict=True)
            return Call(function, (x, tuple(max(size // step, 1) for size, step in axes)), warm=(x,))
        options = {
            "kernel_size": self.sizes("kernel"),
            "stride": self.sizes("stride"),
            "padding": self.sizes("padding"),
        }
        return Call(function, (x,), options, warm=(x,))

    def flops(self) -> int:
        """One comparison or addition per number read."""
        return self.images * self.out_positions * self.window

    def bytes(self) -> Bytes:
        """The maps in and out."""
        maps = self.itemsize * self.images
        return Bytes(maps * self.in_positions, 0, maps * self.out_positions)

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Reads by size of the window; outputs; rows of the input."""
        reads, outputs = self.flops(), self.images * self.out_positions
        return {
            "reads": reads,
            "reads_small_window": reads * (self.window <= 9),
            "reads_large_window": reads * (self.window > 9),
            "inputs": self.images * self.in_positions,
            "outputs": outputs,
            "outputs_channels_last": outputs * self.channels_last,
            **memory_terms(self, hardware),
        }

    def features(self) -> dict[str, Any]:
        """The window and how it moves."""
        return {
            "kernel_width": self.sizes("kernel")[-1],
            "stride_width": self.sizes("stride")[-1],
            "padding": self.sizes("padding")[-1],
            "in_width": np.log2(self.sizes("in")[-1]),
            "channels_last": self.channels_last,
        }

    def group(self) -> Any:
        """The four functions are four kernels."""
        return np.asarray(self.function)
