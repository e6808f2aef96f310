"""MnasNet (Tan and others, arXiv 1807.11626)."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import conv_unit, named, pooled_classifier, relu
from neuralpower.networks.zoo.inverted import Stage, inverted_stages

STAGES: tuple[Stage, ...] = (
    (1, 16, 1, 3, 1),
    (3, 24, 3, 3, 2),
    (3, 40, 3, 5, 2),
    (6, 80, 3, 5, 2),
    (6, 96, 2, 3, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


@zoo_model("mnasnet", title="MnasNet 1.0", input_shape=(3, 224, 224))
def mnasnet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]; MnasNet-B1, the form without gates."""
    return named(
        stem=conv_unit(3, 32, 3, 2),
        blocks=inverted_stages(32, STAGES, relu),
        last=conv_unit(320, 1280),
        classifier=pooled_classifier(1280, classes, 0.2),
    )
