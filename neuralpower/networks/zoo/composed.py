"""Convolutional networks as people compose them themselves: blocks of one sort over signals or images, in some stages.

What they are made of is published elsewhere: residual and bottleneck blocks (arXiv 1512.03385), inverted ones with a squeezed
gate (1801.04381, 1709.01507), grouped ones (1611.05431, 1707.01083), gated and dilated ones (1609.03499), dense ones
(1608.06993), and networks of single positions (1612.00593, 2105.01601).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Residual, named

CHANNELS, CLASSES = 3, 100
GROUPS, FEW_GROUPS = 8, 4  # of a norm, and of a convolution that mixes nearly all channels
GROUP_WIDTH = 8  # channels of a group, of a convolution that mixes few
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
}


def _group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(math.gcd(GROUPS, width), width)  # a bottleneck of 24 channels has 12


NORMS: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], nn.Module]]] = {  # of signals, of images
    "batch": (nn.BatchNorm1d, nn.BatchNorm2d),
    "group": (_group_norm, _group_norm),
    "none": (nn.Identity, nn.Identity),
}
CONVOLUTIONS: tuple[Callable[..., nn.Module], Callable[..., nn.Module]] = (nn.Conv1d, nn.Conv2d)


class Units:
    """Convolutions over one or two axes, each with its norm and activation."""

    def __init__(self, axes: int, norm: str, activation: str) -> None:
        self.axes = axes
        self.norm = NORMS[norm][axes - 1]
        self.activation = ACTIVATIONS[activation]

    def convolution(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, **settings: int
    ) -> nn.Module:
        """One that keeps the size but for its stride."""
        padding = settings.get("dilation", 1) * (kernel // 2)
        return CONVOLUTIONS[self.axes - 1](inputs, outputs, kernel, stride, padding, **settings)

    def unit(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, **settings: int
    ) -> nn.Sequential:
        """Convolution, norm, activation."""
        convolution = self.convolution(inputs, outputs, kernel, stride, **settings)
        return named(convolution=convolution, norm=self.norm(outputs), activation=self.activation())


class Squeezed(nn.Module):
    """Each channel times a share that the means of all say."""

    def __init__(self, units: Units, width: int) -> None:
        super().__init__()
        self.reduce = units.convolution(width, max(width // 4, 1))
        self.activation = units.activation()
        self.expand = units.convolution(max(width // 4, 1), width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        mean = x.mean(dim=tuple(range(2, x.dim())), keepdim=True)
        return x * torch.sigmoid(self.expand(self.activation(self.reduce(mean))))


class Gated(nn.Module):
    """Half of a dilated convolution's channels open or shut the other half."""

    def __init__(self, units: Units, width: int, dilation: int) -> None:
        super().__init__()
        self.both = units.convolution(width, 2 * width, 3, dilation=dilation)
        self.norm = units.norm(width)
        self.project = units.convolution(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        value, gate = self.both(x).chunk(2, dim=1)
        opened: Tensor = self.project(self.norm(torch.tanh(value) * torch.sigmoid(gate)))
        return x + opened


class Grown(nn.Module):
    """A quarter more channels are made of all so far, and all brought back to the width."""

    def __init__(self, units: Units, width: int) -> None:
        super().__init__()
        more = max(width // 4, GROUPS) // GROUPS * GROUPS
        self.grow = units.unit(width, more, 3)
        self.join = units.unit(width + more, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape."""
        joined: Tensor = self.join(torch.cat([x, self.grow(x)], dim=1))
        return joined


def residual(*body: nn.Module) -> nn.Module:
    """The sum of an input and what the modules in turn make of it."""
    return Residual(nn.Sequential(*body))


def _block(sort: str, units: Units, width: int, number: int) -> nn.Module:
    if sort == "plain":
        return units.unit(width, width, 3)
    if sort == "residual":
        return residual(units.unit(width, width, 3), units.unit(width, width, 3))
    if sort == "bottleneck":
        narrow = max(width // 2, GROUPS)
        return residual(units.unit(width, narrow), units.unit(narrow, narrow, 3), units.unit(narrow, width))
    if sort == "inverted":
        wide = 4 * width
        depthwise = units.unit(wide, wide, 5, groups=wide)
        return residual(
            units.unit(width, wide), depthwise, Squeezed(units, wide), units.convolution(wide, width)
        )
    if sort == "grouped":
        wide = 2 * width
        inside = units.unit(wide, wide, 3, groups=wide // GROUP_WIDTH)
        return residual(units.unit(width, wide, groups=FEW_GROUPS), inside, units.convolution(wide, width))
    if sort == "gated":
        return Gated(units, width, 2 ** (number % 4))
    if sort == "grown":
        return Grown(units, width)
    return residual(units.norm(width), units.unit(width, 2 * width), units.convolution(2 * width, width))


SORTS = ("plain", "residual", "bottleneck", "inverted", "grouped", "gated", "grown", "pointwise")
ENDS = ("classes", "positions", "restored")


@dataclass(frozen=True)
class Design:
    """What is composed: blocks of one sort over images (2 axes) or signals (1)."""

    block: str = "residual"
    axes: int = 2
    norm: str = "batch"
    activation: str = "relu"
    width: int = 32
    depth: int = 2
    stages: int = 3
    size: int = 64  # of the inputs
    end: str = "classes"

    def check(self) -> None:
        """Raise ModelError for what cannot be composed."""
        known = {"block": SORTS, "norm": NORMS, "activation": ACTIVATIONS, "end": ENDS}
        for what, names in known.items():
            if getattr(self, what) not in names:
                raise unknown(what, getattr(self, what), names, ModelError)
        if self.axes not in (1, 2):
            raise ModelError(f"axes {self.axes}: signals have 1, images 2")
        if self.width % GROUPS:
            raise ModelError(f"width {self.width}: must be a multiple of {GROUPS}")
        halved = self.stages - 1
        if self.size % 2**halved:
            raise ModelError(f"size {self.size}: is halved {halved} times; choose a multiple of {2**halved}")


class Composed(nn.Module):
    """A stem, stages of blocks that halve the size and double the width, and an end.

    Classes of the whole, classes of each position, or a decoder that restores the first size.
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        units, width, end = Units(design.axes, design.norm, design.activation), design.width, design.end
        self.stem = units.unit(CHANNELS, width, 3)
        self.stages = nn.ModuleList()
        for stage in range(design.stages):
            wide = width * 2**stage
            down = [units.unit(wide // 2, wide, 3, 2)] if stage else []
            blocks = (_block(design.block, units, wide, number) for number in range(design.depth))
            self.stages.append(nn.Sequential(*down, *blocks))
        widths = [width * 2**stage for stage in reversed(range(design.stages))]
        pairs = zip(widths, widths[1:], strict=False) if end == "restored" else ()
        self.up = nn.ModuleList(units.unit(wide, narrow, 3) for wide, narrow in pairs)
        self.whole = end == "classes"
        last = width if end == "restored" else widths[0]
        self.head = nn.Linear(last, CLASSES) if self.whole else units.convolution(last, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Input [batch, 3, *size] -> [batch, classes], or [batch, classes, *sizes]."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        for up in self.up:
            x = up(F.interpolate(x, scale_factor=2.0))
        scores: Tensor = self.head(x.mean(dim=tuple(range(2, x.dim()))) if self.whole else x)
        return scores


def composed_inputs(batch_size: int, axes: int = 2, size: int = 64) -> tuple[Tensor, ...]:
    """Signals [batch_size, 3, size], or images [batch_size, 3, size, size]."""
    return (torch.randn(batch_size, CHANNELS, *[size] * axes),)


@zoo_model(
    "composed",
    title="Composed convolutional network",
    input_shape=(CHANNELS, 64, 64),
    classes=CLASSES,
    example_inputs=composed_inputs,
    sweep={
        "block": SORTS,
        "axes": (2,),
        "norm": (*NORMS, "batch"),
        "activation": tuple(ACTIVATIONS),
        "width": (16, 24, 32, 48, 64),
        "depth": (1, 2, 3, 4),
        "stages": (1, 2, 3),
        "size": (28, 32, 48, 64, 96, 128),
        "end": (*ENDS, "classes"),
        "batch_size": (1, 1, 2, 4, 8),
    },
)
def composed(**keywords: Any) -> Composed:
    """A network of that `Design`; raises ModelError."""
    design = Design(**keywords)
    design.check()
    return Composed(design)


composed.__dict__["__signature__"] = inspect.signature(Design)  # the keywords that a user may give
