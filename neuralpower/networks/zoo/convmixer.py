"""ConvMixer (Trockman and Kolter, arXiv 2201.09792)."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Residual, named, pooled_classifier


def unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1
) -> nn.Sequential:
    """Convolution, GELU and batch normalisation, in this order."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups)
    return named(convolution=convolution, activation=nn.GELU(), normalisation=nn.BatchNorm2d(outputs))


@zoo_model("convmixer", title="ConvMixer-256/8", input_shape=(3, 224, 224))
def convmixer(
    width: int = 256, depth: int = 8, kernel: int = 9, patch: int = 7, classes: int = 1000
) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; ConvMixer-width/depth of the paper."""
    mixers = nn.Sequential()
    for _ in range(depth):
        mixers.append(Residual(unit(width, width, kernel, padding=kernel // 2, groups=width)))
        mixers.append(unit(width, width, 1))
    return named(
        patches=unit(3, width, patch, patch), mixers=mixers, classifier=pooled_classifier(width, classes)
    )
