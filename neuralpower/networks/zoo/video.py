"""A small network of 3-D convolutions on video, after C3D (Tran and others, arXiv 1412.0767)."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import named, relu

WIDTHS = (3, 32, 64, 128, 256)


@zoo_model("video_cnn", title="VideoCNN", input_shape=(3, 16, 64, 64), classes=101)
def video_cnn(classes: int = 101) -> nn.Module:
    """Clips [batch, 3, frames, height, width] -> [batch, classes]; the first pooling keeps frames (C3D)."""
    features = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise(WIDTHS), start=1):
        features.add_module(f"convolution{number}", nn.Conv3d(inputs, outputs, 3, padding=1, bias=False))
        features.add_module(f"normalisation{number}", nn.BatchNorm3d(outputs))
        features.add_module(f"relu{number}", relu())
        features.add_module(f"pool{number}", nn.MaxPool3d((1, 2, 2) if number == 1 else 2))
    return named(
        features=features,
        average=nn.AdaptiveAvgPool3d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(),
        classifier=nn.Linear(WIDTHS[-1], classes),
    )
