"""Measurements of one device: appended to a journal, sealed into one table per kind, read, screened.

    datasets/NAME/dataset.json          device, software, protocol, sessions
    datasets/NAME/journal.jsonl         one checksummed line per record, while a collection is under way
    datasets/NAME/KIND.parquet (.csv)   a row per measurement: the kind's fields, runtime_s, how it was taken
    datasets/NAME/shard-2-of-8/         the same again: a share of a collection, measured apart
    datasets/NAME/shard-003-fourth/     the same again: a collection that `neuralpower merge` put there

A user's own measurements need the same: `dataset.json` with a schema and a device name, and tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from neuralpower.data.dataset_format import LONGEST_S, ResultRecord
from neuralpower.data.journal import NAME, read_journal
from neuralpower.data.locations import fetched, is_remote
from neuralpower.data.schema import KEY, READ, SAMPLES, SHORTEST_S, named, read_meta
from neuralpower.data.screening import check_cells, number_column
from neuralpower.errors import DatasetError, first_line, unknown
from neuralpower.files.json_files import shown
from neuralpower.files.paths import check_regular

if TYPE_CHECKING:
    import pandas as pd


SHORTEST_REST = 0.1  # of a backward pass that is hardly longer than autograd's start

NETWORK = ("model", "batch", "input", "layers")  # columns of whole networks
# A table of 20 columns for each of our kinds' fields, and of more rows than all collections here together, is
# read. Wider and longer ones are mistakes, or made to fill the memory.
MOST_COLUMNS, MOST_ROWS = 2000, 20_000_000


@dataclass(frozen=True)
class Dataset:
    """Tables of measurements by kind, and what is known of the device."""

    path: Path
    meta: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame] = field(repr=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self.meta["device"])

    @property
    def sentinel_s(self) -> float | None:
        """The sentinel's time when the machine was at its usual speed: the median over the rows."""
        tables = (table for table in self.tables.values() if "sentinel_s" in table)
        times = np.concatenate([np.empty(0), *(number_column(table["sentinel_s"]) for table in tables)])
        times = times[(times >= SHORTEST_S) & (times <= LONGEST_S)]
        return float(np.median(times)) if len(times) else None

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(table) for table in self.tables.values())


def read_dataset(path: str | Path, *, samples: bool = True) -> Dataset:
    """The dataset in a folder, sealed or not, or at a location such as `s3://bucket/name`, with its shards.

    Without `samples` the columns of raw times stay unread: fits need none, and they are most of a table.
    Raises DatasetError: no such folder, no `dataset.json`, another schema, or a table that cannot be read.
    """
    if is_remote(path):
        with fetched(str(path)) as copy:
            return dataclasses.replace(read_dataset(copy, samples=samples), path=Path(str(path)))
    folder = Path(path)
    shards = shard_folders(folder)
    if not shards:
        return read_folder(folder, samples)
    # a collection that went on where others were merged
    own = [folder] if (folder / "dataset.json").exists() else []
    parts = merge([read_folder(shard, samples, empty=True) for shard in (*shards, *own)])
    if not any(part.tables for part in parts):
        raise _holds_nothing(folder)
    if len(parts) > 1:
        devices = ", ".join(part.device for part in parts)
        raise DatasetError(f"{folder}: its shards are of {devices}; give one folder per device")
    return dataclasses.replace(parts[0], path=folder)


def shard_folders(folder: Path) -> list[Path]:
    """The folders of its shards, in the order of the numbers in their names; empty where it has none."""
    found = (file.parent for file in folder.glob("shard-*/dataset.json"))
    return sorted(found, key=lambda shard: ([*map(int, re.findall(r"\d+", shard.name))], shard.name))


def merge(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Collections of one device as one dataset: their rows, for equal keys the latest that is ok.

    Backward passes lose autograd's start where their dataset says that it is in them. Tables without names of
    configurations, as a user's own, are not joined.
    """
    groups: dict[str, list[Dataset]] = {}
    for number, dataset in enumerate(map(_without_start, datasets)):
        collected = all("config_id" in table for table in dataset.tables.values())
        groups.setdefault(dataset.device if collected else f"{dataset.device} {number}", []).append(dataset)
    return [_joined(some) if len(some) > 1 else some[0] for some in groups.values()]


def _without_start(dataset: Dataset) -> Dataset:
    """The dataset without autograd's start in its backward passes, where it says that this is in its rows."""
    import pandas as pd

    from neuralpower.layers.base import BACKWARD

    start_s = dataset.meta.get("autograd_start_s")
    if not start_s:
        return dataset
    tables = dict(dataset.tables)
    for kind, table in tables.items():
        if "phase" in table and "runtime_s" in table:
            runtime = pd.to_numeric(table["runtime_s"], errors="coerce")
            rest = np.maximum(runtime - start_s, SHORTEST_REST * runtime)
            tables[kind] = table.assign(runtime_s=table["runtime_s"].where(table["phase"] != BACKWARD, rest))
    meta = {name: value for name, value in dataset.meta.items() if name != "autograd_start_s"}
    return dataclasses.replace(dataset, meta=meta, tables=tables)


def _joined(datasets: Sequence[Dataset]) -> Dataset:
    import pandas as pd

    from neuralpower.devices.host import unlike

    for first, other in itertools.combinations(datasets, 2):
        apart = unlike(first.meta.get("hardware") or {}, other.meta.get("hardware") or {}, by_flags=False)
        if apart:
            raise DatasetError(
                f"{first.name} is there and {other.name} here, both of {first.device!r}, yet of two devices: "
                f"{'; '.join(apart)}; train a predictor of each"
            )
    parts: dict[str, list[pd.DataFrame]] = {}
    for kind, table in sorted(
        (item for d in datasets for item in d.tables.items()), key=lambda item: item[0]
    ):
        parts.setdefault(kind, []).append(table)
    tables = {kind: latest(pd.concat(some, ignore_index=True), KEY) for kind, some in parts.items()}
    meta = {name: value for name, value in datasets[0].meta.items() if name != "rows"}
    meta["sessions"] = [session for dataset in datasets for session in dataset.meta.get("sessions") or []]
    return Dataset(Path(" + ".join(dataset.name for dataset in datasets)), meta, tables)


def latest(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row per key, the latest that is ok, else the latest; rows without `config_id` stay.

    The session tells rows apart that do not say which replicate they are.
    """
    import pandas as pd

    names = [name for name in keys if name in table]
    if "config_id" not in names:
        return table
    session = table["session_id"] if "session_id" in table else pd.Series(0, table.index)
    replicate = table["replicate"].astype(object) if "replicate" in table else session
    index = table[names].assign(replicate=replicate.where(replicate.notna(), session))
    twice = index.duplicated(keep=False) & index["config_id"].notna()
    if not twice.any():
        return table
    ok = table["status"].fillna("ok").eq("ok") if "status" in table else twice
    ordered = index[twice].assign(ok=ok[twice]).sort_values("ok", kind="stable")
    superseded = ordered.index[ordered.duplicated([*index], keep="last")]
    return table.drop(superseded).reset_index(drop=True)


def _holds_nothing(folder: Path) -> DatasetError:
    return DatasetError(f"{folder}: holds no table of any layer kind; collect-data --out {folder} fills it")


def read_folder(folder: Path, samples: bool, empty: bool = False) -> Dataset:
    """As `read_dataset`, without its shards; one of several may be `empty`."""
    import pandas as pd

    from neuralpower.layers import KINDS

    meta = read_meta(folder)
    parts: dict[str, list[pd.DataFrame]] = {}
    known = [*KINDS, "network"]
    for file in sorted((*folder.glob("*.parquet"), *folder.glob("*.csv"))):
        if file.stem not in known:
            raise unknown(f"layer kind of {file}", file.stem, known, DatasetError)
        check_regular(file, DatasetError)
        try:
            table = _read_parquet(file, samples) if file.suffix == ".parquet" else _read_csv(file)
        except Exception as error:  # each reader has its own errors
            text = f"{file}: cannot be read ({first_line(error)}); write it again, or take it away"
            raise DatasetError(text) from None
        parts.setdefault(file.stem, []).append(table)
    fresh: dict[str, list[dict[str, Any]]] = {}
    for kind, row in results(folder):
        if kind not in known:
            raise unknown(f"layer kind of {folder / NAME}", kind, known, DatasetError)
        fresh.setdefault(kind, []).append({k: v for k, v in row.items() if samples or k not in SAMPLES})
    for kind, rows in fresh.items():
        table = pd.DataFrame(rows)
        with named(folder / NAME):
            check_cells((*NETWORK, *READ), table)
        # no column of times where every configuration failed
        parts.setdefault(kind, []).append(table.assign(runtime_s=table.get("runtime_s", np.nan)))
    if not parts and not empty:
        raise _holds_nothing(folder)
    tables = {}
    for kind, some in parts.items():
        table = pd.concat(some, ignore_index=True) if len(some) > 1 else some[0]
        tables[kind] = latest(table, ("config_id", "replicate"))
    return Dataset(folder, meta, tables)


def _read_csv(file: Path) -> pd.DataFrame:
    """A table with a row for each line of the file, empty for blank ones; raises ValueError."""
    import pandas as pd

    from neuralpower.layers import KINDS

    with file.open("rb") as lines:
        blank = sum(1 for _ in itertools.takewhile(lambda line: not line.strip(), lines))
    with file.open("rb") as lines:
        header = next(itertools.islice(lines, blank, None), b"")
    if b"\0" in header:
        raise ValueError("it is no text: its first line holds a byte 0")
    _check_width(header.count(b",") + 1)
    try:
        with warnings.catch_warnings():
            # about the first row; a last comma is no value
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                file, skipinitialspace=True, skip_blank_lines=False, skiprows=blank, index_col=False
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
    known = KINDS[file.stem].field_names() if file.stem in KINDS else NETWORK
    for name in (*known, *READ):
        if f"{name}.1" in table or list(table.columns).count(name) > 1:  # pandas calls the second name.1
            raise ValueError(f"column {name} stands twice")
        near = [other for other in table.columns if other != name and other.lower() == name]
        if near and name not in table:
            raise ValueError(f"column {near[0]} is called {name}")
    return table.reindex(range(-blank, len(table))).reset_index(drop=True) if blank else table


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
        raise ValueError(f"column {twice} stands twice")
    columns = None if samples else [name for name in names if name not in SAMPLES]
    table = pd.read_parquet(file, columns=columns)
    if any(table.index.names):  # a column that pandas was told to number rows by
        table = table.reset_index()
    coded = table.columns[[isinstance(kind, pd.CategoricalDtype) for kind in table.dtypes]]
    table = table.astype(dict.fromkeys(coded, object))
    check_cells((*NETWORK, *READ), table)
    return table


def _check_width(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, more than the {MOST_COLUMNS:,} that are read")


def results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of a journal's results; raises DatasetError."""
    for record in read_journal(folder):
        if record.get("type") == "result":
            try:
                result = msgspec.convert(record, ResultRecord)
            except msgspec.ValidationError:
                kind, row = shown(record.get("kind")), shown(record.get("row"))
                raise DatasetError(
                    f"{folder / NAME}: a result is of kind {kind} with row {row}, but must have a name and "
                    "an object; take the journal away, or mend it"
                ) from None
            yield result.kind, result.row
