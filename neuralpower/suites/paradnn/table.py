"""The tables of sweeps: ParaDnn's CSV, which other programs read, and a frame of several devices to analyse.

`#params` is Phi, the base of the paper's FLOP, for fully connected networks, and all parameters for others.
`duration` is in seconds, `tflops` in 10^12 FLOP/s (1 multiply-add = 2 FLOP).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from neuralpower.dtypes import DTYPES
from neuralpower.errors import DatasetError
from neuralpower.files.csv_files import csv_text as csv_text_of
from neuralpower.files.paths import check_regular
from neuralpower.suites.paradnn.points import FAMILIES, family_named
from neuralpower.suites.paradnn.result import SHORT, Result, State

SIZES = {
    "fc": "layers nodes batch_size input_size output_size",
    "cnn": "block blocks filters batch_size input_size output_size",
    "rnn": "cell layers embed length vocabulary batch_size",
}
HEADERS = {name: f"device input_type {s} #params duration tflops".split() for name, s in SIZES.items()}
LONG = {short: name for name, short in SHORT.items()}
KNOWN = ("parameters", "step_flops", "step_s", "flops_per_s", "intensity", "coverage", "state")


def row_of(result: Result) -> list[str]:
    """A line of the CSV; raises DatasetError for a result without a time."""
    if result.flops_per_s is None or result.duration_s is None:
        raise DatasetError(f"{result.point.label}: {result.state}; only points with a time belong in a table")
    family = family_named(result.point.family)
    cells: dict[str, object] = {
        **result.point.named,
        family.selects: result.point.kind,
        "device": result.machine,
        "input_type": SHORT[result.setup.dtype],
        "#params": result.parameters if result.phi is None else result.phi,
        "duration": f"{result.duration_s:.6g}",
        "tflops": f"{result.flops_per_s / 1e12:.6g}",
    }
    return [str(cells[name]) for name in HEADERS[family.name]]


def csv_text(family: str, results: Iterable[Result]) -> str:
    """The table of all points with a time."""
    return csv_text_of([HEADERS[family], *(row_of(r) for r in results if r.flops_per_s is not None)])


def read_csv(path: Path) -> tuple[str, list[list[str]]]:
    """(family, rows) of a table; commas can have spaces after them. Raises DatasetError for another file."""
    check_regular(path, DatasetError)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")), skipinitialspace=True))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); give a CSV of `neuralpower paradnn`") from None
    header, *rows = [[cell.strip() for cell in line] for line in lines if line] or [[]]
    family = next((name for name, known in HEADERS.items() if known == header), None)
    if family is None:
        fc = ",".join(HEADERS["fc"])
        raise DatasetError(f"{path}: its header is {','.join(header)!r}; it must be {fc!r} or alike")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            cells = f"row {number} has {len(row)} cells, the header {len(header)}"
            raise DatasetError(f"{path}: {cells}; correct or remove it")
    return family, rows


def merged(tables: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Join tables; of rows with the same device, type and sizes, the last counts. Raises DatasetError."""
    kept: dict[tuple[str, ...], Sequence[str]] = {}
    families = set()
    for family, rows in tables:
        families.add(family)
        kept.update({tuple(row[:-3]): row for row in rows})
    if len(families) != 1:
        found = " and ".join(sorted(families)) or "nothing"
        raise DatasetError(f"tables of {found}: merge tables of one family")
    return csv_text_of([HEADERS[families.pop()], *kept.values()])


def frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per point, with the columns of `csv_frame`."""
    return pd.DataFrame(
        {
            "family": r.point.family,
            "kind": r.point.kind,
            "device": r.machine,
            "dtype": r.setup.arithmetic,
            **r.point.named,
            **{name: getattr(r, name) for name in KNOWN},
            "source": "predicted" if r.setup.predictor else "measured",
            "setup": f"{r.setup.mode}{' amp' if r.setup.amp else ''}",
        }
        for r in results
    )


def csv_frame(path: Path) -> pd.DataFrame:
    """A CSV as a frame; other programs' tables with another number of steps, too. Raises DatasetError."""
    family, rows = read_csv(path)
    table = pd.DataFrame(rows, columns=list(HEADERS[family]))
    try:
        sizes = {name: table[name].astype(int) for name in FAMILIES[family].words}
        numbers = {name: table[name].astype(float) for name in ("#params", "tflops", "duration")}
    except ValueError as error:
        rule = "sizes are whole numbers, the last three columns numbers"
        raise DatasetError(f"{path}: {error}; {rule}") from None
    dtype = table["input_type"].map(LONG)
    itemsize = dtype.map({name: dtype.itemsize for name, dtype in DTYPES.items()})
    return pd.DataFrame(
        {
            "family": family,
            "kind": table.get(FAMILIES[family].selects, ""),
            "device": table["device"],
            "dtype": dtype,
            **sizes,
            "parameters": numbers["#params"],
            "duration_s": numbers["duration"],
            "flops_per_s": numbers["tflops"] * 1e12,
            "intensity": 6 * sizes["batch_size"] / itemsize if family == "fc" else float("nan"),
            "state": State.OK,
            "source": "measured",
            "setup": "csv",
        }
    )
