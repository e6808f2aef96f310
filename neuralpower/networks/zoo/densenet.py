"""DenseNet (Huang and others, arXiv 1608.06993)."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, conv_unit, named, pooled_classifier, relu

GROWTH = 32
LAYERS = (6, 12, 24, 16)


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
    for number, layers in enumerate(LAYERS, start=1):
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
