"""Many networks at once: their layers in one pool, each distinct one predicted once, totals with 90 % bounds.

Time follows `Estimates.totals`, energy `compose`: the layers' powers weighed by their times, where power is
known for nine tenths of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from neuralpower.layers import KINDS, Layer
from neuralpower.layers.columns import as_columns
from neuralpower.layers.rows import field_names
from neuralpower.learn.estimates import BASES, HERE, ROOFLINE_FACTOR, UNTRAINED, Estimates
from neuralpower.learn.network_estimates import UNMODELLED_OVERHEAD_S
from neuralpower.learn.notes import origins
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.watts import idle_power, shipped_watts
from neuralpower.prediction.costs.energy import ENERGY_COVERAGE, awake_w

Array = np.ndarray


@dataclass(frozen=True)
class Outcomes:
    """Totals of networks in their order, each [networks]; NaN where not known."""

    runtime_s: Array
    low_s: Array
    high_s: Array
    energy_j: Array
    energy_low_j: Array
    energy_high_j: Array
    coverage: Array  # share of the layers' time by regressors that were trained on such calls
    trained: Array  # the same, on this device
    launch_s: Array  # that the device waits for its host
    calls_s: Array  # of the host alone; 0 where all calls are launched at once

    @staticmethod
    def joined(parts: Sequence[Outcomes]) -> Outcomes:
        """The networks of all parts, one after the other."""
        names = Outcomes.__dataclass_fields__
        return Outcomes(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def at(self, place: Array | slice) -> Outcomes:
        """The outcomes of some networks, by their places."""
        return Outcomes(**{name: np.asarray(column)[place] for name, column in vars(self).items()})

    def with_time(self, seconds: Array, low_s: Array, high_s: Array) -> Outcomes:
        """The same with more time, each [networks], at the same power; it errs apart from the other time."""
        value = self.runtime_s + seconds
        more = value / np.maximum(self.runtime_s, np.finfo(float).tiny)
        return replace(
            self,
            runtime_s=value,
            low_s=value - np.hypot(self.runtime_s - self.low_s, seconds - low_s),
            high_s=value + np.hypot(self.high_s - self.runtime_s, high_s - seconds),
            energy_j=self.energy_j * more,
            energy_low_j=self.energy_low_j * more,
            energy_high_j=self.energy_high_j * more,
        )


def finite(value: float) -> float | None:
    """A number of outcomes; None for NaN."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class Work:
    """Networks as counts of distinct layers, predicted."""

    estimates: Estimates
    counts: csr_array  # [networks, distinct layers]
    unmodelled_s: Array  # [networks] by roofline
    host_s: Array | None  # [networks] of the host alone, where the predictor knows it
    graphed: bool = False  # whether all calls of a network are launched at once
    places: Mapping[str, slice] = field(default_factory=dict)  # of each kind's layers among the columns
    kinds: Array | None = None  # [distinct layers] a number for each kind; None: they are of one

    def by_kind(self, predictor: Predictor) -> dict[str, Outcomes]:
        """The outcomes of the layers of each kind alone."""
        nothing, found = np.zeros(self.counts.shape[0]), {}
        for kind, place in self.places.items():
            estimates = self.estimates.at(np.arange(place.start, place.stop))
            part = Work(estimates, self.counts[:, place], nothing, None, self.graphed)
            found[kind] = part.outcomes(predictor)
        return found

    def outcomes(self, predictor: Predictor) -> Outcomes:
        e, counts = self.estimates, self.counts
        total = e.totals(counts, predictor.system, graphed=self.graphed).times(predictor.in_cache(e, counts))
        extra = self.unmodelled_s
        value = busy = total.value + extra
        low, high = total.low + extra / ROOFLINE_FACTOR, total.high + extra * ROOFLINE_FACTOR
        if self.host_s is not None and predictor.dispatch is not None:  # the slower of the two sets the pace
            spread = float(np.exp(NINETY * predictor.dispatch.deviation))
            value = np.maximum(value, self.host_s)
            low, high = np.maximum(low, self.host_s / spread), np.maximum(high, self.host_s * spread)
        device_s = e.runtime_s - (e.hidden_s if self.host_s is None else 0.0)
        apart = np.maximum(counts @ device_s + extra, 1e-30)
        known = np.isfinite(e.power_w)
        covered = counts @ np.where(known, device_s, 0.0) / apart
        clock = 1.0 if predictor.setting is None else predictor.setting.clock
        idle_w = awake_w(predictor.hardware, clock)
        joules = np.where(known, device_s * np.nan_to_num(e.power_w), 0.0)
        powered = counts @ joules
        mean_w = powered / apart / np.maximum(covered, 1e-9)
        waits_j = (value - busy) * (np.where(value > busy, np.nan, 0.0) if idle_w is None else idle_w)
        energy = np.where(covered >= ENERGY_COVERAGE, mean_w * busy + waits_j, np.nan)
        spreads = self._power_spreads(joules, powered)
        waiting = np.clip(1 - busy / np.maximum(value, 1e-30), 0.0, 1.0)
        power = power_bounds(mean_w, spreads, waiting, predictor)
        energy_low = energy * np.exp(-np.hypot(_apart(power[0], power[1]), _apart(value, low)))
        energy_high = energy * np.exp(np.hypot(_apart(power[0], power[2]), _apart(value, high)))
        codes = [BASES.index(basis) for basis in UNTRAINED]
        untrained = counts @ np.where(np.isin(e.basis_code, codes), device_s, 0.0)
        coverage = np.maximum(0.0, 1 - (untrained + extra) / apart)
        trained = counts @ np.where(np.isin(origins(predictor, e), HERE), device_s, 0.0) / apart
        cached = predictor.in_cache(e, counts)
        waits_s = np.maximum(value - cached * (counts @ device_s) - extra, 0.0)
        calls_s = np.zeros(len(value)) if self.graphed else counts @ e.hidden_s
        if self.host_s is not None:
            calls_s = np.maximum(calls_s, self.host_s)
        return Outcomes(
            value, low, high, energy, energy_low, energy_high, coverage, trained, waits_s, calls_s
        )

    def _power_spreads(self, joules: Array, powered: Array) -> list[Array]:
        """Spreads of the working power to its low and its high bound, as `energy.energy_of` adds them up.

        Each [networks], a logarithm; `joules` of each layer, `powered` of all of a network.
        """
        e, common = self.estimates, NINETY * shipped_watts().network_doubt
        if not len(joules):
            return [np.full(len(powered), common)] * 2
        kinds = np.zeros(len(joules), dtype=int) if self.kinds is None else self.kinds
        _, groups = np.unique(2 * kinds + (e.power_trained > 0), return_inverse=True)
        spreads = []
        for bound in (e.power_low_w, e.power_high_w):
            apart = joules * np.nan_to_num(_apart(e.power_w, bound))
            of_groups = csr_array((apart, (np.arange(len(groups)), groups.reshape(-1))))
            shares = (self.counts @ of_groups).toarray() / np.maximum(powered, 1e-30)[:, None]
            spreads.append(np.hypot(common, np.sqrt((shares**2).sum(axis=1))))
        return spreads


def _apart(value: Array, bound: Array) -> Array:
    """How far a bound is from a value, as a logarithm; 0 where either is not positive or not known."""
    known = (value > 0) & (bound > 0)
    ratio = np.divide(bound, value, out=np.ones(np.shape(value)), where=known)
    return np.asarray(np.abs(np.log(ratio)))


def power_bounds(
    mean_w: Array, spreads: Sequence[Array], waiting: Array, predictor: Predictor
) -> list[Array]:
    """(Mean power, low, high), each [networks]; `waiting`: share of the time."""
    hardware, setting = predictor.hardware, predictor.setting
    if hardware is None or hardware.board_w is None:
        working = [mean_w, mean_w * np.exp(-spreads[0]), mean_w * np.exp(spreads[1])]
        return [bound * (1 - waiting) for bound in working]
    idle = idle_power(hardware, 1.0 if setting is None else setting.clock)
    limit = min(hardware.board_w, (setting and setting.limit_w) or hardware.board_w)
    low = np.minimum(np.maximum(mean_w * np.exp(-spreads[0]), idle[1]), mean_w)
    high = np.maximum(np.minimum(mean_w * np.exp(spreads[1]), limit), mean_w)
    ends = zip((mean_w, low, high), idle, strict=True)
    return [bound * (1 - waiting) + watts * waiting for bound, watts in ends]


class Pool:
    """Layers of many networks, kind by kind, as columns."""

    def __init__(self, networks: int, *, graphed: bool = False) -> None:
        self.networks = networks
        self.graphed = graphed  # whether all calls of a network are launched at once
        self.unmodelled_bytes = np.zeros(networks)
        self.unmodelled_calls = np.zeros(networks)
        self._parts: dict[str, list[tuple[Layer, Mapping[str, Array], Array, Array]]] = {}

    def add(self, example: Layer, numbers: Mapping[str, Array], networks: Array, counts: Array) -> None:
        """Add a layer like `example` to some networks, with these numbers and counts."""
        self._parts.setdefault(example.kind, []).append((example, numbers, networks, counts))

    def work(self, predictor: Predictor, dtype: str = "float32") -> Work:
        none, start = np.zeros(0), 0
        found, rows, columns = [predictor.estimate([])], [none.astype(int)], [none.astype(int)]
        counts, host, kinds = [none], [none], [none.astype(int)]
        places: dict[str, slice] = {}
        for kind, parts in self._parts.items():
            inverse, estimated, dispatch_s = self._estimated(kind, parts, predictor)
            found.append(estimated)
            rows += [networks for _, _, networks, _ in parts]
            counts += [count for _, _, _, count in parts]
            columns.append(start + inverse)
            host.append(dispatch_s)
            kinds.append(np.full(len(estimated.runtime_s), len(kinds)))
            places[kind] = slice(start, start := start + len(estimated.runtime_s))
        estimates = Estimates(
            *(np.concatenate([getattr(e, name) for e in found]) for name in Estimates.__dataclass_fields__)
        )
        where = (np.concatenate(rows), np.concatenate(columns))
        matrix = coo_array((np.concatenate(counts), where), shape=(self.networks, start)).tocsr()
        bytes_s = self.unmodelled_bytes / predictor.own.roofline(dtype).bytes_per_s
        unmodelled_s = bytes_s + UNMODELLED_OVERHEAD_S * self.unmodelled_calls
        host_s: Array | None = None
        if predictor.dispatch is not None and not self.graphed:
            host_s = matrix @ np.concatenate(host) + self.unmodelled_calls * predictor.dispatch.unknown_s
        return Work(estimates, matrix, unmodelled_s, host_s, self.graphed, places, np.concatenate(kinds))

    @staticmethod
    def _estimated(
        kind: str, parts: Sequence[tuple[Layer, Mapping[str, Array], Array, Array]], predictor: Predictor
    ) -> tuple[Array, Estimates, Array]:
        """(place of each row among the distinct ones, their estimates, the host's seconds of each)."""
        names = field_names(KINDS[kind])
        texts: dict[tuple[object, ...], int] = {}
        examples: list[Layer] = []
        blocks = []
        for example, numbers, networks, _ in parts:
            values = {name: getattr(example, name) for name in names}
            words = tuple(value for value in values.values() if isinstance(value, str))
            if words not in texts:
                texts[words] = len(texts)
                examples.append(example)
            block = np.empty((len(networks), len(names) + 1))
            block[:, -1] = texts[words]
            for i, (name, value) in enumerate(values.items()):
                block[:, i] = 0.0 if isinstance(value, str) else numbers.get(name, float(value))
            blocks.append(block)
        unique, inverse = np.unique(np.concatenate(blocks), axis=0, return_inverse=True)
        word = unique[:, -1].astype(int)
        table: dict[str, Any] = {
            name: np.array([getattr(e, name) for e in examples], dtype=object)[word].astype(str)
            if isinstance(getattr(examples[0], name), str)
            else unique[:, i]
            for i, name in enumerate(names)
        }
        layers, host_s = as_columns(KINDS[kind], table), np.zeros(len(unique))
        if predictor.dispatch is not None:
            host_s = predictor.dispatch.seconds_of_columns(layers)
        return inverse.reshape(-1), predictor.estimate_columns(layers), host_s


def outcomes_of(layers: Sequence[Layer], counts: csr_array, predictor: Predictor) -> Outcomes:
    """Totals of networks given as counts [networks, layers] of distinct layers."""
    host_s = None if predictor.dispatch is None else counts @ predictor.dispatch.seconds(layers)
    nothing = np.zeros(counts.shape[0])
    return Work(predictor.estimate(layers), counts, nothing, host_s).outcomes(predictor)
