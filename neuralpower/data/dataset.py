"""Measurements of one device: appended to a journal, sealed into one table per kind, read, screened.

    datasets/NAME/dataset.json          device, software, protocol, sessions
    datasets/NAME/journal.jsonl         one checksummed line per record, while a collection is under way
    datasets/NAME/KIND.parquet (.csv)   a row per measurement: the kind's fields, runtime_s, how it was taken
    datasets/NAME/shard-2-of-8/         the same again: a share of a collection, measured separately
    datasets/NAME/shard-003-fourth/     the same again: a collection that `neuralpower merge` put there

A user's own measurements need the same: `dataset.json` with a schema and a device name, and tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from neuralpower.data.columns import COLUMNS, KEY, READ, is_samples, number_column
from neuralpower.data.journal import NAME, read_journal
from neuralpower.data.schema import ResultRecord, named, read_meta
from neuralpower.data.screening import check_cells
from neuralpower.data.tables import NETWORK, read_table
from neuralpower.errors import DatasetError, first_line, unknown
from neuralpower.files.json_files import parse_json, shown
from neuralpower.files.paths import resolved

if TYPE_CHECKING:
    import pandas as pd

# Places that fsspec knows, such as `s3://bucket/name` or `memory://name`: fetch folders, and publish them.
#
# A collection writes to a local folder, since only a local disk can promise that a record is kept, and then
# publishes its sealed tables. Each file is put in place as a whole, and `dataset.json` last.

PUBLISHED = ("*.parquet", "*.csv", "README.md", "journal.jsonl.gz", "dataset.json")
READ_FROM = (".parquet", ".csv", ".json", ".jsonl")
DESCRIPTION = "dataset.json"


def is_remote(location: str | Path) -> bool:
    """Whether it names a protocol, as `s3://` does."""
    return "://" in str(location)


@contextlib.contextmanager
def fetched(location: str) -> Iterator[Path]:
    """A local copy of a folder's files, of its shards' too, while the context lasts; raises DatasetError."""
    with tempfile.TemporaryDirectory(prefix="neuralpower-") as name:
        folder = Path(name) / folder_name(location)
        if not fetch(location, folder):
            raise DatasetError(f"{location}: there is no dataset; collect-data --out {location} makes one")
        yield folder


def folder_name(location: str) -> str:
    return location.rstrip("/").rpartition("/")[2] or "dataset"


def fetch(location: str, folder: Path) -> bool:
    """Copy a location's files, and its shards', to a folder; False where it has none. Raises DatasetError."""
    system, root = _opened(location)
    try:
        files = [file for file in system.find(root, maxdepth=2) if file.endswith(READ_FROM)]
        for file in files:
            target = folder / Path(file).relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(file, str(target))
    except Exception as error:  # each system has its own errors
        raise _failed(location, "read", error) from None
    return bool(files)


def continue_from(location: str, folder: Path) -> None:
    """Let a local folder resume the dataset at a location; raises DatasetError for different devices."""
    system, root = _opened(location)
    there = _described(location, lambda: system.cat_file(f"{root.rstrip('/')}/{DESCRIPTION}"))
    if there is None:
        return
    here = _described(str(folder), (folder / DESCRIPTION).read_bytes)
    if here is None:
        fetch(location, folder)
    elif here.get("device") != there.get("device"):
        held = (
            f"{location}: holds measurements of {there.get('device')!r}, {folder} of {here.get('device')!r}"
        )
        raise DatasetError(f"{held}; choose another --out")


def publish(folder: Path, location: str) -> None:
    """Put a sealed folder's files at a location, in place of those that are there; raises DatasetError."""
    system, root = _opened(location)
    files = [file for pattern in PUBLISHED for file in sorted(folder.glob(pattern))]
    try:
        system.makedirs(root, exist_ok=True)
        for file in files:
            system.put_file(str(file), f"{root.rstrip('/')}/{file.name}")
    except Exception as error:  # each system has its own errors
        raise _failed(location, "written", error) from None


def _described(place: str, read: Callable[[], bytes]) -> dict[str, Any] | None:
    """The contents of a place's `dataset.json`; None where there is none yet. Raises DatasetError."""
    try:
        return dict(parse_json(read().decode("utf-8-sig")))
    except FileNotFoundError:
        return None
    except Exception as error:  # each system has its own errors
        raise _failed(place, "read", error) from None


def _opened(location: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError, OSError) as error:  # an unknown protocol, or one without its library
        raise _failed(location, "opened", error) from None
    return system, str(root)


def _failed(location: str, verb: str, error: Exception) -> DatasetError:
    said = first_line(error)
    return DatasetError(f"{location}: cannot be {verb} ({said}); correct that, or give a local folder")


ATTENTION = "attention"  # the kind whose kernels on accelerators differ by library
SHORTEST_REST = 0.1  # of a backward pass that is hardly longer than autograd's start


@dataclass(frozen=True)
class Dataset:
    """Tables of measurements by kind, and what is known of the device."""

    path: Path
    meta: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame] = field(repr=False)

    @property
    def name(self) -> str:
        return resolved(self.path).name

    @property
    def device(self) -> str:
        return str(self.meta["device"])

    @property
    def sentinel_s(self) -> float | None:
        """The sentinel's time when the machine was at its usual speed: the median over the rows."""
        tables, limits = (t for t in self.tables.values() if "sentinel_s" in t), COLUMNS["runtime_s"]
        times = np.concatenate([np.empty(0), *(number_column(table["sentinel_s"]) for table in tables)])
        times = times[(times >= limits.low) & (times <= limits.high)]
        return float(np.median(times)) if len(times) else None

    def __len__(self) -> int:
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
    # a collection that was resumed where others were merged
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

    Backward passes lose autograd's start where `dataset.json` states that it is in them. Tables without names
    of configurations, as a user's own, are not joined.
    """
    groups: dict[str, list[Dataset]] = {}
    for number, dataset in enumerate(map(_without_start, datasets)):
        collected = all("config_id" in table for table in dataset.tables.values())
        groups.setdefault(dataset.device if collected else f"{dataset.device} {number}", []).append(dataset)
    return [_joined(some) if len(some) > 1 else some[0] for some in groups.values()]


def _without_start(dataset: Dataset) -> Dataset:
    """The dataset without autograd's start in its backward passes, where its rows include it."""
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
                f"{first.name} and {other.name} are both of {first.device!r}, but from two devices: "
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

    The session distinguishes rows that have no number of a replicate.
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
    meta = read_meta(folder)  # refuses a folder that is none before torch is imported
    import pandas as pd

    from neuralpower.layers import KINDS

    parts: dict[str, list[pd.DataFrame]] = {}
    known = [*KINDS, "network"]
    for file in sorted((*folder.glob("*.parquet"), *folder.glob("*.csv"))):
        if file.stem not in known:
            known_ones = unknown(f"layer kind of {file}", file.stem, known)
            way = f"neuralpower dataset check {file} --kind KIND --out FOLDER"
            raise DatasetError(f"{known_ones} Fix: rename the file, or {way}")
        parts.setdefault(file.stem, []).append(read_table(file, file.stem, samples))
    fresh: dict[str, list[dict[str, Any]]] = {}
    for kind, row in results(folder):
        if kind not in known:
            raise unknown(f"layer kind of {folder / NAME}", kind, known, DatasetError)
        fresh.setdefault(kind, []).append({k: v for k, v in row.items() if samples or not is_samples(k)})
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
    return Dataset(folder, meta, _by_torch(tables, meta))


def _by_torch(tables: Mapping[str, pd.DataFrame], meta: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables with `library` in the rows of attention that a collection timed on an accelerator.

    A collection runs torch's own kernels there; the configurations' names stay as without it.
    """
    marked = dict(tables)
    if "config_id" not in marked.get(ATTENTION, ()):
        return marked
    from neuralpower.layers import Hardware
    from neuralpower.layers.attention import TORCH
    from neuralpower.platforms import CPU, platform_name, platform_of

    hardware = Hardware(platform=platform_name(meta.get("hardware") or {}))
    if platform_of(hardware).family != CPU.family:
        table = marked[ATTENTION]
        library = np.where(table["config_id"].notna(), TORCH, table.get("library", ""))
        marked[ATTENTION] = table.assign(library=library)
    return marked


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
                    "an object; remove the journal, or correct it"
                ) from None
            yield result.kind, result.row
