"""The convolutional network for handwritten digits that introductions to deep learning begin with.

Two convolutions and two fully connected layers, after LeNet (LeCun and others, Proceedings of the IEEE 86,
1998).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.networks.zoo.base import zoo_model


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
