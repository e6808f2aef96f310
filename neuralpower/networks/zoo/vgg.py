"""VGG (Simonyan and Zisserman, arXiv 1409.1556), without batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from neuralpower.networks.zoo.alexnet import wide_classifier
from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import flat_classified, relu

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
