"""Datasets -> Predictor: a regressor per kind, dtype, phase and group, for time and, where metered, power."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuralpower.data.dataset import Dataset, merge
from neuralpower.data.schema import HARDWARE, MEASURED, named
from neuralpower.data.screening import Rejected, summarised
from neuralpower.devices.spec import FASTEST_FLOPS
from neuralpower.errors import DatasetError, unknown
from neuralpower.layers import KINDS, Hardware
from neuralpower.layers.terms import CALL_CYCLES
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.fitting.fit import FEWEST_DEVICES, fit
from neuralpower.learn.fitting.problem import FEWEST_ROWS
from neuralpower.learn.keys import Key, key_name, unquantised
from neuralpower.learn.launch_overhead import Dispatch, Observation, train_dispatch
from neuralpower.learn.networks.network_rows import Total
from neuralpower.learn.networks.own_level import in_words, taught_by, teach
from neuralpower.learn.networks.totals_alone import train_totals, with_system, work_of_totals
from neuralpower.learn.networks.whole_networks import Correction, composed, consistent, correct
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY, Regressor
from neuralpower.learn.rows import POWER, RUNTIME, Read, hardware_from
from neuralpower.learn.unmeasured.any_device import by_prior
from neuralpower.platforms import Platform, hardware_to_json, platform_named, platform_of
from neuralpower.processes.pool import Pool

LEARNERS = ("hybrid", "lasso")
SHORTEST_SHARE = 0.01  # of the rows are launches and little more
# Error of sums of layers where no network was measured, as a standard deviation: the error of a CPU's 89
# networks before any correction was trained on them (docs/method.md).
COMPOSITION = 0.07
# What another device adds to log(measured / predicted) after training on one device, as standard deviations:
# a factor of 1.5 at the 90 % bounds for passes over memory, of 2 for products (docs/devices.md).
ONE_DEVICE, ONE_DEVICE_PRODUCTS = math.log(1.5) / NINETY, math.log(2.0) / NINETY
BLOCKED = (0.8, 1.25)  # times the device's time: such a host most likely waited for a place in its queue
MISSED = 1.0  # mean error of held-out rows; beyond, rows are hardly of one device and in one unit
UNRELATED = 0.5  # the same for whole networks: beyond, layers do not predict them


@dataclass(frozen=True)
class Trained:
    """A predictor and what happened to the rows."""

    predictor: Predictor
    rejected: tuple[Rejected, ...]
    skipped: Mapping[Key, int]  # groups with too few rows, and how many
    correction: Correction | None = None  # by whole networks
    doubts: tuple[str, ...] = ()  # tables that fit no device, and rows that were not used
    powers: Mapping[str, int] = field(default_factory=dict)  # usable ones of each kind that states any
    noise: float | None = None  # typical relative standard deviation of one measurement


def train(
    datasets: Dataset | Sequence[Dataset],
    learner: str = "hybrid",
    jobs: int = -1,
    show: Callable[[Key, Regressor], None] = lambda key, regressor: None,
    *,
    trust_code: bool = False,
) -> Trained:
    """Fit every group of every kind; fits run in parallel, results do not depend on how.

    Datasets of one device are pooled; the latest counts for what several measured. Datasets of several
    devices give a predictor relative to their peaks, which works for others, too. Few devices use a Lasso
    alone: what trees found on some did not hold on the next (docs/accuracy.md). `trust_code`: trace models
    that run code.

    Raises:
        DatasetError: missing columns, no group with FEWEST_ROWS usable rows, a device of unknown peaks,
            datasets that contradict each other on a device, or a network that only untrusted code could
            trace.
        InputError: an unknown learner.
    """
    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    datasets = _agreed(merge([datasets] if isinstance(datasets, Dataset) else datasets))
    rows = _read(datasets, trust_code)
    platform, first = _platform(datasets), datasets[0]
    pooled = len(rows.devices) > 1
    hardware = Hardware(platform=platform.name) if pooled else rows.reached(hardware_from(first.meta))
    launched = all(dataset.meta.get("includes_launch") for dataset in datasets)
    if not (alone := bool(rows.totals) and not rows.work):
        _check_enough(rows, first)
    fitted = _fitted(rows, learner, jobs, launched, show)
    about = _about(datasets, rows, platform)
    if alone and (start := by_prior(hardware, first.device)) is not None:
        return _moved(start, rows, first, about)
    return _joined(rows, fitted, hardware, learner, first, about)


def _joined(
    rows: Read,
    fitted: dict[str, dict[Key, Regressor]],
    hardware: Hardware,
    learner: str,
    first: Dataset,
    about: Mapping[str, Any],
) -> Trained:
    """The regressors as a predictor, corrected by whole networks, if there are any."""
    pooled, rejected = len(rows.devices) > 1, rows.rejected
    skipped = {key: count for key, count in rows.skipped().items() if key not in fitted[RUNTIME]}
    telling: Sequence[Total] = rows.totals
    if alone := bool(telling) and not rows.work:
        with named(first.path):
            fitted[RUNTIME], telling, relative, left_out = train_totals(telling, hardware, rejected)
        rejected += left_out
        rows.work.append(work_of_totals(telling))
    predictor = Predictor(
        device=", ".join(rows.devices),
        hardware=None if pooled else hardware,
        regressors=dict(sorted(fitted[RUNTIME].items())),
        rooflines=fit_rooflines(rows.work, hardware),
        dataset=about,
        learner=_learner(learner, fitted[RUNTIME]) if pooled else learner,
        name=first.name,
        sentinel_s=first.sentinel_s,
        power=dict(sorted(fitted[POWER].items())) or None,
        trained_on=len(rows.devices),
        system=COMPOSITION,
        dispatch=_dispatch(rows.issued, telling),
    )
    correction = None
    if alone:
        predictor = with_system(predictor, telling, relative)
    elif telling:
        predictor, correction, telling = _corrected(predictor, telling, rows)
    about = {**predictor.dataset, "networks": len(telling), "rejected": len(rejected)}
    doubts = (*rows.doubts, *rows.few_powers(), *_missed(fitted[RUNTIME]))
    predictor = dataclasses.replace(predictor, dataset=about)
    return Trained(predictor, tuple(rejected), skipped, correction, doubts, rows.powers(), rows.noise)


def _moved(start: Predictor, rows: Read, first: Dataset, about: Mapping[str, Any]) -> Trained:
    """The prior of an accelerator, moved by whole networks: where they are all that was measured."""
    with named(first.path):
        taught = teach(start, rows.totals)
        seconds = np.array([total.runtime_s for total in rows.totals])
        totals, left_out = consistent(rows.totals, taught.held_out * seconds)
        taught = teach(start, totals) if left_out else taught
    rejected = (*rows.rejected, *left_out)
    found = taught_by(start, taught)
    about = {**about, **found.dataset, "rejected": len(rejected)}
    correction = Correction(found, taught.networks, taught.before, taught.after)
    predictor = dataclasses.replace(found, dataset=about, name=first.name)
    return Trained(predictor, rejected, {}, correction, (*rows.doubts, *in_words(taught.moved)))


def train_power(dataset: Dataset, jobs: int = -1) -> dict[Key, Regressor]:
    """Train power alone, by regressor: for rows whose times other rows of the device give better.

    Raises:
        DatasetError: missing columns.
    """
    rows = _read([dataset], trust_code=False)
    problems = rows.problems(POWER)
    with Pool(jobs) as pool:
        fits = pool.results(fit, [(problem,) for problem in problems.values()])
    return {key: fitted.regressor for key, fitted in zip(problems, fits, strict=True)}


def _read(datasets: Sequence[Dataset], trust_code: bool) -> Read:
    """The datasets' rows by target and regressor, small groups pooled; raises DatasetError."""
    devices = list(dict.fromkeys(dataset.device for dataset in datasets))
    rows = Read(devices, [dataset.name for dataset in datasets], trust_code)
    for dataset in datasets:
        rows.add(dataset)
    rows.pool_small_groups()
    return rows


def _check_enough(rows: Read, first: Dataset) -> None:
    """Raise DatasetError where no kind has rows enough."""
    if len(rows.skipped()) < len(rows.parts[RUNTIME]):
        return
    why = "".join(f"; {line}" for line in summarised(rows.rejected))
    raise DatasetError(
        f"{first.path}: {rows.usable} usable rows, {len(rows.rejected)} skipped, and no kind has "
        f"{FEWEST_ROWS} different configurations{why}; collect more, or correct the rows"
    )


def _corrected(
    predictor: Predictor, totals: Sequence[Total], rows: Read
) -> tuple[Predictor, Correction | None, Sequence[Total]]:
    """A predictor of layers corrected by whole networks, and the networks that it can use."""
    totals, left_out = consistent(totals, composed(predictor, totals))
    rows.rejected += left_out
    predictor = dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, totals))
    correction = correct(predictor, totals)
    if correction is None:
        rows.doubts.append(
            f"network: no correction trained from {len(totals)} whole networks: it would not help those "
            "held out, or untrained kinds take most of their time"
        )
        return predictor, None, totals
    if correction.after > UNRELATED:
        rows.doubts.append(
            f"network: {correction.rows} whole networks are {correction.after:.0%} off the sum of their "
            "layers and are not used. Are both of one pass, of this device, and in seconds?"
        )
        # networks unrelated to their layers do not describe the host either
        return dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, [])), None, []
    return correction.predictor, correction, totals


def _fitted(
    rows: Read, learner: str, jobs: int, launched: bool, show: Callable[[Key, Regressor], None]
) -> dict[str, dict[Key, Regressor]]:
    """Regressors by target and key; rows that contradict their neighbours become rejected ones."""
    fitted: dict[str, dict[Key, Regressor]] = {RUNTIME: {}, POWER: {}}
    with Pool(jobs) as pool:
        for target in (RUNTIME, POWER):  # in this order: a row of a wrong time has a wrong power, too
            problems = rows.problems(target)
            while problems:
                if launched:  # a short call takes what its host takes, at any clock of the device
                    problems = {key: problem.without([CALL_CYCLES]) for key, problem in problems.items()}
                order = sorted(problems, key=lambda key: (-len(problems[key]), key))
                fits = pool.results(fit, [(problems[key], _learner_of(key, learner, rows)) for key in order])
                for key, result in zip(order, fits, strict=True):
                    fitted[target][key] = regressor = result.regressor
                    rows.leave_out(target, key, result.contradicting)
                    if target == RUNTIME:
                        show(key, regressor)
                        if launched:
                            shortest = float(np.quantile(problems[key].target, SHORTEST_SHARE))
                            fitted[target][key] = dataclasses.replace(regressor, launch_s=shortest)
                problems = rows.pooled_anew(fitted[RUNTIME]) if target == RUNTIME else {}
    if len(rows.devices) > 1:
        fitted[RUNTIME] = {key: _for_others(key, one, rows) for key, one in fitted[RUNTIME].items()}
    return fitted


def _learner_of(key: Key, learner: str, rows: Read) -> str:
    """Without trees for passes over memory of several devices: bytes set their time on any device.

    Trees err as much on a device held out, and half the bytes would not take half the time.
    """
    return "lasso" if len(rows.devices) > 1 and not KINDS[key[0]].multiplies else learner


def _for_others(key: Key, regressor: Regressor, rows: Read) -> Regressor:
    """With wider bounds where it was trained on one device: its rows do not show how far the next one lies.

    The same for quantised products of few devices, whose formats different engines measured: held out, 39 to
    97 % of an L40S', an H100's and an RTX PRO 6000's rows lay inside without that.
    """
    devices, quantised = rows.devices_of(key), unquantised(key[3]) != key[3]
    if devices > 1 and not (quantised and devices < FEWEST_DEVICES):
        return regressor
    wider = ONE_DEVICE_PRODUCTS if KINDS[key[0]].multiplies else ONE_DEVICE
    return dataclasses.replace(regressor, spread=regressor.spread.widened(wider))


def _learner(learner: str, fitted: Mapping[Key, Regressor]) -> str:
    """The learner's name for the regressors of several devices, which may all lack trees."""
    return learner if any(regressor.trees for regressor in fitted.values()) else "lasso"


def _about(datasets: Sequence[Dataset], rows: Read, platform: Platform) -> dict[str, Any]:
    """The record of a predictor's device, software and rows."""
    first, devices = datasets[0], {d.device: hardware_to_json(hardware_from(d.meta)) for d in datasets}
    return {
        "name": " + ".join(dataset.name for dataset in datasets),
        "rows": rows.usable,
        "platform": platform.name,
        "accelerator": platform.family != "cpu",
        "devices": devices if len(devices) > 1 else {},
        "hardware": first.meta.get("hardware", {}),
        "sessions": first.meta.get("sessions", []),
        "source": first.meta.get("source"),
        "spread": _spread(datasets),
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _spread(datasets: Sequence[Dataset]) -> float | None:
    """Distance of the quartiles of a layer's runs, the median over all rows; None where not known."""
    ends = ("runtime_q25_s", "runtime_q75_s")
    tables = [t for dataset in datasets for t in dataset.tables.values() if set(ends) <= set(t)]
    known = [np.array([table[end].astype(float) for end in ends]) for table in tables]
    low, high = np.concatenate(known, axis=1) if known else np.empty((2, 0))
    usable = (low > 0) & np.isfinite(low) & np.isfinite(high)
    return float(np.median(high[usable] / low[usable] - 1)) if usable.any() else None


def _agreed(datasets: Sequence[Dataset]) -> list[Dataset]:
    """The datasets, each with its device's hardware from all; raises DatasetError where they contradict."""
    known: dict[str, dict[str, Any]] = {}
    for dataset in datasets:
        said = known.setdefault(dataset.device, {})
        for name, value in _said(dataset).items():
            if name in HARDWARE and said.setdefault(name, value) != value and name not in MEASURED:
                raise DatasetError(
                    f"{dataset.path}: {name} of {dataset.device!r} is {value}, but another dataset has "
                    f"{said[name]}; correct one, or give the devices different names"
                )
    hardware = [{**known[dataset.device], **_said(dataset)} for dataset in datasets]
    return [
        dataclasses.replace(dataset, meta={**dataset.meta, "hardware": all_of_it})
        for dataset, all_of_it in zip(datasets, hardware, strict=True)
    ]


def _said(dataset: Dataset) -> dict[str, Any]:
    return {name: value for name, value in (dataset.meta.get("hardware") or {}).items() if value is not None}


def _platform(datasets: Sequence[Dataset]) -> Platform:
    """The platform of their devices, or of their family; raises DatasetError for two families."""
    platforms = [platform_of(hardware_from(dataset.meta)) for dataset in datasets]
    found = list({platform.name: platform for platform in platforms}.values())
    if len({platform.family for platform in found}) > 1:
        devices = ", ".join(dict.fromkeys(dataset.device for dataset in datasets))
        raise DatasetError(
            f"{devices}: accelerators and CPUs cannot be pooled; train a predictor of each class"
        )
    return found[0] if len(found) == 1 else platform_named(found[0].family)


def _dispatch(issued: Sequence[Observation], totals: Sequence[Total]) -> Dispatch | None:
    """The host's time, on its own and in networks; None where no row has it."""
    trained = train_dispatch(issued)
    if trained is None:
        return None
    free = [t for t in totals if not BLOCKED[0] < t.dispatch_s / t.runtime_s < BLOCKED[1]]
    return trained.corrected(free)


def _missed(fitted: Mapping[Key, Regressor]) -> Iterator[str]:
    """A doubt for each regressor that does not predict the rows held out."""
    for key, regressor in fitted.items():
        if regressor.scores.mape > MISSED:
            yield (
                f"{key_name(key)}: predictions of held-out rows are {regressor.scores.mape:.0%} off; "
                "do not use them. Are all rows of one device, in seconds, and with the kind's own fields?"
            )


def fit_rooflines(everything: Sequence[Mapping[str, np.ndarray]], hardware: Hardware) -> dict[str, Roofline]:
    """By dtype the device's known peaks, else those that fit the rows best, over a grid of 5 % steps."""
    parts: dict[str, list[np.ndarray]] = {}
    for work in everything:
        for dtype, chunk in work.items():
            parts.setdefault(dtype, []).append(chunk)
    rooflines, grid = {}, 1.05 ** -np.arange(0, 100)
    for dtype, chunks in parts.items():
        flops, size, t = np.concatenate(chunks, axis=1)
        peak, memory = (
            float(np.max(flops / t)) or FASTEST_FLOPS,
            float(np.max(size / t)),
        )  # copies have no FLOP
        only = peak * float(min(grid, key=lambda c: float(np.sum(np.abs(flops / (peak * c) - t)))))
        if dtype in hardware.peak_flops_per_s and hardware.memory_bytes_per_s > 1:
            rooflines[dtype] = Roofline(hardware.peak_flops_per_s[dtype], hardware.memory_bytes_per_s, only)
            continue
        costs = [
            (float(np.sum(np.abs(np.maximum(flops / (peak * a), size / (memory * b)) - t))), a, b)
            for a in grid[::2]
            for b in grid[::2]
        ]
        _, a, b = min(costs)
        rooflines[dtype] = Roofline(peak * a, memory * b, only)
    return rooflines
