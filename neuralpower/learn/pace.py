"""How fast a CPU runs at the moment, and what networks take beside their layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pace:
    """What the sentinel took beside something measured (s): how fast the machine was."""

    sentinel_s: float
    again_s: float | None = None  # its second call in a row, if known: what ran before tells on it much less


@dataclass(frozen=True)
class NetworkSpeed:
    """How whole networks follow the machine's speed.

    More than their layers do: a layer's 10th percentile is of moments that are shorter than a network's pass; and less where
    weights are read for few rows, which others on the cores slow down little. The sentinel itself takes longer after a
    network than between layers.
    """

    sentinel_s: float  # the sentinel's usual time beside networks
    exponent: float
    streaming_exponent: float  # of products of a few rows
    again_s: float | None = None  # as `sentinel_s`, of its second call in a row
    # Times the sentinel's usual, that 95 % of its networks met at most; beyond, networks slow down less than the sentinel.
    slowest: float | None = None

    def slowdown(self, pace: Pace, streaming: float) -> float:
        """How much longer a network takes than usual at such a pace; `streaming`: share of such work."""
        exponent = (1 - streaming) * self.exponent + streaming * self.streaming_exponent
        return float(min(self.over(pace), self.slowest or np.inf) ** exponent)

    def over(self, pace: Pace) -> float:
        """How many times its usual time the sentinel takes."""
        return (
            pace.again_s / self.again_s
            if pace.again_s and self.again_s
            else pace.sentinel_s / self.sentinel_s
        )
