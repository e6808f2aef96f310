"""EfficientNet (Tan and Le, arXiv 1905.11946), its baseline."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import conv_unit, named, pooled_classifier
from neuralpower.networks.zoo.inverted import Stage, inverted_stages

STAGES: tuple[Stage, ...] = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


def swish() -> nn.Module:
    """X times its sigmoid, overwriting its input."""
    return nn.SiLU(inplace=True)


@zoo_model("efficientnet_b0", title="EfficientNet-B0", input_shape=(3, 224, 224))
def efficientnet_b0(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; without stochastic depth, which inference does not have."""
    return named(
        stem=conv_unit(3, 32, 3, 2, activation=swish),
        blocks=inverted_stages(32, STAGES, swish, gated=True),
        last=conv_unit(320, 1280, activation=swish),
        classifier=pooled_classifier(1280, classes, 0.2),
    )
