"""Places that fsspec knows, such as `s3://bucket/name` or `memory://name`: fetch folders, and publish them.

A collection writes to a local folder, since only a local disk can promise that a record is kept, and then
publishes its sealed tables. Each file is put in place as a whole, and `dataset.json` last.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neuralpower.errors import DatasetError, first_line
from neuralpower.files.json_files import parse_json

PUBLISHED = ("*.parquet", "*.csv", "README.md", "journal.jsonl.gz", "dataset.json")
READ = (".parquet", ".csv", ".json", ".jsonl")
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
        files = [file for file in system.find(root, maxdepth=2) if file.endswith(READ)]
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
