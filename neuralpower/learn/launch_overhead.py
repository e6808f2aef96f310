"""Two clocks: the host's time to issue calls, trained per kind, and how a queue of calls then runs.

    host   += dispatch_i                  the host issues one call after the other
    start_i = max(host, device)           the device runs them in order, when it has them
    device  = start_i + kernel_i

What the host does for a call depends on what is called, hardly on its size: checks, allocations and launches
are the same for ten numbers and for a million. So the cost is a median per kind, phase and function, and a
line where a call is a chain of launches, as a recurrent layer's steps or an optimizer's tensors are
(`Layer.launches`). Layers are timed as bare calls of their functions. In a forward pass, Python also walks
modules and makes views around each call: networks say how long, where some were measured. Compiled code, the
backward pass and loops do not. A lone backward pass also starts autograd's thread, a network's does so once:
the least that any kind's backward call takes more than its forward call is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD, measured_phase
from neuralpower.layers.rows import field_names
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.fitting.slopes import robust_deviation
from neuralpower.learn.keys import rows_by
from neuralpower.learn.regressor import NINETY

if TYPE_CHECKING:
    from neuralpower.learn.networks.network_rows import Total

Key = tuple[str, str, str]  # kind, phase, function; "" for what has none, and for all functions of a kind

# Assumed: hosts issue a call in half to twice the time of one another, by the speed
# of a core. As a standard deviation of the logarithm.
HOSTS_APART = math.log(2.0) / NINETY
FEWEST_NETWORKS = 3  # for a factor


def device_end_s(dispatch_s: Array, kernel_s: Array) -> float:
    """The time when the device has done all calls in order, since the host began with the first; s.

    Call i starts when it is issued or when those before it are done, so the last one ends with the call that
    was waited for longest: max_i (sum of dispatch up to i + sum of kernels from i on).
    """
    return float(np.max(np.cumsum(dispatch_s) + np.cumsum(kernel_s[::-1])[::-1], initial=0.0))


class Observation(NamedTuple):
    """The host's times of one kind's calls, each [rows]."""

    kind: str
    phase: Array
    function: Array
    launches: Array
    dispatch_s: Array


@dataclass(frozen=True)
class Cost:
    """The host's seconds for a call of one kind, phase and function, and for each launch of a chain."""

    call_s: float
    launch_s: float
    rows: int


@dataclass(frozen=True)
class Dispatch:
    """The host's time to issue calls."""

    costs: Mapping[Key, Cost]
    other_s: float  # of calls of kinds that were not measured
    deviation: float  # standard deviation of log(measured / this)
    factor: float = 1.0  # of a network's host over the sum of its layers', in files of earlier versions
    walk_s: float = 0.0  # Python's time around each call of a forward pass
    elsewhere: bool = False  # measured on another host than the one to predict

    def of_another_host(self) -> Dispatch:
        """The same for an unknown host, with wider bounds."""
        if self.elsewhere:
            return self
        deviation = math.hypot(self.deviation, HOSTS_APART)
        return replace(self, deviation=deviation, elsewhere=True)

    def of_compiled(self) -> Dispatch:
        """The same for compiled code, which calls no modules."""
        return replace(self, walk_s=0.0)

    def note(self, layers: Sequence[Layer]) -> str:
        """A note that the host is not the measured one; "" where it is."""
        if not self.elsewhere or not layers:
            return ""
        mean_us = float(np.mean(self.seconds(layers))) * 1e6
        return (
            f"kernel launches: some {mean_us:.2g} us each on the host, assumed within a factor of 2, "
            "partly hidden"
        )

    @property
    def unknown_s(self) -> float:
        """Seconds to issue a call of an unknown kind."""
        return self.factor * self.other_s + self.walk_s

    def seconds(self, layers: Sequence[Layer]) -> Array:
        found: dict[Layer, float] = {}
        for layer in dict.fromkeys(layers):
            cost = self._cost((layer.kind, measured_phase(layer.phase), str(function_of(layer))))
            bare_s = self.factor * (cost.call_s + cost.launch_s * float(layer.law.launches(layer)))
            found[layer] = bare_s + self.walk_s * bool(_is_walked(layer))
        return np.array([found[layer] for layer in layers])

    def seconds_of_columns(self, columns: Layer) -> Array:
        """[rows], of a table's columns (layers.as_columns)."""
        rows = len(columns.dtype)
        launches = np.broadcast_to(np.asarray(columns.law.launches(columns), dtype=float), (rows,))
        functions = np.broadcast_to(np.asarray(function_of(columns)), (rows,))
        found = np.empty(rows)
        for (phase, function), index in rows_by(np.asarray(measured_phase(columns.phase)), functions):
            cost = self._cost((columns.kind, phase, function))
            found[index] = cost.call_s + cost.launch_s * launches[index]
        return np.asarray(self.factor * found + self.walk_s * _is_walked(columns))

    def _cost(self, key: Key) -> Cost:
        """The cost of a function, else of its kind, else of kinds that were not measured."""
        return self.costs.get(key) or self.costs.get((*key[:2], "")) or Cost(self.other_s, 0.0, 0)

    def ends_s(
        self, dispatch_s: Array, kernel_s: Array, low: float, high: float
    ) -> tuple[float, float, float]:
        """(value, low, high) of a network's time; the device's part is `low` to `high` times its value."""
        spread = math.exp(NINETY * self.deviation)
        return (
            device_end_s(dispatch_s, kernel_s),
            device_end_s(dispatch_s / spread, kernel_s * low),
            device_end_s(dispatch_s * spread, kernel_s * high),
        )

    def corrected(self, networks: Sequence[Total]) -> Dispatch:
        """With Python's time around a call, from networks whose host never waited for the device."""
        known = [one for one in networks if math.isfinite(one.dispatch_s) and one.dispatch_s > 0]
        if len(known) < FEWEST_NETWORKS:
            return self
        host_s = np.array([one.dispatch_s for one in known])
        bare_s = np.array([float(one.calls @ self.seconds(one.layers)) for one in known])
        walked = np.array([float(one.calls @ [_is_walked(layer) for layer in one.layers]) for one in known])
        walk_s = max(float(np.median((host_s - bare_s) / np.maximum(walked, 1))), 0.0)
        deviation = robust_deviation(np.log(host_s / (bare_s + walk_s * walked)))
        return replace(self, walk_s=self.walk_s + walk_s, deviation=deviation)


def _is_walked(layer: Layer) -> Any:
    """Whether Python stands around the calls of a layer, or of a table's columns."""
    return (np.asarray(layer.phase) == FORWARD) & ~np.asarray(layer.recurs, dtype=bool)


def function_of(layer: Layer) -> Any:
    """The function that distinguishes calls of a kind, for a layer or a table's columns; else ""."""
    return getattr(layer, "function") if "function" in field_names(type(layer)) else ""  # noqa: B009


def train_dispatch(observations: Iterable[Observation]) -> Dispatch | None:
    """Fit the host's costs to rows with `dispatch_s`; None where there are none."""
    parts: dict[Key, list[Array]] = {}
    for seen in observations:
        usable = np.isfinite(seen.dispatch_s) & (seen.dispatch_s > 0)
        rows = np.stack([seen.launches, seen.dispatch_s])[:, usable]
        phases, functions = seen.phase[usable], seen.function[usable]
        for (phase,), index in rows_by(phases):
            parts.setdefault((seen.kind, phase, ""), []).append(rows[:, index])
        for (phase, function), index in rows_by(phases, functions):
            if function:
                parts.setdefault((seen.kind, phase, function), []).append(rows[:, index])
    if not parts:
        return None
    joined = {key: np.concatenate(some, axis=1) for key, some in sorted(parts.items())}
    costs = {key: _cost(*rows) for key, rows in joined.items()}
    kinds = {key: rows for key, rows in joined.items() if not key[2]}
    calls = [rows for (_, phase, _), rows in kinds.items() if phase != BACKWARD] or list(kinds.values())
    named = {key[:2] for key in joined if key[2]}
    errors = [
        np.log(rows[1] / (costs[key].call_s + costs[key].launch_s * rows[0]))
        for key, rows in joined.items()
        if key[2] or key[:2] not in named  # each row once, as its function where it has one
    ]
    other_s = float(np.median(np.concatenate(calls, axis=1)[1]))
    return Dispatch(_in_networks(costs), other_s, robust_deviation(np.concatenate(errors)))


def _in_networks(costs: Mapping[Key, Cost]) -> dict[Key, Cost]:
    """The costs without the start of a lone backward pass, which no call of a network pays."""
    forward = {key: costs[key[0], FORWARD, key[2]] for key in costs if (key[0], FORWARD, key[2]) in costs}
    back = {key: forward[key].call_s for key in forward if key[1] == BACKWARD}
    start_s = min((costs[key].call_s - call_s for key, call_s in back.items() if not key[2]), default=0.0)
    return {
        key: replace(cost, call_s=max(cost.call_s - start_s, back.get(key, 0.0)))
        if key[1] == BACKWARD
        else cost
        for key, cost in costs.items()
    }


def _cost(launches: Array, dispatch_s: Array) -> Cost:
    """A median, or a non-negative line of least relative squares where the launches differ."""
    from scipy.optimize import nnls

    if np.ptp(launches) == 0:
        return Cost(float(np.median(dispatch_s)), 0.0, len(dispatch_s))
    lines = np.column_stack([1 / dispatch_s, launches / dispatch_s])
    (call_s, launch_s), _ = nnls(lines, np.ones(len(dispatch_s)))
    return Cost(float(call_s), float(launch_s), len(dispatch_s))
