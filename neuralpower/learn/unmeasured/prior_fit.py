"""Train a prior: factors on several levels from whole networks and single calls, all at once.

    minimise  sum_i rho(log(measured_i / predicted_i) / s_i) + sum_l sum_f (factor_lf / tau_lf)^2

A single call is a network of one call. rho is Cauchy's, so a few strange rows bend nothing. Predictions are
linear in no factor, but their logarithm is nearly so: Gauss-Newton steps find the minimum. The second sum
draws each factor to the level above, and of all devices to 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.base import GRADIENT
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.unmeasured.law_estimates import bounds_s, seconds_by_law
from neuralpower.learn.unmeasured.laws import POWER, floors
from neuralpower.learn.unmeasured.prior import (
    COMPUTE,
    MEMORY,
    Law,
    family_of,
    gentle,
    least_factors,
    named,
)
from neuralpower.learn.watts import Demand, Sides, held_further, over_usual

STEPS, LARGEST_STEP, SETTLED = 30, 0.5, 1e-3  # of Gauss-Newton, in logarithms
# Deviations of factors from the level above, by level: a part's, a kind's, a trait's. Chosen over families of
# networks held out on two GPUs; of gradients' from forward passes' over steps of training held out on one.
ROOT, KIND, TRAIT, GRADIENTS = 0.3, 0.2, 0.1, 0.4
BELOW = {"everywhere": 1.0, "family": 0.5, "device": 0.5}  # times these
# and times this for a family of a maker other than HOME, whose kernels most rows are of. Operators on nine of
# Apple's chips, each held out, were 22 % off in the median; without it 44 %.
HOME, OTHER_MAKERS = "nvidia", 6.0
NETWORK_NOISE, CALL_NOISE = 0.1, 0.4  # deviation of log(time) that no factor explains
LEVELS, HALVINGS = (-0.4, 0.2), 6  # of the last step, in logarithms
TINY = 1e-30  # the least factor of compute where no FLOP are needed
SORTS = EVERYWHERE, FAMILY, DEVICE = "everywhere", "family", "device"


@dataclass(frozen=True)
class Observation:
    """The measured time of a network or of one call on a device."""

    device: str
    hardware: Hardware
    layers: tuple[Layer, ...]
    counts: Array  # of each layer's calls, [layers]
    seconds: float
    weight: float = 1.0  # against other observations of its sort
    noise: float = NETWORK_NOISE
    chip: str | None = None  # the code name of the device's chip
    rest_s: float = 0.0  # of its time, what something else than a law answers for


class Design:
    """All layers of observations as arrays, for predictions and their derivatives by factors."""

    def __init__(
        self,
        observed: Sequence[Observation],
        fixed: Mapping[str, float],
        launch_s: float,
        levels: Sequence[str] = SORTS,
        *,
        held: Law | None = None,
    ) -> None:
        """`fixed`: factors that stay, as logarithms, by name: those of levels that are known.

        `held`: hold each layer's time within what the laws allow of that law, as predictions are.
        """
        from scipy.sparse import coo_array, csr_array

        self.launch_s = launch_s
        self.rest_s = np.array([one.rest_s for one in observed])
        self.log_s = np.log([one.seconds for one in observed])
        self.noise = np.array([one.noise for one in observed])
        self.weight = np.array([one.weight for one in observed])
        at: dict[tuple[str, Layer], int] = {}
        rows, columns, counts = [], [], []
        for i, one in enumerate(observed):
            for layer, count in zip(one.layers, one.counts, strict=True):
                rows.append(i)
                columns.append(at.setdefault((one.device, layer), len(at)))
                counts.append(count)
        self.calls = coo_array((counts, (rows, columns)), shape=(len(observed), len(at))).tocsr()
        self.hardware = {one.device: one.hardware for one in observed}
        self.family = family = {one.device: family_of(one.hardware, one.chip) for one in observed}
        self.foreign = {f"{FAMILY} {family[one.device]}" for one in observed if one.hardware.platform != HOME}
        self.compute_s, self.memory_s = np.zeros(len(at)), np.zeros(len(at))
        self.works, self.launches = np.zeros(len(at)), np.ones(len(at))
        self.least_s, self.most_s = np.zeros(len(at)), np.full(len(at), np.inf)
        self.least = {part: np.full(len(at), -np.inf) for part in (COMPUTE, MEMORY)}  # of logs of factors
        self.parameters: dict[tuple[str, str], int] = {}  # (level, factor) -> column
        self.held: list[tuple[str, Array, Sides]] = []
        entries: dict[str, list[tuple[Array, int, Array]]] = {COMPUTE: [], MEMORY: []}
        self.base = {COMPUTE: np.zeros(len(at)), MEMORY: np.zeros(len(at))}
        for device, index, table in _tables(at):
            traits = table.law.traits(table)
            compute, memory = floors(table, self.hardware[device], traits)
            self.compute_s[index], self.memory_s[index] = compute, memory
            if over_usual(self.hardware[device], device) > 1:
                self.held.append((device, index, Demand.sides(table, self.hardware[device])))
            self.works[index] = np.asarray(table.flops() + sum(table.bytes()) > 0)
            self.launches[index] = np.maximum(table.law.launches(table), 1)
            if held is not None:
                self.least_s[index], self.most_s[index] = bounds_s(table, held)
                for part, least in zip((COMPUTE, MEMORY), least_factors(table), strict=True):
                    self.least[part][index] = np.log(np.maximum(least, TINY))
            every = (EVERYWHERE, f"{FAMILY} {family[device]}", f"{DEVICE} {device}")
            trained = [level for level in every if _sort(level) in levels]
            for part, shares in zip((COMPUTE, MEMORY), traits[:2], strict=True):
                for name, share in named(table, part, shares).items():
                    some = np.flatnonzero(share)
                    if not len(some):
                        continue
                    self.base[part][index] += fixed.get(name, 0.0) * share
                    for level in trained:
                        if level == EVERYWHERE and name in fixed:
                            continue  # it stays as it is
                        column = self.parameters.setdefault((level, name), len(self.parameters))
                        entries[part].append((index[some], column, share[some]))
        shape = (len(at), len(self.parameters))
        self.shares = {part: csr_array(_joined(found, shape)) for part, found in entries.items()}

    def predicted(self, theta: Array) -> tuple[Array, Array, Array, Array]:
        """(seconds of each observation, of each layer, the layers' derivatives of logs by both parts)."""
        log = {part: self.base[part] + self.shares[part] @ theta for part in (COMPUTE, MEMORY)}
        compute, memory = (
            (np.exp(np.maximum(log[part], self.least[part])) * part_s) ** POWER
            for part, part_s in ((COMPUTE, self.compute_s), (MEMORY, self.memory_s))
        )
        total = compute + memory
        busy = total ** (1 / POWER)
        share = np.divide(compute, total, out=np.zeros_like(total), where=total > 0)
        taken = busy + self.launch_s * self.launches
        for device, index, sides in self.held:
            taken[index] *= held_further(sides, taken[index], self.hardware[device], device)
        layers = np.clip(taken, self.least_s, self.most_s) * self.works
        free = busy * self.works * (taken == layers)
        totals = self.calls @ layers + self.rest_s
        # a factor below its least moves up alone, for networks most of which take longer
        longer = self.calls.T @ np.sign(self.log_s - np.log(totals)) > 0
        moves = [free * (longer | (log[part] >= self.least[part])) for part in (COMPUTE, MEMORY)]
        return totals, layers, moves[0] * share, moves[1] * (1 - share)

    def slopes(self, totals: Array, compute_s: Array, memory_s: Array) -> Any:
        """Derivatives of the logarithms of totals by the factors, [observations, factors]."""
        by = 1 / totals
        parts = ((COMPUTE, compute_s), (MEMORY, memory_s))
        return sum(
            (
                self.calls.multiply(by[:, None]).tocsr().multiply(s[None, :]).tocsr() @ self.shares[part]
                for part, s in parts
            )
        )


def _tables(at: Mapping[tuple[str, Layer], int]) -> Iterator[tuple[str, Array, Layer]]:
    """(device, places, columns) of the layers of each kind on each device."""
    found: dict[tuple[str, str], list[tuple[Layer, int]]] = defaultdict(list)
    for (device, layer), place in at.items():
        found[device, layer.kind].append((layer, place))
    for (device, kind), some in found.items():
        yield (
            device,
            np.array([place for _, place in some]),
            columns_of(KINDS[kind], [layer for layer, _ in some]),
        )


def _joined(entries: Sequence[tuple[Array, int, Array]], shape: tuple[int, int]) -> Any:
    from scipy.sparse import coo_array

    rows = np.concatenate([index for index, _, _ in entries]) if entries else np.zeros(0, int)
    columns = (
        np.concatenate([np.full(len(index), column) for index, column, _ in entries])
        if entries
        else np.zeros(0, int)
    )
    values = np.concatenate([share for _, _, share in entries]) if entries else np.zeros(0)
    return coo_array((values, (rows, columns)), shape=shape)


def _sort(level: str) -> str:
    """The name of a level, of which a family and a device have names."""
    return level.split(" ", 1)[0]


def deviation_of(level: str, name: str, foreign: Collection[str] = ()) -> float:
    """How far a factor may lie from the level above; `foreign`: levels of families of other makers."""
    sort = _sort(level)
    part, _, trait = name.partition(": ")
    usual = TRAIT if trait else KIND if " " in part else ROOT
    usual = GRADIENTS if part.endswith(f" {GRADIENT}") else usual
    return usual * BELOW[sort] * (OTHER_MAKERS if level in foreign else 1.0)


def fit_factors(
    observed: Sequence[Observation],
    launch_s: float,
    fixed: Mapping[str, float] | None = None,
    levels: Sequence[str] = SORTS,
) -> dict[str, dict[str, float]]:
    """Factors by level ("everywhere", "family NAME", "device NAME"), as logarithms.

    `levels`: those that are trained. `fixed`: factors of all devices that stay as they are; others of that
    level are trained where it is among the levels.
    """
    design = Design(observed, fixed or {}, launch_s, levels)
    theta, free = _gentle(design, settled(design), fixed or {})
    theta = settled(design, start=theta, free=free)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (level, name), value in zip(design.parameters, theta.tolist(), strict=True):
        if value:
            found[level][name] = value
    return found


def _gentle(design: Design, theta: Array, fixed: Mapping[str, float]) -> tuple[Array, Array]:
    """(Factors of which no size's steps fall too steeply (`prior.gentle`), 0 for all sizes of those, else 1).

    What such a size may not take, the factors of its kind have to take.
    """
    theta, moved = theta.copy(), set[str]()
    for device, family in design.family.items():
        total = dict(fixed)
        for level in (EVERYWHERE, f"{FAMILY} {family}", f"{DEVICE} {device}"):
            own = {name: column for (of, name), column in design.parameters.items() if of == level}
            for name, column in own.items():
                total[name] = total.get(name, 0.0) + theta[column]
            held = gentle(total)
            for name in own.keys() & {name for name in held if held[name] != total[name]}:
                theta[own[name]] += held[name] - total[name]
                moved.add(name.rpartition(" ")[0])
            total = held
    names = [name.rpartition(" ")[0] for _, name in design.parameters]
    return theta, np.array([name not in moved for name in names], dtype=float)


def settled(
    design: Design,
    shown: Array | None = None,
    noise: float | None = None,
    *,
    start: Array | None = None,
    free: Array | float = 1.0,
) -> Array:
    """The factors that minimise the sum, as logarithms, [parameters].

    `shown` [observations]: which of them to use; `noise`: of all of them, in place of their own; `start`:
    where to begin; `free`: 1 for factors that move, 0 for others.
    """
    pull = pull_of(design)
    deviation = design.noise if noise is None else np.full(len(design.noise), noise)
    weight = design.weight if shown is None else design.weight * shown
    theta = np.zeros(len(pull)) if start is None else start.copy()

    def missed(theta: Array) -> float:
        """The sum to minimise."""
        strange = np.log1p(((design.log_s - np.log(design.predicted(theta)[0])) / (2 * deviation)) ** 2)
        return float(4 * weight @ strange + pull @ theta**2)

    least = missed(theta)
    for _ in range(STEPS):
        totals, _, compute_s, memory_s = design.predicted(theta)
        slopes = (
            design.slopes(totals, compute_s, memory_s).multiply(np.full(len(pull), free)[None, :]).tocsr()
        )
        apart = design.log_s - np.log(totals)
        weights = weight * certainty(apart, deviation)
        hessian = (slopes.multiply(weights[:, None]).T @ slopes).toarray() + np.diag(pull)
        step = np.linalg.solve(hessian, slopes.T @ (weights * apart) - pull * theta * free)
        step = np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        # calls that a step too long leaves far off would count as strange, and never come back
        while (found := missed(theta + step)) > least and np.abs(step).max(initial=0) > SETTLED:
            step = step / 2
        theta, least = (theta + step, found) if found <= least else (theta, least)
        if np.abs(step).max(initial=0) < SETTLED:
            break
    return theta


def pull_of(design: Design) -> Array:
    """How strongly each factor is drawn to the level above, [parameters]."""
    return np.array([1 / deviation_of(*name, design.foreign) ** 2 for name in design.parameters])


def certainty(apart: Array, noise: Array) -> Array:
    """Cauchy's weight of each observation, [observations]; `apart`: log(measured / predicted)."""
    return np.asarray(1 / noise**2 / (1 + (apart / (2 * noise)) ** 2))


def levelled(law: Law, observed: Sequence[Observation]) -> float:
    """What to add to both parts' factors so that half of the networks take longer than the held law says.

    Laws lift the times of calls that find in the cache what the call before them left.
    """
    low, high = LEVELS
    measured = np.array([one.seconds for one in observed])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        moved = law.times({COMPUTE: middle, MEMORY: middle})
        said = predicted(observed, dict.fromkeys((one.device for one in observed), moved))
        low, high = (low, middle) if np.median(said / measured) > 1 else (middle, high)
    return (low + high) / 2


def predicted(observed: Sequence[Observation], laws: Mapping[str, Law]) -> Array:
    """Seconds of each observation by the law of its device."""
    at: dict[tuple[str, Layer], int] = {}
    for one in observed:
        for layer in one.layers:
            at.setdefault((one.device, layer), len(at))
    each_s = np.zeros(len(at))
    for device, index, table in _tables(at):
        each_s[index] = seconds_by_law(table, laws[device])
    return np.array(
        [
            one.counts @ each_s[[at[one.device, layer] for layer in one.layers]] + one.rest_s
            for one in observed
        ]
    )
