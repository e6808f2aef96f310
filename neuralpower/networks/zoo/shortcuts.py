"""Networks whose layers hand their inputs on: ResNet and its kin, DenseNet, ConvMixer, U-Net."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import (
    Branches,
    Residual,
    conv_unit,
    flat_classified,
    named,
    pooled_classifier,
    relu,
)

# ResNet (He and others, arXiv 1512.03385), ResNeXt (1611.05431) and Wide ResNet (1605.07146).
#
# The first unit of every stage projects its shortcut, also where the channels already fit, and the 3x3
# convolution has the stride. ResNet18 and ResNet34 therefore have 4,224 parameters more than those of
# torchvision.

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


# DenseNet (Huang and others, arXiv 1608.06993).

GROWTH = 32
DENSE_LAYERS = (6, 12, 24, 16)


def normalised(channels: int) -> tuple[nn.Module, nn.Module]:
    """Batch normalisation and rectifier, which stand before the convolutions here."""
    return nn.BatchNorm2d(channels), relu()


def dense_layer(inputs: int) -> nn.Module:
    """Features [batch, inputs, h, w] -> [batch, inputs + GROWTH, h, w]: x and a bottleneck's output."""
    grown = nn.Sequential(
        *normalised(inputs),
        conv_unit(inputs, 4 * GROWTH),
        nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
    )
    return Branches(nn.Identity(), grown)


@zoo_model("densenet121", title="DenseNet121", input_shape=(3, 224, 224))
def densenet121(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = named(stem=conv_unit(3, 64, 7, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    channels = 64
    for number, layers in enumerate(DENSE_LAYERS, start=1):
        if number > 1:
            halving = nn.Conv2d(channels, channels // 2, 1, bias=False)
            features.add_module(
                f"transition{number}", nn.Sequential(*normalised(channels), halving, nn.AvgPool2d(2))
            )
            channels //= 2
        block = nn.Sequential(*(dense_layer(channels + GROWTH * layer) for layer in range(layers)))
        features.add_module(f"block{number}", block)
        channels += GROWTH * layers
    features.add_module("last", nn.Sequential(*normalised(channels)))
    return named(features=features, classifier=pooled_classifier(channels, classes))


# ConvMixer (Trockman and Kolter, arXiv 2201.09792).


def gelu_unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1
) -> nn.Sequential:
    """Convolution, GELU and batch normalisation, in this order."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups)
    return named(convolution=convolution, activation=nn.GELU(), normalisation=nn.BatchNorm2d(outputs))


@zoo_model("convmixer", title="ConvMixer-256/8", input_shape=(3, 224, 224))
def convmixer(
    width: int = 256, depth: int = 8, kernel: int = 9, patch: int = 7, classes: int = 1000
) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; ConvMixer-width/depth of the paper."""
    mixers = nn.Sequential()
    for _ in range(depth):
        mixers.append(Residual(gelu_unit(width, width, kernel, padding=kernel // 2, groups=width)))
        mixers.append(gelu_unit(width, width, 1))
    return named(
        patches=gelu_unit(3, width, patch, patch), mixers=mixers, classifier=pooled_classifier(width, classes)
    )


# U-Net (Ronneberger and others, arXiv 1505.04597), padded and half as wide.


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions that keep the image size."""
    return named(first=conv_unit(inputs, outputs, 3), second=conv_unit(outputs, outputs, 3))


def level(width: int, levels: int) -> nn.Sequential:
    """A level and all below it, on images halved `levels` times: [batch, width, h, w] -> the same shape."""
    if levels == 0:
        return nn.Sequential()
    below = named(
        pool=nn.MaxPool2d(2),
        down=double(width, 2 * width),
        below=level(2 * width, levels - 1),
        up=nn.ConvTranspose2d(2 * width, width, 2, stride=2),
    )
    return named(joined=Branches(nn.Identity(), below), merge=double(2 * width, width))


@zoo_model("unet", title="U-Net", input_shape=(3, 128, 128), classes=21)
def unet(width: int = 32, levels: int = 4, classes: int = 21) -> nn.Module:
    """Images [batch, 3, height, width] -> [batch, classes, height, width]; 2**levels divides the sides."""
    return named(first=double(3, width), body=level(width, levels), last=nn.Conv2d(width, classes, 1))
