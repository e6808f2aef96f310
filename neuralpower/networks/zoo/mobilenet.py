"""MobileNet v1 (Howard and others, arXiv 1704.04861), v2 (Sandler and others, 1801.04381), v3 large (1905.02244)."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import conv_unit, named, pooled_classifier, relu
from neuralpower.networks.zoo.inverted import SqueezeExcite, Stage, inverted_residual, inverted_stages

IMAGE = (3, 224, 224)

V1_WIDTHS = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
V2_STAGES: tuple[Stage, ...] = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 32, 3, 3, 2),
    (6, 64, 4, 3, 2),
    (6, 96, 3, 3, 1),
    (6, 160, 3, 3, 2),
    (6, 320, 1, 3, 1),
)
# Table 1 of the v3 paper: kernel, expanded, output and squeezed channels (0: no gates), hard swish, stride.
V3_ROWS = (
    (3, 16, 16, 0, False, 1),
    (3, 64, 24, 0, False, 2),
    (3, 72, 24, 0, False, 1),
    (5, 72, 40, 24, False, 2),
    (5, 120, 40, 32, False, 1),
    (5, 120, 40, 32, False, 1),
    (3, 240, 80, 0, True, 2),
    (3, 200, 80, 0, True, 1),
    (3, 184, 80, 0, True, 1),
    (3, 184, 80, 0, True, 1),
    (3, 480, 112, 120, True, 1),
    (3, 672, 112, 168, True, 1),
    (5, 672, 160, 168, True, 2),
    (5, 960, 160, 240, True, 1),
    (5, 960, 160, 240, True, 1),
)


def hard_swish() -> nn.Module:
    """The hard swish of MobileNet v3, section 5.2, overwriting its input."""
    return nn.Hardswish(inplace=True)


def relu6() -> nn.Module:
    """A rectifier capped at six, overwriting its input."""
    return nn.ReLU6(inplace=True)


@zoo_model("mobilenet_v1", title="MobileNetV1", input_shape=IMAGE)
def mobilenet_v1(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    features = nn.Sequential(conv_unit(3, 32, 3, 2))
    for number, (inputs, outputs) in enumerate(pairwise(V1_WIDTHS), start=1):
        stride = 2 if number in (2, 4, 6, 12) else 1
        depthwise = conv_unit(inputs, inputs, 3, stride, groups=inputs)
        features.append(named(depthwise=depthwise, pointwise=conv_unit(inputs, outputs)))
    return named(features=features, classifier=pooled_classifier(1024, classes))


@zoo_model("mobilenet_v2", title="MobileNetV2", input_shape=IMAGE)
def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    return named(
        stem=conv_unit(3, 32, 3, 2, activation=relu6),
        blocks=inverted_stages(32, V2_STAGES, relu6),
        last=conv_unit(320, 1280, activation=relu6),
        classifier=pooled_classifier(1280, classes, 0.2),
    )


@zoo_model("mobilenet_v3_large", title="MobileNetV3-Large", input_shape=IMAGE)
def mobilenet_v3_large(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 224, 224] -> [batch, classes]."""
    blocks = nn.Sequential()
    inputs = 16
    for kernel, expanded, outputs, squeezed, hard, stride in V3_ROWS:
        activation = hard_swish if hard else relu
        gates = SqueezeExcite(expanded, squeezed, relu, nn.Hardsigmoid) if squeezed else None
        block = inverted_residual(
            inputs, outputs, expanded, kernel, stride, activation=activation, gates=gates, epsilon=1e-3, momentum=0.01
        )
        blocks.append(block)
        inputs = outputs
    hidden = (nn.Linear(960, 1280), hard_swish(), nn.Dropout(0.2))
    return named(
        stem=conv_unit(3, 16, 3, 2, activation=hard_swish, epsilon=1e-3, momentum=0.01),
        blocks=blocks,
        last=conv_unit(160, 960, activation=hard_swish, epsilon=1e-3, momentum=0.01),
        classifier=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden, nn.Linear(1280, classes)),
    )
