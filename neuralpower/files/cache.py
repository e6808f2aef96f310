"""Answers kept on the disk by their questions, so that the same question needs no work again.

A question is a tree of plain values; its key is a hash of them, so whatever an answer depends on must stand
in it. Answers are JSON: reading one runs nothing. One that cannot be read counts as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SWITCH = "NEURALPOWER_CACHE"  # another folder, or one of OFF
OFF = ("", "0", "off", "no", "false")
MOST_BYTES = 32 * 2**20  # of all answers; the least recently used ones go first
SCHEMA = 2


def cache_folder() -> Path | None:
    """The user's folder for answers; None where they are switched off."""
    said = os.environ.get(SWITCH)
    if said is not None:
        return None if said.strip().lower() in OFF else Path(said).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("neuralpower", appauthor=False))


def key_of(question: Any) -> str:
    """The key of a question of plain values."""
    return hashlib.blake2b(json.dumps(question, sort_keys=True).encode(), digest_size=20).hexdigest()


def content_of(file: Path) -> str:
    """A hash of a file's content; raises OSError."""
    return hashlib.blake2b(file.read_bytes(), digest_size=20).hexdigest()


def stamps_of(folder: Path, endings: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """(path, size, time of change in ns) of the files in a folder, and below it, with one of the endings."""
    found: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.endswith(endings):
                status = entry.stat()
                found.append((entry.path, status.st_size, status.st_mtime_ns))
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(("__", ".")):
                found += stamps_of(Path(entry.path), endings)
    return found


def recall(folder: Path, key: str) -> dict[str, Any] | None:
    """The answer of that key; None where there is none, or none that can be read."""
    file = _place(folder, key)
    try:
        data = json.loads(file.read_bytes())
        if data["schema"] != SCHEMA or data["key"] != key or not isinstance(data["answer"], dict):
            return None
        os.utime(file)  # it was used
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    answer: dict[str, Any] = data["answer"]
    return answer


def keep(folder: Path, key: str, answer: dict[str, Any]) -> None:
    """Write an answer, whole or not at all; where the disk refuses, it is not kept."""
    file = _place(folder, key)
    new = file.with_name(f".{key}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            new.write_text(json.dumps({"schema": SCHEMA, "key": key, "answer": answer}), encoding="utf-8")
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
        _prune(folder)


def _place(folder: Path, key: str) -> Path:
    return folder / "answers" / f"{key}.json"


def _prune(folder: Path) -> None:
    """Remove the least recently used answers, until the others are within the bound."""
    total = 0
    for _, size, path in sorted(_kept(folder / "answers"), reverse=True):
        total += size
        if total > MOST_BYTES:
            with contextlib.suppress(OSError):
                path.unlink()


def _kept(folder: Path) -> Iterable[tuple[int, int, Path]]:
    """(time, bytes, file) of each answer."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry.stat().st_mtime_ns, entry.stat().st_size, Path(entry.path)
