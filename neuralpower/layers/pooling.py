"""Pooling over an image, a video or a volume, by window or to a given output size.

One-dimensional pooling has height 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.late import F, torch
from neuralpower.layers import Bytes, Call, Described, Draw, Hardware, KindLaw, View, Views, layer_kind
from neuralpower.layers.columns import same_rank
from neuralpower.layers.rows import to_row
from neuralpower.layers.tensors import first, is_channels_last
from neuralpower.layers.traits import Traits, by_code, steps
from neuralpower.layers.views import by_function, bytes_terms
from neuralpower.layers.windowed import Windowed, image

FUNCTIONS = ("max", "avg", "adaptive_avg", "adaptive_max")
NAME = re.compile(rf"({'|'.join(FUNCTIONS)})_pool(\d)d")
ARGUMENTS = ("input", "kernel_size", "stride", "padding")
OVER_IMAGES = [f"aten.{function}_pool{rank}d" for function in FUNCTIONS for rank in (1, 2)]
OVER_IMAGES += ["aten.max_pool1d_with_indices", "aten.max_pool2d_with_indices", "aten.mkldnn_max_pool2d"]
OVER_IMAGES += ["aten._adaptive_avg_pool2d"]
# Below torch's composite operators max pooling always finds indices, and a global average is a mean.
OVER_VOLUMES = "max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d".split()

WINDOWS = (0, 2, 4, 6, 8)  # exponents of steps of a window: traits


def _terms(layer: Pooling, hardware: Hardware) -> Described:
    """Reads by size of the window; outputs; rows of the input."""
    reads, outputs = layer.flops(), layer.images * layer.out_positions
    return {
        "reads": reads,
        "reads_small_window": reads * (layer.window <= 9),
        "reads_large_window": reads * (layer.window > 9),
        "inputs": layer.images * layer.in_positions,
        "outputs": outputs,
        "outputs_channels_last": outputs * layer.channels_last,
        **bytes_terms(layer, hardware),
    }


def _traits(layer: Pooling) -> Traits:
    last = np.asarray(getattr(layer, "channels_last", False), dtype=float)
    function = {name: 1.0 * (np.asarray(layer.function) == name) for name in layer.words["function"]}
    window = steps("window", layer.window, WINDOWS)
    return Traits({}, function | window | {"channels last": np.broadcast_to(last, np.shape(layer.batch))})


def _features(layer: Pooling, _: Hardware) -> Described:
    return {
        "kernel_width": layer.sizes("kernel")[-1],
        "stride_width": layer.sizes("stride")[-1],
        "padding": layer.sizes("padding")[-1],
        "in_width": np.log2(layer.sizes("in")[-1]),
        "channels_last": layer.channels_last,
    }


@dataclass(frozen=True, kw_only=True)
class Pooling(Windowed):
    """A pooling over `axes`; an adaptive one records the window that its output size amounts to.

    Where its windows, or the last of ceil mode, do not come out even, the map is the one that holds them all.
    """

    function: str
    batch: int
    channels: int

    sized = ("in", "kernel", "stride", "padding")
    dimensions = ("images", "out_positions", "window")
    words = {"function": FUNCTIONS}
    group_names = FUNCTIONS
    views = Views(cpu=View(group=by_function, terms=_terms, features=_features))
    law = KindLaw(traits=_traits, on_cpu=by_code(20.0, {"avg": 100.0, "max": 200.0}))

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.max_poolNd(x, kernel, stride, padding, ...)`, `aten.adaptive_avg_poolNd(x, output_size)`, ...

        One over fewer axes than the kind has size 1 along the first.
        """
        ((function, digit),) = NAME.findall(operator)
        x, y, rank = args[0], first(output), int(digit)
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
        # windows may overlap unevenly, or the last in ceil mode be cut: take a map with as many whole ones
        axes = zip(sizes, out, kernel, stride, padding, strict=True)
        sizes = [s if (s + 2 * p - k) // t + 1 == o else (o - 1) * t + k - 2 * p for s, o, k, t, p in axes]
        before = (1,) * (len(cls.axes) - rank)  # the axes that it does not have
        said = {"in": (*before, *sizes), "kernel": (*before, *kernel), "stride": (*before, *stride)}
        fields = cls.fields_of({**said, "padding": (0,) * len(before) + tuple(padding)})
        fields["channels_last"] = x.dim() == rank + 2 and is_channels_last(x)
        return cls(function=function, batch=batch, channels=channels, **fields)

    @property
    def images(self) -> Any:
        return self.batch * self.channels

    @property
    def in_positions(self) -> Any:
        return math.prod(self.sizes("in"))

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.batch, self.channels, *self.out_sizes

    out_positions: ClassVar[Any] = Windowed.positions  # outputs per map

    def build(self, device: torch.device) -> Call:
        x = image(self, self.batch, self.channels, self.sizes("in"), device)
        function = getattr(F, f"{self.function}_pool{len(self.axes)}d")
        if self.function.startswith("adaptive"):
            axes = zip(self.sizes("in"), self.sizes("stride"), strict=True)
            return Call(function, (x, tuple(max(size // step, 1) for size, step in axes)), warm=(x,))
        options = {name: self.sizes(name.removesuffix("_size")) for name in ARGUMENTS[1:]}
        return Call(function, (x,), options, warm=(x,))

    def flops(self) -> int:
        return self.images * self.out_positions * self.window

    def bytes(self) -> Bytes:
        maps = self.itemsize * self.images
        return Bytes(maps * self.in_positions, 0, maps * self.out_positions)


@layer_kind("pool2d", *OVER_IMAGES)
@dataclass(frozen=True, kw_only=True)
class Pool2d(Pooling):
    """One call of torch.nn.functional.max_pool2d and its like; x [batch, channels, in_height, in_width]."""

    channels_last: bool = False  # memory format of the input

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
            kernel, padding = (size // out, width // out), 0
            stride = kernel
        else:
            side = min(draw.choice((2, 2, 3, 3, 3, 5, 7)), size, width)
            step = draw.choice((1, 2, 2, side))
            kernel, stride, padding = (side, side), (step, step), draw.choice((0, side // 2))
        sizes = {"in": (size, width), "kernel": kernel, "stride": stride, "padding": (padding, padding)}
        return cls(function=function, batch=batch, channels=channels, **cls.fields_of(sizes))


@layer_kind("pool3d", *(f"aten.{name}" for name in OVER_VOLUMES))
@dataclass(frozen=True, kw_only=True)
class Pool3d(Pooling):
    """One call of torch.nn.functional.max_pool3d or the like; x [batch, channels, *in]."""

    channels_last: bool = False  # memory format of the input

    axes = ("depth", "height", "width")

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """A pooling over any axes; one along the depth alone, as over channels, is one of images."""
        layer = super().from_call(operator, output, *args, **kwargs)
        beside = tuple(layer.sizes(name)[1:] for name in ("kernel", "stride", "padding"))
        if layer.function != "avg" or beside != ((1, 1), (1, 1), (0, 0)):
            return layer
        sizes = {name: layer.sizes(name)[:2] for name in cls.sized}
        sizes["in"] = (layer.in_depth, layer.in_height * layer.in_width)
        fields = Pool2d.fields_of(sizes)
        flat: Any = Pool2d(function="avg", batch=layer.batch, channels=layer.channels, **fields)
        return flat  # [depth, height width]

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """As of images; along the depth as along a volume's height, or by one or two frames of a video."""
        flat = Pool2d.sample(draw)
        size, window, stride, padding = (flat.sizes(name)[0] for name in cls.sized)
        mean = flat.function == "adaptive_avg" and flat.out_positions == 1  # if of all frames, too
        if mean or draw.chance(0.6):
            window = stride = draw.choice((1, 1, 2))
            size, padding = window * draw.octaves(2, 32), 0
        depth = {"in_depth": size, "kernel_depth": window, "stride_depth": stride, "padding_depth": padding}
        return cls(**depth, **to_row(flat))
