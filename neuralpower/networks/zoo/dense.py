"""Fully connected networks.

AcousticModel follows the DistBelief speech network (Dean and others, NIPS 2012), DeepMNIST Ciresan and others
(arXiv 1003.0358), and SensorNet stands for a classifier of sensor readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import relu


def perceptron(widths: Sequence[int]) -> nn.Module:
    """Vectors [batch, widths[0]] -> [batch, widths[-1]]: linear layers with a rectifier between any two."""
    network = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        network.add_module(f"linear{number}", nn.Linear(inputs, outputs))
        if number < len(widths) - 1:
            network.add_module(f"relu{number}", relu())
    return network


@zoo_model("acoustic_model", title="AcousticModel", input_shape=(540,), classes=8192)
def acoustic_model(classes: int = 8192) -> nn.Module:
    """Vectors [batch, 540] -> [batch, classes]."""
    return perceptron((540, *[2048] * 5, classes))


@zoo_model("deep_mnist", title="DeepMNIST", input_shape=(784,), classes=10)
def deep_mnist(classes: int = 10) -> nn.Module:
    """Vectors [batch, 784] -> [batch, classes]."""
    return perceptron((784, 2500, 2000, 1500, 1000, 500, classes))


@zoo_model("sensor_net", title="SensorNet", input_shape=(784,), classes=16)
def sensor_net(classes: int = 16) -> nn.Module:
    """Vectors [batch, 784] -> [batch, classes]."""
    return perceptron((784, 1024, 1024, 1024, classes))
