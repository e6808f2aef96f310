"""Tables of networks that were measured elsewhere: read, with columns under the names used here."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.columns import COLUMNS as KNOWN
from neuralpower.data.columns import mapped, number_column, quantity_of
from neuralpower.data.screening import Rejected
from neuralpower.data.tables import read_csv
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError, first_line
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import check_regular

if TYPE_CHECKING:
    import pandas as pd

OTHER_NAMES = {
    "batch": "batch_size",
    "length": "seq_len",
    "name": "model",
    "network": "model",
    "gpu": "device",
    "precision": "dtype",
}
EXAMPLE = "model,batch_size,dtype,latency_ms"


def read_networks(file: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table, times in seconds, and what was assumed; imports no torch.

    Raises InputError: the file cannot be read, or lacks a column that is needed.
    """
    return _renamed(file, read_measured(file))


def read_measured(file: Path) -> pd.DataFrame:
    """The table as it stands in the file; raises InputError where it cannot be read."""
    check_regular(file)
    try:
        return read_csv(file)
    except Exception as error:  # pandas and the system have their own errors
        why = "it is a folder" if file.is_dir() else first_line(error)
        text = f"give a CSV file with columns such as {EXAMPLE}"
        raise InputError(f"{file}: cannot be read ({why}); {text}") from None


def _renamed(file: Path, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table under the names used here, times in seconds; raises InputError for a missing column."""
    notes = []
    names = {name: OTHER_NAMES[name] for name in table.columns if name in OTHER_NAMES}
    table = table.rename(columns={old: new for old, new in names.items() if new not in table})
    if "runtime_s" not in table:
        times = [meant for name in table.columns if (meant := quantity_of(str(name)))]
        time = next((meant for meant in times if meant.column == "runtime_s"), None)
        if time is not None:
            table = mapped(table, {"runtime_s": time.expression})
            plain = time.expression in (time.given, f'"{time.given}"')
            notes.append(f"{time.given} counts as {'seconds' if plain else f'runtime_s = {time.expression}'}")
    missing = [name for name in ("model", "runtime_s") if name not in table]
    if missing:
        units = ", ".join(
            f"latency_{unit}" for unit in ("s", "ms", "us") if unit in KNOWN["runtime_s"].scales
        )
        raise InputError(
            f"{file}: column {' and '.join(missing)} missing (times: runtime_s, or {units}); "
            f"write a header such as {EXAMPLE}"
        )
    return table, notes


# ---- Tables of networks that somebody timed on one GPU ----


WORDS = ("model", "dtype", "phase", "layout", "run", "device", "input")  # columns of text
COLUMNS = (*WORDS, "batch", "image", "runtime_s")
# What timm's benchmark.py and others call them.
NAMES = {
    "name": "model",
    "network": "model",
    "infer_batch_size": "batch",
    "batch_size": "batch",
    "infer_img_size": "image",
    "img_size": "image",
    "precision": "dtype",
    "gpu": "device",
}
STEPS_MS = ("infer_step_time", "step_ms")  # a step in milliseconds, as timm's benchmark.py writes it
RATES = ("infer_samples_per_sec", "samples_per_s", "samples_per_sec")
FORWARD = ("forward", "infer", "inference")
APART = 1.25  # times between two rows of one network, from which on they contradict each other


def read_own_networks(
    file: Path, columns: Mapping[str, str], slug: str
) -> tuple[list[dict[str, Any]], list[Rejected]]:
    """(The rows of a device's forward passes as of a dataset's `network` table, those that are skipped).

    `columns`: ours by expression of theirs, or theirs by name of ours. `slug`: the device; rows of others are
    skipped. A row's `line` is that of the file; rows of the same network become one, of their median time.

    Raises:
        InputError: the file cannot be read, or lacks a column that is needed.
    """
    table = _named(file, read_measured(file), columns)
    rejected: list[Rejected] = []
    kept: list[dict[str, Any]] = []
    for i, cells in enumerate(table.astype(object).where(table.notna(), None).to_dict("records")):
        row = {str(name): value for name, value in cells.items()}
        if all(value is None for value in row.values()):
            continue
        reason = _refused(row, slug)
        if reason:
            rejected.append(Rejected("network", i + 2, reason))
        else:
            kept.append({**row, "phase": None, "input": _input(row), "line": i + 2})
    merged, contradicting = _merged(kept)
    return merged, [*rejected, *contradicting]


def _named(file: Path, table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """The table under the names used here, times in seconds; raises InputError for a missing column."""
    theirs = {left: right for left, right in columns.items() if left not in COLUMNS and right in COLUMNS}
    table = table.rename(columns=theirs)
    table = mapped(table, {left: right for left, right in columns.items() if left not in theirs}, WORDS)
    table = table.rename(
        columns={old: new for old, new in NAMES.items() if old in table and new not in table}
    )
    rate = next((name for name in RATES if name in table), None)
    step = next((name for name in STEPS_MS if name in table), None)
    if "runtime_s" not in table and step is not None:
        table["runtime_s"] = number_column(table[step]) / 1e3
    elif "runtime_s" not in table and rate is not None and "batch" in table:
        table["runtime_s"] = number_column(table["batch"]) / number_column(table[rate])
    elif "runtime_s" not in table:
        meant = (quantity_of(str(name)) for name in table.columns)
        time = next((one for one in meant if one and one.column == "runtime_s"), None)
        table = table if time is None else mapped(table, {"runtime_s": time.expression})
    missing = [name for name in ("model", "batch", "runtime_s") if name not in table]
    if missing:
        raise InputError(
            f"{file}: column {' and '.join(missing)} missing; --map {missing[0]}=THEIRS names the column "
            "that holds it (a time in milliseconds: --map runtime_s=latency_ms/1000)"
        )
    if rate is not None or step is not None:  # timm's own, whose networks have its names
        table["model"] = table["model"].map(lambda name: name if ":" in str(name) else f"timm:{name}")
    table["runtime_s"] = number_column(table["runtime_s"])
    return table


def _refused(row: Mapping[str, Any], slug: str) -> str:
    """Why a row is skipped; "" where it is not."""
    phase, device = str(row.get("phase") or FORWARD[0]).strip().lower(), row.get("device")
    if phase not in FORWARD:
        return f"phase {phase}: only forward passes move factors"
    if device is not None and _slug(str(device)) != slug:
        return f"measured on {device}, not on {slug}"
    seconds = row["runtime_s"]
    if seconds is None or not 0 < seconds < np.inf:
        return f"runtime_s {'empty' if seconds is None else f'{seconds:g}'}: must be seconds above 0"
    return ""


@functools.cache
def _slug(device: str) -> str:
    """The name of a device's sheet; its own where there is none."""
    try:
        return find_spec(device).slug
    except InputError:
        return device


def _input(row: Mapping[str, Any]) -> str | None:
    """A dataset's cell of the sizes of an input, from `input` (JSON, or 3x224x224) or an image's side."""
    given, side = row.get("input"), row.get("image")
    if given is not None:
        text = str(given).strip()
        parts = text.split("x")
        sizes = all(part.isdigit() for part in parts)
        return json_text({"input_shape": [int(part) for part in parts]}) if sizes else text
    if side is None:
        return None
    number = float(side) if str(side).replace(".", "", 1).isdigit() else 0.0
    return json_text({"input_shape": [3, int(number), int(number)]})


def _merged(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Rejected]]:
    """(One row for each network and its sizes, rows of which two contradict each other)."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(str(row.get(name)) for name in ("model", "batch", "input", "dtype", "layout", "run"))
        alike.setdefault(key, []).append(row)
    kept, rejected = [], []
    for group in alike.values():
        times = [float(row["runtime_s"]) for row in group]
        if max(times) > APART * min(times):
            first, last = sorted(group[i]["line"] for i in (int(np.argmin(times)), int(np.argmax(times))))
            why = f"lines {first} and {last} are the same network in {min(times):.4g} and {max(times):.4g} s"
            rejected += [Rejected("network", row["line"], why) for row in group]
        else:
            kept.append({**group[0], "runtime_s": float(np.median(times))})
    return kept, rejected


def reasons(rejected: Sequence[Rejected]) -> Iterator[str]:
    """A line for each reason why rows are skipped, with how many have it."""
    counts: dict[str, list[int]] = {}
    for row in rejected:
        counts.setdefault(row.reason, []).append(row.line)
    for reason, lines in counts.items():
        where = f"line {lines[0]}" if len(lines) == 1 else f"{len(lines)} rows, line {lines[0]} first"
        yield f"skipped: {reason} ({where})"
