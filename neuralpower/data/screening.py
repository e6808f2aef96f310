"""Screen a table: its usable rows, and the reasons against the others; repeats as one row."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from neuralpower.data.columns import COLUMNS, meant_by, number_column
from neuralpower.data.schema import named
from neuralpower.devices.spec import FASTEST_FLOPS
from neuralpower.errors import DatasetError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.layers import Hardware, Layer

SHORTEST_KERNEL_S = 3e-7  # of a GPU: no kernel takes less than 0.8 us there
ABOVE_LIMIT = 1.2  # of a device's power limit, which meters overshoot for moments
SHORTEST_WITH_POWER_S = 1e-4  # below, the mean power of a window of unknown uncertainty is not that of a call
LARGEST_UNCERTAINTY = 0.1  # of a power that is used for training
QUARTILES = 1.35  # standard deviations from one quartile of a normal distribution to the other
MOST_LINES = 5  # of refused rows that are named


@dataclass(frozen=True)
class Rejected:
    """A row that no fit may use: its place and the reason."""

    kind: str
    line: int  # of the table, the header being line 1
    reason: str
    dataset: str = ""  # whose table, where there are several


def check_cells(names: Iterable[str], table: pd.DataFrame) -> None:
    """Raise DatasetError where one of the columns has lists or objects in its cells."""
    for name in names:
        if name in table and table[name].dtype == object:
            nested = table[name].map(lambda cell: isinstance(cell, (list, dict, set, tuple, np.ndarray)))
            if nested.any():
                raise DatasetError(
                    f"column {name} holds lists or objects, and a cell must be one number or text"
                )


@dataclass(frozen=True)
class Rows:
    """The usable rows of one kind: `layer`'s fields are arrays, as `runtime_s` is."""

    kind: str
    layer: Layer
    runtime_s: np.ndarray
    slowdown: np.ndarray  # of the machine while each was taken, 1 where not known
    power_w: np.ndarray  # NaN where not measured
    energy_u_rel: np.ndarray  # the stated relative uncertainty; NaN where none is stated
    dispatch_s: np.ndarray  # of the host, to issue one call; NaN where not measured
    line: np.ndarray  # of each row in its table, the header being line 1
    rejected: tuple[Rejected, ...]
    repeats: np.ndarray  # measurements whose mean each row is
    spread: np.ndarray  # standard deviation of one measurement's time over the mean; NaN where not known

    def __len__(self) -> int:
        return len(self.runtime_s)

    def at(self, index: np.ndarray) -> Rows:
        from neuralpower.layers.columns import take

        names = [f.name for f in dataclasses.fields(self) if f.name not in ("kind", "layer", "rejected")]
        parts = {name: getattr(self, name)[index] for name in names}
        return dataclasses.replace(self, layer=take(self.layer, index), rejected=(), **parts)


def screen(
    kind: str, table: pd.DataFrame, sentinel_s: float | None = None, hardware: Hardware | None = None
) -> Rows:
    """The usable rows of a kind's table, and for each of the others its line and the reason.

    The rows' slow-downs refer to the dataset's `sentinel_s`; `hardware` says what no row can exceed. Raises
    DatasetError where a column that the kind needs is missing.
    """
    from neuralpower.layers import KINDS
    from neuralpower.layers.columns import as_columns

    layer_kind = KINDS[kind]
    _check_columns(kind, layer_kind, table)
    reasons = np.full(len(table), "", dtype=object)
    columns, runtime, power = _read(layer_kind, table, hardware, reasons)
    keep = reasons == ""
    blank = table.isna().all(axis=1).to_numpy()
    known = sentinel_s is not None and "sentinel_s" in table
    slowdown = number_column(table["sentinel_s"]) / sentinel_s if known else np.ones(len(table))
    rejected = tuple(Rejected(kind, int(i) + 2, str(reasons[i])) for i in np.flatnonzero(~keep & ~blank))
    return Rows(
        kind,
        as_columns(layer_kind, {name: values[keep] for name, values in columns.items()}),
        runtime[keep],
        np.where(np.isfinite(slowdown) & (slowdown > 0), slowdown, 1.0)[keep],
        power[keep],
        _optional(table, "energy_u_rel")[keep],
        _optional(table, "dispatch_s")[keep],
        np.flatnonzero(keep) + 2,
        rejected,
        np.fmax(np.nan_to_num(_optional(table, "repeats")), 1.0)[keep],
        _spread(table)[keep],
    )


def _read(
    kind: type[Layer], table: pd.DataFrame, hardware: Hardware | None, reasons: np.ndarray
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """(The layers' fields, seconds, watts) of all rows; those not usable get their reason in `reasons`."""
    import pandas as pd

    from neuralpower.layers.columns import as_columns, fingerprint

    def reject(where: Any, reason: str) -> None:
        reasons[np.asarray(where, dtype=bool) & (reasons == "")] = reason

    if "status" in table:
        status = np.char.lower(_words(table["status"], "ok").astype(str))
        for value in sorted(set(status) - {"ok"}):
            reject(status == value, f"status {value}")
    columns = _fields(kind, table, reject)
    runtime = _runtime(table)
    for reason, rows in unusable(runtime).items():
        reject(rows, reason)
    layer = as_columns(kind, columns)
    _reject_impossible(layer, runtime, hardware, reject)
    power = _power(table, runtime, hardware, reject)
    if "config_id" in table:  # of a collection, whose rows are never alike; others' repeats are averaged
        identity = pd.DataFrame({"config": fingerprint(layer), "s": runtime, "usable": reasons == ""})
        reject(identity.duplicated(keep="first"), "repeats an earlier row")
    return columns, runtime, power


def metered(rows: Rows) -> np.ndarray:
    """Rows with a usable power, [rows], bool."""
    stated = np.isfinite(rows.energy_u_rel)
    sure = np.where(stated, rows.energy_u_rel <= LARGEST_UNCERTAINTY, rows.runtime_s >= SHORTEST_WITH_POWER_S)
    return np.asarray(np.isfinite(rows.power_w) & sure)


def missing_columns(needed: Iterable[str], table: pd.DataFrame) -> list[str]:
    """Columns of `needed` that a table lacks, and runtime_s where no other columns give it."""
    missing = [name for name in needed if name not in table]
    if "runtime_s" not in table and not {"energy_j", "power_w"} <= set(table):
        missing.append("runtime_s")
    return missing


def instead_of(given: Iterable[object], missing: Sequence[str], check: str = "FILE") -> str:
    """A hint on columns of other names that may stand for `missing`; "" without one. `check`: the file."""
    found = list(meant_by([*map(str, given)], missing))
    if not found:
        return ""
    said = ", ".join(f"{one.given}: did you mean {one.words}?" for one in found)
    return f"; {said} Fix: neuralpower dataset check {check} {' '.join(f'--map {m.mapping}' for m in found)}"


def _check_columns(kind: str, layer_kind: type[Layer], table: pd.DataFrame) -> None:
    """Raise DatasetError where the table lacks a column that the kind needs, or cells hold lists."""
    from neuralpower.layers.rows import defaults, field_names

    usual, names = defaults(layer_kind), field_names(layer_kind)
    needed = [name for name in names if name not in usual]
    missing = missing_columns(needed, table)
    if missing:
        raise DatasetError(
            f"{kind}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing; the table needs "
            f"{', '.join(needed)} and runtime_s, or energy_j and power_w{instead_of(table.columns, missing)}"
        )
    with named(Path(kind)):
        check_cells(names, table)


def _reject_impossible(
    layer: Layer, runtime: np.ndarray, hardware: Hardware | None, reject: Callable[[Any, str], None]
) -> None:
    """Reject rows that describe no layer, or one that no device runs in the time."""
    from neuralpower.layers.views import most_flops

    with np.errstate(all="ignore"):
        flops, size = (np.asarray(value, dtype=np.float64) for value in (layer.flops(), sum(layer.bytes())))
        smallest = functools.reduce(np.minimum, (getattr(layer, name) for name in layer.dimensions))
        impossible = (smallest <= 0) | (size < 0)  # views move nothing
        reject(~np.isfinite(flops) | ~np.isfinite(size) | impossible, "the fields describe no possible layer")
        reject(~np.asarray(layer.possible(), dtype=bool), layer.rule)
        reject(flops / runtime > FASTEST_FLOPS, f"more than {FASTEST_FLOPS:g} FLOP/s")
        if hardware is not None:
            if hardware.platform != "cpu":
                reject(runtime < SHORTEST_KERNEL_S, "no kernel ran")  # a gradient can be a view
            most = layer.savings * most_flops(layer, hardware)
            reject(flops / runtime > most, "faster than the device's peak")


def _fields(kind: type[Layer], table: pd.DataFrame, reject: Callable[[Any, str], None]) -> dict[str, Any]:
    """The kind's fields, each [rows], with something possible where a cell is rejected."""
    import pandas as pd

    from neuralpower.layers.base import BACKWARD, FORWARD
    from neuralpower.layers.rows import LARGEST, defaults, dtype_words, field_names

    columns: dict[str, Any] = {}
    usual = defaults(kind)
    flags = {field.name for field in dataclasses.fields(kind) if field.type == "bool"}
    phases = dict.fromkeys((usual["phase"], FORWARD, BACKWARD))
    known: dict[str, Collection[str]] = {**dtype_words(kind), "phase": phases, **kind.words}
    for name in field_names(kind):
        values = table[name] if name in table else pd.Series([usual[name]] * len(table))
        if name in known:
            words = _words(values, usual.get(name, ""))
            if name in dtype_words(kind):  # as torch prints it
                words = np.array([word.removeprefix("torch.") for word in words], dtype=object)
            if "" not in known[name]:
                reject(words == "", f"{name} is missing")
            for word in set(words) - {""}:
                if word not in known[name]:
                    reject(words == word, str(unknown(name, word, known[name])))
                    words[words == word] = usual.get(name, next(iter(known[name])))
            columns[name] = words
            continue
        numbers = number_column(values, truths=name in flags)
        if name in usual:
            numbers[values.isna().to_numpy()] = usual[name]
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers != np.floor(numbers))
        if name in flags:
            reject(bad | (numbers > 1), f"{name} is neither true nor false")
        reject(bad, f"{name} is not a whole number, 0 or more")
        beyond = numbers > LARGEST
        reject(beyond, f"{name} is above {LARGEST}")
        columns[name] = np.where(bad | beyond, 1, numbers)
    return columns


def unusable(runtime_s: np.ndarray) -> dict[str, np.ndarray]:
    """Unusable times [rows], by reason; the first reason counts."""
    low, high = COLUMNS["runtime_s"].low, COLUMNS["runtime_s"].high
    outside = (runtime_s < low) | (runtime_s > high)
    return {
        "runtime_s is not a number": ~np.isfinite(runtime_s),
        "runtime_s is not above 0": ~(runtime_s > 0),
        f"runtime_s is outside {low:g} to {high:g} s": outside,
    }


def _runtime(table: pd.DataFrame) -> np.ndarray:
    """Seconds per row, from energy and power where none are stated, NaN where nothing tells."""
    stated, energy, power = (_optional(table, name) for name in ("runtime_s", "energy_j", "power_w"))
    empty = table["runtime_s"].isna().to_numpy() if "runtime_s" in table else True
    with np.errstate(all="ignore"):
        return np.where(empty & (energy > 0) & (power > 0), energy / power, stated)


def _power(
    table: pd.DataFrame, runtime: np.ndarray, hardware: Hardware | None, reject: Callable[[Any, str], None]
) -> np.ndarray:
    """Watts per row, from power or from energy over time, else NaN; impossible ones are rejected."""
    power, energy, unsure = (_optional(table, name) for name in ("power_w", "energy_j", "energy_u_rel"))
    for name, values in (("power_w", power), ("energy_j", energy), ("energy_u_rel", unsure)):
        stated = name in table and table[name].notna().to_numpy()
        reject(~np.isfinite(values) & stated, f"{name} is not a number")
    reject(power <= 0, "power_w is not above 0")
    reject(energy <= 0, "energy_j is not above 0: the counter wrapped or was read backwards")
    reject(unsure < 0, "energy_u_rel is below 0")
    with np.errstate(all="ignore"):  # rows without a time, which are rejected
        from_energy = energy / runtime
    power = np.where(np.isfinite(power), power, from_energy)
    limits = COLUMNS["power_w"]
    highest = (hardware.limit_w if hardware is not None else None) or limits.high
    reject(power < limits.low, f"less than {limits.low:g} W, which no device draws")
    reject(power > ABOVE_LIMIT * highest, "more power than the device can draw")
    reject(from_energy > ABOVE_LIMIT * highest, "more energy than the device can draw in the time")
    return power


def _spread(table: pd.DataFrame) -> np.ndarray:
    """Relative standard deviation of each row's time, [rows], by its repeats or by its samples' quartiles."""
    stated, low, high = (_optional(table, f"runtime_{name}") for name in ("spread", "q25_s", "q75_s"))
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(stated), stated, (high / low - 1) / QUARTILES)


def _words(values: pd.Series, default: str) -> np.ndarray:
    """A column as text without spaces around it, `default` where it holds nothing."""
    words = values.astype(object).to_numpy(copy=True)
    words[values.isna().to_numpy()] = default
    return np.array([str(word).strip() for word in words], dtype=object)


def _optional(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column of numbers that a table may leave out, [rows], NaN where it holds nothing."""
    return number_column(table[column]) if column in table else np.full(len(table), np.nan)


class Refusal(NamedTuple):
    """Rows of one table that are refused for like reasons."""

    table: str
    rows: int
    reason: str  # the first row's; reasons that differ in a value alone are alike
    lines: str  # the first lines that they stand on


def refusals(rejected: Sequence[Rejected]) -> Iterator[Refusal]:
    """Refused rows by table and reason."""
    found: dict[tuple[str, str], list[Rejected]] = {}
    for row in rejected:
        table = f"{row.dataset}: {row.kind}" if row.dataset else row.kind
        found.setdefault((table, without_values(row.reason)), []).append(row)
    for (table, _), rows in found.items():
        lines = sorted(row.line for row in rows)
        others = len({row.reason for row in rows}) - 1
        reason = f"{rows[0].reason}{f' (and {others} values like it)' if others else ''}"
        shown = ", ".join(map(str, lines[:MOST_LINES])) + (", ..." if len(lines) > MOST_LINES else "")
        yield Refusal(table, len(rows), reason, shown)


def summarised(rejected: Sequence[Rejected]) -> Iterator[str]:
    """One line for rows rejected for like reasons: their number, the reason, and their first lines."""
    for one in refusals(rejected):
        yield f"{one.table}: {one.rows} skipped, {one.reason} (line {one.lines})"


def without_values(reason: str) -> str:
    """A reason without the values that it quotes, and without what it proposes for them."""
    return re.sub(r"(?<![A-Za-z])'.*?'(?![A-Za-z])", "''", reason).partition(": did you mean")[0]


# ---- Repeated measurements of one configuration as one row ----


COUNT, SPREAD = "repeats", "runtime_spread"  # columns of a table whose rows are such means
FAR = 2.0  # times the median of its configuration: such a row is an error, which no mean may hide


def averaged(rows: Rows) -> Rows:
    """One row for each configuration, at the line of its first.

    Times, powers and slow-downs are means; `repeats` counts the rows behind one, and `spread` is the standard
    deviation of their times over their mean. A row FAR from the median of its configuration stays alone: fits
    find whether it contradicts its neighbours.
    """
    import pandas as pd

    from neuralpower.layers.columns import fingerprint

    config = fingerprint(rows.layer)
    if len(np.unique(config)) == len(rows):
        return rows
    octaves = pd.Series(np.log2(rows.runtime_s))
    median = octaves.groupby(config).transform("median").to_numpy()
    far = np.abs(octaves.to_numpy() - median) > np.log2(FAR)
    label = np.where(far, np.arange(len(rows)), -1)
    _, first, group = np.unique(
        np.stack([config, label.astype(np.uint64)]), axis=1, return_index=True, return_inverse=True
    )
    group = group.ravel()
    order = np.argsort(first)  # of the groups, as they stand in the table
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    group, first = place[group], first[order]
    counts = np.bincount(group, weights=rows.repeats)
    mean_s = np.bincount(group, rows.runtime_s * rows.repeats) / counts
    apart = np.bincount(group, rows.repeats * (rows.runtime_s - mean_s[group]) ** 2)
    apart_s = np.sqrt(apart / np.maximum(counts - 1, 1))
    alone = np.bincount(group) == 1
    return dataclasses.replace(
        rows.at(first),
        rejected=rows.rejected,
        runtime_s=mean_s,
        repeats=counts,
        spread=np.where(alone, rows.spread[first], apart_s / mean_s),
        slowdown=_means(rows.slowdown, group),
        power_w=_means(rows.power_w, group),
        energy_u_rel=_means(rows.energy_u_rel, group),
        dispatch_s=_means(rows.dispatch_s, group),
    )


def _means(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The mean of each group's known values, [groups]; NaN where none is known."""
    known = np.isfinite(values)
    counts = np.bincount(group, known)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(group, np.where(known, values, 0.0)) / np.where(counts, counts, np.nan))
