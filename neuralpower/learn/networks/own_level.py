"""The level of your own device: factors of its law, from 5 to hundreds of whole networks measured on it.

    minimise  sum_i rho(log(measured_i / predicted_i) / s) + sum_f (factor_f / tau_f)^2

as in `neuralpower.learn.unmeasured.prior_fit`, with the factors of all levels above as they are. How much
networks say is chosen by networks held out: the larger s, the less they move. Where none of the choices
predicts held-out networks better, the factors stay; and where fewer than ten cannot be told from chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.base import BACKWARD, GRADIENT
from neuralpower.layers.training import backward_of
from neuralpower.learn.estimates import BY_LAW, Estimates
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.fitting.slopes import robust_deviation
from neuralpower.learn.networks.network_rows import Total
from neuralpower.learn.predictor import LAW, Predictor
from neuralpower.learn.unmeasured.law_estimates import held
from neuralpower.learn.unmeasured.prior import Doubt, Law, gentle
from neuralpower.learn.unmeasured.prior_fit import DEVICE, Design, Observation, certainty, pull_of, settled

FEWEST = 5  # networks, of different names
NOISES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)  # of log(measured / predicted), the most cautious first
# Networks, below which only noises from that on are tried, and above only those up to it. A prior's networks
# deviate by 0.1 to 0.2: more noise than that makes ten say too little, and less makes five say too much.
FEW, FOR_FEW = 10, 0.25
FOLDS = 10
ROUNDING = 1e-9  # of an error: no gain
FARTHEST = 1.0  # of an error that counts: beyond, a network is strange
MOST_NAMED, MOST_FACTORS = 3, 5  # networks of a factor, and factors, that are said
# Times over predictions that no device reaches, and the unit that explains them: (least, most, unit).
UNITS = ((2e2, 5e3, "milliseconds"), (2e5, 5e6, "microseconds"), (2e8, 5e9, "nanoseconds"))
SEVERAL = 20.0  # times over predictions in the median, from which on times are of another device or unit
MOST_OTHERS = 0.5  # of a network's time that something else than the law answers for


@dataclass(frozen=True)
class Moved:
    """A factor that networks moved, and those that moved it most."""

    factor: str
    times: float
    networks: tuple[str, ...]


@dataclass(frozen=True)
class Taught:
    """A law with its device's own level; errors are means over networks held out, as shares."""

    law: Law
    networks: int
    before: float
    after: float  # as before where the factors stay
    held_out: Array  # predictions relative to times, [networks]
    fitted: Array  # the same by the law that all networks taught
    moved: tuple[Moved, ...] = ()

    @property
    def gained(self) -> bool:
        return self.after < self.before


def teach(predictor: Predictor, totals: Sequence[Total]) -> Taught:
    """The predictor's law, moved by the device's own networks.

    Raises:
        DatasetError: fewer than FEWEST networks, times of another unit, or networks most of whose time other
            predictors answer for.
    """
    law, names = predictor.law, [total.model for total in totals]
    if law is None:
        raise DatasetError(f"{predictor.device} runs no kernels, and has no law that networks could move")
    if len(totals) < FEWEST:
        raise DatasetError(f"{len(totals)} usable networks; {FEWEST} needed")
    observed = _observations(predictor, totals, law)
    design = Design(observed, law.factors, law.launch_s, (DEVICE,), held=law)
    before = _relative(design, np.zeros(len(design.parameters)))
    check_unit(before)
    others = np.array([one.rest_s for one in observed]) / (before * np.exp(design.log_s))
    if np.median(others) > MOST_OTHERS:
        raise DatasetError(
            f"{predictor.device}: {np.median(others):.0%} of a typical network's time is known from measured "
            "layers, which networks do not move here; add the networks to its dataset and train-predictor"
        )
    held_out, noise = _chosen(design, law, names, before)
    if noise is None:
        return Taught(law, len(totals), _error(before), _error(before), before, before)
    theta = _settled(design, law, noise)
    level = {name: value for (_, name), value in zip(design.parameters, theta.tolist(), strict=True) if value}
    doubt = Doubt(law.doubt.call, max(robust_deviation(np.log(held_out)), min(NOISES)))
    taught = replace(law.times(level), doubt=doubt, taught=True)
    moved = _moved(design, theta, noise, names)
    errors = _error(before), _error(held_out)
    return Taught(taught, len(totals), *errors, held_out, _relative(design, theta), moved)


def taught_by(predictor: Predictor, taught: Taught) -> Predictor:
    """The predictor that is the taught law alone; `any_device.with_the_rest` adds what else is known."""
    return replace(
        predictor,
        regressors={},
        others=(),
        power=None,
        learner=LAW,
        law=taught.law,
        system=0.0,
        dispatch=None,
        speed=None,
        sentinel_s=None,
        resident=0.0,
        trained_on=1,
        carried=False,
        twin=None,
        dataset={"networks": taught.networks, "moved": [asdict(one) for one in taught.moved]},
    )


def _observations(predictor: Predictor, totals: Sequence[Total], law: Law) -> list[Observation]:
    """The networks' layers that the law answers for; what others take is a constant of each network."""
    found = predictor.of_torch().estimate_each([total.layers for total in totals])
    return [_observation(predictor.device, *one, law) for one in zip(totals, found, strict=True)]


def _observation(device: str, total: Total, found: Estimates, law: Law) -> Observation:
    parts = [_parts(layer) for layer in total.layers]
    flat = [part for some in parts for part in some]
    owner = np.repeat(np.arange(len(parts)), [len(some) for some in parts])
    seconds = np.bincount(owner, _plain_s(flat, law), minlength=len(parts))
    # a call in whose place another one runs is not what the law says of it
    lawful = (found.regressor == BY_LAW) & np.isclose(seconds, found.runtime_s)
    return Observation(
        device=device,
        hardware=law.hardware,
        layers=tuple(part for part, i in zip(flat, owner, strict=True) if lawful[i]),
        counts=total.calls[owner][lawful[owner]],
        seconds=total.runtime_s,
        rest_s=float(total.calls[~lawful] @ found.runtime_s[~lawful]),
    )


def _parts(layer: Layer) -> list[Layer]:
    """What a law predicts of a call: itself, or the forward passes that do a backward pass's work."""
    backward = layer.phase == BACKWARD
    return [replace(part, phase=GRADIENT) for part in backward_of(layer)] if backward else [layer]


def _plain_s(layers: Sequence[Layer], law: Law) -> Array:
    """Seconds of calls by the law's factors alone, as a `Design` has them, [layers]."""
    seconds = np.zeros(len(layers))
    for kind in dict.fromkeys(layer.kind for layer in layers):
        index = [i for i, layer in enumerate(layers) if layer.kind == kind]
        columns = columns_of(KINDS[kind], [layers[i] for i in index])
        seconds[index] = held(law.seconds(columns), columns, law)
    return seconds


def _settled(design: Design, law: Law, noise: float, shown: Array | None = None) -> Array:
    """The factors of `prior_fit.settled`, as gentle as those of a prior: a larger call takes no less time."""
    theta, names = settled(design, shown, noise), [name for _, name in design.parameters]
    every = law.times(dict(zip(names, theta.tolist(), strict=True))).factors
    held = gentle(every)
    return np.asarray(theta + np.array([held.get(name, 0.0) - every.get(name, 0.0) for name in names]))


def _relative(design: Design, theta: Array) -> Array:
    """Predictions relative to times, [networks]."""
    return np.asarray(design.predicted(theta)[0] / np.exp(design.log_s))


def _error(relative: Array) -> float:
    return float(np.mean(np.minimum(np.abs(relative - 1), FARTHEST)))


def check_unit(relative: Array) -> None:
    """Raise DatasetError where times are hardly seconds of this device."""
    median = float(np.median(1 / relative))
    unit = next((unit for least, most, unit in UNITS if least < median < most), None)
    if unit is not None:
        raise DatasetError(
            f"times are {median:,.0f} times what is predicted, in the median: they are most likely {unit}, "
            "but runtime_s is in seconds; rename the column, or divide it"
        )
    if not 1 / SEVERAL < median < SEVERAL:
        raise DatasetError(
            f"times are {median:.3g} times what is predicted, in the median; check their unit, the batch "
            "sizes and the device"
        )


def _chosen(design: Design, law: Law, names: Sequence[str], before: Array) -> tuple[Array, float | None]:
    """(Held-out predictions relative to times, the noise with which they are best); None: as before."""
    network = np.unique(names, return_inverse=True)[1]  # rows of one network are held out together
    if network.max() + 1 < FEWEST:
        network = np.arange(len(names))
    fold = network % min(FOLDS, int(network.max()) + 1)
    few = len(names) < FEW
    noises = [noise for noise in NOISES if (noise >= FOR_FEW if few else noise <= FOR_FEW)]
    tried = [before]
    for noise in noises:
        relative = np.empty(len(names))
        for f in range(int(fold.max()) + 1):
            theta = _settled(design, law, noise, (fold != f).astype(float))
            relative[fold == f] = _relative(design, theta)[fold == f]
        tried.append(relative)
    errors = np.minimum(np.abs(np.array(tried) - 1), FARTHEST)
    best = int(np.argmin(errors.mean(axis=1)))
    # standard errors by which a less cautious choice has to gain: one for ten networks, more for fewer
    doubt = np.std(errors - errors[best], axis=1) * np.sqrt(FEW) / len(names)
    as_good = errors.mean(axis=1) <= errors[best].mean() + doubt + ROUNDING
    as_good[0] &= few or best == 0  # ten that some choice predicts better have moved the factors
    chosen = int(np.argmax(as_good))  # the most cautious
    return tried[chosen], (None, *noises)[chosen]


def _moved(design: Design, theta: Array, noise: float, names: Sequence[str]) -> tuple[Moved, ...]:
    """The factors that moved farthest, with the networks that moved them.

    At the minimum a factor is the sum of what each network pulls: slope x certainty x error / its own pull.
    """
    totals, _, compute_s, memory_s = design.predicted(theta)
    apart = design.log_s - np.log(totals)
    pulls = (
        design.slopes(totals, compute_s, memory_s).toarray()
        * (design.weight * certainty(apart, np.full(len(apart), noise)) * apart)[:, None]
    )
    pulls = pulls / pull_of(design)
    found = []
    for column in np.argsort(-np.abs(theta), kind="stable")[:MOST_FACTORS].tolist():
        along = pulls[:, column] * np.sign(theta[column])
        by = dict.fromkeys(names[i] for i in np.argsort(-along, kind="stable").tolist() if along[i] > 0)
        name = list(design.parameters)[column][1]
        found.append(Moved(name, float(np.exp(theta[column])), tuple(by)[:MOST_NAMED]))
    return tuple(found)


def in_words(moved: Sequence[Moved]) -> list[str]:
    return [f"{one.factor} x {one.times:.2f}, by {', '.join(one.networks)}" for one in moved]
