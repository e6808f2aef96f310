"""GoogLeNet (Szegedy and others, arXiv 1409.4842), without the auxiliary classifiers.

The poolings round down, except that the last one is padded, so the images are 112, 55, 27, 13 and 7 wide.
"""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, flat_classified, local_norm, named, rectified

# One row per module, table 1 of the paper: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOL_BEFORE = {"4a": 0, "5a": 1}
"""Modules that a pooling of that padding precedes."""


def inception(inputs: int, row: tuple[int, ...]) -> nn.Module:
    """One row of the table on `inputs` channels."""
    one, reduce_three, three, reduce_five, five, projection = row
    return Branches(
        rectified(inputs, one),
        nn.Sequential(rectified(inputs, reduce_three), rectified(reduce_three, three, 3)),
        nn.Sequential(rectified(inputs, reduce_five), rectified(reduce_five, five, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, padding=1), rectified(inputs, projection)),
    )


@zoo_model("googlenet", title="GoogleNet", input_shape=(3, 224, 224))
def googlenet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = nn.Sequential(
        *(rectified(3, 64, 7, 2), nn.MaxPool2d(3, 2), local_norm()),
        *(rectified(64, 64), rectified(64, 192, 3), local_norm(), nn.MaxPool2d(3, 2)),
    )
    channels = 192
    for name, row in MODULES.items():
        if name in POOL_BEFORE:
            features.add_module(f"pool{name}", nn.MaxPool2d(3, 2, padding=POOL_BEFORE[name]))
        features.add_module(f"inception{name}", inception(channels, row))
        channels = row[0] + row[2] + sum(row[4:])
    features.add_module("average", nn.AvgPool2d(7, 1))
    return flat_classified(features, named(dropout=nn.Dropout(), linear=nn.Linear(channels, classes)))
