"""AlexNet (Krizhevsky and others, NIPS 2012), its one-tower form, and Overfeat.

AlexNet is built without groups, thus as for one device. AlexNetOWT follows arXiv 1404.5997 with an unpadded first
convolution; Overfeat is the fast network of arXiv 1312.6229, with dropout between its linear layers.
"""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import local_norm, named, relu


def wide_classifier(features: int, first: int, second: int, classes: int) -> nn.Sequential:
    """Three linear layers with dropout after the first two."""
    return nn.Sequential(
        *(nn.Linear(features, first), relu(), nn.Dropout()),
        *(nn.Linear(first, second), relu(), nn.Dropout()),
        nn.Linear(second, classes),
    )


@zoo_model("alexnet", title="AlexNet", input_shape=(3, 227, 227))
def alexnet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 96, 11, stride=4), relu(), local_norm(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2), relu(), local_norm(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), relu()),
        *(nn.Conv2d(384, 384, 3, padding=1), relu()),
        *(nn.Conv2d(384, 256, 3, padding=1), relu(), nn.MaxPool2d(3, 2)),
    )
    return named(features=features, flatten=nn.Flatten(), classifier=wide_classifier(9216, 4096, 4096, classes))


@zoo_model("alexnet_owt", title="AlexNetOWT", input_shape=(3, 227, 227))
def alexnet_owt(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, stride=4), relu(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), relu(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), relu()),
        *(nn.Conv2d(384, 256, 3, padding=1), relu()),
        *(nn.Conv2d(256, 256, 3, padding=1), relu(), nn.MaxPool2d(3, 2)),
    )
    return named(features=features, flatten=nn.Flatten(), classifier=wide_classifier(9216, 4096, 4096, classes))


@zoo_model("overfeat", title="Overfeat", input_shape=(3, 231, 231))
def overfeat(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 231, 231] -> [batch, classes]."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 96, 11, stride=4), relu(), nn.MaxPool2d(2)),
        *(nn.Conv2d(96, 256, 5), relu(), nn.MaxPool2d(2)),
        *(nn.Conv2d(256, 512, 3, padding=1), relu()),
        *(nn.Conv2d(512, 1024, 3, padding=1), relu()),
        *(nn.Conv2d(1024, 1024, 3, padding=1), relu(), nn.MaxPool2d(2)),
    )
    return named(features=features, flatten=nn.Flatten(), classifier=wide_classifier(36864, 3072, 4096, classes))
