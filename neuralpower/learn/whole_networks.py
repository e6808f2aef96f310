"""Whole networks' times teach what layers in isolation cannot: factors per regressor, or all of a predictor.

    measured_i = sum_k f_k T_ik + sum_c h_c S_ic    T: what regressor k predicts of network i; S: its short calls' time, below
    minimise     sum_i (that (1 + q r_i) / measured_i - 1)^2 + sum_k ((f_k - g) / tau)^2 s^2 + sum_c h_c^2 s^2 + q^2 s^2

With `tau` by cross-validation, s the noise; g is 1, or what all have in common where the layers are another machine's. S is what
calls take in their first 150 us (convolutions; 500 of those over signals) or 30 us (all else); h is added to the factors of
calls up to that, and fades into a constant beyond: in turn with sixty others a call's code is colder than in a network, and
between a network's calls the interpreter runs. r is 1 of a network without weights and falls to 0 where they no longer stay in
the cache from pass to pass; it is 0 of a step of training.
A base that is linear in its weights allows the same with the terms of the layers instead of the regressors' sums, where
nothing but totals is known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.dataset import Rejected, summarised, unusable
from neuralpower.dtypes import FLOATING, TENSORFLOAT32
from neuralpower.errors import DatasetError, ModelError, NeuralPowerError, one_line
from neuralpower.files.json_files import parse_json
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import BACKWARD, FORWARD, LARGEST, in_tf32, most_flops
from neuralpower.layers.optimizer import Optimizer
from neuralpower.learn.features import describe
from neuralpower.learn.fit import (
    FEWEST_FOR_TERM,
    NINETY,
    Regressor,
    Spread,
    Term,
    contradicting_few,
    far_off,
    non_negative_lasso,
    scores_of,
)
from neuralpower.learn.predictor import (
    ALL,
    INTEGER,
    Estimates,
    Key,
    NetworkSpeed,
    Pace,
    Predictor,
    recurs,
    resident_share,
)
from neuralpower.learn.slopes import speed_exponents
from neuralpower.networks.trust import check_model

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

TAUS = (0.02, 0.05, 0.1, 0.2, 0.4)  # how far factors may lie from the common one
# Times that of forward passes: backward passes follow each other in a network as nowhere else, and steps of training held out
# were predicted better (9.9, then 9.0 %); left free, an optimizer's stood for them: it takes up to 1.7 times as long in some runs.
LOOSENESS = {BACKWARD: 2.0, Optimizer.kind: 0.5}  # by phase; an optimizer has one of its own
TAUS_OF_LAYERS = TAUS[:-1]  # of one machine: by two fifths a small kind stood for what others do in the same networks
SHORT_FACTORS = (0.25, 2.0)  # of a regressor's factor, what is left of it for short calls
# Of networks, and where they wait for memory: what is expected before any is seen, with its deviation. Hundreds of networks on
# each of two CPUs followed the sentinel by 1.06 and 0.49; steps of decoders, within minutes, by 0.6 to 0.7.
EXPONENTS = ((0.8, 0.4), (0.65, 0.1))
# Of the log of the sentinel's time, which depends on the network before it: its first call's 0.05 for each alone.
PRECEDING, PRECEDING_AGAIN = 0.04, 0.01
# Of log time: the same 68 networks took 6 % longer on another day's virtual machine, slow-down taken out, and within ten minutes
# each of eight scattered by 4 %.
DAYS = 0.06
# Of networks: no slow-down is taken out beyond what so many of them met. The slopes are those of all: fitted to what is taken
# out alone, networks held out were predicted worse (6.3 for 6.1 %).
MET = 0.95
SLOWEST = 1.15  # at least: hundreds on each of two CPUs met 1.18 and 1.19, a dozen in a calm minute no more than 1.004
FACTORS = (0.25, 4.0)  # no correction goes farther
MOST_RESIDENT = 0.5
FEWEST_NETWORKS = 10
FEWEST_FOR_COMMON = 2  # networks that say what all layers have in common, by which each can be held out
# Of log(measured / predicted) before networks tell: how far the common factor lies from 1, as the widest of TAUS, and how far
# networks scatter about it.
COMMON, USUAL = 0.4, 0.1
MOST_UNLEARNT = 0.5  # of a network's time, that layers teach nothing of
MOST_SAID = 200  # letters of why a row is left out
PARTS = ("", "flops", "bytes")  # of a kind's time that totals alone tell apart: a call's own, and these terms'
FOLDS = 10
ALPHAS = tuple(10.0**-exponent for exponent in range(2, 7))


@dataclass(frozen=True)
class Total:
    """One measured network: its layers, how often it calls each, and the time of all together."""

    model: str
    layers: tuple[Layer, ...]
    counts: tuple[float, ...]  # parts of backward passes among them
    runtime_s: float
    pace: Pace | None  # None: not known
    line: int
    dispatch_s: float = float("nan")  # of the host, to issue the whole of it; NaN where not known
    dataset: str = ""  # whose table the line is of, where there are several


def read_totals(
    table: pd.DataFrame, hardware: Hardware | None = None, *, trust_code: bool = False
) -> tuple[list[Total], list[Rejected]]:
    """The rows of a dataset's `network` table; layers come from its column `layers`, else from tracing the model.

    `hardware` says what no network can exceed. `trust_code` lets models be traced that run code of their own.

    Raises:
        DatasetError: a column is missing, or a model would have to be traced that runs code.
    """
    missing = [name for name in ("model", "batch", "runtime_s") if name not in table]
    if missing:
        raise DatasetError(
            f"network: column {', '.join(missing)} missing; needed are model, batch, input and runtime_s"
        )
    totals, rejected = [], []
    blank = table.isna().all(axis=1).to_numpy()
    cells = table.astype(object).where(table.notna(), None)  # whatever a column has for what is not there
    for i, cell in enumerate(cells.to_dict("records")):
        if blank[i]:
            continue
        row = {str(name): value for name, value in cell.items()}
        _check_trusted(row, f"network line {i + 2}", trust_code)
        try:
            total = _total(row, i + 2)
            if hardware is not None and total.runtime_s < _least_s(total, hardware):
                raise ValueError("faster than the device's peak")
            totals.append(total)
        except (NeuralPowerError, ValueError, TypeError, KeyError) as error:
            rejected.append(
                Rejected("network", i + 2, textwrap.shorten(one_line(error), MOST_SAID, placeholder=" ..."))
            )
    return totals, rejected


def _check_trusted(row: Mapping[str, Any], where: str, trust_code: bool) -> None:
    """Raise DatasetError for a row without layers whose model would run code."""
    if row.get("layers") is None:
        try:
            check_model(str(row["model"]), where, trust_code)
        except ModelError as error:
            raise DatasetError(str(error)) from None


def _total(row: Mapping[str, Any], line: int) -> Total:
    if str(row.get("status") or "ok").strip().lower() != "ok":
        raise ValueError(f"status {row['status']}")
    runtime = _number(row, "runtime_s")
    for reason, found in unusable(np.array([runtime])).items():
        if found.any():
            raise ValueError(reason)
    parts = list(_traced(row).items()) if row.get("layers") is None else _listed(row["layers"])
    if not parts:
        raise ValueError("it has no layers")
    layers, counts = zip(*parts, strict=True)
    first_s, again_s, dispatch_s = (_number(row, name) for name in ("sentinel_s", "sentinel_again_s", "dispatch_s"))
    pace = Pace(first_s, again_s if again_s > 0 else None) if first_s > 0 else None
    return Total(str(row["model"]), layers, counts, runtime, pace, line, dispatch_s or np.nan)


def _number(row: Mapping[str, Any], name: str) -> float:
    """A cell's number; NaN where it is empty, not there, or without end."""
    value = row.get(name)
    try:
        number = np.nan if value is None or value == "" else float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{name} is {value!r}, but must be a number") from None
    return number if np.isfinite(number) else np.nan


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A cell's JSON object."""
    try:
        value = parse_json(row[name])
    except (ValueError, TypeError):  # the second where it holds no text, as cells of Parquet may
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {row[name]!r}, but must be the text of a JSON object")
    return value


def _listed(text: Any) -> list[tuple[Layer, float]]:
    """Layers with how often each is called, from a cell of column `layers`."""
    try:
        parts = [(KINDS[kind].from_row(fields), float(count)) for kind, fields, count in parse_json(text, endless=True)]
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"layers cannot be read ({type(error).__name__}: {error})") from None
    for layer, count in parts:
        if not 0 < count <= LARGEST:  # NaN is none either
            raise ValueError(
                f"layers call {layer.kind} {count:g} times, but must do so more than 0 and up to {LARGEST} times"
            )
    return parts


def _least_s(total: Total, hardware: Hardware) -> float:
    """Seconds that its products take at the device's peak; 0 where that is not known."""
    flops = [0.0]
    for layer, count in zip(total.layers, total.counts, strict=True):
        if layer.multiplies:
            flops.append(count * layer.flops() / (layer.savings * most_flops(layer, hardware)))
    return sum(flops)


def consistent(totals: Sequence[Total], predicted: Array) -> tuple[list[Total], list[Rejected]]:
    """Without networks so far from the others, relative to a prediction [networks], that they cannot be of the same device.

    Of a network that is predicted to take no time nothing is known, and a few networks do not tell which of them is wrong.
    """
    known = np.flatnonzero(predicted > 0)
    measured = np.array([total.runtime_s for total in totals])
    enough = len(known) >= FEWEST_NETWORKS
    far = known[far_off(np.log(measured[known] / predicted[known]))].tolist() if enough else []
    return _parted(totals, far)


def _traced(row: Mapping[str, Any]) -> dict[Layer, int]:
    from neuralpower.layers.base import torch_dtype
    from neuralpower.networks.sources import InputRequest, resolve
    from neuralpower.trace.tracer import trace

    settings = {} if row.get("input") is None else _object(row, "input")
    phase = row.get("phase")
    if (isinstance(phase, str) and phase != FORWARD) or "context" in settings:
        raise ValueError("a step needs its layers in column `layers`")
    if not set(settings) <= {"seq_len", "input_shape"}:
        raise ValueError(f"input holds {', '.join(sorted(settings))}; known are seq_len and input_shape")
    batch = _number(row, "batch")
    if not (batch >= 1 and batch % 1 == 0):
        raise ValueError(f"batch is {row['batch']!r}, but must be a whole number from 1")
    length, shape = settings.get("seq_len"), settings.get("input_shape")
    sizes = [1 if length is None else length, *(shape if isinstance(shape, list) else [1])]
    if not isinstance(shape, (list, type(None))) or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(
            f"input is {row['input']!r}, but sizes must be whole numbers from 1, input_shape a list of them"
        )
    given = row.get("dtype")
    dtype = torch_dtype(given if isinstance(given, str) else "float32")
    source = resolve(str(row["model"]))
    module = source.build("meta", dtype)
    request = InputRequest(int(batch), length, tuple(shape) if shape else None, dtype)
    inputs = source.inputs(module, request, "meta")
    counts: dict[Layer, int] = {}
    for layer in trace(module, inputs.args, inputs.kwargs).layers:
        called = in_tf32(layer) if given == TENSORFLOAT32 else layer
        counts[called] = counts.get(called, 0) + 1
    return counts


@dataclass(frozen=True)
class Correction:
    """What totals changed: mean absolute errors of held-out totals, shares."""

    predictor: Predictor
    rows: int
    before: float
    after: float


def composed(predictor: Predictor, totals: Sequence[Total]) -> Array:
    """Seconds of each network at its pace, [networks]: the device's of all layers together, or the host's where they are more."""
    estimates = [predictor.estimate(total.layers) for total in totals]
    speed = _speed(predictor, totals, estimates, _taken(totals, estimates))
    predictor = replace(predictor, speed=speed and replace(speed, slowest=None))  # no moment is too slow to be true
    seconds = np.zeros(len(totals))
    for i, (total, found) in enumerate(zip(totals, estimates, strict=True)):
        counts = np.asarray(total.counts, dtype=float)
        device_s = float(found.totals(counts[None]).value[0]) * predictor.slowdown(found, total.pace, counts)
        device_s *= float(predictor.in_cache(found, counts))
        host_s = float(counts @ predictor.dispatch.seconds(total.layers)) if predictor.dispatch else 0.0
        seconds[i] = max(device_s, host_s)
    return seconds


def correct(predictor: Predictor, totals: Sequence[Total]) -> Correction | None:
    """Factors for the regressors, how networks follow the machine's speed, how far they still lie from their layers' sum.

    Factors explain what kinds that were not learnt leave of a network's time. None where they leave half of it in too few networks.
    A few networks give one factor for all regressors.
    """
    from neuralpower.measure.collect.networks import family_of

    each = [(total, predictor.estimate(total.layers)) for total in totals]
    each = [
        (t, found)
        for t, found in each
        if (found.regressor >= 0).any() and _learnt_s(t, found) >= (1 - MOST_UNLEARNT) * t.runtime_s
    ]
    few = len(totals) < FEWEST_NETWORKS  # of many, of which layers explain few, those few are an odd lot
    if len(each) < (FEWEST_FOR_COMMON if few else FEWEST_NETWORKS):
        return None
    totals, estimates = zip(*each, strict=True)
    if few:
        return _correct_in_common(predictor, totals, estimates)
    keys = list(predictor.regressors)
    # Networks that are built alike are held out together: beside their like, factors far from 1 look better than they are.
    family = np.unique([family_of(total.model) for total in totals], return_inverse=True)[1]
    short_s = np.array([0.0 if recurs(key) else KINDS[key[0]].short_s for key in keys])
    taus = np.outer(TAUS_OF_LAYERS, [LOOSENESS.get(key[2], 1.0) for key in keys])
    resident = np.zeros(len(totals))
    if predictor.hardware is not None and not predictor.accelerator:
        held = np.array([np.asarray(total.counts) @ found.held_bytes for total, found in each])
        resident = resident_share(held, predictor.hardware)
    if min(np.count_nonzero(resident > 0.5), np.count_nonzero(resident < 0.5)) < FEWEST_NETWORKS:
        resident[:] = 0.0  # what those of one sort have in common is no effect of the cache
    taken = _taken(totals, estimates)
    for _ in range(2):  # the speed again by corrected layers: networks of a slow day may all be of a sort
        predictor = replace(predictor, speed=_speed(predictor, totals, estimates, taken))
        shares, short, slow = _shares(predictor, totals, estimates, short_s)
        factors, held_out = fit_factors(shares, family, False, taus, short, short_s, resident)
        taken = slow / np.maximum(held_out, np.finfo(float).tiny)
    error = np.abs(held_out - 1)
    regressors = {
        key: replace(predictor.regressors[key], factor=factor, short=more, short_s=limit)
        for key, factor, more, limit in zip(keys, *factors[:-1].reshape(2, -1).tolist(), short_s.tolist(), strict=True)
    }
    system = _system(totals, estimates, held_out)
    corrected = replace(predictor, regressors=regressors, system=system, resident=float(factors[-1]))
    return Correction(corrected, len(totals), float(np.mean(np.abs(shares.sum(axis=1) - 1))), float(np.mean(error)))


def _correct_in_common(
    predictor: Predictor, totals: Sequence[Total], estimates: Sequence[Estimates]
) -> Correction | None:
    """One factor for all regressors, from a few networks; None where it does not predict each of them better by the others."""
    shares, _, _ = _shares(predictor, totals, estimates, np.zeros(len(predictor.regressors)))
    sums = shares.sum(axis=1)  # relative to what was measured
    ratio = -np.log(sums)
    held_out = sums * [common_factor(np.delete(ratio, i)) for i in range(len(ratio))]
    before, after = (float(np.mean(np.abs(relative - 1))) for relative in (sums, held_out))
    if after >= before:
        return None
    factor = common_factor(ratio)
    regressors = {key: replace(found, factor=factor) for key, found in predictor.regressors.items()}
    system = max(_system(totals, estimates, held_out), predictor.system)
    return Correction(replace(predictor, regressors=regressors, system=system), len(totals), before, after)


def common_factor(ratio: Array) -> float:
    """By what all layers' times are to be multiplied, from log(measured / predicted) of a few networks, [networks].

    Their mean, drawn towards 1: the less networks agree, the more. Their variance is that which is usual, known as well as
    from two networks, until they show another.
    """
    mean, n = float(np.mean(ratio)), len(ratio)
    variance = (2 * USUAL**2 + float(np.sum((ratio - mean) ** 2))) / (n + 1)
    return float(np.clip(np.exp(mean / (1 + variance / n / COMMON**2)), *FACTORS))


def _shares(
    predictor: Predictor, totals: Sequence[Total], estimates: Sequence[Estimates], short_s: Array
) -> tuple[Array, Array, Array]:
    """What regressors say of each network's time, what of that the first `short_s` [keys] of calls are, and its slow-down.

    [networks, keys] twice, relative to what the network took at the machine's usual speed, and [networks].
    """
    shares, short = np.zeros((2, len(totals), len(short_s)))
    slow = np.ones(len(totals))
    for i, (total, found) in enumerate(zip(totals, estimates, strict=True)):
        counts, learnt = np.asarray(total.counts), found.regressor >= 0
        slow[i] = predictor.slowdown(found, total.pace, counts)
        part = counts * slow[i] / _learnt_s(total, found)
        at_most = np.minimum(found.runtime_s, short_s[found.regressor])
        np.add.at(shares[i], found.regressor[learnt], (part * found.runtime_s)[learnt])
        np.add.at(short[i], found.regressor[learnt], (part * at_most)[learnt])
    return shares, short, slow


def _learnt_s(total: Total, found: Estimates) -> float:
    """What a network took beside the layers that only a roofline knows."""
    unlearnt = found.regressor < 0
    return total.runtime_s - float(np.asarray(total.counts)[unlearnt] @ found.runtime_s[unlearnt])


def _taken(totals: Sequence[Total], estimates: Sequence[Estimates]) -> Array:
    """Each network's time relative to the sum of its layers, [networks]."""
    sums = [float(np.asarray(t.counts) @ found.runtime_s) for t, found in zip(totals, estimates, strict=True)]
    return np.asarray(np.array([total.runtime_s for total in totals]) / np.array(sums))


def _speed(
    predictor: Predictor, totals: Sequence[Total], estimates: Sequence[Estimates], taken: Array
) -> NetworkSpeed | None:
    """How networks follow the machine's speed, by those that say what it was; None where too few do.

    `taken` [networks]: measured time relative to what is predicted at the usual speed.
    """
    paces: list[Pace] = []
    told: list[tuple[float, float]] = []  # relative to the prediction; share that waits for memory
    for total, found, ratio in zip(totals, estimates, taken.tolist(), strict=True):
        if total.pace is not None:
            paces.append(total.pace)
            told.append((ratio, predictor.streaming(found, np.asarray(total.counts))))
    if len(paces) < FEWEST_NETWORKS:
        return None
    usual = NetworkSpeed(float(np.median([pace.sentinel_s for pace in paces])), 0.0, 0.0)
    ratios = [pace.again_s / pace.sentinel_s for pace in paces if pace.again_s]
    if len(ratios) >= FEWEST_NETWORKS:  # the usual speed is that of all rows, by what both calls took in some
        usual = replace(usual, again_s=usual.sentinel_s * float(np.median(ratios)))
    slow = np.array([usual.over(pace) for pace in paces])
    unsure = np.array([PRECEDING_AGAIN if usual.again_s and pace.again_s else PRECEDING for pace in paces])
    ratio, streaming = np.array(told).T
    exponents = speed_exponents(slow, ratio, np.column_stack([1 - streaming, streaming]), EXPONENTS, unsure)
    exponent, streaming_exponent = exponents.tolist()
    slowest = max(float(np.quantile(slow, MET)), SLOWEST)
    return replace(usual, exponent=exponent, streaming_exponent=streaming_exponent, slowest=slowest)


def fit_factors(
    shares: Array,
    group: Array | None = None,
    common: bool = False,
    taus: Sequence[float] | Array = TAUS,
    short: Array | None = None,
    short_s: Array | None = None,
    resident: Array | None = None,
) -> tuple[Array, Array]:
    """(factors [keys], held-out predictions relative to the measurement [rows]) from shares [rows, keys].

    Rows of one group, counted from 0, are held out together; each row is its own where there are fewer than three groups.
    `common`: what all factors share is learnt, too, rather than taken to be 1. `short` [rows, keys]: of the shares, what the
    first `short_s` [keys] of each call take; what is added to the factors for these, alike for all keys of one `short_s` within
    SHORT_FACTORS, then comes after them, [2 keys]. `resident` [rows]: share of the cache that is left beside a network's weights;
    by how much a network takes longer where all of it is, as a share, then comes last. `taus`: to choose from, the tightest
    first, [taus] or [taus, keys].
    """
    none = np.zeros((len(shares), 0)) if short is None else short
    alike = np.unique(np.zeros(none.shape[1]) if short_s is None else short_s, return_inverse=True)[1]
    own = group is None or len(np.unique(group)) < 3
    fold = np.asarray(np.arange(len(shares)) if own else group) % min(FOLDS, len(shares))
    held_out = np.empty((len(taus), len(shares)))
    columns = np.column_stack([shares, none])
    kept = np.zeros(len(shares)) if resident is None else resident
    for i, tau in enumerate(taus):
        for f in np.unique(fold):
            known, asked = fold != f, fold == f
            found = _ridge(shares[known], none[known], alike, kept[known], tau, common)
            held_out[i, asked] = (columns[asked] @ found[:-1]) * (1 + found[-1] * kept[asked])
    costs = np.minimum(np.abs(held_out - 1), 0.5)
    best = int(np.argmin(costs.mean(axis=1)))
    doubt = np.std(costs - costs[best], axis=1) / np.sqrt(len(shares))
    chosen = int(np.flatnonzero(costs.mean(axis=1) <= costs[best].mean() + doubt)[0])  # the tightest that is as good
    factors = _ridge(shares, none, alike, kept, taus[chosen], common)
    return factors if resident is not None else factors[:-1], held_out[chosen]


def _ridge(shares: Array, short: Array, alike: Array, kept: Array, tau: float | Array, shared: bool) -> Array:
    """Factors of least squares with a pull to the common one, and what `alike` keys have for short calls; outliers lose weight."""
    common = float(np.clip(np.exp(np.median(-np.log(shares.sum(axis=1)))), *FACTORS)) if shared else 1.0
    keys = shares.shape[1]
    classes = int(alike.max()) + 1 if len(alike) else 0
    scaled = np.column_stack([shares, short @ np.eye(classes)[alike], kept]) * common
    expected = scaled[:, :keys].sum(axis=1)
    tightness = np.append(1 / np.broadcast_to(tau, keys), np.ones(classes + 1))
    delta = np.zeros(keys + classes + 1)
    for _ in range(3):
        scaled[:, -1] = kept * (expected + scaled[:, :-1] @ delta[:-1])
        residual = 1 - expected - scaled @ delta
        noise = max(1.4826 * float(np.median(np.abs(residual))), 0.01)
        weight = np.minimum(1.0, (3 * noise / np.maximum(np.abs(residual), 1e-12)) ** 2)
        weighted = scaled * weight[:, None]
        gram = weighted.T @ scaled + np.diag((noise * tightness) ** 2)
        delta = np.linalg.solve(gram, weighted.T @ (1 - expected))
    factors = np.clip(common * (1 + delta[:keys]), *FACTORS)
    own = factors[: len(alike)]
    of_short = np.clip(own + common * delta[keys:-1][alike], *np.outer(SHORT_FACTORS, own))
    return np.concatenate([factors, of_short - own, np.clip(delta[-1:], -MOST_RESIDENT, MOST_RESIDENT)])


def _system(totals: Sequence[Total], estimates: Sequence[Estimates], held_out: Array) -> float:
    """Standard deviation of what whole networks have beyond their layers' errors: 90 % lie in their bounds with it.

    Layers and networks of one dataset were measured on the same days; what another day brings comes on top.
    """
    needed = []
    for total, found, relative in zip(totals, estimates, held_out, strict=True):
        composed = found.totals(np.asarray(total.counts, dtype=float)[None])
        needed.append((np.log(relative) / NINETY) ** 2 - float(composed.deviation[0]) ** 2)
    share = min(0.9 * (1 + 1 / len(needed)), 1.0)  # of so few, so that nine in ten of those to come lie within
    return float(np.sqrt(max(np.quantile(needed, share), 0.0) + DAYS**2))


def _key(layer: Layer) -> Key:
    """Of the regressor that a layer of a total belongs to: totals do not tell a kind's groups apart."""
    return layer.kind, layer.dtype if layer.dtype in FLOATING else INTEGER, layer.phase, ALL


def learn_totals(
    totals: Sequence[Total], hardware: Hardware, rejected: Sequence[Rejected]
) -> tuple[dict[Key, Regressor], Sequence[Total], Array, list[Rejected]]:
    """Regressors from totals alone: a constant per call, FLOPs and bytes of each kind, weights by one Lasso over all.

    And the networks that they were learnt from, what each is predicted to take, held out, relative to its time [networks], and
    the networks that contradict the others.

    Raises:
        DatasetError: fewer than FEWEST_NETWORKS networks, the `rejected` ones not counted.
    """
    totals, left_out = _without_contradicting_few(totals, hardware)
    while True:
        if len(totals) < FEWEST_NETWORKS:
            why = "".join(f"; {line}" for line in summarised([*rejected, *left_out]))
            raise DatasetError(f"{len(totals)} measured networks and no layers; {FEWEST_NETWORKS} are needed{why}")
        sums, boxes = _sums(totals, hardware)
        matrix, target = np.column_stack([*sums.values()]), np.array([total.runtime_s for total in totals])
        fold = np.arange(len(target)) % FOLDS
        tried = np.empty((len(target), len(ALPHAS)))
        for f in np.unique(fold):
            tried[fold == f] = matrix[fold == f] @ non_negative_lasso(matrix[fold != f], target[fold != f], ALPHAS).T
        best = int(np.argmin(np.mean(np.minimum(np.abs(tried / target[:, None] - 1), 2.0), axis=0)))
        held_out = tried[:, best]
        totals, more = consistent(totals, held_out)
        if not more:
            break
        left_out += more
    weights = dict(zip(sums, non_negative_lasso(matrix, target, [ALPHAS[best]])[0].tolist(), strict=True))
    some = held_out > 0  # a network of kinds that no other has is not predicted
    error = np.log(target[some] / held_out[some])
    low, high = np.quantile(error, (0.05, 0.95))
    common = float(np.std(error))
    low, high = min(low, 0.0), max(high, 0.0)
    spread = Spread(np.zeros(0), np.array([low]), np.array([high]), (high - low) / 4, common, common / 2)
    regressors = {}
    for key in boxes:
        parts = [(name, weights[key, name]) for name in PARTS if weights[key, name] > 0]
        regressors[key] = Regressor(
            terms=tuple(Term(special=name) if name else Term() for name, _ in parts),
            weights=np.array([weight for _, weight in parts]),
            degree=0,
            alpha=ALPHAS[best],
            box=boxes[key],
            trees=None,
            reach=0.0,
            spread=spread,
            scores=scores_of(target[some], held_out[some]),
        )
    return regressors, totals, held_out / target, left_out


def _without_contradicting_few(totals: Sequence[Total], hardware: Hardware) -> tuple[list[Total], list[Rejected]]:
    """Of few networks those that do not contradict the others, and those that do."""
    if not FEWEST_NETWORKS <= len(totals) < 3 * FEWEST_NETWORKS:
        return list(totals), []
    matrix, target = np.column_stack([*_sums(totals, hardware)[0].values()]), np.array([t.runtime_s for t in totals])

    def error(known: Array, asked: Array) -> Array:
        weights = non_negative_lasso(matrix[known], target[known], [ALPHAS[0]])[0]
        return np.asarray(np.log(target[asked] / np.maximum(matrix[asked] @ weights, np.finfo(float).tiny)))

    def compared(others: Array, row: int) -> tuple[float, Array, float]:
        fold = np.arange(len(others)) % 5
        errors = np.concatenate([error(others[fold != f], others[fold == f]) for f in range(5)])
        common = np.count_nonzero(matrix[others], axis=0) >= min(FEWEST_FOR_TERM, len(others) // 2)
        own = error(others, np.array([row]))[0] if common[matrix[row] > 0].all() else np.median(errors)
        return float(own), errors, 0.0  # of kinds that few others have nothing is known

    far = contradicting_few(len(totals), compared)
    return _parted(totals, np.flatnonzero(far).tolist())


def _parted(totals: Sequence[Total], far: Collection[int]) -> tuple[list[Total], list[Rejected]]:
    """The networks without those `far` from the others, and these."""
    reason = "runtime_s contradicts the other networks"
    left_out = [Rejected("network", totals[i].line, reason, totals[i].dataset) for i in sorted(far)]
    return [total for i, total in enumerate(totals) if i not in far], left_out


def with_system(predictor: Predictor, totals: Sequence[Total], relative: Array) -> Predictor:
    """The predictor of totals alone, with what its networks are off beyond its layers' errors; `relative` as `learn_totals` has it.

    A network's error is that of all its regressors at once, which add up as if each went its own way.
    """
    known = [totals[i] for i in np.flatnonzero(relative > 0).tolist()]
    estimates = [predictor.estimate(total.layers) for total in known]
    return replace(predictor, system=_system(known, estimates, relative[relative > 0]))


def _sums(
    totals: Sequence[Total], hardware: Hardware
) -> tuple[dict[tuple[Key, str], Array], dict[Key, dict[str, tuple[float, float]]]]:
    """Of each regressor: calls, FLOPs and bytes of all networks' layers, each [networks], and the box of their axes."""
    sums: dict[tuple[Key, str], Array] = {}
    boxes: dict[Key, dict[str, tuple[float, float]]] = {}
    for i, total in enumerate(totals):
        keys = [_key(layer) for layer in total.layers]
        for key in dict.fromkeys(keys):
            index = [j for j, other in enumerate(keys) if other == key]
            columns = columns_of(KINDS[key[0]], [total.layers[j] for j in index])
            counts = np.asarray([total.counts[j] for j in index])
            problem = describe(columns, hardware)
            values = (np.ones(len(index)), problem.special["flops"], problem.special["bytes"])
            for name, value in zip(PARTS, values, strict=True):
                sums.setdefault((key, name), np.zeros(len(totals)))[i] += float(counts @ value)
            box = boxes.setdefault(key, {})
            for name, axis in problem.axes.items():
                low, high = box.get(name, (np.inf, -np.inf))
                box[name] = (min(low, float(axis.min())), max(high, float(axis.max())))
    return sums, boxes
