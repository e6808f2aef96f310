"""Result lines, `__results.time__= 12.5`: a name and its JSON value, among other lines of a log.

They are read back from files, from folders of files, and from the journal of a grid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neuralpower.data.journal import NAME, read_journal
from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv as write_rows
from neuralpower.files.json_files import json_text, nullable
from neuralpower.files.paths import check_regular, is_file, is_folder

PATTERN = re.compile(r"[ \t]*__(.+?(?=__[ \t]*[=]))__[ \t]*=(.+)")
SUFFIXES = (".log", ".txt", ".out")


class Log(NamedTuple):
    """The last value of each name in a run; lines without JSON, as after a kill, are unreadable."""

    source: str
    values: dict[str, Any]
    unreadable: tuple[str, ...] = ()


def result_line(name: str, value: Any) -> str:
    """One line; a number that is not finite becomes null."""
    return f"__{name}__= {json_text(nullable(value))}"


def parse(text: str, source: str = "") -> Log:
    """All result lines of a text."""
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    for match in filter(None, map(PATTERN.match, text.splitlines())):
        try:
            values[match[1]] = json.loads(match[2])
        except ValueError:
            unreadable.append(match.string.strip())
    return Log(source, values, tuple(unreadable))


def read_logs(path: Path) -> list[Log]:
    """The logs of a file or folder; raises InputError if one cannot be read, or has no result line."""
    check_regular(path)
    if is_file(path / NAME):
        latest = {r["label"]: r for r in read_journal(path) if r.get("type") == "point"}
        values = values_of(latest.values())
        return [Log(f"{path}: {label}", found) for label, found in zip(latest, values, strict=True)]
    if is_folder(path):
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{path}: contains no logs ({', '.join(SUFFIXES)}); give the files themselves")
        return [log for file in files for log in read_logs(file)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    found = parse(text, str(path))
    if not found.values:
        text = "contains no result line such as `__results.time__= 12.5`; give a log of a benchmark"
        raise InputError(f"{path}: {text}")
    return [found]


def values_of(records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The result lines of each point of a grid; if it printed none, its options under `exp.`."""
    for record in records:
        o = record["options"]
        head = {
            "exp.model": o["model"],
            "exp.replica_batch": o["batch_size"],
            "exp.device_type": "cpu" if o["device"] == "cpu" else "gpu",
            "exp.num_gpus": o["num_gpus"],
            "results.error": record["error"],
        }
        yield {**head, **record["values"], "results.status": record["status"]}


def write_csv(logs: Sequence[Log], path: Path) -> None:
    """A line per log, a column per name; lists and tables as JSON. Raises InputError."""
    names = sorted({name for log in logs for name in log.values})
    rows = ([log.source, *(_cell(log.values.get(name)) for name in names)] for log in logs)
    write_rows(path, [["source", *names], *rows])


def _cell(value: Any) -> Any:
    return json_text(value) if isinstance(value, list | dict | bool) else "" if value is None else value
