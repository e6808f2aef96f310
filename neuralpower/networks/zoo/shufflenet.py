"""ShuffleNet v2 (Ma and others, arXiv 1807.11164)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, conv_unit, named, pooled_classifier

UNITS = (4, 8, 4)
WIDTHS = (116, 232, 464)
"""Channels of the three stages at width 1.0."""


def right_branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """1x1, depthwise 3x3 and 1x1 convolution."""
    return named(
        first=conv_unit(inputs, outputs),
        depthwise=conv_unit(outputs, outputs, 3, stride, groups=outputs, activation=None),
        last=conv_unit(outputs, outputs),
    )


class Shuffle(nn.Module):
    """Interleaves the two halves of the channels, so that the next unit mixes them."""

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class SplitUnit(nn.Module):
    """Leaves one half of the channels as it is and convolves the other, figure 3c."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.right = right_branch(channels // 2, channels // 2, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        left, right = x.chunk(2, dim=1)
        return torch.cat((left, self.right(right)), dim=1)


@zoo_model("shufflenet_v2", title="ShuffleNetV2 x1.0", input_shape=(3, 224, 224))
def shufflenet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = named(stem=conv_unit(3, 24, 3, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    channels = 24
    for number, (units, width) in enumerate(zip(UNITS, WIDTHS, strict=True), start=1):
        left = named(
            depthwise=conv_unit(channels, channels, 3, 2, groups=channels, activation=None),
            pointwise=conv_unit(channels, width // 2),
        )
        down = Branches(left, right_branch(channels, width // 2, stride=2))
        stage = nn.Sequential(down, Shuffle())
        for _ in range(units - 1):
            stage.extend((SplitUnit(width), Shuffle()))
        features.add_module(f"stage{number}", stage)
        channels = width
    features.add_module("last", conv_unit(channels, 1024))
    return named(features=features, classifier=pooled_classifier(1024, classes))
