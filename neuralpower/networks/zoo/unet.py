"""U-Net (Ronneberger and others, arXiv 1505.04597), padded and half as wide."""

from __future__ import annotations

from torch import nn

from neuralpower.networks.zoo.base import zoo_model
from neuralpower.networks.zoo.blocks import Branches, conv_unit, named


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions that keep the image size."""
    return named(first=conv_unit(inputs, outputs, 3), second=conv_unit(outputs, outputs, 3))


def level(width: int, levels: int) -> nn.Sequential:
    """A level and all below it, on images halved `levels` times: [batch, width, h, w] -> the same shape."""
    if levels == 0:
        return nn.Sequential()
    below = named(
        pool=nn.MaxPool2d(2),
        down=double(width, 2 * width),
        below=level(2 * width, levels - 1),
        up=nn.ConvTranspose2d(2 * width, width, 2, stride=2),
    )
    return named(joined=Branches(nn.Identity(), below), merge=double(2 * width, width))


@zoo_model("unet", title="U-Net", input_shape=(3, 128, 128), classes=21)
def unet(width: int = 32, levels: int = 4, classes: int = 21) -> nn.Module:
    """Images [batch, 3, height, width] -> [batch, classes, height, width]; 2**levels divides the sides."""
    return named(first=double(3, width), body=level(width, levels), last=nn.Conv2d(width, classes, 1))
