"""ResNet (He and others, arXiv 1512.03385), ResNeXt (1611.05431) and Wide ResNet (1605.07146).

The first unit of every stage projects its shortcut, also where the channels already fit, and the 3x3
convolution has the stride. ResNet18 and ResNet34 therefore have 4,224 parameters more than those of
torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Residual, conv_unit, flat_classified, named, relu

BASIC_UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BOTTLENECK_UNITS = {
    **{50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)},
    **{200: (3, 24, 36, 3), 269: (3, 30, 48, 8)},
}

Unit = Callable[..., nn.Module]
Body = Callable[[int, int, int, int], nn.Module]
"""(inputs, inner channels, outputs, stride) -> what a residual unit adds to its shortcut."""
unit = partial(conv_unit, norm=partial(nn.BatchNorm2d, eps=2e-5, momentum=0.9))


def basic(inputs: int, _inner: int, outputs: int, stride: int, *, unit: Unit = unit) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return named(first=unit(inputs, outputs, 3, stride), second=unit(outputs, outputs, 3, activation=None))


def bottleneck(
    inputs: int, inner: int, outputs: int, stride: int, *, groups: int = 1, unit: Unit = unit
) -> nn.Sequential:
    """A 3x3 convolution of `inner` channels between two 1x1 convolutions."""
    return named(
        reduce=unit(inputs, inner),
        middle=unit(inner, inner, 3, stride, groups=groups),
        expand=unit(inner, outputs, activation=None),
    )


def add_stages(
    network: nn.Sequential,
    counts: Sequence[int],
    channels: tuple[int, int, int],
    body: Body,
    names: tuple[str, str] = ("stage", "unit"),
    unit: Unit = unit,
) -> int:
    """Add stages of so many residual units; the channels that come out.

    `channels` are those of the inputs, then the inner and outer ones of the first stage, which double in
    every further one. The first unit of a stage projects its shortcut and, but in the first stage, halves the
    image.
    """
    inputs, first_inner, first_outputs = channels
    for stage, count in enumerate(counts):
        inner, outputs, units = first_inner * 2**stage, first_outputs * 2**stage, nn.Sequential()
        for number in range(count):
            stride = 2 if stage and not number else 1
            inside = body(inputs, inner, outputs, stride)
            shortcut = None if number else unit(inputs, outputs, 1, stride, activation=None)
            units.add_module(f"{names[1]}{number + 1}", Residual(inside, shortcut, relu()))
            inputs = outputs
        network.add_module(f"{names[0]}{stage + 1}", units)
    return inputs


def resnet(
    units: Sequence[int], *, bottlenecks: bool, width: int = 64, groups: int = 1, classes: int = 1000
) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes].

    Args:
        units: residual units in each stage.
        bottlenecks: units of 1x1, 3x3, 1x1 convolutions with 256, 512, ... outputs, instead of two 3x3.
        width: channels of the 3x3 convolutions in the first stage, which double in every further one.
        groups: of the bottlenecks' 3x3 convolutions.
        classes: outputs.
    """
    features = named(stem=unit(3, 64, 7, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    body: Body = partial(bottleneck, groups=groups) if bottlenecks else basic
    channels = add_stages(features, units, (64, width, 256 if bottlenecks else width), body)
    features.add_module("average", nn.AvgPool2d(7))
    return flat_classified(features, nn.Linear(channels, classes))


for _depth, _units in (BASIC_UNITS | BOTTLENECK_UNITS).items():
    zoo_model(f"resnet{_depth}", title=f"ResNet{_depth}", input_shape=(3, 224, 224))(
        partial(resnet, _units, bottlenecks=_depth in BOTTLENECK_UNITS)
    )


@zoo_model("resnext50", title="ResNeXt50 32x4d", input_shape=(3, 224, 224))
def resnext50(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; 32 groups of 4 channels in the first stage."""
    return resnet(BOTTLENECK_UNITS[50], bottlenecks=True, width=128, groups=32, classes=classes)


@zoo_model("wide_resnet50", title="WideResNet50-2", input_shape=(3, 224, 224))
def wide_resnet50(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; twice the inner width of ResNet50."""
    return resnet(BOTTLENECK_UNITS[50], bottlenecks=True, width=128, classes=classes)
