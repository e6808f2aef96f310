"""AlexNet (Krizhevsky and others, NIPS 2012), its one-tower form, and Overfeat.

AlexNet is built without groups, thus as for one device. AlexNetOWT follows arXiv 1404.5997 with an unpadded
first convolution; Overfeat is the fast network of arXiv 1312.6229, with dropout between its linear layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import flat_classified, local_norm, relu


def wide_classifier(features: int, first: int, second: int, classes: int) -> nn.Sequential:
    """Three linear layers with dropout after the first two."""
    return nn.Sequential(
        *(nn.Linear(features, first), relu(), nn.Dropout()),
        *(nn.Linear(first, second), relu(), nn.Dropout()),
        nn.Linear(second, classes),
    )


def convolutions(
    widths: Sequence[int], pool: tuple[int, int], *, padding: int = 2, normalised: bool = False
) -> nn.Sequential:
    """Convolutions 11x11 with stride 4, 5x5, and three 3x3; a pooling after the first, second and last.

    `pool` is (kernel, stride), `padding` that of the 5x5 convolution. `normalised` adds local response
    normalisation after the first two.
    """
    layers = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise((3, *widths))):
        kernel, stride, edge = ((11, 4, 0), (5, 1, padding), (3, 1, 1))[min(number, 2)]
        layers.extend((nn.Conv2d(inputs, outputs, kernel, stride, edge), relu()))
        if normalised and number < 2:
            layers.append(local_norm())
        if number not in (2, 3):
            layers.append(nn.MaxPool2d(*pool))
    return layers


@zoo_model("alexnet", title="AlexNet", input_shape=(3, 227, 227))
def alexnet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = convolutions((96, 256, 384, 384, 256), (3, 2), normalised=True)
    return flat_classified(features, wide_classifier(9216, 4096, 4096, classes))


@zoo_model("alexnet_owt", title="AlexNetOWT", input_shape=(3, 227, 227))
def alexnet_owt(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = convolutions((64, 192, 384, 256, 256), (3, 2))
    return flat_classified(features, wide_classifier(9216, 4096, 4096, classes))


@zoo_model("overfeat", title="Overfeat", input_shape=(3, 231, 231))
def overfeat(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 231, 231] -> [batch, classes]."""
    features = convolutions((96, 256, 512, 1024, 1024), (2, 2), padding=0)
    return flat_classified(features, wide_classifier(36864, 3072, 4096, classes))


# ---- VGG (Simonyan and Zisserman, arXiv 1409.1556), without batch normalisation ----


WIDTHS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(convolutions: Sequence[int], classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; 3x3 convolutions before each of the five poolings."""
    features = nn.Sequential()
    channels = 3
    for stage, (count, width) in enumerate(zip(convolutions, WIDTHS, strict=True), start=1):
        for number in range(1, count + 1):
            features.add_module(f"conv{stage}_{number}", nn.Conv2d(channels, width, 3, padding=1))
            features.add_module(f"relu{stage}_{number}", relu())
            channels = width
        features.add_module(f"pool{stage}", nn.MaxPool2d(2))
    return flat_classified(features, wide_classifier(channels * 7 * 7, 4096, 4096, classes))


for _depth, _convolutions in CONVOLUTIONS.items():
    zoo_model(f"vgg{_depth}", title=f"VGG{_depth}", input_shape=(3, 224, 224))(partial(vgg, _convolutions))
