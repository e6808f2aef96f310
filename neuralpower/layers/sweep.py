"""Seeded draws of a sweep's sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A seeded source of layer sizes: log-uniform, aligned and not, as networks have them."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def octaves(self, low: int, high: int) -> int:
        """An integer in [low, high], uniform in its logarithm."""
        return round(math.exp(self.random.uniform(math.log(low), math.log(high))))

    def size(self, low: int, high: int) -> int:
        """As `octaves`, but three times in four a multiple of a power of two, as networks' widths are."""
        value = self.octaves(low, high)
        if self.random.random() < 0.25:
            return value
        step = self.random.choice((4, 8, 16, 32, 64))
        return min(max(round(value / step) * step, low), high) if value >= step else value

    def choice(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability
