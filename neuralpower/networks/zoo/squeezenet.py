"""SqueezeNet 1.1 (Iandola and others, arXiv 1602.07360; 1.1 from its authors' repository)."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, named, rectified, relu


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
