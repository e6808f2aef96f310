"""Files that a reader sees whole: the old one or the new one, never a part.

A file is written next to its place, under a hidden name that ends in `.new`, and renamed at the end. A
failure or an interrupt removes it; the next process that writes the same file removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from neuralpower.errors import DatasetError, InputError, writing
from neuralpower.files import locks
from neuralpower.files.paths import is_file, is_there, resolved

LONGEST = 200  # bytes of a file's name that the hidden one repeats: 255 are allowed
ABANDONED_S = 60.0  # since the last byte was written; a writer has its lock long before


def force(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk; raises OSError."""
    if locks.WINDOWS and path.is_dir():  # which Windows neither opens nor has to be told
        return
    descriptor = os.open(path, os.O_RDWR if locks.WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A new, empty file that takes the place of `path`, on the disk, at the end; removed if anything fails.

    A link is followed. Where `path` is a device or a pipe, it is written to itself. Raises OSError.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = resolved(path) if path.is_symlink() else path
    _sweep(target)
    new, descriptor = _made(target)
    lock = os.fdopen(descriptor, "rb")
    try:
        yield new
        force(new)
        if locks.WINDOWS:  # which moves no file that is open
            lock.close()
        new.replace(target)
        force(target.parent)
    except BaseException:
        if locks.WINDOWS:
            lock.close()
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    finally:
        lock.close()


def check_writable(path: Path) -> None:
    """Raise OSError where `aside` would."""
    new, descriptor = _made(resolved(path) if path.is_symlink() else path)
    os.close(descriptor)
    new.unlink()


def _stem(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:LONGEST])}."


def _made(target: Path) -> tuple[Path, int]:
    """A new file next to the target with its permissions, and the descriptor that keeps it locked."""
    new = target.with_name(f"{_stem(target)}{secrets.token_hex(4)}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks or permissions, or no target yet
        locks.take(descriptor)
        new.chmod(stat.S_IMODE(target.stat().st_mode))
    return new, descriptor


def _sweep(target: Path) -> None:
    """Remove what killed processes left of the target: old files that nobody has locked."""
    name = re.compile(re.escape(_stem(target)) + r"[0-9a-f]{8}\.new")
    with contextlib.suppress(OSError):
        left = [entry for entry in os.scandir(target.parent) if name.fullmatch(entry.name)]
        for entry in left:
            if time.time() - entry.stat().st_mtime > ABANDONED_S:
                descriptor = os.open(entry.path, os.O_RDONLY)
                try:
                    locks.take(descriptor)
                finally:
                    os.close(descriptor)
                Path(entry.path).unlink()


def make_folder_of(path: Path) -> None:
    """Make the folder that a file is to be in; raises OSError."""
    if not path.parent.is_dir():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # a file has its name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from None


def replace_file(path: Path, text: str) -> None:
    """Write a text file to the disk, so that a reader sees the old one or the new one, never a part."""
    with writing(path, "place", DatasetError):
        make_folder_of(path)
        with aside(path) as new:
            new.write_text(text)


def check_place(path: Path, example: str) -> None:
    """Make a file's folder, and raise InputError where `replace_file` could not write: before long work."""
    if not path.name or (is_there(path) and not is_file(path)):
        raise InputError(f"{path}: is not a file; choose a file's name, such as {example}")
    with writing(path, "place"):
        make_folder_of(path)
        check_writable(path)
