"""Building blocks that several families share: convolution units, branches, residual blocks, classifiers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]
Activation = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]

relu = partial(nn.ReLU, inplace=True)
"""A rectifier that overwrites its input, as the published networks have it."""
local_norm = partial(nn.LocalResponseNorm, 5, alpha=1e-4, beta=0.75, k=2.0)
"""Local response normalisation with the constants of the AlexNet paper, section 3.3."""


def named(**modules: nn.Module) -> nn.Sequential:
    """The modules one after the other, under their names."""
    return nn.Sequential(OrderedDict(modules))


def flat_classified(features: nn.Module, classifier: nn.Module) -> nn.Sequential:
    """Features, flattened for a classifier."""
    return named(features=features, flatten=nn.Flatten(), classifier=classifier)


def half(kernel: Size) -> Size:
    """The padding that keeps the size of an image under an odd kernel."""
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def rectified(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution and rectifier; without a stride the size is kept."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, half(kernel)), relu())


def conv_unit(
    inputs: int,
    outputs: int,
    kernel: Size = 1,
    stride: int = 1,
    *,
    activation: Activation | None = relu,
    norm: Norm = nn.BatchNorm2d,
    **convolution: Any,
) -> nn.Sequential:
    """Convolution, batch normalisation and, unless None, an activation.

    `convolution` holds more keywords of nn.Conv2d, such as groups; without `padding` the size is kept, and
    without `bias` the convolution has none.
    """
    settings = {"padding": half(kernel), "bias": False, **convolution}
    unit = named(
        convolution=nn.Conv2d(inputs, outputs, kernel, stride, **settings),
        normalisation=norm(outputs),
    )
    if activation is not None:
        unit.add_module("activation", activation())
    return unit


def pooled_classifier(features: int, classes: int, dropout: float = 0.0) -> nn.Sequential:
    """Global average pooling, dropout where requested, and one linear layer."""
    head = named(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    if dropout:
        head.add_module("dropout", nn.Dropout(dropout))
    head.add_module("linear", nn.Linear(features, classes))
    return head


class Branches(nn.Module):
    """Branches on the same input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, ...] -> [batch, sum of the branches' channels, ...]."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Residual(nn.Module):
    """`after(shortcut(x) + body(x))`; the shortcut and what comes after are the identity where None."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body, self.shortcut, self.after = body, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        """Features -> the shape that body and shortcut share."""
        total: Tensor = (x if self.shortcut is None else self.shortcut(x)) + self.body(x)
        return total if self.after is None else self.after(total)
