"""The base of convolutions and poolings: a window that moves over the axes of x [batch, channels, *in].

A kind names its `axes` ("height", "width"). It then has a field of each size along each axis: `in_height`,
`in_width`, `kernel_height` and so on.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from neuralpower.late import Tensor, torch
from neuralpower.layers import Layer
from neuralpower.layers.terms import floor_div


@dataclass(frozen=True, kw_only=True)
class Windowed(Layer):
    """A kind with a window over `axes`."""

    axes: ClassVar[tuple[str, ...]] = ()
    sized: ClassVar[tuple[str, ...]]  # the sizes of which each axis has one, in the order of the fields

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The fields of sizes, which no class body lists."""

    def __init_subclass__(cls) -> None:
        """Give a kind that names its axes the fields of sizes, before the fields of its own."""
        if "axes" in cls.__dict__:
            names = [name for size in cls.sized for name in along(cls.axes, size)]
            cls.__annotations__ = dict.fromkeys(names, "int") | inspect.get_annotations(cls)
        super().__init_subclass__()

    @classmethod
    def fields_of(cls, sizes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """The fields of these sizes, each with a number per axis."""
        pairs = (zip(along(cls.axes, name), sizes[name], strict=True) for name in cls.sized)
        return {field: value for named in pairs for field, value in named}

    def sizes(self, name: str) -> tuple[Any, ...]:
        """The values of `name` ("kernel", "stride", ...) along the axes."""
        return _reader(self.axes, name)(self)

    @functools.cached_property
    def out_sizes(self) -> tuple[Any, ...]:
        dilations = self.sizes("dilation") if "dilation" in self.sized else (1,) * len(self.axes)
        axes = zip(*map(self.sizes, ("in", "padding", "kernel", "stride")), dilations, strict=True)
        return tuple([floor_div(size + 2 * p - d * (k - 1) - 1, step) + 1 for size, p, k, step, d in axes])

    @property
    def positions(self) -> Any:
        return math.prod(self.out_sizes)

    @property
    def window(self) -> Any:
        return math.prod(self.sizes("kernel"))


@functools.cache
def along(axes: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The fields that hold `name` along the axes."""
    return tuple(f"{name}_{axis}" for axis in axes)


@functools.cache
def _reader(axes: tuple[str, ...], name: str) -> Callable[[object], tuple[Any, ...]]:
    """A reader of these fields: a search asks for them millions of times."""
    first, *others = along(axes, name)
    return attrgetter(first, *others) if others else lambda layer: (getattr(layer, first),)


def image(layer: Any, batch: int, channels: int, sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """A random x [batch, channels, *sizes], in the memory format of `layer`."""
    if layer.channels_last:
        return torch.movedim(layer.tensor(batch, *sizes, channels, device=device), -1, 1)
    return torch.as_tensor(layer.tensor(batch, channels, *sizes, device=device))
