"""How fast a CPU runs at the moment, and how networks follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuralpower.learn.files.file_struct import Exponent, Part, Positive


@dataclass(frozen=True)
class Pace:
    """Times of the sentinel next to a measurement (s): how fast the machine was."""

    sentinel_s: float
    again_s: float | None = None  # its second call in a row, if known: what ran before affects it much less


class NetworkSpeed(Part, frozen=True):
    """How whole networks follow the machine's speed.

    They follow more than their layers, whose 10th percentile is of moments shorter than a network's pass. The
    sentinel itself takes longer after a network than between layers.
    """

    sentinel_s: Positive  # the sentinel's usual time next to networks
    exponent: Exponent
    again_s: Positive | None = None  # as `sentinel_s`, of its second call in a row
    # Times the sentinel's usual, that 95 % of its networks met at most; beyond, networks slow down less than
    # the sentinel.
    slowest: Positive | None = None

    def slowdown(self, pace: Pace) -> float:
        """Factor on a network's usual time at a pace."""
        return float(min(self.over(pace), self.slowest or np.inf) ** self.exponent)

    def over(self, pace: Pace) -> float:
        if pace.again_s and self.again_s:
            return pace.again_s / self.again_s
        return pace.sentinel_s / self.sentinel_s
