"""Inception v3 (Szegedy and others, arXiv 1512.00567), v4 and Inception-ResNet v2 (arXiv 1602.07261).

They have no auxiliary classifiers. In v3 and v4 every convolution has a bias besides its batch normalisation.
Inception-ResNet has the channels of its authors' published code: its parameters are usually given for those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import (
    Branches,
    Size,
    conv_unit,
    flat_classified,
    local_norm,
    named,
    rectified,
    relu,
)

Steps = tuple[tuple[int, Size], ...]
"""A chain of convolutions, one after the other: (output channels, kernel) of each."""
Chains = tuple[Steps, ...]
"""Chains side by side on the same input, whose outputs are joined along the channels."""
Unit = Callable[..., nn.Module]
Pool = type[nn.AvgPool2d] | type[nn.MaxPool2d]

unit = partial(conv_unit, bias=True, norm=partial(nn.BatchNorm2d, eps=2e-5, momentum=0.9))
plain_unit = partial(conv_unit, norm=partial(nn.BatchNorm2d, eps=1e-3))  # Inception-ResNet's, without bias
ROW7, COLUMN7, ROW3, COLUMN3 = (1, 7), (7, 1), (1, 3), (3, 1)


# Inception-ResNet v2, both next to a pooling: the chains of its first module, on the 35x35 image
# (192 -> 320 channels, 64 of them the pooling's), and those that narrow 17x17 to 8x8 (1088 -> 2080, 1088 of
# them the pooling's).
MIXED: Chains = (((96, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)))
TO8: Chains = (((256, 1), (384, 3)), ((256, 1), (288, 3)), ((256, 1), (288, 3), (320, 3)))


def chain(inputs: int, steps: Steps, unit: Unit = unit, *, stride: int = 1, **padding: Size) -> nn.Sequential:
    """Convolutions one after the other that keep the image size; the last has the stride and padding."""
    units = nn.Sequential()
    for outputs, kernel in steps[:-1]:
        units.append(unit(inputs, outputs, kernel))
        inputs = outputs
    return units.append(unit(inputs, *steps[-1], stride, **padding))


def forked(inputs: int, steps: Steps, outputs: int) -> nn.Sequential:
    """A chain that ends in a row and a column convolution side by side."""
    whole, last = chain(inputs, steps), steps[-1][0]
    return whole.append(Branches(*(chain(last, ((outputs, kernel),)) for kernel in (ROW3, COLUMN3))))


def pooled(inputs: int, outputs: int, pool: Pool = nn.AvgPool2d) -> nn.Sequential:
    """A 3x3 pooling that keeps the image size, and a 1x1 convolution."""
    return nn.Sequential(pool(3, stride=1, padding=1), unit(inputs, outputs))


def mixed(inputs: int, projection: int, *branches: Steps) -> nn.Module:
    """Chains and a pooling side by side."""
    return Branches(*(chain(inputs, steps) for steps in branches), pooled(inputs, projection))


def narrowed(inputs: int, *branches: Steps, unit: Unit = unit) -> nn.Module:
    """Chains whose last convolution halves the image, unpadded, next to a pooling that does the same."""
    chains = (chain(inputs, steps, unit, stride=2, padding=0) for steps in branches)
    return Branches(*chains, nn.MaxPool2d(3, 2))


def stem(unit: Unit = unit) -> list[nn.Module]:
    """The start of all networks: [batch, 3, 299, 299] -> [batch, 64, 147, 147]."""
    return [unit(3, 32, 3, 2, padding=0), unit(32, 32, 3, 1, padding=0), unit(32, 64, 3)]


def wider(unit: Unit = unit) -> list[nn.Module]:
    """The next layers in v3 and Inception-ResNet: [batch, 64, 147, 147] -> [batch, 192, 35, 35]."""
    return [nn.MaxPool2d(3, 2), unit(64, 80), unit(80, 192, 3, 1, padding=0), nn.MaxPool2d(3, 2)]


def head(features: int, classes: int) -> dict[str, nn.Module]:
    """The end of v3 and v4, on an 8x8 image."""
    classifier = named(dropout=nn.Dropout(0.2), linear=nn.Linear(features, classes))
    return {"average": nn.AvgPool2d(8, 1), "flatten": nn.Flatten(), "classifier": classifier}


def v3_35(inputs: int, projection: int) -> nn.Module:
    """Module on the 35x35 image, figure 5 of the v3 paper: 224 + projection channels."""
    return mixed(inputs, projection, ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)))


def v3_17(inner: int) -> nn.Module:
    """Module on the 17x17 image, figure 6: 768 channels."""
    twice = ((inner, 1), (inner, COLUMN7), (inner, ROW7), (inner, COLUMN7), (192, ROW7))
    return mixed(768, 192, ((192, 1),), ((inner, 1), (inner, ROW7), (192, COLUMN7)), twice)


def v3_8(inputs: int, pool: Pool) -> nn.Module:
    """Module on the 8x8 image, figure 7: 2048 channels."""
    one = chain(inputs, ((320, 1),))
    forks = forked(inputs, ((384, 1),), 384), forked(inputs, ((448, 1), (384, 3)), 384)
    return Branches(one, *forks, pooled(inputs, 192, pool))


@zoo_model("inception3", title="InceptionV3", input_shape=(3, 299, 299))
def inception3(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    features = nn.Sequential(
        *(*stem(), *wider()),
        *(v3_35(192, 32), v3_35(256, 64), v3_35(288, 64)),
        # [batch, 288, 35, 35] -> [batch, 768, 17, 17]
        narrowed(288, ((384, 3),), ((64, 1), (96, 3), (96, 3))),
        *(v3_17(inner) for inner in (128, 160, 160, 192)),
        # [batch, 768, 17, 17] -> [batch, 1280, 8, 8]
        narrowed(768, ((192, 1), (320, 3)), ((192, 1), (192, ROW7), (192, COLUMN7), (192, 3))),
        *(v3_8(1280, nn.AvgPool2d), v3_8(2048, nn.MaxPool2d)),
    )
    return named(features=features, **head(2048, classes))


def v4_stem() -> nn.Sequential:
    """The stem's second part, figure 3 of the v4 paper: [batch, 64, 147, 147] -> [batch, 384, 35, 35]."""
    branches = ((64, 1), (96, 3)), ((64, 1), (64, ROW7), (64, COLUMN7), (96, 3))
    first = narrowed(64, ((96, 3),))  # [batch, 160, 73, 73]
    middle = Branches(*(chain(160, steps, padding=0) for steps in branches))  # [batch, 192, 71, 71]
    return nn.Sequential(first, middle, narrowed(192, ((192, 3),)))


def v4_35() -> nn.Module:
    """Module on the 35x35 image, figure 4: 384 channels."""
    return mixed(384, 96, ((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)))


def v4_17() -> nn.Module:
    """Module on the 17x17 image, figure 5: 1024 channels."""
    twice = ((192, 1), (192, COLUMN7), (224, ROW7), (224, COLUMN7), (256, ROW7))
    return mixed(1024, 128, ((384, 1),), ((192, 1), (224, ROW7), (256, COLUMN7)), twice)


def v4_8() -> nn.Module:
    """Module on the 8x8 image, figure 6: 1536 channels."""
    one = chain(1536, ((256, 1),))
    forks = forked(1536, ((384, 1),), 256), forked(1536, ((384, 1), (448, COLUMN3), (512, ROW3)), 256)
    return Branches(one, *forks, pooled(1536, 256))


@zoo_model("inception4", title="InceptionV4", input_shape=(3, 299, 299))
def inception4(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    features = nn.Sequential(
        *(*stem(), *v4_stem()),
        *(v4_35() for _ in range(4)),
        # [batch, 384, 35, 35] -> [batch, 1024, 17, 17]
        narrowed(384, ((384, 3),), ((192, 1), (224, 3), (256, 3))),
        *(v4_17() for _ in range(7)),
        # [batch, 1024, 17, 17] -> [batch, 1536, 8, 8]
        narrowed(1024, ((192, 1), (192, 3)), ((256, 1), (256, ROW7), (320, COLUMN7), (320, 3))),
        *(v4_8() for _ in range(3)),
    )
    return named(features=features, **head(1536, classes))


class ScaledResidual(nn.Module):
    """`after(x + scale * body(x))`: a small scale keeps very wide networks stable (section 3.3)."""

    def __init__(self, body: nn.Module, scale: float, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.scale, self.after = body, scale, after

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.scale * self.body(x)
        return total if self.after is None else self.after(total)


def residual(channels: int, joined: int, scale: float, *branches: nn.Module, last: bool = False) -> nn.Module:
    """Branches of `joined` channels together, brought back to `channels` by a 1x1 convolution with bias."""
    body = nn.Sequential(Branches(*branches), nn.Conv2d(joined, channels, 1))
    return ScaledResidual(body, scale, None if last else relu())


def block35() -> nn.Module:
    """On the 35x35 image, figure 16: 320 channels."""
    branches = ((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))
    return residual(320, 128, 0.17, *(chain(320, steps, plain_unit) for steps in branches))


def block17() -> nn.Module:
    """On the 17x17 image, figure 17: 1088 channels."""
    branches = ((192, 1),), ((128, 1), (160, ROW7), (192, COLUMN7))
    return residual(1088, 384, 0.1, *(chain(1088, steps, plain_unit) for steps in branches))


def block8(last: bool = False) -> nn.Module:
    """On the 8x8 image, figure 19: 2080 channels; the last is neither scaled nor rectified."""
    wide = chain(2080, ((192, 1), (224, ROW3), (256, COLUMN3)), plain_unit)
    narrow = chain(2080, ((192, 1),), plain_unit)
    return residual(2080, 448, 1.0 if last else 0.2, narrow, wide, last=last)


@zoo_model("inception_resnet_v2", title="Inception-ResNet v2", input_shape=(3, 299, 299))
def inception_resnet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    begin = nn.Sequential(*stem(plain_unit), *wider(plain_unit))
    mean = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False))
    first = Branches(*(chain(192, steps, plain_unit) for steps in MIXED), mean.append(plain_unit(192, 64)))
    # [batch, 320, 35, 35] -> [batch, 1088, 17, 17]
    to17 = narrowed(320, ((384, 3),), ((256, 1), (256, 3), (384, 3)), unit=plain_unit)
    # [batch, 1088, 17, 17] -> [batch, 2080, 8, 8]
    to8 = narrowed(1088, *TO8, unit=plain_unit)
    return named(
        stem=begin,
        mixed=first,
        stage35=nn.Sequential(*(block35() for _ in range(10))),
        to17=to17,
        stage17=nn.Sequential(*(block17() for _ in range(20))),
        to8=to8,
        stage8=nn.Sequential(*(block8(last=number == 9) for number in range(10))),
        top=plain_unit(2080, 1536),
        average=nn.AvgPool2d(8, 1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(1536, classes),
    )


# ---- GoogLeNet (Szegedy and others, arXiv 1409.4842), without the auxiliary classifiers ----
# The poolings round down, except that the last one is padded, so the images are 112, 55, 27, 13 and 7 wide.


# One row per module, table 1 of the paper: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOL_BEFORE = {"4a": 0, "5a": 1}
"""Modules that a pooling of that padding precedes."""


def inception(inputs: int, row: tuple[int, ...]) -> nn.Module:
    """One row of the table on `inputs` channels."""
    one, reduce_three, three, reduce_five, five, projection = row
    return Branches(
        rectified(inputs, one),
        nn.Sequential(rectified(inputs, reduce_three), rectified(reduce_three, three, 3)),
        nn.Sequential(rectified(inputs, reduce_five), rectified(reduce_five, five, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, padding=1), rectified(inputs, projection)),
    )


@zoo_model("googlenet", title="GoogleNet", input_shape=(3, 224, 224))
def googlenet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = nn.Sequential(
        *(rectified(3, 64, 7, 2), nn.MaxPool2d(3, 2), local_norm()),
        *(rectified(64, 64), rectified(64, 192, 3), local_norm(), nn.MaxPool2d(3, 2)),
    )
    channels = 192
    for name, row in MODULES.items():
        if name in POOL_BEFORE:
            features.add_module(f"pool{name}", nn.MaxPool2d(3, 2, padding=POOL_BEFORE[name]))
        features.add_module(f"inception{name}", inception(channels, row))
        channels = row[0] + row[2] + sum(row[4:])
    features.add_module("average", nn.AvgPool2d(7, 1))
    return flat_classified(features, named(dropout=nn.Dropout(), linear=nn.Linear(channels, classes)))
