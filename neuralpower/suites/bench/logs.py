"""Logs back into values: files of result lines, folders of them, and folders of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neuralpower.data.journal import NAME, read_journal
from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv as write_rows
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import check_regular, is_file, is_folder
from neuralpower.suites.bench.grid import values_of
from neuralpower.suites.bench.lines import parse

SUFFIXES = (".log", ".txt", ".out")


class Log(NamedTuple):
    """What one run said; `unreadable` are result lines without a value."""

    source: str
    values: dict[str, Any]
    unreadable: tuple[str, ...] = ()


def read_logs(paths: Sequence[Path]) -> list[Log]:
    """The logs of files and folders; raises InputError where one cannot be read, or holds no result line."""
    return [log for path in paths for log in _read(path)]


def _read(path: Path) -> list[Log]:
    check_regular(path)
    if is_file(path / NAME):
        records = [r for r in read_journal(path) if r.get("type") == "point"]
        latest = {r["label"]: r for r in records}
        return [
            Log(f"{path}: {r['label']}", v) for r, v in zip(latest.values(), values_of([*latest.values()]), strict=True)
        ]
    if is_folder(path):
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{path}: no logs in it ({', '.join(SUFFIXES)}); give the files themselves")
        return [log for file in files for log in _read(file)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    found = parse(text)
    if not found.values:
        raise InputError(f"{path}: no result line such as `__results.time__= 12.5` in it; give a log of a benchmark")
    return [Log(str(path), found.values, found.unreadable)]


def write_csv(logs: Sequence[Log], path: Path) -> None:
    """A line per log, a column per name; lists and tables as JSON. Raises InputError."""
    names = sorted({name for log in logs for name in log.values})
    write_rows(
        path, [["source", *names], *([log.source, *(_cell(log.values, name) for name in names)] for log in logs)]
    )


def _cell(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    return json_text(value) if isinstance(value, list | dict | bool) else "" if value is None else value
