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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.files.json_files import named, read_json
from neuralpower.layers import Layer
from neuralpower.learn.estimates import ROOFLINE_FACTOR
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.prediction.costs.footprint import Footprint
from neuralpower.prediction.costs.images import Images
from neuralpower.prediction.prediction import SCHEMA, Prediction
from neuralpower.prediction.rows import BOUNDS, Interval, Row
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
    a_footprint: Footprint | None = None  # energy, money and carbon, where options request them
    b_footprint: Footprint | None = None
    a_images: Images | None = None  # of pipelines of diffusion
    b_images: Images | None = None

    @property
    def faster(self) -> tuple[str, float]:
        """("A" or "B", the probability that it is faster, never shown as certain)."""
        chance = max(self.a_faster, 1 - self.a_faster)
        return "A" if self.a_faster >= 0.5 else "B", min(chance, 0.999)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "a": named(self, "name=a runtime_s=a_s footprint=a_footprint images=a_images"),
            "b": named(self, "name=b runtime_s=b_s footprint=b_footprint images=b_images"),
            **named(self, "ratio a_faster warnings"),
        }


@dataclass(frozen=True)
class Side:
    """One of the two: its prediction and the predictor."""

    name: str
    prediction: Prediction
    predictor: Predictor | None  # None: an earlier answer, of which the layers' errors are not known

    @property
    def runtime_s(self) -> Interval:
        return self.prediction.runtime_s


def earlier(file: Path) -> Side | None:
    """The side that a file holds, an answer of `predict --json`; None for another file.

    Raises InputError for an answer of a newer version, and one that lacks a number.
    """
    try:
        told = read_json(file)
    except (OSError, ValueError):
        return None
    if not isinstance(told, Mapping) or "runtime_s" not in told or "predictor" not in told:
        return None
    if told.get("schema") != SCHEMA:
        raise InputError(
            f"{file}: has schema {told.get('schema')!r:.20}, and {SCHEMA} is read; predict it again"
        )
    try:
        rows = tuple(_row(row) for row in told["layers"])
        about = {
            name: told[name]
            for name in "model predictor device batch_size dtype phase parameters run".split()
        }
        runtime_s, energy = _interval(told["runtime_s"]), told["energy_j"] and _interval(told["energy_j"])
        method, warned = str(told["trace"]["method"]), tuple(map(str, told["warnings"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{file}: is not a whole answer of predict --json ({error}); predict it again"
        ) from None
    power = told.get("power_w") and _interval(told["power_w"])
    prediction = Prediction(
        **about,
        runtime_s=runtime_s,
        rows=rows,
        unmodelled=(),
        method=method,
        energy_j=energy,
        power_w=power,
        warned=warned,
    )
    return Side(f"{prediction.model} ({file.name})", prediction, None)


def _interval(told: Mapping[str, Any]) -> Interval:
    value, low, high = (float(told[bound]) for bound in BOUNDS)
    if not 0 <= low <= value <= high:
        raise ValueError(f"bounds {low} to {high} do not hold {value}")
    return Interval(value, low, high)


def _row(told: Mapping[str, Any]) -> Row:
    watts = told.get("power_w")
    return Row(
        path=str(told["path"]),
        kind=str(told["kind"]),
        count=int(told["count"]),
        runtime_s=float(told["runtime_s"]),
        low_s=float(told["low_s"]),
        high_s=float(told["high_s"]),
        flops=int(told["flops"]),
        bytes=int(told["bytes"]),
        bound=str(told["bound"]),
        basis=str(told["basis"]),
        share=float(told["share"]),
        power_w=None if watts is None else Interval(*(3 * (float(watts),))),
        step=str(told["phase"]),
    )


def compare(a: Side, b: Side) -> Comparison:
    """The ratio of two sides' times; raises InputError where one takes none."""
    for side in (a, b):
        if side.runtime_s.value <= 0:
            takes = f"its time is {side.runtime_s.value:g} s, a ratio needs more than 0"
            raise InputError(f"{side.name}: {takes}; compare networks with layers")
    one = a.predictor if a.predictor is b.predictor else None
    deviation = _together(a, b, one) if one else math.hypot(_deviation(a.runtime_s), _deviation(b.runtime_s))
    value = a.runtime_s.value / b.runtime_s.value
    spread = math.exp(NINETY * deviation)
    ratio = Interval(value, value / spread, value * spread)
    faster = 0.5 if value == 1 else float(value < 1)
    if deviation:
        faster = 0.5 * math.erfc(math.log(value) / deviation / math.sqrt(2))
    said = ((one.prediction.footprint, one.prediction.images) for one in (a, b))
    (a_footprint, a_images), (b_footprint, b_images) = said
    return Comparison(
        *(a.name, b.name, a.runtime_s, b.runtime_s, ratio, faster, tuple(_warnings(a, b)), _about(a, b)),
        a_footprint if isinstance(a_footprint, Footprint) else None,
        b_footprint if isinstance(b_footprint, Footprint) else None,
        a_images if isinstance(a_images, Images) else None,
        b_images if isinstance(b_images, Images) else None,
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
    footprints = (one.prediction.footprint for one in (a, b))
    warned = (text for found in footprints if isinstance(found, Footprint) for text in found.warnings)
    yield from (text for text in dict.fromkeys(warned) if text not in (*first, *second))


def _deviation(interval: Interval) -> float:
    return math.log(interval.high / interval.low) / 2 / NINETY


def _together(a: Side, b: Side, predictor: Predictor) -> float:
    """Standard deviation of log(ratio) where this predictor predicts both."""
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
    estimates = predictor.estimate([layer for layer in shares if isinstance(layer, Layer)])
    apart = np.array([share for layer, share in shares.items() if isinstance(layer, Layer)])
    variance = float(apart**2 @ np.maximum(estimates.deviation**2 - estimates.shared**2, 0))
    for regressor in np.unique(estimates.regressor):
        same = estimates.regressor == regressor
        variance += float(np.sum(apart[same] * estimates.shared[same])) ** 2
    unmodelled = [share for name, share in shares.items() if isinstance(name, str)]
    variance += sum((math.log(ROOFLINE_FACTOR) / NINETY * share) ** 2 for share in unmodelled)
    if counts[0] != counts[1]:
        variance += 2 * predictor.system**2
    return math.sqrt(variance)
