"""Your own tables on their way into a dataset: a folder to fill in; tables read, mapped, written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.columns import COLUMNS, mapped
from neuralpower.data.dataset import Dataset
from neuralpower.data.schema import HARDWARE, NUMBERS, read_meta, write_meta
from neuralpower.data.screening import COUNT, SPREAD, Rows, instead_of, missing_columns
from neuralpower.data.tables import read_table
from neuralpower.errors import DatasetError, unknown, writing
from neuralpower.files.atomic import replace_file
from neuralpower.files.csv_files import csv_text, write_csv
from neuralpower.files.paths import is_file

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.devices.spec import DeviceSpec
    from neuralpower.layers import Layer

NETWORK_COLUMNS = ("model", "batch")
READ = (".csv", ".parquet")


def read_file(file: Path, kind: str | None, columns: Mapping[str, str], device: str | None = None) -> Dataset:
    """A dataset of one table, with `columns` computed from its own; the device is `device` or the folder's.

    Raises:
        DatasetError: no table, no kind that its columns fit, or columns are missing.
        InputError: an expression that cannot be computed.
    """
    if file.suffix not in READ:
        raise DatasetError(f"{file}: is not a table; give a .csv or .parquet file, or a dataset folder")
    known = _known_kinds()
    if kind is not None and kind not in known:
        raise unknown("layer kind", kind, known, DatasetError)
    table = read_table(file, kind or file.stem, samples=False)
    kind = kind or (file.stem if file.stem in known else None)
    if kind is None:
        kind = guessed([*map(str, table.columns), *columns], file)
    table = mapped(table, columns, words_of(kind))
    missing = missing_columns(needed_by(kind), table)
    if missing:
        found = ", ".join(missing)
        check = f"{file} --kind {kind}"
        raise DatasetError(
            f"{file}: column{'s' * (len(missing) > 1)} {found} missing; a {kind} table needs "
            f"{', '.join(needed_by(kind))} and runtime_s{instead_of(table.columns, missing, check)}"
        )
    meta: Mapping[str, Any] = {"device": device or "unnamed device"}
    if is_file(file.parent / "dataset.json"):
        meta = {**read_meta(file.parent), **({"device": device} if device else {})}
    return Dataset(file, meta, {kind: table})


def with_columns(dataset: Dataset, columns: Mapping[str, str], kind: str | None = None) -> Dataset:
    """A dataset with `columns` computed in all its tables, or in that of one kind; raises as `read_file`."""
    if kind is not None and kind not in dataset.tables:
        raise unknown(f"table in {dataset.path}", kind, dataset.tables, DatasetError)
    tables = {name: table for name, table in dataset.tables.items() if kind in (None, name)}
    return dataclasses.replace(
        dataset, tables={name: mapped(table, columns, words_of(name)) for name, table in tables.items()}
    )


def guessed(columns: Sequence[str], file: Path) -> str:
    """The kind whose fields a table has; raises DatasetError where none or several may be meant."""
    fits = [kind for kind in _known_kinds() if set(needed_by(kind)) <= set(columns)]
    most = max((len(needed_by(kind)) for kind in fits), default=0)
    best = [kind for kind in fits if len(needed_by(kind)) == most]
    if len(best) == 1:
        return best[0]
    maybe = f"; its columns fit {', '.join(best)}" if best else ""
    raise DatasetError(
        f"{file}: its name is not a layer kind{maybe}; add --kind, such as --kind {(*best, 'linear')[0]}"
    )


def needed_by(kind: str) -> tuple[str, ...]:
    """The columns that a kind's table must have, besides runtime_s."""
    from neuralpower.layers import KINDS
    from neuralpower.layers.rows import defaults, field_names

    if kind == "network":
        return NETWORK_COLUMNS
    usual = defaults(KINDS[kind])
    return tuple(name for name in field_names(KINDS[kind]) if name not in usual)


def words_of(kind: str) -> tuple[str, ...]:
    """The columns of a kind that hold words or truths rather than numbers."""
    from neuralpower.layers import KINDS

    if kind == "network":
        return ("model", "input", "dtype", "phase", "status", "layers")
    texts = [field.name for field in dataclasses.fields(KINDS[kind]) if field.type in ("str", "bool")]
    return (*texts, "status")


def write_tables(out: Path, meta: Mapping[str, Any], tables: Mapping[str, Rows | pd.DataFrame]) -> list[Path]:
    """Write tables of usable rows, and `dataset.json` where the folder has none; the files' paths.

    Raises DatasetError: a table is there already, the folder is of another device, or cannot be written.
    """
    files = {kind: out / f"{kind}.csv" for kind in tables}
    if is_file(out / "dataset.json"):
        there = read_meta(out)["device"]
        if there != meta["device"]:
            raise DatasetError(
                f"{out}: is for {there}, but the rows are of {meta['device']}; choose another --out"
            )
    for file in files.values():
        if file.exists() or file.with_suffix(".parquet").exists():
            raise DatasetError(f"{file}: exists already; choose another --out")
    with writing(out, "--out", DatasetError):
        out.mkdir(parents=True, exist_ok=True)
        if not is_file(out / "dataset.json"):
            write_meta(out, {name: value for name, value in meta.items() if name != "schema"})
    for kind, rows in tables.items():
        write_csv(files[kind], _cells(rows) if isinstance(rows, Rows) else _frame_cells(rows))
    return [*files.values()]


def _cells(rows: Rows) -> Iterator[Sequence[Any]]:
    """A header, then a line for each row: the fields that differ from their defaults, times and powers."""
    from neuralpower.layers.rows import defaults

    layer, count = rows.layer, len(rows)
    usual = defaults(type(layer))
    columns: dict[str, Sequence[Any]] = {}
    for field in dataclasses.fields(layer):
        values = np.broadcast_to(np.asarray(getattr(layer, field.name)), (count,))
        if field.name not in usual or field.name == "dtype" or (values != usual[field.name]).any():
            columns[field.name] = [_plain(value, str(field.type)) for value in values.tolist()]
    figures = {
        "runtime_s": rows.runtime_s,
        "power_w": rows.power_w,
        "energy_u_rel": rows.energy_u_rel,
        "dispatch_s": rows.dispatch_s,
        SPREAD: rows.spread,
    }
    for name, numbers in figures.items():
        if np.isfinite(numbers).any():
            columns[name] = ["" if number != number else number for number in numbers.tolist()]
    if (rows.repeats > 1).any():
        columns[COUNT] = [int(number) for number in rows.repeats]
    yield list(columns)
    yield from zip(*columns.values(), strict=True)


def _frame_cells(table: pd.DataFrame) -> Iterator[Sequence[Any]]:
    yield list(table.columns)
    filled = table.dropna(how="all").astype(object)
    yield from filled.where(filled.notna(), "").itertuples(index=False, name=None)


def _plain(value: Any, declared: str = "") -> Any:
    """A field's value as people write it."""
    if declared == "bool" or isinstance(value, bool):
        return "true" if value else "false"
    return int(value) if declared == "int" else value


def _known_kinds() -> list[str]:
    from neuralpower.layers import KINDS

    return [*KINDS, "network"]


# ---- A dataset folder to fill in ----


EXAMPLES = 2
EXAMPLE = "example"  # the status of a row that shows how to write one: no training sees it
# Times of the examples: those of a device that reaches 1 TFLOP/s and 100 GB/s, after a launch of 5 us.
FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 1e12, 1e11, 5e-6
MOST_WORDS = 12  # of a field that the header lists
NETWORK_ROWS = (
    ("zoo:resnet18", 8, '{"input_shape": [3, 224, 224]}', "float32", 0.021, EXAMPLE),
    ("transformers:bert", 1, '{"seq_len": 128}', "float32", 0.034, EXAMPLE),
)
README = """# Dataset of {device}

1. Replace the two example rows of each table. Rows whose status is `example` are never used.
2. Write what you know of the device into `dataset.json`; leave `null` for what you do not know.
   Peaks are FLOP/s by dtype, such as `"peak_flops_per_s": {{"float32": 8.1e12}}`.
3. Check: `neuralpower dataset check {folder}`
4. Train: `neuralpower train-predictor {folder} --out models/mine.json`

Units are SI: seconds, watts, joules, bytes. Lines of a table that begin with `#` are comments.
Ten different configurations of a kind are the fewest; some hundred are better.
"""


def write_templates(
    folder: Path, kinds: Sequence[str], device: str, sheet: DeviceSpec | None = None
) -> list[Path]:
    """Write the folder's files and give their paths.

    A folder that is a dataset already keeps its `dataset.json` and README, and gets the tables it lacks.

    Args:
        folder: the folder.
        kinds: of its tables.
        device: its name.
        sheet: a user's own, whose numbers go into `dataset.json`.

    Raises:
        DatasetError: an unknown kind, a table that is there, or a folder that cannot be written.
    """
    from neuralpower.layers import KINDS

    for kind in kinds:
        if kind not in (*KINDS, "network"):
            raise unknown("layer kind", kind, [*KINDS, "network"], DatasetError)
        if (folder / f"{kind}.csv").exists():
            text = "exists already; choose another folder, or another --kind"
            raise DatasetError(f"{folder / f'{kind}.csv'}: {text}")
    files = []
    with writing(folder, "folder", DatasetError):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "dataset.json").exists():
        write_meta(folder, _meta(device, sheet))
        replace_file(folder / "README.md", README.format(device=device, folder=folder))
        files += [folder / "dataset.json", folder / "README.md"]
    for kind in kinds:
        replace_file(folder / f"{kind}.csv", template(kind))
        files.append(folder / f"{kind}.csv")
    return files


def _meta(device: str, sheet: DeviceSpec | None) -> dict[str, Any]:
    """`dataset.json`, with nulls to fill in unless the device's spec sheet is known."""
    from neuralpower.devices.spec import known_spec

    if sheet is not None:
        numbers = {name: one.value for name, one in sheet.values.items() if name in NUMBERS}
        known = {"platform": sheet.platform, "peak_flops_per_s": dict(sheet.peak_flops), **numbers}
        return {"device": device, "hardware": known}
    if known_spec(device) is not None:
        return {"device": device}
    return {"device": device, "source": None, "hardware": dict.fromkeys(HARDWARE)}


def template(kind: str) -> str:
    """A CSV table: comments that explain the columns, a header, and two example rows."""
    from neuralpower.layers import KINDS

    header, rows, fields = (
        (["model", "batch", "input", "dtype", "runtime_s", "status"], NETWORK_ROWS, NETWORK_FIELDS)
        if kind == "network"
        else _example(KINDS[kind])
    )
    comments = [
        f"{kind}: one row per measurement. Lines that begin with # are comments.",
        *(f"  {name}: {text}" for name, text in fields.items()),
        "The two rows below are examples; replace them. Rows with status example are never used.",
    ]
    return "".join(f"# {line}\n" for line in comments) + csv_text([header, *rows])


NETWORK_FIELDS: Mapping[str, str] = {
    "model": "a name as `neuralpower predict` takes it",
    "batch": "samples",
    "input": 'JSON such as {"seq_len": 128} or {"input_shape": [3, 224, 224]}; may be empty',
    "dtype": "such as float32",
    "runtime_s": "seconds of one pass",
    "status": COLUMNS["status"].help,
}


def _example(kind: type[Layer]) -> tuple[list[str], list[list[Any]], dict[str, str]]:
    """(Header, two rows, what each column holds) of a layer kind."""
    from neuralpower.layers import Draw
    from neuralpower.layers.rows import defaults, field_names, to_row

    usual = defaults(kind)
    needed = [name for name in field_names(kind) if name not in usual]
    header = [*needed, "runtime_s", "power_w", "dtype", "phase", "status"]
    rows: list[list[Any]] = []
    for seed in range(EXAMPLES):
        layer = kind.sample(Draw(f"template {seed}"))
        seconds = LAUNCH_S + layer.flops() / FLOPS_PER_S + sum(layer.bytes()) / BYTES_PER_S
        row = {name: _plain(value) for name, value in to_row(layer).items()}
        row |= {"runtime_s": f"{seconds:.3g}", "power_w": "", "status": EXAMPLE}
        rows.append([row[name] for name in header])
    more = ", ".join(f"{name}={_plain(value)}" for name, value in usual.items() if name not in header)
    return (
        header,
        rows,
        {
            **{name: _rule(kind, name) for name in needed},
            **{name: COLUMNS[name].help for name in ("runtime_s", "power_w", "dtype", "phase", "status")},
            "more columns": f"optional; by default {more}",
        },
    )


def _rule(kind: type[Layer], name: str) -> str:
    declared = {field.name: field.type for field in dataclasses.fields(kind)}
    if name in kind.words:
        words = sorted(kind.words[name])
        return f"one of {', '.join(words[:MOST_WORDS])}{', ...' if len(words) > MOST_WORDS else ''}"
    return "true or false" if declared[name] == "bool" else "a whole number"
