"""Inception-ResNet v2 (Szegedy and others, arXiv 1602.07261, figures 15 to 19), without auxiliary classifier.

Channels are those of the authors' published code, in whose numbers of parameters the network is usually given.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, Size, conv_unit, named, relu

unit = partial(conv_unit, epsilon=1e-3)
ROW7, COLUMN7, ROW3, COLUMN3 = (1, 7), (7, 1), (1, 3), (3, 1)


class ScaledResidual(nn.Module):
    """`after(x + scale * body(x))`: a body that counts for little keeps very wide networks stable (section 3.3)."""

    def __init__(self, body: nn.Module, scale: float, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.scale, self.after = body, scale, after

    def forward(self, x: Tensor) -> Tensor:
        """Features -> the same shape."""
        total: Tensor = x + self.scale * self.body(x)
        return total if self.after is None else self.after(total)


def chain(inputs: int, *steps: tuple[int, Size], stride: int = 1) -> nn.Sequential:
    """Convolutions one after the other; the last has the stride, and no padding where that is not 1."""
    units = nn.Sequential()
    for number, (outputs, kernel) in enumerate(steps, 1):
        last = stride != 1 and number == len(steps)
        units.append(unit(inputs, outputs, kernel, stride if last else 1, 0 if last else None))
        inputs = outputs
    return units


def residual(channels: int, joined: int, scale: float, *branches: nn.Module, last: bool = False) -> nn.Module:
    """Branches of `joined` channels together, brought back to `channels` by a 1x1 convolution with bias."""
    body = nn.Sequential(Branches(*branches), nn.Conv2d(joined, channels, 1))
    return ScaledResidual(body, scale, None if last else relu())


def block35() -> nn.Module:
    """On the 35x35 image, figure 16."""
    return residual(
        320, 128, 0.17, chain(320, (32, 1)), chain(320, (32, 1), (32, 3)), chain(320, (32, 1), (48, 3), (64, 3))
    )


def block17() -> nn.Module:
    """On the 17x17 image, figure 17."""
    return residual(1088, 384, 0.1, chain(1088, (192, 1)), chain(1088, (128, 1), (160, ROW7), (192, COLUMN7)))


def block8(last: bool = False) -> nn.Module:
    """On the 8x8 image, figure 19; the last is neither scaled nor rectified."""
    wide = chain(2080, (192, 1), (224, ROW3), (256, COLUMN3))
    return residual(2080, 448, 1.0 if last else 0.2, chain(2080, (192, 1)), wide, last=last)


@zoo_model("inception_resnet_v2", title="Inception-ResNet v2", input_shape=(3, 299, 299))
def inception_resnet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 299, 299] -> [batch, classes]."""
    stem = nn.Sequential(
        unit(3, 32, 3, 2, 0),
        unit(32, 32, 3, 1, 0),
        unit(32, 64, 3),
        nn.MaxPool2d(3, 2),
        unit(64, 80),
        unit(80, 192, 3, 1, 0),
        nn.MaxPool2d(3, 2),
    )
    mixed = Branches(
        chain(192, (96, 1)),
        chain(192, (48, 1), (64, 5)),
        chain(192, (64, 1), (96, 3), (96, 3)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), unit(192, 64)),
    )
    to17 = Branches(
        chain(320, (384, 3), stride=2), chain(320, (256, 1), (256, 3), (384, 3), stride=2), nn.MaxPool2d(3, 2)
    )
    to8 = Branches(
        chain(1088, (256, 1), (384, 3), stride=2),
        chain(1088, (256, 1), (288, 3), stride=2),
        chain(1088, (256, 1), (288, 3), (320, 3), stride=2),
        nn.MaxPool2d(3, 2),
    )
    return named(
        stem=stem,
        mixed=mixed,
        stage35=nn.Sequential(*(block35() for _ in range(10))),
        to17=to17,
        stage17=nn.Sequential(*(block17() for _ in range(20))),
        to8=to8,
        stage8=nn.Sequential(*(block8(last=number == 9) for number in range(10))),
        top=unit(2080, 1536),
        average=nn.AvgPool2d(8, 1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(1536, classes),
    )
