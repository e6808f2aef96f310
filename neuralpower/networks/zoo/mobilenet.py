"""Networks for small devices, made of depthwise convolutions and inverted residual blocks.

MobileNet v1 (Howard and others, arXiv 1704.04861), v2 (Sandler and others, 1801.04381) and v3 large
(1905.02244), MnasNet (Tan and others, 1807.11626) and the baseline of EfficientNet (Tan and Le, 1905.11946).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import (
    Activation,
    Branches,
    Residual,
    conv_unit,
    named,
    pooled_classifier,
    rectified,
    relu,
)


class Stage(NamedTuple):
    """Blocks one after the other; all but the first have stride 1."""

    expansion: int
    outputs: int
    repetitions: int
    kernel: int
    stride: int


class V3Row(NamedTuple):
    """One block of table 1 of the v3 paper; without gates where `squeezed` is 0."""

    kernel: int
    expanded: int
    outputs: int
    squeezed: int
    hard_swish: bool
    stride: int


IMAGE = (3, 224, 224)

V1_WIDTHS = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
V2_STAGES: tuple[Stage, ...] = (
    Stage(1, 16, 1, 3, 1),
    Stage(6, 24, 2, 3, 2),
    Stage(6, 32, 3, 3, 2),
    Stage(6, 64, 4, 3, 2),
    Stage(6, 96, 3, 3, 1),
    Stage(6, 160, 3, 3, 2),
    Stage(6, 320, 1, 3, 1),
)
MNASNET_STAGES: tuple[Stage, ...] = (
    Stage(1, 16, 1, 3, 1),
    Stage(3, 24, 3, 3, 2),
    Stage(3, 40, 3, 5, 2),
    Stage(6, 80, 3, 5, 2),
    Stage(6, 96, 2, 3, 1),
    Stage(6, 192, 4, 5, 2),
    Stage(6, 320, 1, 3, 1),
)
EFFICIENT_STAGES: tuple[Stage, ...] = (
    Stage(1, 16, 1, 3, 1),
    Stage(6, 24, 2, 3, 2),
    Stage(6, 40, 2, 5, 2),
    Stage(6, 80, 3, 3, 2),
    Stage(6, 112, 3, 5, 1),
    Stage(6, 192, 4, 5, 2),
    Stage(6, 320, 1, 3, 1),
)
V3_ROWS: tuple[V3Row, ...] = (
    V3Row(3, 16, 16, 0, False, 1),
    V3Row(3, 64, 24, 0, False, 2),
    V3Row(3, 72, 24, 0, False, 1),
    V3Row(5, 72, 40, 24, False, 2),
    V3Row(5, 120, 40, 32, False, 1),
    V3Row(5, 120, 40, 32, False, 1),
    V3Row(3, 240, 80, 0, True, 2),
    V3Row(3, 200, 80, 0, True, 1),
    V3Row(3, 184, 80, 0, True, 1),
    V3Row(3, 184, 80, 0, True, 1),
    V3Row(3, 480, 112, 120, True, 1),
    V3Row(3, 672, 112, 168, True, 1),
    V3Row(5, 672, 160, 168, True, 2),
    V3Row(5, 960, 160, 240, True, 1),
    V3Row(5, 960, 160, 240, True, 1),
)

hard_swish = partial(nn.Hardswish, inplace=True)  # section 5.2 of the v3 paper
relu6 = partial(nn.ReLU6, inplace=True)
swish = partial(nn.SiLU, inplace=True)
v3_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


class SqueezeExcite(nn.Module):
    """Channel gates from the image's mean (Hu and others, arXiv 1709.01507)."""

    def __init__(self, channels: int, squeezed: int, activation: Activation, gate: Activation) -> None:
        super().__init__()
        self.gates = named(
            pool=nn.AdaptiveAvgPool2d(1),
            squeeze=nn.Conv2d(channels, squeezed, 1),
            activation=activation(),
            excite=nn.Conv2d(squeezed, channels, 1),
            gate=gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        gated: Tensor = x * self.gates(x)
        return gated


def inverted_residual(
    inputs: int,
    outputs: int,
    expanded: int,
    kernel: int,
    stride: int,
    *,
    gates: nn.Module | None = None,
    **unit: Any,
) -> nn.Module:
    """Expansion, depthwise convolution, gates where given, linear projection (arXiv 1801.04381).

    No expansion where `expanded` is `inputs`; a shortcut where stride and channels allow one. `unit` holds
    the norm and activation, as `conv_unit` takes them.
    """
    body = nn.Sequential()
    if expanded != inputs:
        body.add_module("expand", conv_unit(inputs, expanded, **unit))
    body.add_module("depthwise", conv_unit(expanded, expanded, kernel, stride, groups=expanded, **unit))
    if gates is not None:
        body.add_module("gates", gates)
    body.add_module("project", conv_unit(expanded, outputs, **{**unit, "activation": None}))
    return Residual(body) if stride == 1 and inputs == outputs else body


def inverted_network(
    classes: int, stages: tuple[Stage, ...], activation: Activation, *, gated: bool = False
) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]: stages between two convolutions, and a classifier.

    `gated` squeezes to a quarter of each block's input channels.
    """
    stem = conv_unit(3, 32, 3, 2, activation=activation)
    blocks, inputs = nn.Sequential(), 32
    for stage in stages:
        for number in range(stage.repetitions):
            expanded = inputs * stage.expansion
            gates = SqueezeExcite(expanded, inputs // 4, activation, nn.Sigmoid) if gated else None
            block = inverted_residual(
                inputs,
                stage.outputs,
                expanded,
                stage.kernel,
                1 if number else stage.stride,
                activation=activation,
                gates=gates,
            )
            blocks.append(block)
            inputs = stage.outputs
    last = conv_unit(320, 1280, activation=activation)
    return named(stem=stem, blocks=blocks, last=last, classifier=pooled_classifier(1280, classes, 0.2))


@zoo_model("mobilenet_v1", title="MobileNetV1", input_shape=IMAGE)
def mobilenet_v1(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = nn.Sequential(conv_unit(3, 32, 3, 2))
    for number, (inputs, outputs) in enumerate(pairwise(V1_WIDTHS), start=1):
        stride = 2 if number in (2, 4, 6, 12) else 1
        depthwise = conv_unit(inputs, inputs, 3, stride, groups=inputs)
        features.append(named(depthwise=depthwise, pointwise=conv_unit(inputs, outputs)))
    return named(features=features, classifier=pooled_classifier(1024, classes))


@zoo_model("mobilenet_v2", title="MobileNetV2", input_shape=IMAGE)
def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    return inverted_network(classes, V2_STAGES, relu6)


@zoo_model("mnasnet", title="MnasNet 1.0", input_shape=IMAGE)
def mnasnet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; MnasNet-B1, the form without gates."""
    return inverted_network(classes, MNASNET_STAGES, relu)


@zoo_model("efficientnet_b0", title="EfficientNet-B0", input_shape=IMAGE)
def efficientnet_b0(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; inference has no stochastic depth, nor has this."""
    return inverted_network(classes, EFFICIENT_STAGES, swish, gated=True)


@zoo_model("mobilenet_v3_large", title="MobileNetV3-Large", input_shape=IMAGE)
def mobilenet_v3_large(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    blocks, inputs = nn.Sequential(), 16
    for row in V3_ROWS:
        squeezed = row.squeezed
        gates = SqueezeExcite(row.expanded, squeezed, relu, nn.Hardsigmoid) if squeezed else None
        block = inverted_residual(
            inputs,
            row.outputs,
            row.expanded,
            row.kernel,
            row.stride,
            gates=gates,
            activation=hard_swish if row.hard_swish else relu,
            norm=v3_norm,
        )
        blocks.append(block)
        inputs = row.outputs
    unit = partial(conv_unit, activation=hard_swish, norm=v3_norm)
    hidden = (nn.Linear(960, 1280), hard_swish(), nn.Dropout(0.2))
    return named(
        stem=unit(3, 16, 3, 2),
        blocks=blocks,
        last=unit(160, 960),
        classifier=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden, nn.Linear(1280, classes)),
    )


# ---- ShuffleNet v2 (Ma and others, arXiv 1807.11164) ----


UNITS = (4, 8, 4)
WIDTHS = (116, 232, 464)
"""Channels of the three stages at width 1.0."""


def right_branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """1x1, depthwise 3x3 and 1x1 convolution."""
    return named(
        first=conv_unit(inputs, outputs),
        depthwise=conv_unit(outputs, outputs, 3, stride, groups=outputs, activation=None),
        last=conv_unit(outputs, outputs),
    )


class Shuffle(nn.Module):
    """Interleaves the two halves of the channels, so that the next unit mixes them."""

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class SplitUnit(nn.Module):
    """Leaves one half of the channels as it is and convolves the other, figure 3c."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.right = right_branch(channels // 2, channels // 2, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        left, right = x.chunk(2, dim=1)
        return torch.cat((left, self.right(right)), dim=1)


@zoo_model("shufflenet_v2", title="ShuffleNetV2 x1.0", input_shape=(3, 224, 224))
def shufflenet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = named(stem=conv_unit(3, 24, 3, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    channels = 24
    for number, (units, width) in enumerate(zip(UNITS, WIDTHS, strict=True), start=1):
        left = named(
            depthwise=conv_unit(channels, channels, 3, 2, groups=channels, activation=None),
            pointwise=conv_unit(channels, width // 2),
        )
        down = Branches(left, right_branch(channels, width // 2, stride=2))
        stage = nn.Sequential(down, Shuffle())
        for _ in range(units - 1):
            stage.extend((SplitUnit(width), Shuffle()))
        features.add_module(f"stage{number}", stage)
        channels = width
    features.add_module("last", conv_unit(channels, 1024))
    return named(features=features, classifier=pooled_classifier(1024, classes))


# ---- SqueezeNet 1.1 (Iandola and others, arXiv 1602.07360; 1.1 from its authors' repository) ----


def fire(inputs: int, squeezed: int, expanded: int) -> nn.Module:
    """A 1x1 convolution to `squeezed` channels, then 1x1 and 3x3 ones to `expanded` channels each."""
    return named(
        squeeze=rectified(inputs, squeezed),
        expand=Branches(rectified(squeezed, expanded), rectified(squeezed, expanded, 3)),
    )


def pool() -> nn.Module:
    """Halves the image and rounds up."""
    return nn.MaxPool2d(3, 2, ceil_mode=True)


@zoo_model("squeezenet", title="SqueezeNet 1.1", input_shape=(3, 224, 224))
def squeezenet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, stride=2), relu(), pool()),
        *(fire(64, 16, 64), fire(128, 16, 64), pool()),
        *(fire(128, 32, 128), fire(256, 32, 128), pool()),
        *(fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)),
    )
    classifier = nn.Sequential(
        *(nn.Dropout(), nn.Conv2d(512, classes, 1), relu()), *(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    return named(features=features, classifier=classifier)
