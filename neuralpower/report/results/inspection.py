"""The content of a dataset, its refused rows with a fix, and its kinds with too few rows to train."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.data.importing import EXAMPLE, read_file, with_columns, write_tables
from neuralpower.data.schema import FEWEST_ROWS, named
from neuralpower.data.screening import Rejected, Rows, averaged, metered, refusals, screen
from neuralpower.errors import InputError
from neuralpower.files.json_files import Declared
from neuralpower.files.paths import is_file
from neuralpower.layers import Hardware
from neuralpower.layers.columns import fingerprint
from neuralpower.learn.keys import Key, key_name, recurs, stands_alone
from neuralpower.learn.networks.network_rows import read_totals
from neuralpower.learn.rows import USABLE_POWER, by_key, hardware_from
from neuralpower.platforms import platform_of
from neuralpower.report.grid import listed
from neuralpower.report.number_format import counted, quantity

MOST_NAMED = 8  # groups with too few rows
WAYS = {  # part of the reason for which rows are refused -> the fix
    "runtime_s is not a number": "write seconds without a unit, such as 0.0015",
    "runtime_s is not above 0": "delete the row, or measure it again",
    "runtime_s is outside": "give seconds: --map runtime_s=runtime_s/1000 if they are milliseconds",
    "faster than the device's peak": "check the unit of runtime_s, and the peaks in dataset.json",
    "FLOP/s": "check the unit of runtime_s, and the sizes",
    "no kernel ran": "check the unit of runtime_s, or delete the row",
    "did you mean": "use one of these spellings",
    "unknown": "use one of the documented spellings (docs/datasets.md)",
    "whole number": "write a size such as 64; 0 is allowed for a part that is absent",
    "true nor false": "write true or false",
    "is missing": "fill in the cell",
    "possible layer": "check the sizes: none may be 0",
    "status": "only rows with status ok are used; clear the cell to use the row",
    "power": "check the unit (watts), or clear the cell",
    "energy": "check the unit (joules), or clear the cell",
    " W, ": "check the unit (watts), or clear the cell",
    "repeats an earlier row": "nothing: the row counts once",
    "column `layers`": "give the layers of a step in column layers",
}
OTHERWISE = "correct the row, or delete it"


@dataclass(frozen=True)
class Table:
    """One kind's table after the checks."""

    kind: str
    given: int  # filled rows, without the examples of a template
    usable: int
    examples: int
    rejected: tuple[Rejected, ...]
    rows: Rows | None  # one for each configuration if repeats are averaged; None for whole networks
    groups: Mapping[Key, Rows]  # the rows on which each regressor would be trained

    @property
    def repeats(self) -> int:
        """The number of usable rows that are averaged into others."""
        return 0 if self.rows is None else self.usable - len(self.rows)


def read_tables(dataset: Dataset, trust_code: bool = False) -> list[Table]:
    """The tables of a dataset, checked row by row; raises DatasetError if columns are missing.

    Models of whole networks are traced; `trust_code` allows models that run code.
    """
    hardware = hardware_from(dataset.meta)
    tables = []
    for kind, table in sorted(dataset.tables.items()):
        with named(dataset.path):
            if kind == "network":
                totals, rejected = read_totals(table, hardware, trust_code=trust_code)
                tables.append(_table(kind, len(totals), tuple(rejected), None, {}))
                continue
            screened = screen(kind, table, dataset.sentinel_s, hardware)
        rows = screened if "config_id" in table else averaged(screened)
        groups = dict(by_key(kind, rows, platform_of(hardware).view(1)))
        tables.append(_table(kind, len(screened), screened.rejected, rows, groups))
    return tables


def _table(
    kind: str, usable: int, rejected: tuple[Rejected, ...], rows: Rows | None, groups: Mapping[Key, Rows]
) -> Table:
    refused = tuple(row for row in rejected if row.reason != f"status {EXAMPLE}")
    return Table(kind, usable + len(refused), usable, len(rejected) - len(refused), refused, rows, groups)


@dataclass(frozen=True)
class Check(Declared):
    """Tables of measured rows after the checks; `print` lists the refused rows with a fix."""

    in_json = "schema usable refused"

    tables: tuple[Table, ...]
    written: tuple[Path, ...] = ()  # files with the usable rows

    @property
    def usable(self) -> dict[str, int]:
        """Usable rows by kind."""
        return {table.kind: table.usable for table in self.tables}

    @property
    def refused(self) -> list[dict[str, Any]]:
        """Each refused row: kind, line, reason and fix."""
        return refused_json(self.tables)

    def __str__(self) -> str:
        """The lines of `neuralpower dataset check`."""
        return "\n".join(check_lines(self.tables))


def check(
    source: str | Path,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    device: str | None = None,
    out: Path | None = None,
    *,
    trust_code: bool = False,
) -> Check:
    """A dataset or one file, checked row by row; usable rows are written to the folder `out`.

    Raises:
        InputError: a device for a dataset that names one; none for a file whose rows are to be written.
        DatasetError: a source that cannot be read, or columns that are missing.
    """
    source = str(source)
    if is_file(source):
        dataset = read_file(Path(source), kind, columns or {}, device)
    elif device is not None:
        raise InputError(f"--device {device}: dataset.json in {source} names the device; leave it out")
    else:
        dataset = with_columns(read_dataset(source, samples=False), columns or {}, kind)
    if out is not None:
        _check_writable(dataset, source, device)
    tables = read_tables(dataset, trust_code)
    return Check(tuple(tables), () if out is None else tuple(_write(out, dataset, tables)))


def _check_writable(dataset: Dataset, source: str, device: str | None) -> None:
    """Raise InputError if the device is unnamed, or the folder is a collection, which merge copies."""
    if is_file(source) and device is None and not is_file(Path(source).parent / "dataset.json"):
        raise InputError("--out: which device was measured? Add --device, such as --device 'NVIDIA L40S'")
    if any("config_id" in table for table in dataset.tables.values()):
        text = "is a collection, whose rows cannot be changed"
        raise InputError(f"{source}: {text}; copy it with `neuralpower dataset merge {source} --out FOLDER`")


def _write(out: Path, dataset: Dataset, tables: Sequence[Table]) -> list[Path]:
    """Write the usable rows; for whole networks, all rows that are not refused."""
    usable: dict[str, Rows | pd.DataFrame] = {}
    for table in tables:
        if table.rows is not None:
            usable[table.kind] = table.rows
        else:
            refused = {row.line - 2 for row in table.rejected}
            given = dataset.tables[table.kind]
            usable[table.kind] = given[[i not in refused for i in range(len(given))]]
    return list(write_tables(out, dataset.meta, usable))


def check_lines(tables: Sequence[Table]) -> Iterator[str]:
    """The usable rows of each table, and the refused ones with a fix."""
    for table in tables:
        parts = [f"{table.kind}: {table.usable:,} of {counted(table.given, 'row')} usable"]
        if table.repeats and table.rows is not None:
            spread = _median(table.rows.spread[table.rows.repeats > 1])
            apart = "" if spread is None else f" (typical spread {100 * spread:.1f} %)"
            parts.append(f"{counted(len(table.rows), 'configuration')}: repeats are averaged{apart}")
        if table.examples:
            parts.append(f"{counted(table.examples, 'example row')} of the template skipped")
        yield "; ".join(parts)
        for one in refusals(table.rejected):
            place = f"line{'s' * (one.rows > 1)} {one.lines}"
            yield f"  {counted(one.rows, 'row')} refused, {place}: {one.reason}. Fix: {way_out(one.reason)}."
        if table.rows is not None:
            yield from (f"  {line}" for line in _power_line(table.rows))


def way_out(reason: str) -> str:
    """The fix for rows that are refused for a reason."""
    return next((way for part, way in WAYS.items() if part in reason), OTHERWISE)


def _power_line(rows: Rows) -> Iterator[str]:
    stated, usable = int(np.isfinite(rows.power_w).sum()), int(metered(rows).sum())
    if stated and usable < FEWEST_ROWS:
        yield f"power: {usable} of {stated} powers are usable, {FEWEST_ROWS} needed ({USABLE_POWER})"


def inspection(dataset: Dataset, tables: Sequence[Table]) -> str:
    """Device, time span, noise and power; rows by kind, dtype and phase; kinds with too few rows to train."""
    hardware = hardware_from(dataset.meta)
    layers = [table for table in tables if table.rows is not None]
    rows = [table.rows for table in layers if table.rows is not None]
    powers, count = sum(int(metered(one).sum()) for one in rows), sum(map(len, rows))
    spread = _median(np.concatenate([np.empty(0), *(one.spread for one in rows)]))
    refused = sum(len(table.rejected) for table in tables)
    lines = [
        f"{dataset.path}: {dataset.device} ({_known(hardware)})",
        f"measured: {_span(dataset.meta.get('sessions') or [])}",
        f"rows: {sum(table.usable for table in tables):,} usable, {refused:,} refused"
        + (" (reasons: neuralpower dataset check)" if refused else ""),
        "noise: " + ("not known" if spread is None else f"one measurement varies by {100 * spread:.1f} %"),
        f"power: usable in {powers:,} of {count:,} rows" if powers else "power: no usable row",
        "",
        listed([line for table in tables for line in _by_phase(table)], COLUMNS, left=3),
    ]
    few = list(too_few(layers))
    if few:
        named_ones = ", ".join(f"{name} {rows}" for name, rows in few[:MOST_NAMED])
        more = f", and {len(few) - MOST_NAMED} more" if len(few) > MOST_NAMED else ""
        lines.append(f"too little to train ({FEWEST_ROWS} configurations needed): {named_ones}{more}")
    return "\n".join(lines)


COLUMNS: Mapping[str, Any] = {
    "kind": lambda line: line["kind"],
    "dtype": lambda line: line["dtype"],
    "phase": lambda line: line["phase"],
    "rows": lambda line: f"{line['rows']:,}",
    "runtime": lambda line: (
        "-" if line["low_s"] is None else f"{quantity(line['low_s'], 's')} to {quantity(line['high_s'], 's')}"
    ),
    "spread": lambda line: "-" if line["spread"] is None else f"{100 * line['spread']:.1f} %",
    "power": lambda line: f"{line['powers']:,}" if line["powers"] else "-",
}


def _by_phase(table: Table) -> Iterator[dict[str, Any]]:
    """A line for each dtype and phase of a table; one for whole networks."""
    if table.rows is None:
        nothing = dict.fromkeys(("low_s", "high_s", "spread"))
        yield {"kind": table.kind, "dtype": "-", "phase": "-", "rows": table.usable, **nothing, "powers": 0}
        return
    dtypes, phases = (np.asarray(getattr(table.rows.layer, name), dtype=str) for name in ("dtype", "phase"))
    for dtype, phase in sorted(set(zip(dtypes.tolist(), phases.tolist(), strict=True))):
        rows = table.rows.at(np.flatnonzero((dtypes == dtype) & (phases == phase)))
        yield {
            "kind": table.kind,
            "dtype": dtype,
            "phase": phase,
            "rows": len(rows),
            "low_s": float(rows.runtime_s.min()),
            "high_s": float(rows.runtime_s.max()),
            "spread": _median(rows.spread),
            "powers": int(metered(rows).sum()),
        }


def too_few(tables: Sequence[Table]) -> Iterator[tuple[str, int]]:
    """(Name, configurations) of each group with too few, both alone and pooled with others of its kind."""
    counts = {
        key: len(np.unique(fingerprint(rows.layer))) for table in tables for key, rows in table.groups.items()
    }
    small = {key: count for key, count in counts.items() if count < FEWEST_ROWS}
    for key, count in small.items():
        beside = [n for other, n in small.items() if other[:3] == key[:3] and recurs(other) == recurs(key)]
        if stands_alone(key) or sum(beside) < FEWEST_ROWS:
            yield key_name(key), count


def inspection_json(dataset: Dataset, tables: Sequence[Table]) -> dict[str, Any]:
    """A dataset's rows, refused rows and kinds with too few of them; SI units and shares."""
    layers = [table for table in tables if table.rows is not None]
    return {
        "schema": 1,
        "dataset": str(dataset.path),
        "device": dataset.device,
        "sessions": len(dataset.meta.get("sessions") or []),
        "rows": [line for table in tables for line in _by_phase(table)],
        "refused": refused_json(tables),
        "too_few": [{"group": name, "configurations": count} for name, count in too_few(layers)],
    }


def refused_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Each refused row: kind, line, reason and way out."""
    return [
        {"kind": row.kind, "line": row.line, "reason": row.reason, "fix": way_out(row.reason)}
        for table in tables
        for row in table.rejected
    ]


def _known(hardware: Hardware) -> str:
    if hardware.peak_flops_per_s and hardware.memory_bytes_per_s > 1:
        return f"{hardware.platform}, peaks known"
    return f"{hardware.platform}, peaks unknown: impossible times cannot be detected; add hardware"


def _span(sessions: Sequence[Mapping[str, Any]]) -> str:
    days = sorted(str(session["utc"])[:10] for session in sessions if session.get("utc"))
    if not days or not re.fullmatch(r"\d{4}-\d\d-\d\d", days[0]):
        return "unknown time"
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{span}, {counted(len(sessions), 'session')}"


def _median(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
