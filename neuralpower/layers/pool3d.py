"""Pooling over a video or a volume, by window or to a given output size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from neuralpower.layers.pool2d import Pool2d
from neuralpower.layers.pooling import Pooling
from neuralpower.layers.registry import layer_kind
from neuralpower.layers.sweep import Draw

# below torch's composite operators: max pooling always finds indices, and an adaptive average of all is a mean
OPERATORS = (
    "aten.max_pool3d_with_indices",
    "aten.avg_pool3d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_max_pool3d",
)


@layer_kind("pool3d", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Pool3d(Pooling):
    """One call of torch.nn.functional.max_pool3d and its like; x [batch, channels, in_depth, in_height, in_width]."""

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
    channels_last: bool = False

    axes = ("depth", "height", "width")

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """As a pooling of any axes; normalisation over neighbouring channels, along the depth alone, is one of images."""
        layer = super().from_call(operator, output, *args, **kwargs)
        beside = tuple(layer.sizes(name)[1:] for name in ("kernel", "stride", "padding"))
        if layer.function != "avg" or beside != ((1, 1), (1, 1), (0, 0)):
            return layer
        return Pool2d(  # type: ignore[return-value]  # of depth x (height width)
            function="avg",
            batch=layer.batch,
            channels=layer.channels,
            in_height=layer.in_depth,
            in_width=layer.in_height * layer.in_width,
            kernel_height=layer.kernel_depth,
            kernel_width=1,
            stride_height=layer.stride_depth,
            stride_width=1,
            padding_height=layer.padding_depth,
            padding_width=0,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """As of images, and along the depth of a volume as along the height, or of a video by one frame or two."""
        flat = Pool2d.sample(draw)
        window, (size, stride, padding) = (
            flat.kernel_height,
            (flat.in_height, flat.stride_height, flat.padding_height),
        )
        mean = flat.function == "adaptive_avg" and flat.out_positions == 1  # if of all frames, too
        if mean or draw.chance(0.6):
            window = stride = draw.choice((1, 1, 2))
            size, padding = window * draw.octaves(2, 32), 0
        return cls(
            in_depth=size, kernel_depth=window, stride_depth=stride, padding_depth=padding, **flat.to_row()
        )
