"""Compare two predictions: their ratio with its interval, and how likely one is the faster.

    log(A / B) = log of the predicted ratio + sum_i (a_i - b_i) own_i
                 + sum_r shared_r sum_{i of r} (a_i - b_i) s_i + system

a_i, b_i: layer i's share of either time. Errors of layers that both have, and of layers of one regressor, are
in both and cancel to that extent; errors of different predictors are independent. The error of whole networks
beyond their layers' (`Predictor.system`) is independent for each network.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.files.json_files import named
from neuralpower.layers import Layer
from neuralpower.learn.estimates import ROOFLINE_FACTOR
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import Interval
from neuralpower.prediction.shown import Shown


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """A against B. `print` gives the command's table."""

    a: str
    b: str
    a_s: Interval
    b_s: Interval
    ratio: Interval  # A's time over B's
    a_faster: float  # probability
    warnings: tuple[str, ...] = ()  # of either side, as text
    about: str = ""  # what both sides share: phase, dtype, way to run, device

    @property
    def faster(self) -> tuple[str, float]:
        """("A" or "B", the probability that it is faster, never shown as certain)."""
        chance = max(self.a_faster, 1 - self.a_faster)
        return "A" if self.a_faster >= 0.5 else "B", min(chance, 0.999)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "a": {"name": self.a, "runtime_s": self.a_s.to_json()},
            "b": {"name": self.b, "runtime_s": self.b_s.to_json()},
            **named(self, "ratio a_faster warnings"),
        }


@dataclass(frozen=True)
class Side:
    """One of the two: its prediction and the predictor."""

    name: str
    prediction: Prediction
    predictor: Predictor

    @property
    def runtime_s(self) -> Interval:
        """Its time."""
        return self.prediction.runtime_s


def compare(a: Side, b: Side) -> Comparison:
    """The ratio of two sides' times; raises InputError where one takes none."""
    for side in (a, b):
        if side.runtime_s.value <= 0:
            takes = f"its time is {side.runtime_s.value:g} s, a ratio needs more than 0"
            raise InputError(f"{side.name}: {takes}; compare networks with layers")
    one = a.predictor is b.predictor
    deviation = _together(a, b) if one else math.hypot(_deviation(a.runtime_s), _deviation(b.runtime_s))
    value = a.runtime_s.value / b.runtime_s.value
    spread = math.exp(NINETY * deviation)
    ratio = Interval(value, value / spread, value * spread)
    faster = 0.5 if value == 1 else float(value < 1)
    if deviation:
        faster = 0.5 * math.erfc(math.log(value) / deviation / math.sqrt(2))
    return Comparison(
        a.name, b.name, a.runtime_s, b.runtime_s, ratio, faster, tuple(_warnings(a, b)), _about(a, b)
    )


def _about(a: Side, b: Side) -> str:
    """One line on what both sides share: how they run, and on which device."""
    fields = [
        (p.phase, p.dtype, p.run, f"on {p.device} ({p.predictor})") for p in (a.prediction, b.prediction)
    ]
    return ", ".join(one for one, other in zip(*fields, strict=True) if one == other)


def _warnings(a: Side, b: Side) -> Iterator[str]:
    """Warnings of both sides, then those of one side, marked with its letter."""
    first, second = a.prediction.warnings, b.prediction.warnings
    yield from (text for text in first if text in second)
    yield from (f"A: {text}" for text in first if text not in second)
    yield from (f"B: {text}" for text in second if text not in first)


def _deviation(interval: Interval) -> float:
    return math.log(interval.high / interval.low) / 2 / NINETY


def _together(a: Side, b: Side) -> float:
    """Standard deviation of log(ratio) where one predictor predicts both."""
    # of a layer, or of an operator without a kind: A's share minus B's
    shares: dict[Layer | str, float] = defaultdict(float)
    counts: list[Counter[Layer | str]] = []
    for side, sign in ((a, 1), (b, -1)):
        rows, calls = side.prediction.rows, Counter[Layer | str]()
        total = sum(row.runtime_s for row in rows) or 1e-30
        for row in rows:
            shares[row.layer or row.kind] += sign * row.runtime_s / total
            calls[row.layer or row.kind] += row.count
        counts.append(calls)
    estimates = a.predictor.estimate([layer for layer in shares if isinstance(layer, Layer)])
    apart = np.array([share for layer, share in shares.items() if isinstance(layer, Layer)])
    variance = float(apart**2 @ np.maximum(estimates.deviation**2 - estimates.shared**2, 0))
    for regressor in np.unique(estimates.regressor):
        same = estimates.regressor == regressor
        variance += float(np.sum(apart[same] * estimates.shared[same])) ** 2
    unmodelled = [share for name, share in shares.items() if isinstance(name, str)]
    variance += sum((math.log(ROOFLINE_FACTOR) / NINETY * share) ** 2 for share in unmodelled)
    if counts[0] != counts[1]:
        variance += 2 * a.predictor.system**2
    return math.sqrt(variance)
