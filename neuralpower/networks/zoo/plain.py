"""Networks of layers one after the other: perceptrons, AlexNet and its kin, VGG, MnistCnn, VideoCNN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import flat_classified, local_norm, named, relu

# Fully connected networks.
#
# AcousticModel follows the DistBelief speech network (Dean and others, NIPS 2012), DeepMNIST Ciresan and
# others (arXiv 1003.0358), and SensorNet stands for a classifier of sensor readings.


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


# AlexNet (Krizhevsky and others, NIPS 2012), its one-tower form, and Overfeat.
#
# AlexNet is built without groups, thus as for one device. AlexNetOWT follows arXiv 1404.5997 with an
# unpadded first convolution; Overfeat is the fast network of arXiv 1312.6229, with dropout between its
# linear layers.


def wide_classifier(features: int, first: int, second: int, classes: int) -> nn.Sequential:
    """Three linear layers with dropout after the first two."""
    return nn.Sequential(
        *(nn.Linear(features, first), relu(), nn.Dropout()),
        *(nn.Linear(first, second), relu(), nn.Dropout()),
        nn.Linear(second, classes),
    )


def convolutions(
    widths: Sequence[int], pool: tuple[int, int], *, padding: int = 2, normalised: bool = False
) -> nn.Sequential:
    """Convolutions 11x11 with stride 4, 5x5, and three 3x3; a pooling after the first, second and last.

    `pool` is (kernel, stride), `padding` that of the 5x5 convolution. `normalised` adds local response
    normalisation after the first two.
    """
    layers = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise((3, *widths))):
        kernel, stride, edge = ((11, 4, 0), (5, 1, padding), (3, 1, 1))[min(number, 2)]
        layers.extend((nn.Conv2d(inputs, outputs, kernel, stride, edge), relu()))
        if normalised and number < 2:
            layers.append(local_norm())
        if number not in (2, 3):
            layers.append(nn.MaxPool2d(*pool))
    return layers


@zoo_model("alexnet", title="AlexNet", input_shape=(3, 227, 227))
def alexnet(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = convolutions((96, 256, 384, 384, 256), (3, 2), normalised=True)
    return flat_classified(features, wide_classifier(9216, 4096, 4096, classes))


@zoo_model("alexnet_owt", title="AlexNetOWT", input_shape=(3, 227, 227))
def alexnet_owt(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 227, 227] -> [batch, classes]."""
    features = convolutions((64, 192, 384, 256, 256), (3, 2))
    return flat_classified(features, wide_classifier(9216, 4096, 4096, classes))


@zoo_model("overfeat", title="Overfeat", input_shape=(3, 231, 231))
def overfeat(classes: int = 1000) -> nn.Module:
    """Images [batch, 3, 231, 231] -> [batch, classes]."""
    features = convolutions((96, 256, 512, 1024, 1024), (2, 2), padding=0)
    return flat_classified(features, wide_classifier(36864, 3072, 4096, classes))


# ---- VGG (Simonyan and Zisserman, arXiv 1409.1556), without batch normalisation ----


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


# The convolutional network for handwritten digits that introductions to deep learning begin with.
#
# Two convolutions and two fully connected layers, after LeNet (LeCun and others, Proceedings of the IEEE 86,
# 1998).


class MnistCnn(nn.Module):
    """Grey images [batch, 1, 28, 28] -> logarithms of class probabilities [batch, classes]."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """28 -> 26 -> 24 pixels a side, 12 after pooling: 64 x 12 x 12 = 9216 features."""
        maps = F.relu(self.conv2(F.relu(self.conv1(images))))
        features = self.dropout1(F.max_pool2d(maps, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(features)))), dim=1)


@zoo_model("mnist_cnn", title="MnistCnn", input_shape=(1, 28, 28), classes=10)
def mnist_cnn(classes: int = 10) -> nn.Module:
    """Grey images [batch, 1, 28, 28] -> [batch, classes]."""
    return MnistCnn(classes)


# A small network of 3-D convolutions on video, after C3D (Tran and others, arXiv 1412.0767).

VIDEO_WIDTHS = (3, 32, 64, 128, 256)


@zoo_model("video_cnn", title="VideoCNN", input_shape=(3, 16, 64, 64), classes=101)
def video_cnn(classes: int = 101) -> nn.Module:
    """Clips [batch, 3, frames, height, width] -> [batch, classes]; the first pooling keeps frames (C3D)."""
    features = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise(VIDEO_WIDTHS), start=1):
        features.add_module(f"convolution{number}", nn.Conv3d(inputs, outputs, 3, padding=1, bias=False))
        features.add_module(f"normalisation{number}", nn.BatchNorm3d(outputs))
        features.add_module(f"relu{number}", relu())
        features.add_module(f"pool{number}", nn.MaxPool3d((1, 2, 2) if number == 1 else 2))
    return named(
        features=features,
        average=nn.AdaptiveAvgPool3d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(),
        classifier=nn.Linear(VIDEO_WIDTHS[-1], classes),
    )
