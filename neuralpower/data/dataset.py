"""Measurements of one device: appended to a journal while they are taken, sealed into one table per kind, read, screened.

    datasets/NAME/dataset.json          device, software, protocol, sessions
    datasets/NAME/journal.jsonl         one checksummed line per record, while a collection is under way
    datasets/NAME/KIND.parquet (.csv)   one row per measurement: the kind's fields, runtime_s, and how it was taken
    datasets/NAME/shard-2-of-8/         the same again: a share of a collection, measured apart
    datasets/NAME/shard-003-fourth/     the same again: a collection that `neuralpower merge` has put beside others

Anyone's measurements come in the same way: `dataset.json` with a schema and a device name, and tables with the fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from neuralpower.data.dataset_format import LONGEST_S, SCHEMA, ResultRecord, check_meta
from neuralpower.data.journal import NAME, read_journal
from neuralpower.data.locations import fetched, is_remote
from neuralpower.devices.spec import FASTEST_FLOPS, HIGHEST_W
from neuralpower.dtypes import ITEMSIZE
from neuralpower.errors import DatasetError, InputError, first_line, unknown, unwritten, writing
from neuralpower.files.atomic import aside, check_writable, force
from neuralpower.files.json_files import json_text, read_json, shown
from neuralpower.files.paths import check_regular, is_file, is_folder, is_there

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.layers import Hardware, Layer

SAMPLES = ("samples_s",)  # columns of raw times
SHORT = (  # columns of times beside the runtime and of shares: seven digits are plenty
    *("runtime_median_s", "runtime_mean_s", "runtime_q25_s", "runtime_q75_s", "runtime_min_s"),
    *("runtime_low_s", "runtime_high_s", "runtime_eager_s", "first_call_s", "dispatch_s", "wall_s", "power_wall_s"),
    *("sentinel_s", "sentinel_again_s", "sentinel_slowdown", "steal", "nivcsw_per_call", "minflt_per_call", "start_s"),
    *("window_runtime_s", "window_s", "settle_s"),
)
WHOLE = (  # columns of whole numbers, also where a row that failed has none
    *("flops", "bytes", "n", "block_k", "copies", "warmups"),
    *("attempt", "replicate", "ticks", "throttle_bits"),
)
SHORTEST_S = 1e-8  # below it, as above LONGEST_S, a runtime is a broken clock or a wrong unit
LOWEST_W = 1e-3  # a microcontroller asleep draws less, and runs no network
SHORTEST_REST = 0.1  # of a backward pass that is hardly longer than autograd's start
ABOVE_LIMIT = 1.2  # of a device's power limit, which meters overshoot for moments

NETWORK = ("model", "batch", "input", "layers")  # columns of whole networks
# A table of 20 columns for each of our kinds' fields, and of more rows than all collections here together, is read; wider and
# longer ones are mistakes, or made to fill the memory.
MOST_COLUMNS, MOST_ROWS = 2000, 20_000_000
KEY = ("config_id", "device_key", "software_key", "protocol_version", "replicate")  # of a measurement
READ = (  # columns that say something of any row; a kind's fields stand beside them
    *("dtype", "phase", "runtime_s", "power_w", "energy_j", "energy_u_rel", "dispatch_s"),
    *("sentinel_s", "sentinel_again_s", "status", "session_id", *KEY),
)


def config_id(row: Mapping[str, Any]) -> str:
    """Name of a configuration, the same on every machine: a hash of kind and fields."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Rejected:
    """A row that no fit may see: where it stands and why."""

    kind: str
    line: int  # of the table, the header being line 1
    reason: str
    dataset: str = ""  # whose table, where there are several


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
        columns = [_numbers(table["sentinel_s"]) for table in self.tables.values() if "sentinel_s" in table]
        times = np.concatenate([np.empty(0), *columns])
        times = times[(times >= SHORTEST_S) & (times <= LONGEST_S)]
        return float(np.median(times)) if len(times) else None

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(table) for table in self.tables.values())


def read_dataset(path: str | Path, *, samples: bool = True) -> Dataset:
    """The dataset in a folder, sealed or not, or at a location such as `s3://bucket/name`; a folder of shards is one dataset.

    Without `samples` the columns of raw times stay unread: fits need none, and they are most of a table.

    Raises:
        DatasetError: no such folder, no `dataset.json`, another schema, or a table that cannot be read.
    """
    if is_remote(path):
        with fetched(str(path)) as copy:
            return dataclasses.replace(read_dataset(copy, samples=samples), path=Path(str(path)))
    folder = Path(path)
    shards = shard_folders(folder)
    if not shards:
        return read_folder(folder, samples)
    own = [folder] if (folder / "dataset.json").exists() else []  # a collection that went on where others were merged
    parts = merge([read_folder(shard, samples, empty=True) for shard in (*shards, *own)])
    if not any(part.tables for part in parts):
        raise _holds_nothing(folder)
    if len(parts) > 1:
        raise DatasetError(
            f"{folder}: its shards are of {', '.join(part.device for part in parts)}; give one folder per device"
        )
    return dataclasses.replace(parts[0], path=folder)


def shard_folders(folder: Path) -> list[Path]:
    """The folders of its shards, in the order of the numbers in their names; empty where it has none."""
    found = [file.parent for file in folder.glob("shard-*/dataset.json")]
    return sorted(found, key=lambda shard: ([int(number) for number in re.findall(r"\d+", shard.name)], shard.name))


def merge(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Collections of one device as one dataset: rows one below the other, of equal keys the latest that is ok.

    Backward passes lose what autograd's start added to them, where their dataset says that it did. What has no
    configurations' names, as somebody's own tables have none, is not joined.
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
                f"{first.name} is there and {other.name} here, both of {first.device!r}, yet of two devices: {'; '.join(apart)}; "
                "train a predictor of each"
            )
    kinds = sorted({kind for dataset in datasets for kind in dataset.tables})
    tables = {
        kind: latest(pd.concat([d.tables[kind] for d in datasets if kind in d.tables], ignore_index=True), KEY)
        for kind in kinds
    }
    meta = {name: value for name, value in datasets[0].meta.items() if name != "rows"}
    meta["sessions"] = [session for dataset in datasets for session in dataset.meta.get("sessions") or []]
    return Dataset(Path(" + ".join(dataset.name for dataset in datasets)), meta, tables)


def latest(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """One row per key, the latest that is ok, else the latest; rows without `config_id` stay.

    Rows that do not say which replicate they are, are told apart by their session.
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
    last = index[twice].assign(ok=ok[twice]).sort_values("ok", kind="stable").duplicated([*index], keep="last")
    superseded = last.index[last]
    return table.drop(superseded).reset_index(drop=True)


def _holds_nothing(folder: Path) -> DatasetError:
    return DatasetError(f"{folder}: holds no table of any layer kind; collect-data --out {folder} fills it")


def read_folder(folder: Path, samples: bool, empty: bool = False) -> Dataset:
    """As `read_dataset`, without its shards; one of several may be `empty`."""
    import pandas as pd

    from neuralpower.layers import KINDS

    meta = read_meta(folder)
    parts: dict[str, list[pd.DataFrame]] = {}
    for file in sorted((*folder.glob("*.parquet"), *folder.glob("*.csv"))):
        if file.stem not in KINDS and file.stem != "network":
            raise unknown(f"layer kind of {file}", file.stem, [*KINDS, "network"], DatasetError)
        check_regular(file, DatasetError)
        try:
            table = _read_parquet(file, samples) if file.suffix == ".parquet" else _read_csv(file)
        except Exception as error:  # each reader has its own errors
            raise DatasetError(
                f"{file}: cannot be read ({first_line(error)}); write it again, or take it away"
            ) from None
        parts.setdefault(file.stem, []).append(table)
    fresh: dict[str, list[dict[str, Any]]] = {}
    for kind, row in _results(folder):
        if kind not in KINDS and kind != "network":
            raise unknown(f"layer kind of {folder / NAME}", kind, [*KINDS, "network"], DatasetError)
        fresh.setdefault(kind, []).append(row if samples else {k: v for k, v in row.items() if k not in SAMPLES})
    for kind, rows in fresh.items():
        table = pd.DataFrame(rows)
        with named(folder / NAME):
            _check_cells((*NETWORK, *READ), table)
        # no column of times where every configuration failed
        parts.setdefault(kind, []).append(table.assign(runtime_s=table.get("runtime_s", np.nan)))
    if not parts and not empty:
        raise _holds_nothing(folder)
    tables = {kind: pd.concat(some, ignore_index=True) if len(some) > 1 else some[0] for kind, some in parts.items()}
    return Dataset(folder, meta, {kind: latest(table, ("config_id", "replicate")) for kind, table in tables.items()})


def _read_csv(file: Path) -> pd.DataFrame:
    """A table whose rows stand where they stand in the file, an empty one for each blank line; raises ValueError."""
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
            warnings.simplefilter("error", pd.errors.ParserWarning)  # about the first row; a last comma is no value
            table = pd.read_csv(file, skipinitialspace=True, skip_blank_lines=False, skiprows=blank, index_col=False)
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
        if f"{name}.1" in table or list(table.columns).count(name) > 1:  # the first is what pandas calls the second
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
    table = pd.read_parquet(file, columns=None if samples else [name for name in names if name not in SAMPLES])
    if any(table.index.names):  # a column that pandas was told to number rows by
        table = table.reset_index()
    coded = table.columns[[isinstance(kind, pd.CategoricalDtype) for kind in table.dtypes]]
    table = table.astype(dict.fromkeys(coded, object))
    _check_cells((*NETWORK, *READ), table)
    return table


def _check_width(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, more than the {MOST_COLUMNS:,} that are read")


def _check_cells(names: Iterable[str], table: pd.DataFrame) -> None:
    """Raise DatasetError where one of the columns has lists or objects in its cells."""
    for name in names:
        if name in table and table[name].dtype == object:
            nested = table[name].map(lambda cell: isinstance(cell, (list, dict, set, tuple, np.ndarray)))
            if nested.any():
                raise DatasetError(f"column {name} holds lists or objects, and a cell must be one number or text")


def _results(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of a journal's results; raises DatasetError."""
    for record in read_journal(folder):
        if record.get("type") == "result":
            try:
                result = msgspec.convert(record, ResultRecord)
            except msgspec.ValidationError:
                kind, row = record.get("kind"), record.get("row")
                raise DatasetError(
                    f"{folder / NAME}: a result is of kind {shown(kind)} with row {shown(row)}, but must have a name "
                    "and an object; take the journal away, or mend it"
                ) from None
            yield result.kind, result.row


def kept_rows(
    folder: Path, columns: Sequence[str] | None = None, ids: Collection[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(kind, row) of what a collection's folder has a verdict on, tables first, then the journal; needs no torch.

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
            raise DatasetError(f"{file}: cannot be read ({first_line(error)}); move it away, or mend it") from None
        yield from ((file.stem, row) for row in table.to_pylist() if row["config_id"] is not None)
    yield from ((kind, row) for kind, row in _results(folder) if ids is None or row.get("config_id") in ids)


def read_meta(folder: Path) -> dict[str, Any]:
    """What `dataset.json` says; raises DatasetError where it or the folder is missing or cannot be used."""
    check_regular(folder, DatasetError)
    if is_file(folder):
        raise DatasetError(f"{folder}: is a file; a dataset is the folder of dataset.json and a table per layer kind")
    if not is_folder(folder):
        near = {p.parent for p in folder.parent.glob("*/dataset.json")} if is_folder(folder.parent) else set()
        near |= {p.parent.parent for p in folder.parent.glob("*/shard-*/dataset.json")}
        raise unknown("dataset", str(folder), map(str, near), DatasetError)
    file = folder / "dataset.json"
    check_regular(file, DatasetError)
    try:
        meta: Any = read_json(file, mark=True, endless=True)  # Windows' editors begin a file with a mark
    except FileNotFoundError:
        raise DatasetError(
            f'{folder}: has no dataset.json; it needs at least {{"schema": 1, "device": "..."}}'
        ) from None
    except (ValueError, OSError) as error:
        raise DatasetError(f"{file}: is no JSON ({error}); write it again") from None
    known = isinstance(meta, dict) and meta.get("schema") == SCHEMA and not isinstance(meta["schema"], bool)
    if not known or not meta.get("device"):
        given = {name: meta.get(name) for name in ("schema", "device")} if isinstance(meta, dict) else meta
        said = f"{given!r:.200}"
        raise DatasetError(f'{file}: holds {said}; needed are at least {{"schema": {SCHEMA}, "device": "..."}}')
    with named(file):
        check_meta(meta)
    return dict(meta)


@contextlib.contextmanager
def named(place: Path) -> Iterator[None]:
    """Put the place before what a DatasetError says that is raised within."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{place}: {error}") from None


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write `dataset.json` aside, then rename it."""
    replace_file(folder / "dataset.json", json_text({"schema": SCHEMA, **meta}, indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part; it is on the disk then."""
    with writing(path, "place", DatasetError), aside(path) as new:
        new.write_text(text)


def check_place(path: Path, example: str) -> None:
    """Raise InputError where `replace_file` will not be able to write: to be asked before a long work."""
    if not path.name or (is_there(path) and not is_file(path)):
        raise InputError(f"{path}: is no file; choose a file's name, such as {example}")
    with writing(path, "place"):
        check_writable(path)


def seal(folder: Path) -> dict[str, int]:
    """Turn the journal into tables, next to the rows that are there; the journal is kept, compressed. Rows per kind.

    Raises:
        DatasetError: the tables cannot be read or written; the journal then stays as it is.
        DeviceError: because the disk is full.
    """
    try:
        return _sealed(folder)
    except (OSError, ValueError, TypeError) as error:  # the last two by pyarrow, of values of two types in a column
        text = (
            f"{folder}: the tables cannot be written ({first_line(error)}); the journal holds everything that was measured, "
            "mend that and give the same command again"
        )
        raise unwritten(error, text, DatasetError) from None
    finally:
        for left in folder.glob("*.new"):  # by this run or one that was killed: whoever seals is the only writer
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
        columns["samples_s"] = [np.asarray(v, dtype=np.float32) if np.ndim(v) else None for v in table["samples_s"]]
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


@dataclass(frozen=True)
class Rows:
    """The rows of one kind that are fit for learning: `layer`'s fields are arrays, in the order of `runtime_s`."""

    kind: str
    layer: Layer
    runtime_s: np.ndarray
    slowdown: np.ndarray  # of the machine while each was taken, 1 where not known
    power_w: np.ndarray  # NaN where not measured
    energy_u_rel: np.ndarray  # what the measurement states as its relative uncertainty; NaN where it states none
    dispatch_s: np.ndarray  # of the host, to issue one call; NaN where not measured
    line: np.ndarray  # of each row in its table, the header being line 1
    rejected: tuple[Rejected, ...]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.runtime_s)

    def at(self, index: np.ndarray) -> Rows:
        """Some of the rows."""
        from neuralpower.layers.base import take

        names = ("runtime_s", "slowdown", "power_w", "energy_u_rel", "dispatch_s", "line")
        parts = {name: getattr(self, name)[index] for name in names}
        return dataclasses.replace(self, layer=take(self.layer, index), rejected=(), **parts)


def screen(kind: str, table: pd.DataFrame, sentinel_s: float | None = None, hardware: Hardware | None = None) -> Rows:
    """The usable rows of a kind's table, and for each of the others its line and the reason.

    `sentinel_s` is the dataset's own, that the rows' slow-downs refer to; `hardware` says what no row can exceed.

    Raises:
        DatasetError: a column that the kind needs is missing.
    """
    import pandas as pd

    from neuralpower.layers import KINDS
    from neuralpower.layers.base import as_columns, fingerprint, most_flops

    layer_kind = KINDS[kind]
    defaults = layer_kind.defaults()
    missing = [name for name in layer_kind.field_names() if name not in table and name not in defaults]
    if "runtime_s" not in table and not {"energy_j", "power_w"} <= set(table):
        missing.append("runtime_s")
    if missing:
        raise DatasetError(
            f"{kind}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing; needed are "
            f"{', '.join(n for n in layer_kind.field_names() if n not in defaults)} and runtime_s, or energy_j and power_w"
        )
    with named(Path(kind)):
        _check_cells(layer_kind.field_names(), table)
    reasons = np.full(len(table), "", dtype=object)

    def reject(where: Any, reason: str) -> None:
        reasons[np.asarray(where, dtype=bool) & (reasons == "")] = reason

    if "status" in table:
        status = np.char.lower(_words(table["status"], "ok").astype(str))
        for value in sorted(set(status) - {"ok"}):
            reject(status == value, f"status {value}")
    columns = _fields(layer_kind, table, reject)
    runtime = _runtime(table)
    for reason, found in unusable(runtime).items():
        reject(found, reason)
    layer = as_columns(layer_kind, columns)
    with np.errstate(all="ignore"):
        flops, size = (np.asarray(value, dtype=np.float64) for value in (layer.flops(), sum(layer.bytes())))
        smallest = functools.reduce(np.minimum, (getattr(layer, name) for name in layer.dimensions))
        impossible = (smallest <= 0) | (size < 0)  # views move nothing
        reject(~np.isfinite(flops) | ~np.isfinite(size) | impossible, "the fields describe no possible layer")
        reject(~np.asarray(layer.possible(), dtype=bool), layer_kind.rule)
        reject(flops / runtime > FASTEST_FLOPS, f"more than {FASTEST_FLOPS:g} FLOP/s")
        if hardware is not None:
            reject(flops / runtime > layer_kind.savings * most_flops(layer, hardware), "faster than the device's peak")
    power = _power(table, runtime, hardware, reject)
    identity = pd.DataFrame({"config": fingerprint(layer), "runtime_s": runtime, "usable": reasons == ""})
    reject(identity.duplicated(keep="first"), "repeats an earlier row")
    keep = reasons == ""
    blank = table.isna().all(axis=1).to_numpy()
    known = sentinel_s is not None and "sentinel_s" in table
    slowdown = _numbers(table["sentinel_s"]) / sentinel_s if known else np.ones(len(table))
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
    )


def _fields(kind: type[Layer], table: pd.DataFrame, reject: Callable[[Any, str], None]) -> dict[str, Any]:
    """The kind's fields, each [rows], with something possible where a cell is rejected."""
    import pandas as pd

    from neuralpower.layers.base import BACKWARD, FORWARD, LARGEST

    columns: dict[str, Any] = {}
    defaults = kind.defaults()
    flags = {field.name for field in dataclasses.fields(kind) if field.type == "bool"}
    phases = dict.fromkeys((defaults["phase"], FORWARD, BACKWARD))
    known: dict[str, Collection[str]] = {"dtype": ITEMSIZE, "phase": phases, **kind.words}
    for name in kind.field_names():
        values = table[name] if name in table else pd.Series([defaults[name]] * len(table))
        if name in known:
            words = _words(values, defaults.get(name, ""))
            if name == "dtype":  # as torch prints it
                words = np.array([word.removeprefix("torch.") for word in words], dtype=object)
            reject(words == "", f"{name} is missing")
            for word in set(words) - {""}:
                if word not in known[name]:
                    reject(words == word, str(unknown(name, word, known[name])))
                    words[words == word] = defaults.get(name, next(iter(known[name])))
            columns[name] = words
            continue
        numbers = _numbers(values, truths=name in flags)
        if name in defaults:
            numbers[values.isna().to_numpy()] = defaults[name]
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers != np.floor(numbers))
        if name in flags:
            reject(bad | (numbers > 1), f"{name} is neither true nor false")
        reject(bad, f"{name} is no whole number, 0 or more")
        beyond = numbers > LARGEST
        reject(beyond, f"{name} is above {LARGEST}")
        columns[name] = np.where(bad | beyond, 1, numbers)
    return columns


def unusable(runtime_s: np.ndarray) -> dict[str, np.ndarray]:
    """Where a time cannot be one, [rows], by reason; the first holds."""
    return {
        "runtime_s is no number": ~np.isfinite(runtime_s),
        "runtime_s is not above 0": ~(runtime_s > 0),
        f"runtime_s is outside {SHORTEST_S:g} to {LONGEST_S:g} s": (runtime_s < SHORTEST_S) | (runtime_s > LONGEST_S),
    }


def _runtime(table: pd.DataFrame) -> np.ndarray:
    """Seconds per row, where none are stated by energy and power, NaN where nothing tells."""
    stated, energy, power = (_optional(table, name) for name in ("runtime_s", "energy_j", "power_w"))
    empty = table["runtime_s"].isna().to_numpy() if "runtime_s" in table else True
    with np.errstate(all="ignore"):
        return np.where(empty & (energy > 0) & (power > 0), energy / power, stated)


def _power(
    table: pd.DataFrame, runtime: np.ndarray, hardware: Hardware | None, reject: Callable[[Any, str], None]
) -> np.ndarray:
    """Watts per row, from the power or from energy over time, NaN where neither is there; impossible ones are rejected."""
    power, energy, unsure = (_optional(table, name) for name in ("power_w", "energy_j", "energy_u_rel"))
    for name, values in (("power_w", power), ("energy_j", energy), ("energy_u_rel", unsure)):
        reject(~np.isfinite(values) & (name in table and table[name].notna().to_numpy()), f"{name} is no number")
    reject(power <= 0, "power_w is not above 0")
    reject(energy <= 0, "energy_j is not above 0: the counter wrapped or was read backwards")
    reject(unsure < 0, "energy_u_rel is below 0")
    with np.errstate(all="ignore"):  # of rows without a time, which are left out
        from_energy = energy / runtime
    power = np.where(np.isfinite(power), power, from_energy)
    highest = (hardware.limit_w if hardware is not None else None) or HIGHEST_W
    reject(power < LOWEST_W, f"less than {LOWEST_W:g} W, which no device draws")
    reject(power > ABOVE_LIMIT * highest, "more power than the device can draw")
    reject(from_energy > ABOVE_LIMIT * highest, "more energy than the device can draw in the time")
    return power


def _words(values: pd.Series, default: str) -> np.ndarray:
    """A column as text without spaces around it, `default` where it holds nothing."""
    words = values.astype(object).to_numpy(copy=True)
    words[values.isna().to_numpy()] = default
    return np.array([str(word).strip() for word in words], dtype=object)


def _optional(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column of numbers that a table may leave out, [rows], NaN where it holds nothing."""
    return _numbers(table[column]) if column in table else np.full(len(table), np.nan)


def _numbers(values: pd.Series, truths: bool = False) -> np.ndarray:
    """A column as float64, NaN where it holds nothing or no number; `truths`: true and false, however written, are 1 and 0."""
    import pandas as pd

    if values.dtype.kind in "mM" or (values.dtype.kind == "b" and not truths):
        return np.full(len(values), np.nan)  # of moments and durations the unit would be the file's
    if values.dtype.kind not in "biuf":
        known = {"true": 1 if truths else np.nan, "false": 0 if truths else np.nan}
        values = values.astype(object).map(lambda value: known.get(str(value).strip().lower(), value))
    try:
        numbers = pd.to_numeric(values, errors="coerce")
    except OverflowError:  # an integer of hundreds of digits
        numbers = values.map(_float)
    return numbers.to_numpy(dtype=np.float64, copy=True, na_value=np.nan)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def summarised(rejected: Sequence[Rejected]) -> Iterator[str]:
    """One line per reason: how many rows, and the first lines that they stand on."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for row in rejected:
        table = f"{row.dataset}: {row.kind}" if row.dataset else row.kind
        reasons.setdefault((table, row.reason), []).append(row.line)
    for (table, reason), lines in reasons.items():
        shown = ", ".join(str(line) for line in sorted(lines)[:5])
        yield f"{table}: {len(lines)} left out, {reason} (line {shown}{', ...' if len(lines) > 5 else ''})"
