"""AlexNet (Krizhevsky and others, NIPS 2012), its one-tower form, and Overfeat.

AlexNet is built without groups, thus as for one device. AlexNetOWT follows arXiv 1404.5997 with an unpadded
first convolution; Overfeat is the fast network of arXiv 1312.6229, with dropout between its linear layers.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import flat_classified, local_norm, relu

# id: title, image side; channels, pooling (size, stride), whether normalised, padding, linear layers
TOWERS = {
    "alexnet": ("AlexNet", 227, (96, 256, 384, 384, 256), (3, 2), True, 2, (9216, 4096, 4096)),
    "alexnet_owt": ("AlexNetOWT", 227, (64, 192, 384, 256, 256), (3, 2), False, 2, (9216, 4096, 4096)),
    "overfeat": ("Overfeat", 231, (96, 256, 512, 1024, 1024), (2, 2), False, 0, (36864, 3072, 4096)),
}


def wide_classifier(features: int, first: int, second: int, classes: int) -> nn.Sequential:
    """Three linear layers with dropout after the first two."""
    return nn.Sequential(
        *(nn.Linear(features, first), relu(), nn.Dropout()),
        *(nn.Linear(first, second), relu(), nn.Dropout()),
        nn.Linear(second, classes),
    )


def tower(
    widths: tuple[int, ...],
    pool: tuple[int, int],
    normalised: bool,
    padding: int,
    linear: tuple[int, int, int],
    classes: int = 1000,
) -> nn.Module:
    """Images [batch, 3, side, side] -> [batch, classes].

    Convolutions 11x11 with stride 4, 5x5, and three 3x3; a pooling after the first, second and last.
    """
    layers = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise((3, *widths))):
        kernel, stride, edge = ((11, 4, 0), (5, 1, padding), (3, 1, 1))[min(number, 2)]
        layers.extend((nn.Conv2d(inputs, outputs, kernel, stride, edge), relu()))
        if normalised and number < 2:
            layers.append(local_norm())
        if number not in (2, 3):
            layers.append(nn.MaxPool2d(*pool))
    return flat_classified(layers, wide_classifier(*linear, classes))


for _id, (_title, _side, _widths, _pool, _normalised, _padding, _linear) in TOWERS.items():
    _build = partial(tower, _widths, _pool, _normalised, _padding, _linear)
    zoo_model(_id, title=_title, input_shape=(3, _side, _side))(_build)
