"""Assign rows of the datasets to the regressors that are fitted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.columns import SHORTEST_S
from neuralpower.data.dataset import Dataset
from neuralpower.data.schema import named
from neuralpower.data.screening import LARGEST_UNCERTAINTY, Rejected, Rows, averaged, metered, screen
from neuralpower.data.screening import SHORTEST_WITH_POWER_S as SHORTEST_WITH_POWER_S
from neuralpower.devices.hardware import BEYOND_CACHES
from neuralpower.dtypes import FLOATING
from neuralpower.errors import DatasetError
from neuralpower.layers import Hardware
from neuralpower.layers.base import FORWARD
from neuralpower.layers.views import peak_flops
from neuralpower.learn.fitting.held_out import far_off
from neuralpower.learn.fitting.problem import FEWEST_ROWS, Problem, describe, describe_power, join
from neuralpower.learn.keys import (
    ANY,
    INTEGER,
    TOGETHER,
    Key,
    groups_of,
    recurs,
    rows_by,
    stands_alone,
    whole_kind,
)
from neuralpower.learn.launch_overhead import Observation, function_of
from neuralpower.learn.networks.network_rows import Total, read_totals
from neuralpower.learn.regressor import Regressor
from neuralpower.platforms import View, platform_name, platform_of

if TYPE_CHECKING:
    import pandas as pd

RUNTIME, POWER = "runtime_s", "power_w"  # the targets, by column
ROWS_PER_DEVICE = 2000  # of a group; for a device never seen, known devices are scarce, not rows
# Rows are launches and noise where 95 % of them take less than this factor times their 5 % quantile, whatever
# their sizes. With 10 % of noise, 5 to 20 % of made-up layers beyond such rows lay within
# their bounds, 90 % and more beyond others.
ALIKE, SIZES_APART = 2.0, 16.0
NOWHERE_NEAR = 0.005  # of the device's peaks: the fastest of ten rows and more reaches ten times that
# the condition of a usable power, as text
USABLE_POWER = (
    f"of rows of {SHORTEST_WITH_POWER_S * 1e6:g} us or more, or with energy_u_rel up to "
    f"{LARGEST_UNCERTAINTY:g}"
)
PLAIN_PASSES = ("copy", "cat", "cast", "add", "mul", "sub")
SLOWEST_ISSUE_S = (
    2e-3  # of a launch: PyTorch's take the host 2 to 200 us, the first in a process up to seconds
)


@dataclass(frozen=True)
class _Part:
    """Rows of one dataset that belong to one regressor."""

    problem: Problem
    line: np.ndarray  # of each row in its table
    dataset: str  # whose table that is; empty where there is one alone

    def without(self, dataset: str, lines: np.ndarray) -> _Part:
        """The rows that do not stand on these lines of a dataset's table."""
        kept = np.flatnonzero(~np.isin(self.line, lines) | (self.dataset != dataset))
        return replace(self, problem=self.problem.at(kept), line=self.line[kept])


class Read:
    """The rows of datasets, screened and described, by target and regressor."""

    def __init__(self, devices: Sequence[str], names: Sequence[str], trust_code: bool = False) -> None:
        self.devices, self.names = devices, names  # of all datasets
        self.trust_code = trust_code
        self.parts: dict[str, dict[Key, list[_Part]]] = {RUNTIME: {}, POWER: {}}
        self.totals: list[Total] = []
        self.issued: list[Observation] = []  # the host's part
        self.rejected: list[Rejected] = []
        self.doubts: list[str] = []
        self.work: list[Mapping[str, np.ndarray]] = []  # [3, rows] of FLOPs, bytes and seconds, by dtype
        self.usable = 0
        self.stated: dict[str, int] = {}  # rows of each kind that state a power
        self.copies: list[np.ndarray] = []  # B/s of copies that a CPU's caches do not hold, [rows] each
        self.products: dict[str, float] = {}  # FLOP/s of its fastest linear layer, by dtype
        self.spreads: list[np.ndarray] = []  # relative standard deviations of times, [rows] each

    def add(self, dataset: Dataset) -> None:
        """Take in a dataset; raises DatasetError where columns are missing, or peaks that pooling needs."""
        hardware = hardware_from(dataset.meta)
        view = platform_of(hardware).view(len(self.devices))
        alone = self.names.count(dataset.name) == 1  # folders in several places may have one name
        of = (dataset.name if alone else str(dataset.path)) if len(self.names) > 1 else ""
        if view.pooled:
            _check_peaks(dataset, hardware)
        for kind, table in dataset.tables.items():
            if kind == "network":
                self.doubts += [_of(of, unused) for unused in _unused(table, view)]
                if view.pooled:
                    continue
                with named(dataset.path):
                    found, bad = read_totals(table, hardware, trust_code=self.trust_code)
                self.totals += [replace(total, dataset=of) for total in found]
                self.rejected += [replace(row, dataset=of) for row in bad]
                continue
            with named(dataset.path):
                rows = screen(kind, table, dataset.sentinel_s, hardware)
            rows = rows if "config_id" in table else averaged(rows)
            self.rejected += [replace(row, dataset=of) for row in rows.rejected]
            self.usable += len(rows)
            if len(rows):  # a slow-down so far from the others' is an error
                rows = replace(rows, slowdown=np.where(far_off(np.log(rows.slowdown)), 1.0, rows.slowdown))
                self.doubts += [_of(of, doubt) for doubt in _doubts(rows, hardware, view)]
                self.stated[kind] = self.stated.get(kind, 0) + int(np.isfinite(rows.power_w).sum())
                self.work.append(_work(rows))
                self._reach(rows, hardware)
                self.spreads.append(rows.spread[np.isfinite(rows.spread)])
                self.issued.append(_issued(rows))
            for key, part in by_key(kind, rows, view):
                device = self.devices.index(dataset.device)
                problem = describe(part.layer, hardware, view, target=part.runtime_s)
                problem = problem.on(device, part.slowdown)
                some = _shared(part, problem.config) if view.pooled else np.arange(len(part))
                self.parts[RUNTIME].setdefault(key, []).append(_Part(problem.at(some), part.line[some], of))
                powered = part.at(metered(part))
                if len(powered) and not view.pooled:
                    problem = describe_power(powered.layer, hardware, powered.runtime_s, powered.power_w)
                    for name in (key, whole_kind(kind)):
                        self.parts[POWER].setdefault(name, []).append(_Part(problem, powered.line, of))

    def _reach(self, rows: Rows, hardware: Hardware) -> None:
        """Note what plain passes over memory and linear layers reach forwards."""
        layer: Any = rows.layer
        forward = layer.phase == FORWARD
        if rows.kind in ("movement", "elementwise"):
            size = sum(layer.bytes())
            plain = forward & np.isin(layer.function, PLAIN_PASSES) & (layer.run == 0)
            self.copies.append((size / rows.runtime_s)[plain & (size > BEYOND_CACHES * hardware.llc_bytes)])
        if rows.kind == "linear":
            for dtype in np.unique(layer.dtype[forward]).tolist():
                rates = (layer.flops() / rows.runtime_s)[forward & (layer.dtype == dtype)]
                self.products[dtype] = max(self.products.get(dtype, 0.0), float(np.max(rates)))

    def reached(self, hardware: Hardware) -> Hardware:
        """A CPU with what it reaches: as its collection measured it, else as its rows show."""
        copies = np.concatenate([np.empty(0), *self.copies])
        if (
            platform_of(hardware).family != "cpu"
            or hardware.copied_bytes_per_s is not None
            or not len(copies)
        ):
            return hardware
        return replace(
            hardware, copied_bytes_per_s=float(np.median(copies)), product_flops_per_s=self.products
        )

    def pool_small_groups(self) -> None:
        """Pool groups of a kind, dtype and phase that have too few rows each, but enough together.

        For 29 groups of a CPU's sweep with 3 to 9 rows each this was 64 % off (mean of |log|), with 93 % in
        its bounds; the largest other group of their kind was 108 % off. Pooled groups are pooled anew.
        """
        times = {key: parts for key, parts in self.parts[RUNTIME].items() if TOGETHER not in key[3]}
        self.parts[RUNTIME] = times
        small: dict[tuple[str, str, str, bool], list[Key]] = {}  # repeated calls apart
        for key, parts in times.items():
            if not stands_alone(key) and _too_few(parts):
                small.setdefault((*key[:3], recurs(key)), []).append(key)
        for (kind, dtype, phase, _), keys in small.items():
            pooled = [part for key in keys for part in times[key]]
            if len(keys) > 1 and not _too_few(pooled):
                times[kind, dtype, phase, TOGETHER.join(sorted(key[3] for key in keys))] = pooled

    def pooled_anew(self, fitted: dict[Key, Regressor]) -> dict[Key, Problem]:
        """Problems to fit again, where groups have too few rows after rows were skipped.

        Their regressors until then, alone or pooled, are dropped from `fitted`.
        """
        self.pool_small_groups()
        parts = self.parts[RUNTIME].items()
        found = {key: _joined(some) for key, some in parts if key not in fitted and not _too_few(some)}
        for key in found:
            for before in [one for one in fitted if one[:3] == key[:3] and groups_of(one) < groups_of(key)]:
                del fitted[before]
        return found

    def skipped(self) -> dict[Key, int]:
        """The groups with too few rows, and how many these are."""
        parts = sorted(self.parts[RUNTIME].items())
        return {key: _count(some) for key, some in parts if _too_few(some)}

    def devices_of(self, key: Key) -> int:
        """Number of devices with rows of a regressor's runtime."""
        return len(np.unique(np.concatenate([part.problem.device for part in self.parts[RUNTIME][key]])))

    @property
    def noise(self) -> float | None:
        """The typical relative standard deviation of one measurement; None where it is not known."""
        known = np.concatenate([np.empty(0), *self.spreads])
        return float(np.median(known)) if len(known) else None

    def powers(self) -> dict[str, int]:
        """Rows with a usable power of each kind that states any; empty where several devices are pooled."""
        known = {} if len(self.devices) > 1 else {kind: n for kind, n in sorted(self.stated.items()) if n}
        return {kind: _count(self.parts[POWER].get(whole_kind(kind), [])) for kind in known}

    def few_powers(self) -> Iterator[str]:
        """A doubt for each kind with too few usable powers."""
        for kind, usable in self.powers().items():
            parts = self.parts[POWER].get(whole_kind(kind), [])
            if not parts or _too_few(parts):
                yield (
                    f"{kind}: power not trained: {usable} of {self.stated[kind]} powers are usable, "
                    f"{FEWEST_ROWS} needed ({USABLE_POWER})"
                )

    def problems(self, target: str) -> dict[Key, Problem]:
        """The problems of time, or of power, by regressor."""
        enough = {t: [key for key in some if not _too_few(some[key])] for t, some in self.parts.items()}
        without = {key[0] for key in enough[RUNTIME] if key not in enough[POWER]}
        # the power of a whole kind is for kinds that have keys without power
        keys = [key for key in enough[target] if key != whole_kind(key[0]) or key[0] in without]
        return {key: _joined(self.parts[target][key]) for key in keys}

    def leave_out(self, target: str, key: Key, contradicting: np.ndarray) -> None:
        """Note the rows of a regressor that contradict others, [rows]; wrong times are used no further."""
        start, known = 0, set(self.rejected)
        groups: list[Key] = [(key[0], key[1], key[2], group) for group in groups_of(key)]
        serving = [(RUNTIME, groups), (POWER, [*groups, whole_kind(key[0])])]
        for part in list(self.parts[target][key]):
            lines = part.line[contradicting[start : (start := start + len(part.line))]]
            reason = f"{target} contradicts its neighbours"
            found = [Rejected(key[0], line, reason, part.dataset) for line in lines.tolist()]
            self.rejected += [one for one in found if one not in known]  # a row may serve two keys
            known.update(found)
            for about, keys in serving if target == RUNTIME and len(lines) else []:
                for one in keys:
                    others = self.parts[about].get(one, [])
                    others[:] = [other.without(part.dataset, lines) for other in others]


def _count(parts: Sequence[_Part]) -> int:
    return sum(len(part.problem) for part in parts)


def _joined(parts: Sequence[_Part]) -> Problem:
    return join([part.problem for part in parts])


def _too_few(parts: Sequence[_Part]) -> bool:
    """Repeated rows of a configuration count once."""
    return len(np.unique(np.concatenate([part.problem.config for part in parts]))) < FEWEST_ROWS


def _shared(rows: Rows, config: np.ndarray) -> np.ndarray:
    """Which rows of a device are pooled with other devices', at most ROWS_PER_DEVICE."""
    order = np.argsort(config)
    telling = np.broadcast_to(np.asarray(rows.layer.views.pooled.tells_of_others(rows.layer)), (len(rows),))
    return np.sort(order[telling[order]][:ROWS_PER_DEVICE])


def _issued(rows: Rows) -> Observation:
    """The host's times, by what they depend on."""
    layer: Any = rows.layer
    parts = (layer.phase, function_of(layer), layer.law.launches(layer))
    phase, function, launches = (np.broadcast_to(np.asarray(part), (len(rows),)) for part in parts)
    dispatch_s = np.where(_issues(rows), rows.dispatch_s, np.nan)
    return Observation(rows.kind, phase, function, launches.astype(float), dispatch_s)


def _issues(rows: Rows) -> np.ndarray:
    """Whether dispatch_s is a time that a host can have taken to issue the row's call, [rows], bool."""
    most_s = SLOWEST_ISSUE_S * np.asarray(rows.layer.law.launches(rows.layer))
    return np.asarray((rows.dispatch_s >= SHORTEST_S) & (rows.dispatch_s <= most_s))


def by_key(kind: str, rows: Rows, view: View) -> list[tuple[Key, Rows]]:
    groups = np.broadcast_to(np.asarray(view.group(rows.layer)), (len(rows),))
    if view.any_dtype(rows.layer):
        dtypes = np.full(len(rows), ANY)
    else:
        dtypes = np.where(np.isin(rows.layer.dtype, FLOATING), rows.layer.dtype, INTEGER)
    parts = sorted(rows_by(dtypes, np.asarray(rows.layer.phase), groups))
    return [((kind, dtype, phase, group), rows.at(index)) for (dtype, phase, group), index in parts]


def hardware_from(meta: Mapping[str, Any]) -> Hardware:
    """The hardware in `dataset.json`; else in the spec sheet of that name, if there is one."""
    from neuralpower.devices.spec import known_hardware

    default = known_hardware(str(meta.get("device"))) or Hardware()
    given = meta.get("hardware") or {}
    known = {f.name for f in fields(Hardware)}
    said = {name: v for name, v in given.items() if name in known and v is not None}
    platform = platform_name(given, default.platform)
    if platform == "accelerator" and default.platform != "cpu":
        platform = default.platform  # the sheet names it
    return replace(default, **{**said, "platform": platform})


def _check_peaks(dataset: Dataset, hardware: Hardware) -> None:
    if hardware.memory_bytes_per_s <= 1 or not hardware.peak_flops_per_s:
        raise DatasetError(
            f"{dataset.path}: training on several devices needs their peaks, and those of "
            f"{dataset.device!r} are not known; add peak_flops_per_s and memory_bytes_per_s to the hardware "
            "in its dataset.json"
        )


def _of(dataset: str, text: str) -> str:
    """A doubt, with the dataset that it is about where there are several."""
    return f"{dataset}: {text}" if dataset else text


def _unused(networks: pd.DataFrame, view: View) -> Iterator[str]:
    """Notes on what a table of whole networks is not used for."""
    if view.pooled:
        yield f"network: {len(networks)} rows not used: a predictor of several devices trains on layers only"
        return
    stated = [name for name in ("power_w", "energy_j") if name in networks and networks[name].notna().any()]
    if stated:
        yield f"network: {' and '.join(stated)} not used: whole networks train times only"


def _doubts(rows: Rows, hardware: Hardware, view: View) -> Iterator[str]:
    """Doubts: unusable dispatch_s, rows far below the device's peaks, or rows that all take the same time."""
    powers = np.count_nonzero(np.isfinite(rows.power_w))
    if powers and view.pooled:
        yield f"{rows.kind}: {powers} powers not used: a predictor of several devices trains times only"
    unlikely = np.count_nonzero(np.isfinite(rows.dispatch_s) & ~_issues(rows))
    if unlikely > len(rows) / 2:
        yield (
            f"{rows.kind}: dispatch_s of {unlikely} rows not used: it must be above 0 and up to "
            f"{SLOWEST_ISSUE_S:g} s a launch; is it in seconds?"
        )
    layer = rows.layer
    flops, size, peak = _full(rows, layer.flops(), sum(layer.bytes()), peak_flops(layer, hardware))
    if hardware.memory_bytes_per_s > 1 and (peak > 1).all() and len(rows) >= FEWEST_ROWS:
        reached = float(np.max(np.maximum(flops / peak, size / hardware.memory_bytes_per_s) / rows.runtime_s))
        if reached < NOWHERE_NEAR:
            most = f"no row reaches more than {reached:.2%} of the device's peaks"
            yield f"{rows.kind}: {most}; is runtime_s in seconds?"
    times, sizes = (np.quantile(values, (0.05, 0.95)) for values in (rows.runtime_s, size))
    if len(rows) >= FEWEST_ROWS and times[1] < ALIKE * times[0] and sizes[1] > SIZES_APART * sizes[0]:
        yield (
            f"{rows.kind}: rows of all sizes take nearly the same time ({times[0]:.3g} to {times[1]:.3g} "
            "s): this is launch overhead. Larger layers cannot be predicted; measure some"
        )


def _work(rows: Rows) -> dict[str, np.ndarray]:
    """[3, rows] of FLOPs, bytes and seconds, by dtype."""
    work = _full(rows, rows.layer.flops(), sum(rows.layer.bytes()), rows.runtime_s)
    return {str(dtype): work[:, rows.layer.dtype == dtype] for dtype in np.unique(rows.layer.dtype)}


def _full(rows: Rows, *values: Any) -> np.ndarray:
    return np.stack([np.broadcast_to(np.asarray(value, dtype=float), (len(rows),)) for value in values])
