"""Convolutional networks as people compose them: blocks of one sort over signals or images, in some stages.

Residual and bottleneck blocks are published in arXiv 1512.03385, inverted ones with a squeezed gate in
1801.04381 and 1709.01507, grouped ones in 1611.05431 and 1707.01083, gated and dilated ones in 1609.03499,
dense ones in 1608.06993, and networks of single positions in 1612.00593 and 2105.01601.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
}
NORMS: Mapping[str, Callable[[int, int], nn.Module]] = {  # of (axes, channels)
    "batch": lambda axes, width: (nn.BatchNorm1d, nn.BatchNorm2d)[axes - 1](width),
    "group": lambda _, width: nn.GroupNorm(math.gcd(GROUPS, width), width),  # a bottleneck of 24 has 12
    "none": lambda *_: nn.Identity(),
}


@dataclass(frozen=True)
class Units:
    """Convolutions over one or two axes, each with its norm and activation."""

    axes: int
    norm: str
    activate: Callable[[], nn.Module]

    def convolution(self, inputs: int, outputs: int, kernel: int = 1, **settings: int) -> nn.Module:
        """One that keeps the size but for its stride."""
        padding = settings.get("dilation", 1) * (kernel // 2)
        kind: Callable[..., nn.Module] = (nn.Conv1d, nn.Conv2d)[self.axes - 1]
        return kind(inputs, outputs, kernel, padding=padding, **settings)

    def normalise(self, width: int) -> nn.Module:
        return NORMS[self.norm](self.axes, width)

    def unit(self, inputs: int, outputs: int, kernel: int = 1, **settings: int) -> nn.Sequential:
        convolution = self.convolution(inputs, outputs, kernel, **settings)
        return named(convolution=convolution, norm=self.normalise(outputs), activation=self.activate())


class Squeezed(nn.Module):
    """Each channel times a gate that follows from the means of all channels."""

    def __init__(self, units: Units, width: int) -> None:
        super().__init__()
        self.reduce = units.convolution(width, max(width // 4, 1))
        self.activation = units.activate()
        self.expand = units.convolution(max(width // 4, 1), width)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=tuple(range(2, x.dim())), keepdim=True)
        return x * torch.sigmoid(self.expand(self.activation(self.reduce(mean))))


class Gated(nn.Module):
    """Half of a dilated convolution's channels open or shut the other half."""

    def __init__(self, units: Units, width: int, dilation: int) -> None:
        super().__init__()
        self.both = units.convolution(width, 2 * width, 3, dilation=dilation)
        self.norm = units.normalise(width)
        self.project = units.convolution(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, dim=1)
        opened: Tensor = self.project(self.norm(torch.tanh(value) * torch.sigmoid(gate)))
        return x + opened


class Grown(nn.Module):
    """A quarter more channels computed from all so far, and all of them brought back to the width."""

    def __init__(self, units: Units, width: int) -> None:
        super().__init__()
        more = max(width // 4, GROUPS) // GROUPS * GROUPS
        self.grow = units.unit(width, more, 3)
        self.join = units.unit(width + more, width)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.join(torch.cat([x, self.grow(x)], dim=1))
        return joined


SORTS = ("plain", "residual", "bottleneck", "inverted", "grouped", "gated", "grown", "pointwise")
ENDS = ("classes", "positions", "restored")


def _block(sort: str, units: Units, width: int, number: int) -> nn.Module:
    unit, convolution = units.unit, units.convolution
    narrow, twice, wide = max(width // 2, GROUPS), 2 * width, 4 * width
    body: list[nn.Module]
    match sort:
        case "plain":
            return unit(width, width, 3)
        case "gated":
            return Gated(units, width, 2 ** (number % 4))
        case "grown":
            return Grown(units, width)
        case "residual":
            body = [unit(width, width, 3), unit(width, width, 3)]
        case "bottleneck":
            body = [unit(width, narrow), unit(narrow, narrow, 3), unit(narrow, width)]
        case "inverted":
            depthwise = unit(wide, wide, 5, groups=wide)
            body = [unit(width, wide), depthwise, Squeezed(units, wide), convolution(wide, width)]
        case "grouped":
            inside = unit(twice, twice, 3, groups=twice // GROUP_WIDTH)
            body = [unit(width, twice, groups=FEW_GROUPS), inside, convolution(twice, width)]
        case _:  # pointwise
            body = [units.normalise(width), unit(width, twice), convolution(twice, width)]
    return Residual(nn.Sequential(*body))


@dataclass(frozen=True)
class Design:
    """The design of a network: blocks of one kind over images (2 axes) or signals (1)."""

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
        units = Units(design.axes, design.norm, ACTIVATIONS[design.activation])
        widths = [design.width * 2**stage for stage in range(design.stages)]
        self.stem = units.unit(CHANNELS, design.width, 3)
        self.stages = nn.ModuleList()
        for wide in widths:
            down = [units.unit(wide // 2, wide, 3, stride=2)] if len(self.stages) else []
            blocks = (_block(design.block, units, wide, number) for number in range(design.depth))
            self.stages.append(nn.Sequential(*down, *blocks))
        steps = pairwise(reversed(widths)) if design.end == "restored" else ()
        self.up = nn.ModuleList(units.unit(wide, narrow, 3) for wide, narrow in steps)
        self.whole = design.end == "classes"
        last = widths[0] if design.end == "restored" else widths[-1]
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
