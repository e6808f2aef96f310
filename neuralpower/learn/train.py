"""Datasets -> Predictor: one regressor per kind, dtype, phase and group, for runtime and, where measured, for power."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.dataset import SHORTEST_S, Dataset, Rejected, Rows, merge, named, screen, summarised
from neuralpower.data.dataset_format import HARDWARE
from neuralpower.devices.spec import FASTEST_FLOPS
from neuralpower.dtypes import FLOATING
from neuralpower.errors import DatasetError, unknown
from neuralpower.layers import Hardware
from neuralpower.layers.base import peak_flops
from neuralpower.learn.features import describe, describe_power
from neuralpower.learn.fit import FEWEST_ROWS, Problem, Regressor, far_off, fit, join
from neuralpower.learn.launch_overhead import Dispatch, Observation, function_of, learn_dispatch
from neuralpower.learn.predictor import (
    INTEGER,
    TOGETHER,
    Key,
    Predictor,
    Roofline,
    groups_of,
    recurs,
    stands_alone,
    whole_kind,
)
from neuralpower.learn.whole_networks import (
    Correction,
    Total,
    composed,
    consistent,
    correct,
    learn_totals,
    read_totals,
    with_system,
)
from neuralpower.processes.pool import Pool

if TYPE_CHECKING:
    import pandas as pd

LEARNERS = ("hybrid", "lasso")
RUNTIME, POWER = "runtime_s", "power_w"  # what can be learnt, as the columns are named
ROWS_PER_DEVICE = 2000  # of a group; to tell what a device never seen will do, devices are scarce, not rows
SHORTEST_SHARE = 0.01  # of the rows are launches and little more
# What sums of layers leave out, where no network was measured: as a standard deviation, what the CPU's 89 networks showed
# before anything was learnt from them (docs/method.md).
COMPOSITION = 0.07
BLOCKED = (0.8, 1.25)  # a host that takes as long as the device has most likely waited for a place in its queue
SHORTEST_WITH_POWER_S = 1e-4  # below, windows whose uncertainty nobody states say little of a call
# Rows of which nineteen in twenty take less than so many times the shortest twentieth's, whatever their sizes, are launches and
# noise: with 10 % of noise, 5 to 20 % of made-up layers beyond such rows lay within their bounds, 90 % and more beyond others.
ALIKE, SIZES_APART = 2.0, 16.0
NOWHERE_NEAR = 0.005  # of the device's peaks: the fastest of ten rows and more reaches ten times that
LARGEST_UNCERTAINTY = 0.1  # of a power that is learnt from
# Of one launch, by the host: PyTorch's take 2 to 200 us, the first ones of a process up to seconds.
SLOWEST_ISSUE_S = 2e-3
MISSED = 1.0  # mean error of rows held out, from which on they hardly are of one device and in one unit
UNRELATED = 0.5  # the same of whole networks: layers, with factors for each, then say nothing of them


@dataclass(frozen=True)
class Trained:
    """A predictor and what happened to the rows."""

    predictor: Predictor
    rejected: tuple[Rejected, ...]
    skipped: Mapping[Key, int]  # groups with too few rows, and how many
    correction: Correction | None = None  # by whole networks
    doubts: tuple[str, ...] = ()  # tables whose rows fit each other and no device, and what was not learnt from


@dataclass(frozen=True)
class _Part:
    """Rows of one dataset that belong to one regressor."""

    problem: Problem
    line: np.ndarray  # of each row in its table
    dataset: str  # whose table that is; empty where there is one alone

    def without(self, dataset: str, lines: np.ndarray) -> _Part:
        """The rows that do not stand on these lines of a dataset's table."""
        kept = np.flatnonzero(~np.isin(self.line, lines) | (self.dataset != dataset))
        return dataclasses.replace(self, problem=self.problem.at(kept), line=self.line[kept])


def train(
    datasets: Dataset | Sequence[Dataset],
    learner: str = "hybrid",
    jobs: int = -1,
    show: Callable[[Key, Regressor], None] = lambda key, regressor: None,
    *,
    trust_code: bool = False,
) -> Trained:
    """Fit every group of every kind; fits run in parallel, results do not depend on how.

    Datasets of one device are learnt from together, of what is measured in several the latest; those of several devices
    give a predictor that is relative to the devices' peaks, and holds for others, too. It is a Lasso alone: what trees
    find on some devices has not held on the next (docs/accuracy.md). `trust_code` lets whole networks without layers be
    traced although their models run code of their own.

    Raises:
        DatasetError: missing columns, no group with FEWEST_ROWS usable rows, a device whose peaks are not known, or datasets
            that say different things of one; a network that would have to be traced by code that is not trusted.
        InputError: an unknown learner.
    """
    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    given = [datasets] if isinstance(datasets, Dataset) else datasets
    datasets = _agreed(merge(given))
    devices = list(dict.fromkeys(dataset.device for dataset in datasets))
    portable = len(devices) > 1
    learner = "lasso" if portable else learner
    rows = _Read(devices, [dataset.name for dataset in datasets], trust_code)
    for dataset in datasets:
        rows.add(dataset)
    accelerator = _accelerators(datasets)
    rows.pool_small_groups()
    first, rejected = datasets[0], rows.rejected
    hardware = Hardware() if portable else hardware_from(first.meta)
    launched = all(dataset.meta.get("includes_launch") for dataset in datasets)
    alone = bool(rows.totals) and not rows.work
    if len(rows.skipped()) == sum(target == RUNTIME for target, _ in rows.parts) and not alone:
        why = "".join(f"; {line}" for line in summarised(rejected))
        raise DatasetError(
            f"{first.path}: {rows.usable} usable rows, {len(rejected)} left out, and no kind has {FEWEST_ROWS} different "
            f"configurations{why}; collect more, or mend the rows"
        )
    fitted = _fitted(rows, learner, jobs, launched, show)
    skipped = {key: count for key, count in rows.skipped().items() if key not in fitted[RUNTIME]}
    telling: Sequence[Total] = rows.totals
    if alone:
        with named(first.path):
            fitted[RUNTIME], telling, relative, left_out = learn_totals(telling, hardware, rejected)
        rejected += left_out
        rows.work.append(_work_of_totals(telling))
    predictor = Predictor(
        device=", ".join(devices),
        hardware=None if portable else hardware,
        regressors=dict(sorted(fitted[RUNTIME].items())),
        rooflines=_rooflines(rows.work, hardware),
        dataset=_about(datasets, rows, accelerator, portable),
        learner=learner,
        name=first.name,
        sentinel_s=first.sentinel_s,
        power=dict(sorted(fitted[POWER].items())) or None,
        portable=portable,
        system=COMPOSITION,
        dispatch=None if portable else _dispatch(rows.issued, telling),
    )
    correction = None
    if alone:
        predictor = with_system(predictor, telling, relative)
    elif telling:
        telling, left_out = consistent(telling, composed(predictor, telling))
        rejected += left_out
        predictor = dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, telling))
        correction, telling, doubt = _correction(predictor, telling)
        rows.doubts += doubt
        if correction:
            predictor = correction.predictor
        elif not telling:  # networks that say nothing of the device say nothing of its host either
            predictor = dataclasses.replace(predictor, dispatch=_dispatch(rows.issued, telling))
    about = {**predictor.dataset, "networks": len(telling), "rejected": len(rejected)}
    predictor = dataclasses.replace(predictor, dataset=about)
    doubts = (*rows.doubts, *rows.few_powers(), *_missed(fitted[RUNTIME]))
    return Trained(predictor, tuple(rejected), skipped, correction, doubts)


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
    rows: _Read, learner: str, jobs: int, launched: bool, show: Callable[[Key, Regressor], None]
) -> dict[str, dict[Key, Regressor]]:
    """Regressors by target and key; rows that contradict their neighbours become rejected ones."""
    fitted: dict[str, dict[Key, Regressor]] = {RUNTIME: {}, POWER: {}}
    with Pool(jobs) as pool:
        for target in (RUNTIME, POWER):  # in this order: a row whose time is wrong says nothing of power either
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


def _about(datasets: Sequence[Dataset], rows: _Read, accelerator: bool, portable: bool) -> dict[str, Any]:
    """What a predictor says of where it was learnt."""
    first = datasets[0]
    return {
        "name": " + ".join(dataset.name for dataset in datasets),
        "rows": rows.usable,
        "accelerator": accelerator,
        "devices": {d.device: dataclasses.asdict(hardware_from(d.meta)) for d in datasets} if portable else {},
        "hardware": first.meta.get("hardware", {}),
        "sessions": first.meta.get("sessions", []),
        "source": first.meta.get("source"),
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


class _Read:
    """The rows of datasets, screened and described, by target and regressor."""

    def __init__(self, devices: Sequence[str], names: Sequence[str], trust_code: bool = False) -> None:
        self.devices, self.names = devices, names  # of all datasets
        self.trust_code = trust_code
        self.parts: dict[tuple[str, Key], list[_Part]] = {}
        self.totals: list[Total] = []
        self.issued: list[Observation] = []  # the host's part
        self.rejected: list[Rejected] = []
        self.doubts: list[str] = []
        self.work: list[Mapping[str, np.ndarray]] = []  # [3, rows] of FLOPs, bytes and seconds, by dtype
        self.usable = 0

    def add(self, dataset: Dataset) -> None:
        """Take in one dataset; raises DatasetError where columns are missing, or peaks that several devices need."""
        hardware, portable = hardware_from(dataset.meta), len(self.devices) > 1
        alone = self.names.count(dataset.name) == 1  # folders in several places may have one name
        of = (dataset.name if alone else str(dataset.path)) if len(self.names) > 1 else ""
        if portable:
            _check_peaks(dataset, hardware)
        for kind, table in dataset.tables.items():
            if kind == "network":
                self.doubts += [f"{dataset.name}: {unused}" for unused in _unused(table, portable)]
                if portable:
                    continue
                with named(dataset.path):
                    found, bad = read_totals(table, hardware, trust_code=self.trust_code)
                self.totals += [dataclasses.replace(total, dataset=of) for total in found]
                self.rejected += [dataclasses.replace(row, dataset=of) for row in bad]
                continue
            with named(dataset.path):
                rows = _believed(screen(kind, table, dataset.sentinel_s, hardware))
            self.rejected += [dataclasses.replace(row, dataset=of) for row in rows.rejected]
            self.usable += len(rows)
            if len(rows):
                self.doubts += [f"{dataset.name}: {doubt}" for doubt in _doubts(rows, hardware, portable)]
                self.work.append(_work(rows))
                self.issued.append(_issued(rows))
            for key, part in _by_key(kind, rows, hardware.accelerator, portable):
                problem = describe(
                    part.layer,
                    hardware,
                    portable=portable,
                    target=part.runtime_s,
                    slowdown=part.slowdown,
                    device=self.devices.index(dataset.device),
                )
                some = _shared(part, problem.config) if portable else np.arange(len(part))
                self.parts.setdefault((RUNTIME, key), []).append(_Part(problem.at(some), part.line[some], of))
                metered = part.at(_metered(part))
                if len(metered) and not portable:
                    problem = describe_power(metered.layer, hardware, metered.runtime_s, metered.power_w)
                    for name in (key, whole_kind(kind)):
                        self.parts.setdefault((POWER, name), []).append(_Part(problem, metered.line, of))

    def pool_small_groups(self) -> None:
        """Add a group of those of a kind, dtype and phase that have too few rows each, where they have enough together.

        Of 29 groups of a CPU's sweep with 3 to 9 rows each this was 64 % off (mean of |log|), and 93 % lay within its bounds;
        by the largest other group of their kind it was 108 %. Groups that were pooled before are pooled anew.
        """
        for pooled in [name for name in self.parts if TOGETHER in name[1][3]]:
            del self.parts[pooled]
        small: dict[tuple[str, str, str, bool], list[Key]] = {}  # what recurs apart
        for target, key in self.parts:
            if target == RUNTIME and not stands_alone(key) and _too_few(self.parts[target, key]):
                small.setdefault((*key[:3], recurs(key)), []).append(key)
        for (kind, dtype, phase, _), keys in small.items():
            parts = [part for key in keys for part in self.parts[RUNTIME, key]]
            if len(keys) > 1 and not _too_few(parts):
                name = TOGETHER.join(sorted(key[3] for key in keys))
                self.parts[RUNTIME, (kind, dtype, phase, name)] = parts

    def pooled_anew(self, fitted: dict[Key, Regressor]) -> dict[Key, Problem]:
        """What is to be learnt once more where groups have too few rows without those that were left out.

        The regressors that they had until then, alone or with others, are dropped from `fitted`.
        """
        self.pool_small_groups()
        found = {
            key: join([part.problem for part in parts])
            for (target, key), parts in self.parts.items()
            if target == RUNTIME and key not in fitted and not _too_few(parts)
        }
        for key in found:
            for before in [one for one in fitted if one[:3] == key[:3] and groups_of(one) < groups_of(key)]:
                del fitted[before]
        return found

    def skipped(self) -> dict[Key, int]:
        """The groups with too few rows, and how many these are."""
        few = sorted(key for target, key in self.parts if target == RUNTIME and _too_few(self.parts[target, key]))
        return {key: sum(len(part.problem) for part in self.parts[RUNTIME, key]) for key in few}

    def few_powers(self) -> Iterator[str]:
        """Of each kind with powers that can be learnt from, but too few of them."""
        for (target, key), parts in sorted(self.parts.items()):
            if target == POWER and key == whole_kind(key[0]) and _too_few(parts):
                yield (
                    f"{key[0]}: {sum(len(part.problem) for part in parts)} powers are too few to learn from; {FEWEST_ROWS} "
                    f"configurations are needed, of {SHORTEST_WITH_POWER_S * 1e6:g} us and more where energy_u_rel is not known"
                )

    def problems(self, target: str) -> dict[Key, Problem]:
        """What can be learnt of time, or of power, by regressor."""
        enough = {name for name, parts in self.parts.items() if not _too_few(parts)}
        without = {key[0] for about, key in enough if about == RUNTIME and (POWER, key) not in enough}
        chosen = [key for about, key in enough if about == target]  # of a kind as a whole where some key has no power
        chosen = [key for key in chosen if key != whole_kind(key[0]) or key[0] in without]
        return {key: join([part.problem for part in self.parts[target, key]]) for key in chosen}

    def leave_out(self, target: str, key: Key, contradicting: np.ndarray) -> None:
        """Note the rows, [rows of the regressor], that contradict their neighbours; of wrong times nothing more is learnt."""
        start, known = 0, set(self.rejected)
        groups: list[Key] = [(key[0], key[1], key[2], group) for group in groups_of(key)]
        serving = [*((about, one) for about in (RUNTIME, POWER) for one in groups), (POWER, whole_kind(key[0]))]
        for part in list(self.parts[target, key]):
            lines = part.line[contradicting[start : (start := start + len(part.line))]]
            found = [
                Rejected(key[0], line, f"{target} contradicts its neighbours", part.dataset) for line in lines.tolist()
            ]
            self.rejected += [one for one in found if one not in known]  # a row may serve its key and its kind
            known.update(found)
            for name in serving if target == RUNTIME and len(lines) else []:
                others = self.parts.get(name, [])
                others[:] = [other.without(part.dataset, lines) for other in others]


def _too_few(parts: Sequence[_Part]) -> bool:
    """Rows of a configuration that was measured before tell nothing new."""
    return len(np.unique(np.concatenate([part.problem.config for part in parts]))) < FEWEST_ROWS


def _shared(rows: Rows, config: np.ndarray) -> np.ndarray:
    """Which rows of one device are learnt from together with others', at most ROWS_PER_DEVICE."""
    order = np.argsort(config)
    telling = np.broadcast_to(np.asarray(rows.layer.tells_of_others()), (len(rows),))
    return np.sort(order[telling[order]][:ROWS_PER_DEVICE])


def _agreed(datasets: Sequence[Dataset]) -> list[Dataset]:
    """The datasets, each with what any of its device's says of the hardware; raises DatasetError where they contradict."""
    known: dict[str, dict[str, Any]] = {}
    for dataset in datasets:
        said = known.setdefault(dataset.device, {})
        for name, value in (dataset.meta.get("hardware") or {}).items():
            if name in HARDWARE and value is not None and said.setdefault(name, value) != value and name != "idle_w":
                raise DatasetError(
                    f"{dataset.path}: says that {name} of {dataset.device!r} is {value}, another dataset of it that it is "
                    f"{said[name]}; correct one, or call the devices by different names"
                )
    agreed = []
    for dataset in datasets:
        own = {name: value for name, value in (dataset.meta.get("hardware") or {}).items() if value is not None}
        meta = {**dataset.meta, "hardware": {**known[dataset.device], **own}}
        agreed.append(dataclasses.replace(dataset, meta=meta))
    return agreed


def _accelerators(datasets: Sequence[Dataset]) -> bool:
    """Whether their devices are accelerators; raises DatasetError where some are and some are not."""
    first, *others = {hardware_from(dataset.meta).accelerator for dataset in datasets}
    if others:
        raise DatasetError(
            f"{', '.join(dict.fromkeys(dataset.device for dataset in datasets))}: some are accelerators, some not, and these "
            "take their time for other reasons; train a predictor of each class"
        )
    return first


def _believed(rows: Rows) -> Rows:
    """The rows, without slow-downs so far from the others' that no machine has them for a moment."""
    if not len(rows):
        return rows
    return dataclasses.replace(rows, slowdown=np.where(far_off(np.log(rows.slowdown)), 1.0, rows.slowdown))


def _metered(rows: Rows) -> np.ndarray:
    """Rows with a power that can be learnt from, [rows], bool."""
    stated = np.isfinite(rows.energy_u_rel)
    sure = np.where(stated, rows.energy_u_rel <= LARGEST_UNCERTAINTY, rows.runtime_s >= SHORTEST_WITH_POWER_S)
    return np.asarray(np.isfinite(rows.power_w) & sure)


def _issued(rows: Rows) -> Observation:
    """The host's times, by what they depend on."""
    layer: Any = rows.layer
    parts = (layer.phase, function_of(layer), layer.launches())
    phase, function, launches = (np.broadcast_to(np.asarray(part), (len(rows),)) for part in parts)
    dispatch_s = np.where(_issues(rows), rows.dispatch_s, np.nan)
    return Observation(rows.kind, phase, function, launches.astype(float), dispatch_s)


def _issues(rows: Rows) -> np.ndarray:
    """Whether dispatch_s is a time that a host can have taken to issue the row's call, [rows], bool."""
    most_s = SLOWEST_ISSUE_S * np.asarray(rows.layer.launches())
    return np.asarray((rows.dispatch_s >= SHORTEST_S) & (rows.dispatch_s <= most_s))


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


def _by_key(kind: str, rows: Rows, accelerator: bool, portable: bool) -> list[tuple[Key, Rows]]:
    """The rows of each regressor."""
    groups = np.broadcast_to(np.asarray(rows.layer.group_on(accelerator, portable)), (len(rows),))
    dtypes = np.where(np.isin(rows.layer.dtype, FLOATING), rows.layer.dtype, INTEGER)
    keys = np.stack([dtypes, np.asarray(rows.layer.phase), groups], axis=1).astype(str)
    parts = []
    for dtype, phase, group in np.unique(keys, axis=0):
        index = np.flatnonzero((keys == (dtype, phase, group)).all(axis=1))
        parts.append(((kind, str(dtype), str(phase), str(group)), rows.at(index)))
    return parts


def hardware_from(meta: Mapping[str, Any]) -> Hardware:
    """What `dataset.json` says of its device; what it leaves out comes from the spec sheet of that name, if there is one."""
    from neuralpower.devices.spec import known_hardware

    default = known_hardware(str(meta.get("device"))) or Hardware()
    given = meta.get("hardware") or {}
    known = {f.name for f in dataclasses.fields(Hardware)}
    return dataclasses.replace(default, **{name: v for name, v in given.items() if name in known and v is not None})


def _check_peaks(dataset: Dataset, hardware: Hardware) -> None:
    if hardware.memory_bytes_per_s <= 1 or not hardware.peak_flops_per_s:
        raise DatasetError(
            f"{dataset.path}: several devices are learnt from relative to their peaks, and those of {dataset.device!r} "
            "are not known; add peak_flops_per_s and memory_bytes_per_s to the hardware in its dataset.json"
        )


def _unused(networks: pd.DataFrame, portable: bool) -> Iterator[str]:
    """What a table of whole networks holds and nothing is learnt from."""
    if portable:
        yield f"network: {len(networks)} rows, from which a predictor of several devices learns nothing"
        return
    metered = [name for name in ("power_w", "energy_j") if name in networks and networks[name].notna().any()]
    if metered:
        yield f"network: {' and '.join(metered)} are not learnt from; of whole networks only times are"


def _doubts(rows: Rows, hardware: Hardware, portable: bool) -> Iterator[str]:
    """Where no row comes near the device's peaks, as none does whose times are milliseconds, all take the same, no power tells."""
    powers = np.count_nonzero(np.isfinite(rows.power_w))
    if powers and portable:
        yield f"{rows.kind}: {powers} powers, from which a predictor of several devices learns nothing"
    elif powers and not _metered(rows).any():
        yield (
            f"{rows.kind}: none of {powers} powers is learnt from: energy_u_rel is above {LARGEST_UNCERTAINTY:g}, or of calls "
            f"below {SHORTEST_WITH_POWER_S * 1e6:g} us not known"
        )
    unlikely = np.count_nonzero(np.isfinite(rows.dispatch_s) & ~_issues(rows))
    if unlikely > len(rows) / 2:
        yield (
            f"{rows.kind}: dispatch_s of {unlikely} rows is not learnt from: it is not above 0, or more than "
            f"{SLOWEST_ISSUE_S:g} s a launch; is it in seconds?"
        )
    work = (rows.layer.flops(), sum(rows.layer.bytes()), peak_flops(rows.layer, hardware))
    flops, size, peak = (np.broadcast_to(np.asarray(part, dtype=float), (len(rows),)) for part in work)
    if hardware.memory_bytes_per_s > 1 and (peak > 1).all() and len(rows) >= FEWEST_ROWS:
        reached = float(np.max(np.maximum(flops / peak, size / hardware.memory_bytes_per_s) / rows.runtime_s))
        if reached < NOWHERE_NEAR:
            yield f"{rows.kind}: no row reaches more than {reached:.2%} of the device's peaks; is runtime_s in seconds?"
    times, sizes = (np.quantile(values, (0.05, 0.95)) for values in (rows.runtime_s, size))
    if len(rows) >= FEWEST_ROWS and times[1] < ALIKE * times[0] and sizes[1] > SIZES_APART * sizes[0]:
        yield (
            f"{rows.kind}: rows take nearly the same whatever their sizes ({times[0]:.3g} to {times[1]:.3g} s); larger layers "
            "are a guess, and farther off than bounds say: measure some"
        )


def _missed(fitted: Mapping[Key, Regressor]) -> Iterator[str]:
    """Of each regressor that does not predict the rows held out."""
    for key, regressor in fitted.items():
        if regressor.scores.mape > MISSED:
            yield (
                f"{' '.join(key)}: rows held out are missed by {regressor.scores.mape:.0%}, so its predictions say nothing; are "
                "all of one device, in seconds, and is each field what the kind means by it?"
            )


def _work(rows: Rows) -> dict[str, np.ndarray]:
    """[3, rows] of FLOPs, bytes and seconds, by dtype."""
    parts = (rows.layer.flops(), sum(rows.layer.bytes()), rows.runtime_s)
    work = np.stack([np.broadcast_to(np.asarray(part, dtype=float), (len(rows),)) for part in parts])
    return {str(dtype): work[:, rows.layer.dtype == dtype] for dtype in np.unique(rows.layer.dtype)}


def _work_of_totals(totals: Sequence[Total]) -> dict[str, np.ndarray]:
    """The same of whole networks, each under the dtype of most of its FLOP (of its bytes, where they are equal)."""
    parts: dict[str, list[tuple[float, float, float]]] = {}
    for total in totals:
        each: dict[str, tuple[float, float]] = {}
        for layer, n in zip(total.layers, total.counts, strict=True):
            flops, size = each.get(layer.dtype, (0.0, 0.0))
            each[layer.dtype] = flops + n * layer.flops(), size + n * sum(layer.bytes())
        flops, size = (sum(column) for column in zip(*each.values(), strict=True))
        parts.setdefault(max(each, key=lambda dtype: each[dtype]), []).append((flops, size, total.runtime_s))
    return {dtype: np.array(some).T for dtype, some in parts.items()}


def _rooflines(everything: Sequence[Mapping[str, np.ndarray]], hardware: Hardware) -> dict[str, Roofline]:
    """Per dtype the device's peaks where they are known, else those that fit the rows best, over a grid of 5 % steps."""
    parts: dict[str, list[np.ndarray]] = {}
    for work in everything:
        for dtype, chunk in work.items():
            parts.setdefault(dtype, []).append(chunk)
    rooflines = {}
    for dtype, chunks in parts.items():
        flops, size, t = np.concatenate(chunks, axis=1)
        fastest = float(np.max(flops / t)) or FASTEST_FLOPS, float(np.max(size / t))  # of copies alone memory tells all
        grid = 1.05 ** -np.arange(0, 100)
        alone = min(grid, key=lambda c: float(np.sum(np.abs(flops / (fastest[0] * c) - t))))
        only = fastest[0] * float(alone)
        if dtype in hardware.peak_flops_per_s and hardware.memory_bytes_per_s > 1:
            rooflines[dtype] = Roofline(hardware.peak_flops_per_s[dtype], hardware.memory_bytes_per_s, only)
            continue
        costs = [
            (float(np.sum(np.abs(np.maximum(flops / (fastest[0] * a), size / (fastest[1] * b)) - t))), a, b)
            for a in grid[::2]
            for b in grid[::2]
        ]
        _, a, b = min(costs)
        rooflines[dtype] = Roofline(fastest[0] * a, fastest[1] * b, only)
    return rooflines
