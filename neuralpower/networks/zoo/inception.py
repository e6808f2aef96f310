"""Inception v3 (Szegedy and others, arXiv 1512.00567) and v4 (arXiv 1602.07261), without auxiliary classifiers.

Every convolution has a bias besides its batch normalisation.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, Size, conv_unit, named

Step = tuple[int, Size]
"""Output channels and kernel of one convolution of a chain."""

unit = partial(conv_unit, bias=True, epsilon=2e-5, momentum=0.9)
ROW7, COLUMN7, ROW3, COLUMN3 = (1, 7), (7, 1), (1, 3), (3, 1)


def chain(inputs: int, *steps: Step) -> nn.Sequential:
    """Convolutions one after the other that keep the image size."""
    units = []
    for outputs, kernel in steps:
        units.append(unit(inputs, outputs, kernel))
        inputs = outputs
    return nn.Sequential(*units)


def narrowing(inputs: int, *steps: Step, stride: int = 2) -> nn.Sequential:
    """A chain whose last convolution is unpadded, with the given stride."""
    *kept, (outputs, kernel) = steps
    before = kept[-1][0] if kept else inputs
    return nn.Sequential(*chain(inputs, *kept), unit(before, outputs, kernel, stride, 0))


def forked(inputs: int, *steps: Step, outputs: int) -> nn.Sequential:
    """A chain that ends in a row and a column convolution side by side."""
    last = steps[-1][0]
    return nn.Sequential(
        *chain(inputs, *steps), Branches(chain(last, (outputs, ROW3)), chain(last, (outputs, COLUMN3)))
    )


def pooled(inputs: int, outputs: int, pool: type[nn.AvgPool2d] | type[nn.MaxPool2d] = nn.AvgPool2d) -> nn.Sequential:
    """A 3x3 pooling that keeps the image size, and a 1x1 convolution."""
    return nn.Sequential(pool(3, stride=1, padding=1), unit(inputs, outputs))


def stem() -> nn.Sequential:
    """What both networks begin with: [batch, 3, 299, 299] -> [batch, 64, 147, 147]."""
    return nn.Sequential(unit(3, 32, 3, 2, 0), unit(32, 32, 3, 1, 0), unit(32, 64, 3))


def head(features: int, classes: int) -> dict[str, nn.Module]:
    """What both networks end with, on an 8x8 image."""
    classifier = named(dropout=nn.Dropout(0.2), linear=nn.Linear(features, classes))
    return {"average": nn.AvgPool2d(8, 1), "flatten": nn.Flatten(), "classifier": classifier}


def v3_35(inputs: int, projection: int) -> nn.Module:
    """Module on the 35x35 image, figure 5 of the v3 paper: 224 + projection channels."""
    return Branches(
        chain(inputs, (64, 1)),
        chain(inputs, (48, 1), (64, 5)),
        chain(inputs, (64, 1), (96, 3), (96, 3)),
        pooled(inputs, projection),
    )


def v3_17(inner: int) -> nn.Module:
    """Module on the 17x17 image, figure 6: 768 channels."""
    return Branches(
        chain(768, (192, 1)),
        chain(768, (inner, 1), (inner, ROW7), (192, COLUMN7)),
        chain(768, (inner, 1), (inner, COLUMN7), (inner, ROW7), (inner, COLUMN7), (192, ROW7)),
        pooled(768, 192),
    )


def v3_8(inputs: int, pool: type[nn.AvgPool2d] | type[nn.MaxPool2d]) -> nn.Module:
    """Module on the 8x8 image, figure 7: 2048 channels."""
    return Branches(
        chain(inputs, (320, 1)),
        forked(inputs, (384, 1), outputs=384),
        forked(inputs, (448, 1), (384, 3), outputs=384),
        pooled(inputs, 192, pool),
    )


@zoo_model("inception3", title="InceptionV3", input_shape=(3, 299, 299))
def inception3(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    features = nn.Sequential(
        *(*stem(), nn.MaxPool2d(3, 2), unit(64, 80), unit(80, 192, 3, 1, 0), nn.MaxPool2d(3, 2)),
        *(v3_35(192, 32), v3_35(256, 64), v3_35(288, 64)),
        Branches(narrowing(288, (384, 3)), narrowing(288, (64, 1), (96, 3), (96, 3)), nn.MaxPool2d(3, 2)),
        *(v3_17(inner) for inner in (128, 160, 160, 192)),
        Branches(
            narrowing(768, (192, 1), (320, 3)),
            narrowing(768, (192, 1), (192, ROW7), (192, COLUMN7), (192, 3)),
            nn.MaxPool2d(3, 2),
        ),
        *(v3_8(1280, nn.AvgPool2d), v3_8(2048, nn.MaxPool2d)),
    )
    return named(features=features, **head(2048, classes))


def v4_stem() -> nn.Sequential:
    """The rest of the stem, figure 3 of the v4 paper: [batch, 64, 147, 147] -> [batch, 384, 35, 35]."""
    return nn.Sequential(
        Branches(narrowing(64, (96, 3)), nn.MaxPool2d(3, 2)),
        Branches(
            narrowing(160, (64, 1), (96, 3), stride=1),
            narrowing(160, (64, 1), (64, ROW7), (64, COLUMN7), (96, 3), stride=1),
        ),
        Branches(narrowing(192, (192, 3)), nn.MaxPool2d(3, 2)),
    )


def v4_35() -> nn.Module:
    """Module on the 35x35 image, figure 4: 384 channels."""
    return Branches(
        chain(384, (96, 1)),
        chain(384, (64, 1), (96, 3)),
        chain(384, (64, 1), (96, 3), (96, 3)),
        pooled(384, 96),
    )


def v4_17() -> nn.Module:
    """Module on the 17x17 image, figure 5: 1024 channels."""
    return Branches(
        chain(1024, (384, 1)),
        chain(1024, (192, 1), (224, ROW7), (256, COLUMN7)),
        chain(1024, (192, 1), (192, COLUMN7), (224, ROW7), (224, COLUMN7), (256, ROW7)),
        pooled(1024, 128),
    )


def v4_8() -> nn.Module:
    """Module on the 8x8 image, figure 6: 1536 channels."""
    return Branches(
        chain(1536, (256, 1)),
        forked(1536, (384, 1), outputs=256),
        forked(1536, (384, 1), (448, COLUMN3), (512, ROW3), outputs=256),
        pooled(1536, 256),
    )


@zoo_model("inception4", title="InceptionV4", input_shape=(3, 299, 299))
def inception4(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    features = nn.Sequential(
        *(*stem(), *v4_stem()),
        *(v4_35() for _ in range(4)),
        Branches(narrowing(384, (384, 3)), narrowing(384, (192, 1), (224, 3), (256, 3)), nn.MaxPool2d(3, 2)),
        *(v4_17() for _ in range(7)),
        Branches(
            narrowing(1024, (192, 1), (192, 3)),
            narrowing(1024, (256, 1), (256, ROW7), (320, COLUMN7), (320, 3)),
            nn.MaxPool2d(3, 2),
        ),
        *(v4_8() for _ in range(3)),
    )
    return named(features=features, **head(1536, classes))
