"""A collection's journal becomes Parquet tables, and several collections one dataset of shards."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.columns import COLUMNS, SHORT, WHOLE, Column
from neuralpower.data.dataset import (
    PUBLISHED,
    Dataset,
    fetched,
    is_remote,
    merge,
    read_folder,
    results,
    shard_folders,
)
from neuralpower.data.journal import LOCK, NAME, sole_writer
from neuralpower.data.schema import read_meta
from neuralpower.errors import DatasetError, first_line, unwritten, writing
from neuralpower.files.atomic import force
from neuralpower.files.paths import check_regular, resolved

if TYPE_CHECKING:
    import pandas as pd


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
        values, kept = table[name], COLUMNS.get(name, Column(name=name)).kept
        if kept == SHORT:
            columns[name] = values.astype(np.float32)
        elif kept == WHOLE and (values.dropna() % 1 == 0).all():
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


# ---- Datasets of one device in one folder, each a shard of it ----


def merge_folders(sources: Sequence[str | Path], out: Path) -> dict[str, dict[str, int]]:
    """Copy datasets, or the shards that they have, into a folder as shards; rows of each kind by new shard.

    The new shards come after those that are there, in the order given. All appear as a whole, or none does.
    Raises DatasetError: no such dataset, one that is not sealed, one of another device, one that is there
    already, or a folder that cannot be written, or to which another writes.
    """
    with contextlib.ExitStack() as stack:
        local = [stack.enter_context(fetched(str(s))) if is_remote(s) else Path(s) for s in sources]
        places = [place for source in local for place in _places(source)]
        datasets = [_ended(folder) for _, folder in places]
        fresh = not out.exists()
        try:
            stack.enter_context(sole_writer(out))
            names = _names([label for label, _ in places], out)
            _check_alike(dict(zip(names, datasets, strict=True)), out)
            with writing(out, "--out", DatasetError):
                _copy({name: folder for name, (_, folder) in zip(names, places, strict=True)}, out)
        except BaseException:
            if fresh and out.exists() and [file.name for file in out.iterdir()] == [LOCK]:
                shutil.rmtree(out)
            raise
    rows = [{kind: len(table) for kind, table in sorted(one.tables.items())} for one in datasets]
    return dict(zip(names, rows, strict=True))


def _places(source: Path) -> Iterator[tuple[str, Path]]:
    """(label, folder) of each shard of a dataset, then of what it holds itself."""
    shards, name = shard_folders(source), resolved(source).name
    for shard in shards:
        merged = re.fullmatch(r"shard-\d{3}-(.+)", shard.name)
        yield (merged[1] if merged else f"{name}-{shard.name.removeprefix('shard-')}"), shard
    if not shards or (source / "dataset.json").exists():
        yield name, source


def _ended(folder: Path) -> Dataset:
    """The dataset of a folder; raises DatasetError where its collection is not at its end."""
    read_meta(folder)
    if (folder / NAME).exists():
        ended = f"its collection has not ended ({NAME} is there)"
        raise DatasetError(f"{folder}: {ended}; wait for it, or run its collect-data again")
    return read_folder(folder, samples=False)


def _names(labels: Sequence[str], out: Path) -> list[str]:
    """The names of the shards in the folder; raises DatasetError where a label is taken."""
    if (out / "dataset.json").exists():
        raise DatasetError(f"{out}: is a dataset itself; choose another --out, and merge it with the others")
    there = [shard.name for shard in shard_folders(out)]
    taken = {name.split("-", 2)[2] for name in there if re.match(r"shard-\d{3}-", name)}
    first = 1 + max((int(found[1]) for name in there if (found := re.match(r"shard-(\d+)", name))), default=0)
    names = []
    for number, label in enumerate(labels, first):
        label = label.removeprefix(f"{resolved(out).name}-") if label != resolved(out).name else "first"
        if label in taken:
            raise DatasetError(f"{out}: has a shard {label} already; leave it out, or rename its folder")
        taken.add(label)
        names.append(f"shard-{number:03}-{label}")
    return names


def _check_alike(fresh: Mapping[str, Dataset], out: Path) -> None:
    """Raise DatasetError unless all are collections of one device, none of them there already or twice."""
    there = {shard.name: read_folder(shard, samples=False, empty=True) for shard in shard_folders(out)}
    seen: dict[str, str] = {}
    for name, dataset in (*there.items(), *fresh.items()):
        for session in dataset.meta.get("sessions") or []:
            known = seen.setdefault(str(session.get("session_id", session)), name)
            if known != name:
                raise DatasetError(
                    f"{dataset.path}: its measurements are in {out / known} already; leave it out"
                )
    parts = merge([*there.values(), *fresh.values()])
    devices = list(dict.fromkeys(part.device for part in parts))
    if len(devices) > 1:
        said = ", ".join(devices)
        raise DatasetError(f"{out}: cannot hold datasets of {said}; make one folder for each device")
    if len(parts) > 1:
        raise DatasetError(
            f"{', '.join(str(part.path) for part in parts)}: rows without config_id cannot be compared; "
            "give the folders to train-predictor together"
        )


def _copy(folders: Mapping[str, Path], out: Path) -> None:
    """Write all aside, then rename each: what ends it early leaves no part of a shard. Raises OSError."""
    for left in out.glob(".shard-*.new"):  # by a run that was killed: whoever merges is the only writer
        shutil.rmtree(left)
    aside, placed = {name: out / f".{name}.new" for name in folders}, []
    try:
        for name, folder in folders.items():
            aside[name].mkdir()
            for file in (file for pattern in PUBLISHED for file in sorted(folder.glob(pattern))):
                force(Path(shutil.copyfile(file, aside[name] / file.name)))
            force(aside[name])
        for name, new in aside.items():
            placed.append(new.rename(out / name))
        force(out)
    except BaseException:
        for made in (*aside.values(), *placed):
            shutil.rmtree(made, ignore_errors=True)
        raise
