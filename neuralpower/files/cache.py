"""Answers kept on the disk by their questions, so that the same question needs no work again.

A question is a tree of plain values; its key is a hash of them, so whatever an answer depends on must stand
in it. Answers are JSON: reading one runs nothing. One that cannot be read counts as not there, and so does
one of another user. A folder may hold other files: the cache removes what it wrote, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError

SWITCH = "NEURALPOWER_CACHE"  # another folder, or one of OFF
OFF = ("", "0", "off", "no", "false")
SORTS = ANSWERS, TRACES, TABLES = "answers", "traces", "tables"  # folders of what is kept
MOST_BYTES = 32 * 2**20  # in each of them; the least recently used go first
SCHEMA = 2
# Windows has neither links to follow here nor users' numbers: a profile's folder is its user's alone.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
NAME = re.compile(r"[0-9a-f]{40}\.json|\.[0-9a-f]{40}\.\d+\.new")


def cache_folder() -> Path | None:
    """The user's folder for answers; None where they are switched off. Raises InputError."""
    said = os.environ.get(SWITCH)
    if said is not None:
        return None if said.strip().lower() in OFF else _home_of(said)
    import platformdirs

    return Path(platformdirs.user_cache_dir("neuralpower", appauthor=False))


def _home_of(said: str) -> Path:
    """A path with `~` as the home it stands for; raises InputError where there is none."""
    try:
        return Path(said).expanduser()
    except RuntimeError:
        raise InputError(
            f"{SWITCH} {said!r}: no user has that home folder; give a folder, or 'off'"
        ) from None


def key_of(question: Any) -> str:
    """The key of a question of plain values."""
    return hashlib.blake2b(json.dumps(question, sort_keys=True).encode(), digest_size=20).hexdigest()


def content_of(file: Path) -> str:
    """A hash of a file's content; raises OSError."""
    return hashlib.blake2b(file.read_bytes(), digest_size=20).hexdigest()


def stamps_of(folder: Path, endings: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """(path, size, time of change in ns) of the files in a folder, and below it, with one of the endings."""
    stamps: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(endings):
                status = entry.stat()
                stamps.append((entry.path, status.st_size, status.st_mtime_ns))
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(("__", ".")):
                stamps += stamps_of(Path(entry.path), endings)
    return stamps


def recall(folder: Path, key: str, sort: str = ANSWERS) -> dict[str, Any] | None:
    """The answer of that key; None where there is none, none that can be read, or another user's."""
    try:
        data = _read(_place(folder, key, sort))
        if data["schema"] != SCHEMA or data["key"] != key or not isinstance(data["answer"], dict):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    answer: dict[str, Any] = data["answer"]
    return answer


def keep(folder: Path, key: str, answer: dict[str, Any], sort: str = ANSWERS) -> None:
    """Write an answer, whole or not at all; not kept where the disk refuses or a stranger's file lies."""
    file = _place(folder, key, sort)
    new = file.with_name(f".{key}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        for place in (folder, file.parent):  # `parents` would make the first one readable by all
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_own(file.parent.lstat(), stat.S_IFDIR):
            return
        if os.path.lexists(file) and not _is_own(file.lstat(), stat.S_IFREG):
            return
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(json.dumps({"schema": SCHEMA, "key": key, "answer": answer}))
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
        _prune(file.parent)


def _read(file: Path) -> Any:
    """The content of an entry, which is used now; raises ValueError, and OSError for what is not the cache's.

    A pipe is not waited for, and no link is followed.
    """
    descriptor = os.open(file, os.O_RDONLY | NO_LINK)
    with os.fdopen(descriptor, "rb") as entry:
        if not _is_own(os.fstat(descriptor), stat.S_IFREG) or not _is_own(file.parent.lstat(), stat.S_IFDIR):
            raise OSError(errno.EPERM, "another user's, or no file")
        os.utime(file if os.name == "nt" else descriptor)
        return json.loads(entry.read())


def _is_own(status: os.stat_result, kind: int) -> bool:
    """Whether something is of a kind, and belongs to this user."""
    return stat.S_IFMT(status.st_mode) == kind and (os.name == "nt" or status.st_uid == os.geteuid())


def _place(folder: Path, key: str, sort: str) -> Path:
    return folder / sort / f"{key}.json"


def _prune(folder: Path) -> None:
    """Remove the least recently used answers, until the others are within the bound."""
    total = 0
    for _, size, path in sorted(_kept(folder), reverse=True):
        total += size
        if total > MOST_BYTES and _is_answer(path):
            with contextlib.suppress(OSError):
                path.unlink()


def _kept(folder: Path) -> Iterable[tuple[int, int, Path]]:
    """(time, bytes, file) of each answer, by the names."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if NAME.fullmatch(entry.name) and _is_own(status, stat.S_IFREG):
                    yield status.st_mtime_ns, status.st_size, Path(entry.path)


def _is_answer(path: Path) -> bool:
    """Whether the cache wrote a file of such a name: what it was writing when it was killed is one, too."""
    if path.name.endswith(".new"):
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return re.match(rb'\{"schema": \d+, "key": "%b"' % path.stem.encode(), file.read(100)) is not None
    return False
