"""Result lines, `__results.time__= 12.5`: a name and its JSON value, among whatever else a log holds.

They are read back from files, from folders of files, and from the journal of a grid. Tables of many results
say what was explored, how it scales, how times spread, and where they went.

weak scaling      the batch of a device stays, the devices grow; speed-up by throughput
strong scaling    the batch of all devices together stays; speed-up by batch time
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neuralpower.data.journal import NAME, read_journal
from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv as write_rows
from neuralpower.files.json_files import json_text, nullable
from neuralpower.files.paths import check_regular, is_file, is_folder

PATTERN = re.compile(r"[ \t]*__(.+?(?=__[ \t]*[=]))__[ \t]*=(.+)")
SUFFIXES = (".log", ".txt", ".out")
WHAT = ("model", "device", "phase", "dtype")

Values = Mapping[str, Any]  # of a run, by the names of its result lines


class Log(NamedTuple):
    """The last value of each name in a run; lines whose value is no JSON, as after a kill, are unreadable."""

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
    """The logs of a file or folder; raises InputError where one cannot be read, or holds no result line."""
    check_regular(path)
    if is_file(path / NAME):
        latest = {r["label"]: r for r in read_journal(path) if r.get("type") == "point"}
        values = values_of(latest.values())
        return [Log(f"{path}: {label}", found) for label, found in zip(latest, values, strict=True)]
    if is_folder(path):
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{path}: no logs in it ({', '.join(SUFFIXES)}); give the files themselves")
        return [log for file in files for log in read_logs(file)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    found = parse(text, str(path))
    if not found.values:
        text = "no result line such as `__results.time__= 12.5` in it; give a log of a benchmark"
        raise InputError(f"{path}: {text}")
    return [found]


def values_of(records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The result lines of each point of a grid, with its options under `exp.` where it printed none."""
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


class Summary(NamedTuple):
    """A table; cells are texts, numbers or None for what is not known."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, title: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> Summary:
        """A table of `columns` behind WHAT, its rows in the order of their first six cells."""

        def order(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
            return [(v is not None, v if isinstance(v, int | float) else str(v)) for v in row[:6]]

        return cls(title, (*WHAT, *columns.split("|")), tuple(sorted(rows, key=order)))

    def to_json(self) -> dict[str, Any]:
        """Rows by column name."""
        return {"title": self.title, "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows]}

    def texts(self) -> list[list[str]]:
        """Rows of four digits; "-" for what is not known."""
        return [
            ["-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row]
            for row in self.rows
        ]


def what(values: Values) -> tuple[str, ...]:
    """Model, device, phase and dtype of a result."""
    model = values.get("exp.model_title") or values.get("exp.model", "-")
    device = values.get("exp.device_title") or values.get("exp.device_type", "-")
    dtype = f"{'autocast ' if values.get('exp.autocast') else ''}{values.get('exp.dtype', '-')}"
    return str(model), str(device), str(values.get("exp.phase", "-")), dtype


def exploration(results: Iterable[Values]) -> Summary:
    """Batch time and throughput of every run, or what went wrong, by model and batch."""
    names = ("exp.num_gpus", "exp.replica_batch", "results.time", "results.throughput")
    rows = [(*what(v), *map(v.get, names), v.get("results.status", "-")) for v in results]
    return Summary.of("exploration", "devices|batch each|batch time ms|samples/s|status", rows)


def scaling(results: Iterable[Values], strong: bool) -> Summary:
    """Speed-up and efficiency against the fewest devices, by times: throughputs are rounded, even to 0."""
    column, held = ("batch of all", "effective") if strong else ("batch each", "replica")
    held = f"exp.{held}_batch"
    groups: dict[tuple[Any, ...], dict[int, Values]] = {}
    for v in results:
        if v.get("results.time") and v.get(held) and v.get("exp.num_gpus"):
            groups.setdefault((*what(v), v[held]), {})[v["exp.num_gpus"]] = v
    rows = []
    for key, found in groups.items():
        fewest = min(found)
        for devices, v in found.items():
            work = 1.0 if strong else devices / fewest
            speedup = work * found[fewest]["results.time"] / v["results.time"]
            times = (devices, v["results.time"], v.get("results.throughput"))
            rows.append((*key, *times, float(speedup), speedup * fewest / devices))
    columns = f"{column}|devices|batch time ms|samples/s|speed-up|efficiency"
    return Summary.of(f"{'strong' if strong else 'weak'} scaling", columns, rows)


def statistics(results: Iterable[Values]) -> Summary:
    """How the times of the batches spread (ms)."""
    rows = []
    for v in results:
        if times := v.get("results.time_data"):
            quarters = np.quantile(times, (0, 0.25, 0.5, 0.75, 1)).tolist()
            mean, std = float(np.mean(times)), float(np.std(times))
            rows.append((*what(v), v.get("exp.replica_batch"), len(times), mean, std, std / mean, *quarters))
    return Summary.of("statistics (ms)", "batch each|n|mean|std|std/mean|min|q25|median|q75|max", rows)


def time_analysis(results: Iterable[Values]) -> Summary:
    """Where the time of each run went (s), and which share of the timed part waited for data."""
    rows = []
    for v in results:
        if (wall := v.get("results.wall_s")) is not None:
            parts = [float(v.get(f"results.{name}_s") or 0.0) for name in ("setup", "warmup", "timed")]
            waited = v.get("results.data_wait_s")
            share = waited / parts[2] if waited is not None and parts[2] else None
            spent = (wall, *parts, wall - sum(parts), waited, share)
            rows.append((*what(v), v.get("exp.replica_batch"), *spent))
    columns = "batch each|wall|setup|warm-up|timed|rest|data wait|wait/timed"
    return Summary.of("time analysis (s)", columns, rows)


SUMMARIES: dict[str, Callable[[Iterable[Values]], Summary]] = {
    "exploration": exploration,
    "weak": partial(scaling, strong=False),
    "strong": partial(scaling, strong=True),
    "statistics": statistics,
    "time": time_analysis,
}
