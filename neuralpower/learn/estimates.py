"""Estimates of layers: times, bounds and how each is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.learn.files.file_struct import Part, Positive
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.regressor import NINETY

MEASURED, IN_RANGE, CARRIED = "measured", "in-range", "carried"  # carried: trained on similar devices
WEIGHTS_LAW = "weights law"  # of quantised weights, from regressors of plain ones (`weight_only.py`)
EXTRAPOLATED, BYTES, ROOFLINE = "extrapolated", "bytes law", "roofline"
BORROWED = "borrowed"  # from a regressor that was trained on other calls: another group or another dtype
NETWORKS = "networks"  # from whole networks that were measured on the device
HELD = "held by law"  # what regressors or factors say breaks a law (`laws.py`), whose limit stands instead
BASES = (
    MEASURED,
    IN_RANGE,
    NETWORKS,
    CARRIED,
    EXTRAPOLATED,
    HELD,
    BYTES,
    BORROWED,
    WEIGHTS_LAW,
    ROOFLINE,
)  # best known first
UNTRAINED = (BORROWED, WEIGHTS_LAW, ROOFLINE)  # coverage excludes these
# how times of a named device are known, as text
TRAINED_HERE, CARRIED_BY = "trained on this device", "scaled from similar devices by bandwidth and peaks"
LIKE, BY_ITS_BYTES, BARE = "borrowed from like calls", "by its bytes", "roofline, wide bounds"
BY_NETWORKS, BY_PHYSICS = "from whole networks on this device", "from whole networks on other devices"
HERE = (TRAINED_HERE, BY_NETWORKS)  # what was measured on the device says it
ORIGINS = (TRAINED_HERE, BY_NETWORKS, CARRIED_BY, BY_PHYSICS, LIKE, BY_ITS_BYTES, BARE)
TOLD = 0.005  # shares of the time below this are not named
TIMES = ("runtime_s", "low_s", "high_s", "hidden_s", "withheld_s")  # of an estimate
BY_ROOFLINE, BY_BYTES, BY_WEIGHTS, BY_LAW = -1, -2, -3, -4  # numbers that are no regressor's
ROOFLINE_FACTOR = 3.0  # bounds of a roofline, or of another group, whose code differs
WIDE = float(np.log(ROOFLINE_FACTOR)) / NINETY  # the same as a standard deviation


Powers = tuple[Array, Array, Array, Array]  # W, low, high; 1 where trained, else 0; each [layers]


class Roofline(Part, frozen=True):
    """The simplest predictors, fitted on the same rows: a trained one has to be better."""

    flops_per_s: Positive  # roofline: max(FLOP / flops_per_s, B / bytes_per_s)
    bytes_per_s: Positive
    flops_only_per_s: Positive  # FLOPs alone

    def seconds(self, flops: Any, size: Any) -> Any:
        return np.maximum(flops / self.flops_per_s, size / self.bytes_per_s)


@dataclass(frozen=True)
class Estimates:
    """Estimates of a sequence of layers, in their order; each [layers]."""

    runtime_s: Array
    low_s: Array  # 90 % bounds
    high_s: Array
    shared: Array  # standard deviation of log(measured / predicted) that a regressor's layers share
    hidden_s: Array  # the host's part of the time, which the device's work hides in a queue of calls
    held_bytes: Array  # of the last-level cache, that a later pass would have to find again
    regressor: Array  # a number per regressor, BY_ROOFLINE, BY_BYTES or BY_WEIGHTS
    exponent: Array  # how each follows the machine's slow-downs
    basis_code: Array  # position in BASES
    power_w: Array  # NaN where not known
    power_low_w: Array
    power_high_w: Array
    power_trained: Array  # 1 where a regressor predicts it, 0 where it is carried or not known
    withheld_s: Array  # what factors say beyond the most that a law lets it take

    @classmethod
    def untrained(
        cls, t: Array, hidden_s: Array, held_bytes: Array, by_bytes: Array, power: Powers
    ) -> Estimates:
        """Estimates of layers without a regressor: by a pass over the same bytes, else by the roofline.

        `power` as the last four of an estimate.
        """
        return cls(
            runtime_s=t,
            low_s=t / ROOFLINE_FACTOR,
            high_s=t * ROOFLINE_FACTOR,
            shared=np.full(len(t), WIDE),
            hidden_s=hidden_s,
            held_bytes=held_bytes,
            regressor=np.where(by_bytes, BY_BYTES, BY_ROOFLINE),
            exponent=np.zeros(len(t)),
            basis_code=np.where(by_bytes, BASES.index(BYTES), BASES.index(ROOFLINE)),
            power_w=power[0],
            power_low_w=power[1],
            power_high_w=power[2],
            power_trained=power[3],
            withheld_s=np.zeros(len(t)),
        )

    @property
    def basis(self) -> tuple[str, ...]:
        """How each is known, one of BASES."""
        return tuple(BASES[code] for code in self.basis_code)

    @property
    def deviation(self) -> Array:
        """Standard deviation of each log(measured / predicted), by its bounds; 0 where it takes no time."""
        known = self.low_s > 0
        ratio = np.divide(self.high_s, self.low_s, out=np.ones(len(known)), where=known)
        return np.asarray(np.log(ratio) / 2 / NINETY)

    def at(self, index: Array) -> Estimates:
        return Estimates(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def followed_by(self, other: Estimates) -> Estimates:
        names = self.__dataclass_fields__
        return Estimates(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    def where(self, kept: Array, other: Estimates) -> Estimates:
        """Own values for the layers that `kept` marks, [layers], bool; the other's for all others."""
        names = self.__dataclass_fields__
        return Estimates(*(np.where(kept, getattr(self, name), getattr(other, name)) for name in names))

    def with_rows(self, index: Array, other: Estimates) -> Estimates:
        """The same with other values for the layers at `index`."""
        names = self.__dataclass_fields__
        found = {name: np.array(getattr(self, name)) for name in names}
        for name in names:
            found[name][index] = getattr(other, name)
        return Estimates(**found)

    def times(self, factor: float | Array) -> Estimates:
        """The same with all times multiplied by a factor, or each by its own."""
        return replace(self, **{name: getattr(self, name) * factor for name in TIMES})

    def widened(self, deviation: float) -> Estimates:
        """The same with a further error, of that standard deviation, that a regressor's layers share."""
        time, more = self.runtime_s, NINETY * deviation
        works = time > 0
        low, high = (
            np.log(np.divide(bound, time, out=np.ones_like(time), where=works & (bound > 0)))
            for bound in (self.low_s, self.high_s)
        )
        return replace(
            self,
            low_s=time * np.exp(-np.hypot(low, more)),
            high_s=time * np.exp(np.hypot(high, more)),
            shared=np.hypot(self.shared, deviation),
        )

    def slowdown(self, machine: float, counts: Array | float = 1.0) -> float:
        """Factor on the time of all calls (`counts` of each) when the machine is `machine` times slower."""
        time = self.runtime_s * counts
        return float(np.sum(time * machine**self.exponent) / np.sum(time)) if len(time) else 1.0

    def totals(self, counts: Any, system: float = 0.0, *, graphed: bool = False) -> Totals:
        """Sums over networks, `counts` [networks, layers], dense or sparse: how often each calls each layer.

        A layer's error repeats with every call. Errors of one regressor's layers have a part in common;
        errors of different regressors are independent. `system`: standard deviation of what all layers share.
        Where times were taken with the host's launches, a queue of calls takes as long as the slower of host
        and device; `graphed`, as one graph, as long as the device.
        """
        own = self.runtime_s**2 * np.maximum(self.deviation**2 - self.shared**2, 0)
        apart = counts @ self.runtime_s
        value = counts @ (self.runtime_s - self.hidden_s)
        if not graphed:
            value = np.maximum(value, counts @ self.hidden_s)
        variance = counts.power(2) @ own if hasattr(counts, "power") else counts**2 @ own
        for regressor in np.unique(self.regressor):
            common = self.runtime_s * self.shared * (self.regressor == regressor)
            variance = variance + (counts @ common) ** 2
        deviation = np.sqrt(variance / np.maximum(apart, 1e-30) ** 2 + system**2)
        low = value * np.exp(-NINETY * deviation)
        high = (value + counts @ self.withheld_s) * np.exp(NINETY * deviation)
        return Totals(value, low, high, deviation)


def by_origin(labels: Array, seconds: Array) -> dict[str, float]:
    """Sums of `seconds` [layers] by how they are known, `labels` [layers]: ORIGINS first, then others."""
    names = dict.fromkeys((*ORIGINS, *np.unique(labels).tolist()))
    return {name: float(np.sum(seconds[labels == name])) for name in names}


def in_words(origins: Mapping[str, float]) -> str:
    """How times are known, as text, the largest share first; shares below TOLD are not named."""
    told = {name: share for name, share in origins.items() if share >= TOLD} or {BARE: 1.0}
    if len(told) == 1:
        return next(iter(told))
    return ", ".join(f"{share:.0%} {name}" for name, share in sorted(told.items(), key=lambda one: -one[1]))


@dataclass(frozen=True)
class Totals:
    """Seconds of whole networks with 90 % bounds, each [networks]."""

    value: Array
    low: Array
    high: Array
    deviation: Array  # standard deviation of log(measured / predicted)

    def times(self, factor: Array) -> Totals:
        """The same, each network's time multiplied by its factor [networks]."""
        return Totals(self.value * factor, self.low * factor, self.high * factor, self.deviation)
