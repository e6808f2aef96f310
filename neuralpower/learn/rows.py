"""Which rows of the datasets each regressor is fitted to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.dataset import Dataset
from neuralpower.data.schema import SHORTEST_S, named
from neuralpower.data.screening import Rejected, Rows, screen
from neuralpower.dtypes import FLOATING
from neuralpower.errors import DatasetError
from neuralpower.layers import Hardware
from neuralpower.layers.base import peak_flops
from neuralpower.learn.contradictions import far_off
from neuralpower.learn.features import describe, describe_power
from neuralpower.learn.keys import INTEGER, TOGETHER, Key, groups_of, recurs, stands_alone, whole_kind
from neuralpower.learn.launch_overhead import Observation, function_of
from neuralpower.learn.network_rows import Total, read_totals
from neuralpower.learn.problem import FEWEST_ROWS, Problem, join
from neuralpower.learn.regressor import Regressor
from neuralpower.platforms import View, platform_name, platform_of

if TYPE_CHECKING:
    import pandas as pd

RUNTIME, POWER = "runtime_s", "power_w"  # what can be learnt, as the columns are named
ROWS_PER_DEVICE = 2000  # of a group; to tell what a device never seen will do, devices are scarce, not rows
SHORTEST_WITH_POWER_S = 1e-4  # below, windows whose uncertainty nobody states say little of a call
# Rows of which nineteen in twenty take less than so many times the shortest twentieth's, whatever their sizes, are launches and
# noise: with 10 % of noise, 5 to 20 % of made-up layers beyond such rows lay within their bounds, 90 % and more beyond others.
ALIKE, SIZES_APART = 2.0, 16.0
NOWHERE_NEAR = 0.005  # of the device's peaks: the fastest of ten rows and more reaches ten times that
LARGEST_UNCERTAINTY = 0.1  # of a power that is learnt from
# Of one launch, by the host: PyTorch's take 2 to 200 us, the first ones of a process up to seconds.
SLOWEST_ISSUE_S = 2e-3


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


class Read:
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
        hardware = hardware_from(dataset.meta)
        view = platform_of(hardware).view(len(self.devices))
        alone = self.names.count(dataset.name) == 1  # folders in several places may have one name
        of = (dataset.name if alone else str(dataset.path)) if len(self.names) > 1 else ""
        if view.pooled:
            _check_peaks(dataset, hardware)
        for kind, table in dataset.tables.items():
            if kind == "network":
                self.doubts += [f"{dataset.name}: {unused}" for unused in _unused(table, view)]
                if view.pooled:
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
                self.doubts += [f"{dataset.name}: {doubt}" for doubt in _doubts(rows, hardware, view)]
                self.work.append(_work(rows))
                self.issued.append(_issued(rows))
            for key, part in _by_key(kind, rows, view):
                problem = describe(
                    part.layer,
                    hardware,
                    view,
                    target=part.runtime_s,
                    slowdown=part.slowdown,
                    device=self.devices.index(dataset.device),
                )
                some = _shared(part, problem.config) if view.pooled else np.arange(len(part))
                self.parts.setdefault((RUNTIME, key), []).append(_Part(problem.at(some), part.line[some], of))
                metered = part.at(_metered(part))
                if len(metered) and not view.pooled:
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
        few = sorted(
            key for target, key in self.parts if target == RUNTIME and _too_few(self.parts[target, key])
        )
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
        chosen = [
            key for about, key in enough if about == target
        ]  # of a kind as a whole where some key has no power
        chosen = [key for key in chosen if key != whole_kind(key[0]) or key[0] in without]
        return {key: join([part.problem for part in self.parts[target, key]]) for key in chosen}

    def leave_out(self, target: str, key: Key, contradicting: np.ndarray) -> None:
        """Note the rows, [rows of the regressor], that contradict their neighbours; of wrong times nothing more is learnt."""
        start, known = 0, set(self.rejected)
        groups: list[Key] = [(key[0], key[1], key[2], group) for group in groups_of(key)]
        serving = [
            *((about, one) for about in (RUNTIME, POWER) for one in groups),
            (POWER, whole_kind(key[0])),
        ]
        for part in list(self.parts[target, key]):
            lines = part.line[contradicting[start : (start := start + len(part.line))]]
            found = [
                Rejected(key[0], line, f"{target} contradicts its neighbours", part.dataset)
                for line in lines.tolist()
            ]
            self.rejected += [
                one for one in found if one not in known
            ]  # a row may serve its key and its kind
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


def _by_key(kind: str, rows: Rows, view: View) -> list[tuple[Key, Rows]]:
    """The rows of each regressor."""
    groups = np.broadcast_to(np.asarray(view.group(rows.layer)), (len(rows),))
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
    said = {name: v for name, v in given.items() if name in known and v is not None}
    platform = platform_name(given, default.platform)
    if platform == "accelerator" and default.platform != "cpu":
        platform = default.platform  # the sheet says which
    return dataclasses.replace(default, **{**said, "platform": platform})


def _check_peaks(dataset: Dataset, hardware: Hardware) -> None:
    if hardware.memory_bytes_per_s <= 1 or not hardware.peak_flops_per_s:
        raise DatasetError(
            f"{dataset.path}: several devices are learnt from relative to their peaks, and those of {dataset.device!r} "
            "are not known; add peak_flops_per_s and memory_bytes_per_s to the hardware in its dataset.json"
        )


def _unused(networks: pd.DataFrame, view: View) -> Iterator[str]:
    """What a table of whole networks holds and nothing is learnt from."""
    if view.pooled:
        yield f"network: {len(networks)} rows, from which a predictor of several devices learns nothing"
        return
    metered = [name for name in ("power_w", "energy_j") if name in networks and networks[name].notna().any()]
    if metered:
        yield f"network: {' and '.join(metered)} are not learnt from; of whole networks only times are"


def _doubts(rows: Rows, hardware: Hardware, view: View) -> Iterator[str]:
    """Where no row comes near the device's peaks, as none does whose times are milliseconds, all take the same, no power tells."""
    powers = np.count_nonzero(np.isfinite(rows.power_w))
    if powers and view.pooled:
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


def _work(rows: Rows) -> dict[str, np.ndarray]:
    """[3, rows] of FLOPs, bytes and seconds, by dtype."""
    parts = (rows.layer.flops(), sum(rows.layer.bytes()), rows.runtime_s)
    work = np.stack([np.broadcast_to(np.asarray(part, dtype=float), (len(rows),)) for part in parts])
    return {str(dtype): work[:, rows.layer.dtype == dtype] for dtype in np.unique(rows.layer.dtype)}
