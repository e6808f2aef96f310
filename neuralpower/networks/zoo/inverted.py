"""Inverted residual blocks, with and without channel gates, which the networks for small devices share."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from neuralpower.networks.zoo.blocks import Activation, Residual, conv_unit, named, relu

Stage = tuple[int, int, int, int, int]
"""Expansion factor, output channels, repetitions, kernel, stride of the first repetition."""


class SqueezeExcite(nn.Module):
    """Channel gates from the image's mean (Hu and others, arXiv 1709.01507)."""

    def __init__(self, channels: int, squeezed: int, activation: Activation, gate: Activation) -> None:
        super().__init__()
        self.gates = named(
            pool=nn.AdaptiveAvgPool2d(1),
            squeeze=nn.Conv2d(channels, squeezed, 1),
            activation=activation(),
            excite=nn.Conv2d(squeezed, channels, 1),
            gate=gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, channels, height, width] -> the same shape."""
        gated: Tensor = x * self.gates(x)
        return gated


def inverted_residual(
    inputs: int,
    outputs: int,
    expanded: int,
    kernel: int,
    stride: int,
    *,
    activation: Activation = relu,
    gates: nn.Module | None = None,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> nn.Module:
    """Expansion, depthwise convolution, gates where given, linear projection (Sandler and others, arXiv 1801.04381).

    No expansion where `expanded` is `inputs`; a shortcut where stride and channels allow one.
    """
    unit = partial(conv_unit, epsilon=epsilon, momentum=momentum)
    body = nn.Sequential()
    if expanded != inputs:
        body.add_module("expand", unit(inputs, expanded, activation=activation))
    depthwise = unit(expanded, expanded, kernel, stride, groups=expanded, activation=activation)
    body.add_module("depthwise", depthwise)
    if gates is not None:
        body.add_module("gates", gates)
    body.add_module("project", unit(expanded, outputs, activation=None))
    return Residual(body) if stride == 1 and inputs == outputs else body


def inverted_stages(
    inputs: int, stages: tuple[Stage, ...], activation: Activation, *, gated: bool = False
) -> nn.Sequential:
    """The stages one after the other; `gated` squeezes to a quarter of each block's input channels."""
    blocks = nn.Sequential()
    for expansion, outputs, repetitions, kernel, stride in stages:
        for number in range(repetitions):
            expanded = inputs * expansion
            gates = SqueezeExcite(expanded, inputs // 4, activation, nn.Sigmoid) if gated else None
            step = 1 if number else stride
            block = inverted_residual(inputs, outputs, expanded, kernel, step, activation=activation, gates=gates)
            blocks.append(block)
            inputs = outputs
    return blocks
