"""A random crop and a random flip of one image, by pillow: training sees it differently every time.

Source of the crop: Szegedy and others, Going deeper with convolutions, arXiv 1409.4842, section 6: 8 % to 100 % of the area,
aspect ratio 3/4 to 4/3.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10

Box = tuple[float, float, float, float]


def augmented(image: Image, channels: int, size: int, generator: random.Random) -> Tensor:
    """A random part of the image, resized to a square of `size` pixels and flipped half of the time.

    Returns:
        uint8 [channels, size, size], not normalised; one channel is grey, three are colours.
    """
    from PIL import Image as Pillow

    part = image.convert("L" if channels == 1 else "RGB").resize(
        (size, size), Pillow.Resampling.BILINEAR, box=crop_box(image.width, image.height, generator)
    )
    if generator.random() < 0.5:
        part = part.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(part, dtype=np.uint8).reshape(size, size, channels))
    return pixels.permute(2, 0, 1).contiguous()


def crop_box(width: int, height: int, generator: random.Random) -> Box:
    """(left, upper, right, lower) of a random part; the largest possible central one where ten draws do not fit."""
    for _ in range(ATTEMPTS):
        area = width * height * generator.uniform(*AREA)
        ratio = math.exp(generator.uniform(*map(math.log, RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = generator.randint(0, width - across), generator.randint(0, height - down)
            return left, upper, left + across, upper + down
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down
