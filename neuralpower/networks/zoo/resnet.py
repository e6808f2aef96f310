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
Body = Callable[[int, int], nn.Module]
"""(inputs, stride) -> what a residual unit adds to its shortcut."""
unit = partial(conv_unit, norm=partial(nn.BatchNorm2d, eps=2e-5, momentum=0.9))


def basic(inputs: int, stride: int, *, outputs: int, unit: Unit = unit) -> nn.Sequential:
    return named(first=unit(inputs, outputs, 3, stride), second=unit(outputs, outputs, 3, activation=None))


def bottleneck(
    inputs: int, stride: int, *, inner: int, outputs: int, groups: int = 1, unit: Unit = unit
) -> nn.Sequential:
    """A 3x3 convolution of `inner` channels between two 1x1 convolutions."""
    return named(
        reduce=unit(inputs, inner),
        middle=unit(inner, inner, 3, stride, groups=groups),
        expand=unit(inner, outputs, activation=None),
    )


def residual_stage(
    inputs: int,
    outputs: int,
    count: int,
    stride: int,
    body: Body,
    *,
    name: str = "unit",
    unit: Unit = unit,
) -> nn.Sequential:
    """`count` residual units; the first has the stride, and projects its shortcut."""
    units = nn.Sequential()
    for number in range(1, count + 1):
        inside = body(inputs, stride)
        shortcut = unit(inputs, outputs, 1, stride, activation=None) if number == 1 else None
        units.add_module(f"{name}{number}", Residual(inside, shortcut, relu()))
        inputs, stride = outputs, 1
    return units


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
    channels = 64
    for stage, count in enumerate(units):
        inner = width * 2**stage
        outputs = 256 * 2**stage if bottlenecks else inner
        body: Body = partial(basic, outputs=outputs)
        if bottlenecks:
            body = partial(bottleneck, inner=inner, outputs=outputs, groups=groups)
        blocks = residual_stage(channels, outputs, count, 2 if stage else 1, body)
        features.add_module(f"stage{stage + 1}", blocks)
        channels = outputs
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
