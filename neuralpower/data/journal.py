"""The journal of a collection: checksummed lines in one file, written by one process.

    crc32 {"schema":1,"seq":17,"type":"result",...}

Records are on the disk once `append` returns: they outlive the process and the machine. With `sync=False`
they outlive the process alone until the next record. A crash can tear the last line at most, and the next
start moves it aside. A full disk can stop a collection, and loses no measurement: a ballast file is freed
then, for the last records.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.errors import DatasetError, DeviceError, writing
from neuralpower.files import locks
from neuralpower.files.atomic import aside, force
from neuralpower.files.json_files import json_text, parse_json
from neuralpower.files.paths import check_regular

SCHEMA = 1
MOST_BYTES = 2**30  # that are read of a journal: some 800,000 results
BALLAST_BYTES = 2**18  # some two hundred results
NAME, LOCK = "journal.jsonl", ".lock"


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make a folder, and keep all others that ask from writing to it; raises DatasetError where one does."""
    with writing(folder, "--out", DatasetError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            locks.take(lock)
        except OSError:
            text = f"{folder}: another run is writing to it; wait for it, or choose another --out"
            raise DatasetError(text) from None
        yield
    finally:
        os.close(lock)


class Journal:
    """An append-only file of records.

    One writer at a time: opening it twice raises DatasetError. A line that a crash tore is moved to `.torn`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME
        self.ballast = folder / ".ballast"

    def __enter__(self) -> Journal:
        """Create the folder, take the lock, repair the end of the file."""
        with writing(self.folder, "--out", DatasetError):
            self._made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        with contextlib.ExitStack() as lock:
            lock.enter_context(sole_writer(self.folder))
            with writing(self.path, "--out", DatasetError):
                self._seq = self._repair()
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | locks.BINARY, 0o644)
                force(self.folder)
            self._lock = lock.pop_all()
        with contextlib.suppress(OSError):  # a full disk raises at the first record
            self.ballast.write_bytes(bytes(BALLAST_BYTES))
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, remove it if empty, with a folder made for nothing, and give the lock back."""
        empty = not os.fstat(self._file).st_size
        os.fsync(self._file)
        os.close(self._file)
        if empty:
            self.path.unlink(missing_ok=True)
        self.ballast.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another has put something there
            if self._made and all(file.name == LOCK for file in self.folder.iterdir()):
                (self.folder / LOCK).unlink()
                for place in self._made:
                    place.rmdir()
        self._lock.close()

    def _repair(self) -> int:
        """Move lines that a crash or the disk damaged to `journal.torn`; the number of the others."""
        if not self.path.exists():
            return 0
        data = self.path.read_bytes()
        lines = [line + b"\n" for line in data.splitlines()]
        good = [line for line in lines if _checked(line) is not None]
        torn = [line for line in lines if _checked(line) is None]
        _check_version(self.path, data)
        kept = b"".join(good)
        if kept != data:
            with (self.folder / "journal.torn").open("ab") as file:
                file.writelines(torn)
            with aside(self.path) as new:
                new.write_bytes(kept)
        return len(good)

    def append(self, *records: Mapping[str, Any], sync: bool = True) -> None:
        """Write records, and force them to the disk; without `sync` they may wait for the next ones.

        Raises DeviceError where the disk is full; they may have the ballast's place, which holds one more.
        """
        lines = b"".join(_line({"schema": SCHEMA, "seq": self._seq + i, **r}) for i, r in enumerate(records))
        try:
            self._write(lines, sync)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.ballast.unlink(missing_ok=True)
                self._write(lines, sync=True)
            raise DeviceError(
                f"{self.path}: a record could not be written ({error.strerror}); earlier measurements are "
                "safe; free some space and run the same command again"
            ) from None
        finally:
            self._seq += len(records)

    def _write(self, lines: bytes, sync: bool) -> None:
        """All of the lines or none; raises OSError."""
        size = os.fstat(self._file).st_size
        rest = memoryview(lines)
        try:
            while rest:  # a full disk takes a part, and refuses the next
                rest = rest[os.write(self._file, rest) :]
            if sync:
                os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def records(self) -> list[dict[str, Any]]:
        return read_journal(self.folder)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json_text(record, compact=True).encode()
    return b"%08x " % zlib.crc32(text) + text + b"\n"


def _checked(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        record = parse_json(text.decode())
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _check_version(path: Path, data: bytes) -> None:
    """Raise DatasetError unless the first whole line is of this version, damaged lines aside."""
    first = next((record for line in data.splitlines() if (record := _checked(line)) is not None), None)
    foreign = first is None and b"\n" in data
    if foreign or (first is not None and first.get("schema", SCHEMA) != SCHEMA):
        given = "no checksums" if first is None else f"schema {first['schema']}"
        raise DatasetError(
            f"{path}: is a journal of another version ({given}, this one writes {SCHEMA}); choose another "
            "--out, or seal it with the version that wrote it"
        )


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Records of an unsealed collection, without lines that a crash tore.

    Raises DatasetError for other versions, and for a file that is not a journal.
    """
    path = folder / NAME
    if not path.exists():
        return []
    check_regular(path, DatasetError)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"it has {size:,} bytes, more than the {MOST_BYTES:,} that are read")
        data = path.read_bytes()
    except (ValueError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); remove it") from None
    _check_version(path, data)
    records = [record for line in data.splitlines() if (record := _checked(line)) is not None]
    return [{name: value for name, value in r.items() if name not in ("schema", "seq")} for r in records]
