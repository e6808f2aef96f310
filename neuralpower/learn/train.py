"""Datasets -> Predictor: one regressor per kind, dtype, phase and group, for runtime and, where measured, for power."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.data.dataset import Dataset, merge
from neuralpower.data.dataset_format import HARDWARE
from neuralpower.data.schema import named
from neuralpower.data.screening import Rejected, summarised
from neuralpower.errors import DatasetError, unknown
from neuralpower.layers import Hardware
from neuralpower.learn.fit import fit
from neuralpower.learn.keys import Key
from neuralpower.learn.launch_overhead import Dispatch, Observation, learn_dispatch
from neuralpower.learn.network_rows import Total
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.problem import FEWEST_ROWS
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.rooflines import learn_rooflines, work_of_totals
from neuralpower.learn.rows import POWER, RUNTIME, Read, hardware_from
from neuralpower.learn.totals_alone import learn_totals, with_system
from neuralpower.learn.whole_networks import Correction, composed, consistent, correct
from neuralpower.platforms import Platform, hardware_to_json, platform_named, platform_of
from neuralpower.processes.pool import Pool

LEARNERS = ("hybrid", "lasso")
SHORTEST_SHARE = 0.01  # of the rows are launches and little more
# What sums of layers leave out, where no network was measured: as a standard deviation, what the CPU's 89 networks showed
# before anything was learnt from them (docs/method.md).
COMPOSITION = 0.07
BLOCKED = (
    0.8,
    1.25,
)  # a host that takes as long as the device has most likely waited for a place in its queue
MISSED = 1.0  # mean error of rows held out, from which on they hardly are of one device and in one unit
UNRELATED = 0.5  # the same of whole networks: layers, with factors for each, then say nothing of them


@dataclass(frozen=True)
class Trained:
    """A predictor and what happened to the rows."""

    predictor: Predictor
    rejected: tuple[Rejected, ...]
    skipped: Mapping[Key, int]  # groups with too few rows, and how many
    correction: Correction | None = None  # by whole networks
    doubts: tuple[
        str, ...
    ] = ()  # tables whose rows fit each other and no device, and what was not learnt from


def train(
    datasets: Dataset | Sequence[Dataset],
    learner: str = "hybrid",
    jobs: int = -1,
    show: Callable[[Key, Regressor], None] = lambda key, regressor: None,
    *,
    trust_code: bool = False,
) -> Trained:
    """Fit every group of every kind; fits run in parallel, results do not depend on how.

    Datasets of one device are learnt from together, of what is measured in several the latest. Those of several devices
    give a predictor relative to the devices' peaks, which holds for others, too: a Lasso alone, as what trees find on
    some devices has not held on the next (docs/accuracy.md). `trust_code` lets models that run code be traced.

    Raises:
        DatasetError: missing columns, no group with FEWEST_ROWS usable rows, a device whose peaks are not known, or datasets
            that say different things of one; a network that would have to be traced by code that is not trusted.
        InputError: an unknown learner.
    """
    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    datasets = _agreed(merge([datasets] if isinstance(datasets, Dataset) else datasets))
    rows = _read(datasets, trust_code)
    learner = "lasso" if (pooled := len(rows.devices) > 1) else learner
    platform, first, rejected = _platform(datasets), datasets[0], rows.rejected
    hardware = Hardware(platform=platform.name) if pooled else hardware_from(first.meta)
    launched = all(dataset.meta.get("includes_launch") for dataset in datasets)
    if not (alone := bool(rows.totals) and not rows.work):
        _check_enough(rows, first)
    fitted = _fitted(rows, learner, jobs, launched, show)
    skipped = {key: count for key, count in rows.skipped().items() if key not in fitted[RUNTIME]}
    telling: Sequence[Total] = rows.totals
    if alone:
        with named(first.path):
            fitted[RUNTIME], telling, relative, left_out = learn_totals(telling, hardware, rejected)
        rejected += left_out
        rows.work.append(work_of_totals(telling))
    predictor = Predictor(
        device=", ".join(rows.devices),
        hardware=None if pooled else hardware,
        regressors=dict(sorted(fitted[RUNTIME].items())),
        rooflines=learn_rooflines(rows.work, hardware),
        dataset=_about(datasets, rows, platform),
        learner=learner,
        name=first.name,
        sentinel_s=first.sentinel_s,
        power=dict(sorted(fitted[POWER].items())) or None,
        learnt_on=len(rows.devices),
        system=COMPOSITION,
        dispatch=None if pooled else _dispatch(rows.issued, telling),
    )
    correction = None
    if alone:
        predictor = with_system(predictor, telling, relative)
    elif telling:
        predictor, correction, telling = _corrected(predictor, telling, rows)
    about = {**predictor.dataset, "networks": len(telling), "rejected": len(rejected)}
    doubts = (*rows.doubts, *rows.few_powers(), *_missed(fitted[RUNTIME]))
    predictor = dataclasses.replace(predictor, dataset=about)
    return Trained(predictor, tuple(rejected), skipped, correction, doubts)


def _read(datasets: Sequence[Dataset], trust_code: bool) -> Read:
    """Their rows by target and regressor, small groups pooled; raises DatasetError."""
    devices = list(dict.fromkeys(dataset.device for dataset in datasets))
    rows = Read(devices, [dataset.name for dataset in datasets], trust_code)
    for dataset in datasets:
        rows.add(dataset)
    rows.pool_small_groups()
    return rows


def _check_enough(rows: Read, first: Dataset) -> None:
    """Raise DatasetError where no kind has rows enough."""
    if len(rows.skipped()) < sum(target == RUNTIME for target, _ in rows.parts):
        return
    why = "".join(f"; {line}" for line in summarised(rows.rejected))
    raise DatasetError(
        f"{first.path}: {rows.usable} usable rows, {len(rows.rejected)} left out, and no kind has {FEWEST_ROWS} "
        f"different configurations{why}; collect more, or mend the rows"
    )


def _corrected(
    predictor: Predictor, telling: Sequence[Total], rows: Read
) -> tuple[Predictor, Correction | None, Sequence[Total]]:
    """What whole networks make of a predictor of layers, and those of them that say something of the device."""
    telling, left_out = consistent(telling, composed(predictor, telling))
    rows.rejected += left_out
    predictor = dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, telling))
    correction, telling, doubt = _correction(predictor, telling)
    rows.doubts += doubt
    if correction:
        predictor = correction.predictor
    elif not telling:  # networks that say nothing of the device say nothing of its host either
        predictor = dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, telling))
    return predictor, correction, telling


def _correction(
    predictor: Predictor, totals: Sequence[Total]
) -> tuple[Correction | None, Sequence[Total], Sequence[str]]:
    """What whole networks correct, None where nothing; those that say something of the device; why the others do not."""
    correction = correct(predictor, totals)
    if correction is None:
        doubt = (
            f"network: no factor was learnt from {len(totals)} whole networks: held out, one is predicted no better by what the "
            "others lie from the sum of their layers, or kinds that were not learnt take most of their time"
        )
        return None, totals, [doubt]
    if correction.after > UNRELATED:
        doubt = (
            f"network: {correction.rows} whole networks lie {correction.after:.0%} from what layers say, corrected and held "
            "out, and nothing was learnt from them; are both of one pass, of this device, and in seconds?"
        )
        return None, [], [doubt]
    return correction, totals, []


def _fitted(
    rows: Read, learner: str, jobs: int, launched: bool, show: Callable[[Key, Regressor], None]
) -> dict[str, dict[Key, Regressor]]:
    """Regressors by target and key; rows that contradict their neighbours become rejected ones."""
    fitted: dict[str, dict[Key, Regressor]] = {RUNTIME: {}, POWER: {}}
    with Pool(jobs) as pool:
        for target in (
            RUNTIME,
            POWER,
        ):  # in this order: a row whose time is wrong says nothing of power either
            problems = rows.problems(target)
            while problems:
                order = sorted(problems, key=lambda key: (-len(problems[key]), key))
                fits = pool.results(fit, [(problems[key], learner) for key in order])
                for key, result in zip(order, fits, strict=True):
                    fitted[target][key] = result.regressor
                    if target == RUNTIME and launched:
                        shortest = float(np.quantile(problems[key].target, SHORTEST_SHARE))
                        fitted[target][key] = dataclasses.replace(result.regressor, launch_s=shortest)
                    rows.leave_out(target, key, result.contradicting)
                    if target == RUNTIME:
                        show(key, result.regressor)
                problems = rows.pooled_anew(fitted[RUNTIME]) if target == RUNTIME else {}
    return fitted


def _about(datasets: Sequence[Dataset], rows: Read, platform: Platform) -> dict[str, Any]:
    """What a predictor says of where it was learnt."""
    first = datasets[0]
    return {
        "name": " + ".join(dataset.name for dataset in datasets),
        "rows": rows.usable,
        "platform": platform.name,
        "accelerator": platform.family != "cpu",
        "devices": {d.device: hardware_to_json(hardware_from(d.meta)) for d in datasets}
        if len(rows.devices) > 1
        else {},
        "hardware": first.meta.get("hardware", {}),
        "sessions": first.meta.get("sessions", []),
        "source": first.meta.get("source"),
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _agreed(datasets: Sequence[Dataset]) -> list[Dataset]:
    """The datasets, each with what any of its device's says of the hardware; raises DatasetError where they contradict."""
    known: dict[str, dict[str, Any]] = {}
    for dataset in datasets:
        said = known.setdefault(dataset.device, {})
        for name, value in (dataset.meta.get("hardware") or {}).items():
            if (
                name in HARDWARE
                and value is not None
                and said.setdefault(name, value) != value
                and name != "idle_w"
            ):
                raise DatasetError(
                    f"{dataset.path}: says that {name} of {dataset.device!r} is {value}, another dataset of it that it is "
                    f"{said[name]}; correct one, or call the devices by different names"
                )
    agreed = []
    for dataset in datasets:
        own = {
            name: value for name, value in (dataset.meta.get("hardware") or {}).items() if value is not None
        }
        meta = {**dataset.meta, "hardware": {**known[dataset.device], **own}}
        agreed.append(dataclasses.replace(dataset, meta=meta))
    return agreed


def _platform(datasets: Sequence[Dataset]) -> Platform:
    """That of their devices, or what several have in common; raises DatasetError where they are of two families."""
    platforms = [platform_of(hardware_from(dataset.meta)) for dataset in datasets]
    found = list({platform.name: platform for platform in platforms}.values())
    if len({platform.family for platform in found}) > 1:
        raise DatasetError(
            f"{', '.join(dict.fromkeys(dataset.device for dataset in datasets))}: some are accelerators, some not, and these "
            "take their time for other reasons; train a predictor of each class"
        )
    return found[0] if len(found) == 1 else platform_named(found[0].family)


def _dispatch(issued: Sequence[Observation], totals: Sequence[Total]) -> Dispatch | None:
    """What the host takes, on its own and in networks; None where no row tells."""
    learnt = learn_dispatch(issued)
    if learnt is None:
        return None
    ratios = []
    for total in totals:
        if not BLOCKED[0] < total.dispatch_s / total.runtime_s < BLOCKED[1]:
            ratios.append(total.dispatch_s / float(np.asarray(total.counts) @ learnt.seconds(total.layers)))
    return learnt.corrected(ratios)


def _missed(fitted: Mapping[Key, Regressor]) -> Iterator[str]:
    """Of each regressor that does not predict the rows held out."""
    for key, regressor in fitted.items():
        if regressor.scores.mape > MISSED:
            yield (
                f"{' '.join(key)}: rows held out are missed by {regressor.scores.mape:.0%}, so its predictions say nothing; are "
                "all of one device, in seconds, and is each field what the kind means by it?"
            )
