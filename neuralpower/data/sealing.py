"""A collection's journal becomes Parquet tables."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.errors import DatasetError, first_line, unwritten
from neuralpower.files.atomic import force
from neuralpower.files.paths import check_regular

if TYPE_CHECKING:
    import pandas as pd

from neuralpower.data.dataset import read_folder, results
from neuralpower.data.schema import SHORT, WHOLE


def kept_rows(
    folder: Path, columns: Sequence[str] | None = None, ids: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of a collection's results, of tables first, then of the journal; needs no torch.

    Some columns or all; some configurations or all. What is not known is None. Raises DatasetError.
    """
    for file in folder.glob("*.parquet"):
        import pyarrow.parquet  # a fifth of a second, which a collection without tables can do without

        check_regular(file, DatasetError)
        try:
            names = pyarrow.parquet.read_schema(file).names
            if "config_id" not in names:
                continue  # somebody's own measurements
            wanted = [name for name in names if columns is None or name in columns]
            chosen = None if ids is None else [("config_id", "in", list(ids))]
            table = pyarrow.parquet.read_table(file, columns=wanted, filters=chosen)
        except Exception as error:  # pyarrow has its own errors
            text = f"{file}: cannot be read ({first_line(error)}); remove it, or correct it"
            raise DatasetError(text) from None
        yield from ((file.stem, row) for row in table.to_pylist() if row["config_id"] is not None)
    yield from ((kind, row) for kind, row in results(folder) if ids is None or row.get("config_id") in ids)


def seal(folder: Path) -> dict[str, int]:
    """Turn the journal into tables, added to the rows that are there, and keep it compressed; rows per kind.

    Raises DatasetError where tables cannot be read or written, DeviceError where the disk is full; the
    journal then stays as it is.
    """
    try:
        return _sealed(folder)
    except (OSError, ValueError, TypeError) as error:  # the last two by pyarrow: two types in a column
        text = (
            f"{folder}: the tables cannot be written ({first_line(error)}); the journal holds everything "
            "that was measured; correct that and run the same command again"
        )
        raise unwritten(error, text, DatasetError) from None
    finally:
        for left in folder.glob("*.new"):  # by this run or a killed one: whoever seals is the only writer
            with contextlib.suppress(OSError):
                left.unlink()


def _compact(table: pd.DataFrame) -> pd.DataFrame:
    """A table in the types that it is written in."""
    columns: dict[str, Any] = {}
    for name in table.columns[table.dtypes == np.float64]:
        values = table[name]
        if name in SHORT:
            columns[name] = values.astype(np.float32)
        elif name in WHOLE and (values.dropna() % 1 == 0).all():
            columns[name] = values.astype("Int64")
    if "samples_s" in table:
        samples = table["samples_s"]
        columns["samples_s"] = [np.asarray(v, dtype=np.float32) if np.ndim(v) else None for v in samples]
    return table.assign(**columns)


def _sealed(folder: Path) -> dict[str, int]:
    import pandas as pd

    dataset = read_folder(folder, samples=True, empty=True)
    counts: dict[str, int] = {}
    for kind, table in dataset.tables.items():
        table = _compact(table)
        new = folder / f"{kind}.parquet.new"
        table.to_parquet(new, index=False, compression="zstd")
        if len(pd.read_parquet(new, columns=["runtime_s"])) != len(table):
            raise DatasetError(f"{new}: was read back with another number of rows; the journal is untouched")
        force(new)
        counts[kind] = len(table)
    for kind in counts:
        (folder / f"{kind}.parquet.new").replace(folder / f"{kind}.parquet")
        (folder / f"{kind}.csv").unlink(missing_ok=True)
    force(folder)  # the tables' names, too: what they were made from goes next
    journal = folder / "journal.jsonl"
    if journal.exists():
        kept, new = folder / "journal.jsonl.gz", folder / "journal.jsonl.gz.new"
        new.write_bytes(kept.read_bytes() if kept.exists() else b"")
        with journal.open("rb") as source, gzip.open(new, "ab") as target:
            shutil.copyfileobj(source, target)
        force(new)
        new.replace(kept)
        force(folder)
        journal.unlink()
    return counts
