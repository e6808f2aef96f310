"""The tables of sweeps: ParaDnn's CSV, which other programs read, and one frame of several devices to analyse.

`#params` of fully connected networks is Phi, which the paper's FLOP are made of; of the others all parameters. `duration` is
in seconds, `tflops` in 10^12 FLOP/s (1 multiply-add = 2 FLOP).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from neuralpower.dtypes import DTYPES, TENSORFLOAT32
from neuralpower.errors import DatasetError
from neuralpower.files.csv_files import csv_text as csv_text_of
from neuralpower.files.paths import check_regular
from neuralpower.suites.paradnn.points import FAMILIES, family_named
from neuralpower.suites.paradnn.result import OK, SHORT, Result

FC_SIZES = ("layers", "nodes", "batch_size", "input_size", "output_size")
SIZES = {
    "fc": FC_SIZES,
    "cnn": ("block", "blocks", "filters", "batch_size", "input_size", "output_size"),
    "rnn": ("cell", "layers", "embed", "length", "vocabulary", "batch_size"),
}
HEADERS = {
    family: ("device", "input_type", *sizes, "#params", "duration", "tflops")
    for family, sizes in SIZES.items()
}
LONG = {short: name for name, short in SHORT.items()}
ITEMSIZE = {name: dtype.itemsize for name, dtype in DTYPES.items()}


def row_of(result: Result) -> list[str]:
    """A line of the CSV; raises DatasetError for a result without a time."""
    if result.flops_per_s is None or result.duration_s is None:
        raise DatasetError(f"{result.point.label}: {result.state}; only what has a time stands in a table")
    selects = family_named(result.point.family).selects
    sizes: dict[str, object] = {**result.point.named, selects: result.point.kind}
    parameters = result.parameters if result.phi is None else result.phi
    figures = (f"{result.duration_s:.6g}", f"{result.flops_per_s / 1e12:.6g}")
    chosen = [str(sizes[name]) for name in SIZES[result.point.family]]
    return [result.machine, SHORT[result.setup.dtype], *chosen, str(parameters), *figures]


def csv_line(cells: Sequence[str]) -> str:
    """Cells with commas between them, quoted where they hold one."""
    return csv_text_of([cells]).removesuffix("\n")


def csv_text(family: str, results: Iterable[Result]) -> str:
    """The whole table of what has a time."""
    return csv_text_of([HEADERS[family], *(row_of(r) for r in results if r.flops_per_s is not None)])


def read_csv(path: Path) -> tuple[str, list[list[str]]]:
    """(family, rows) of a table; blanks after commas do not count.

    Raises:
        DatasetError: it cannot be read, its header is of no family, or a row has another number of cells.
    """
    check_regular(path, DatasetError)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")), skipinitialspace=True))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); give a CSV of `neuralpower paradnn`") from None
    rows = [[cell.strip() for cell in line] for line in lines if line]
    header = tuple(rows[0]) if rows else ()
    family = next((name for name, known in HEADERS.items() if known == header), None)
    if family is None:
        fc = ",".join(HEADERS["fc"])
        raise DatasetError(f"{path}: its header is {','.join(header)!r}; it must be {fc!r} or alike")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            cells = f"row {number} has {len(row)} cells, the header {len(header)}"
            raise DatasetError(f"{path}: {cells}; mend or remove it")
    return family, rows[1:]


def merged(tables: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """One table of several; of two rows with the same device, type and sizes the later counts. Raises DatasetError."""
    kept: dict[tuple[str, ...], Sequence[str]] = {}
    families = set()
    for family, rows in tables:
        families.add(family)
        kept.update({tuple(row[: 2 + len(SIZES[family])]): row for row in rows})
    if len(families) != 1:
        raise DatasetError(
            f"tables of {' and '.join(sorted(families)) or 'nothing'}: merge those of one family"
        )
    return csv_text_of([HEADERS[families.pop()], *kept.values()])


def frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per point, columns as `csv_frame` has them."""
    return pd.DataFrame(
        {
            "family": r.point.family,
            "kind": r.point.kind,
            "device": r.machine,
            "dtype": TENSORFLOAT32 if r.setup.tf32 else r.setup.dtype,
            **r.point.named,
            "parameters": r.parameters,
            "step_flops": r.step_flops,
            "step_s": r.step_s,
            "flops_per_s": r.flops_per_s,
            "intensity": r.intensity,
            "coverage": r.coverage,
            "state": r.state,
            "source": "predicted" if r.setup.predictor else "measured",
            "setup": f"{r.setup.mode}{' amp' if r.setup.amp else ''}",
        }
        for r in results
    )


def csv_frame(path: Path) -> pd.DataFrame:
    """A CSV, perhaps of another program, as a frame: times are those of its own number of steps; raises DatasetError."""
    family, rows = read_csv(path)
    selects = FAMILIES[family].selects
    table = pd.DataFrame(rows, columns=list(HEADERS[family]))
    try:
        sizes = {name: table[name].astype(int) for name in FAMILIES[family].words}
        parameters = table["#params"].astype(float)
        flops_per_s = table["tflops"].astype(float) * 1e12
        seconds = table["duration"].astype(float)
        dtype = table["input_type"].map(LONG)
    except ValueError as error:
        raise DatasetError(
            f"{path}: {error}; sizes are whole numbers, the last three columns numbers"
        ) from None
    return pd.DataFrame(
        {
            "family": family,
            "kind": table.get(selects, ""),
            "device": table["device"],
            "dtype": dtype,
            **sizes,
            "parameters": parameters,
            "duration_s": seconds,
            "flops_per_s": flops_per_s,
            "intensity": 6 * sizes["batch_size"] / dtype.map(ITEMSIZE) if family == "fc" else float("nan"),
            "state": OK,
            "source": "measured",
            "setup": "csv",
        }
    )
