"""One table of measurements, read from a CSV or Parquet file.

Lines of a CSV file that begin with `#` are comments. Blank lines and comments are no rows, yet they count as
lines, so a row keeps the line number that an editor shows.
"""

from __future__ import annotations

import codecs
import io
import itertools
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from neuralpower.data.columns import READ, is_samples
from neuralpower.data.screening import check_cells
from neuralpower.errors import DatasetError, first_line
from neuralpower.files.paths import check_regular

if TYPE_CHECKING:
    import pandas as pd

NETWORK = ("model", "batch", "input", "layers")  # columns of whole networks
# A table of 20 columns for each of our kinds' fields, and of more rows than all collections here together, is
# read. Wider and longer ones are mistakes, or made to fill the memory.
MOST_COLUMNS, MOST_ROWS = 2000, 20_000_000


def read_table(file: Path, kind: str, samples: bool = True) -> pd.DataFrame:
    """The rows of a file, all of one layer kind or "network"; without `samples` raw times stay unread.

    Raises DatasetError: no regular file, no table, or a column that stands twice.
    """
    check_regular(file, DatasetError)
    try:
        return _read_parquet(file, samples) if file.suffix == ".parquet" else read_csv(file, columns_of(kind))
    except Exception as error:  # each reader has its own errors
        text = f"{file}: cannot be read ({first_line(error)}); write it again, or remove it"
        raise DatasetError(text) from None


def columns_of(kind: str) -> tuple[str, ...]:
    """The columns that mean something in a kind's table, its own fields first."""
    from neuralpower.layers import KINDS
    from neuralpower.layers.rows import field_names

    return (*(field_names(KINDS[kind]) if kind in KINDS else NETWORK), *READ)


def read_csv(file: Path, known: tuple[str, ...] = ()) -> pd.DataFrame:
    """A table with a row for each line of the file, empty for blank ones and comments.

    `known`: columns that mean something. Raises ValueError, and what pandas and the system raise.
    """
    import pandas as pd

    data = without_comments(file.read_bytes())
    lines = data.splitlines()
    blank = sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), lines))
    header = next(itertools.islice(lines, blank, None), b"")
    if b"\0" in header:
        raise ValueError("it is not text: its first line holds a byte 0")
    _check_width(header.count(b",") + 1)
    try:
        with warnings.catch_warnings():
            # about the first row; a last comma is not a value
            warnings.simplefilter("error", pd.errors.ParserWarning)
            given = io.BytesIO(data)
            table = pd.read_csv(
                given, skipinitialspace=True, skip_blank_lines=False, skiprows=blank, index_col=False
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        line = re.search(r"fields in line (\d+)", str(error))
        if line or isinstance(error, Warning):
            where = line.group(1) if line else blank + 2
            raise ValueError(f"line {where} holds more values than line {blank + 1} names columns") from None
        raise
    if len(table.columns) == 1 and any(mark in table.columns[0] for mark in ";\t"):
        raise ValueError("its values must be separated by commas")
    table.columns = table.columns.str.strip()
    _check_names(table, known)
    return table.reindex(range(-blank, len(table))).reset_index(drop=True) if blank else table


def without_comments(data: bytes) -> bytes:
    """A CSV file's bytes with empty lines in place of those that begin with `#`, unless within quotes."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if b"#" not in data:
        return data
    lines, quoted = [], False
    for line in data.splitlines(keepends=True):
        if not quoted and line.lstrip().startswith(b"#"):
            line = b"\n"
        quoted ^= line.count(b'"') % 2 == 1
        lines.append(line)
    return b"".join(lines)


def _check_names(table: pd.DataFrame, known: tuple[str, ...]) -> None:
    """Raise ValueError for a known column that stands twice, or is spelled with capitals."""
    for name in known:
        if f"{name}.1" in table or list(table.columns).count(name) > 1:  # pandas calls the second name.1
            raise ValueError(f"column {name} is there twice")
        near = [other for other in table.columns if other != name and other.lower() == name]
        if near and name not in table:
            raise ValueError(f"column {near[0]} is written {name}")


def _read_parquet(file: Path, samples: bool) -> pd.DataFrame:
    """A table with or without the columns of raw times; raises ValueError, and what pyarrow raises."""
    import pandas as pd
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(file)
    _check_width(about.num_columns)
    if about.num_rows > MOST_ROWS:  # a few bytes can say that a value repeats a million million times
        raise ValueError(f"it has {about.num_rows:,} rows, more than the {MOST_ROWS:,} that are read")
    names = pyarrow.parquet.read_schema(file).names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"column {twice} is there twice")
    columns = None if samples else [name for name in names if not is_samples(name)]
    table = pd.read_parquet(file, columns=columns)
    if any(table.index.names):  # a column that pandas uses as the row index
        table = table.reset_index()
    coded = table.columns[[isinstance(kind, pd.CategoricalDtype) for kind in table.dtypes]]
    table = table.astype(dict.fromkeys(coded, object))
    check_cells((*NETWORK, *READ), table)
    return table


def _check_width(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, more than the {MOST_COLUMNS:,} that are read")
