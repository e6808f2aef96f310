"""Results of benchmarks: lines such as `__results.time__= 12.5` and their way back, grids, summaries.

They are read back from files, from folders of files, and from the journal of a grid.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neuralpower.data.journal import NAME, Journal, read_journal
from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv as write_rows
from neuralpower.files.json_files import json_text, nullable
from neuralpower.files.paths import check_regular, is_file, is_folder
from neuralpower.processes.tether import environment, python
from neuralpower.suites.bench.options import FIELDS, Options, arguments, options_of, plain

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
        return [Log(f"{path}: {label}", read) for label, read in zip(latest, values, strict=True)]
    if is_folder(path):
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{path}: contains no logs ({', '.join(SUFFIXES)}); give the files themselves")
        return [log for file in files for log in read_logs(file)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    read = parse(text, str(path))
    if not read.values:
        text = "contains no result line such as `__results.time__= 12.5`; give a log of a benchmark"
        raise InputError(f"{path}: {text}")
    return [read]


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


# ---- Many benchmarks from one command ----
# A point in the journal is not run again. After a batch that does not fit into memory, larger batches of the
#  same model, device, phase and dtype are stored as skipped.


OK, OOM, FAILED, SKIPPED, INTERRUPTED = "ok", "oom", "failed", "skipped", "interrupted"
LIMIT = 100_000  # points
KILLED = -9  # by the kernel, for lack of memory
INTERRUPT = 130  # exit code
IRRELEVANT = (  # options that do not change the memory, and the batch size, which is compared
    "batch_size num_batches num_warmup_batches data_shuffle num_loader_threads master_port "
    "monitor_frequency seed"
)
USUAL: dict[str, Any] = {name: FIELDS[name].default for name in IRRELEVANT.split()}

Ended = subprocess.CompletedProcess[str]
Outcome = tuple[str, str | None, dict[str, Any]]  # status, error, values


def axes_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """{"batch_size": ["16", "32"]} of "batch_size=16,32"; raises InputError."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        values = [value.strip() for value in rest.split(",") if value.strip()]
        if not equals or not values:
            raise InputError(f"grid {text!r}: write NAME=VALUE,VALUE, such as batch_size=16,32")
        if name in axes:
            raise InputError(f"grid {name}: given twice; give all of its values at once")
        if len(set(values)) < len(values):
            raise InputError(f"grid {name}: {rest} names a value twice; give each once")
        axes[name] = values
    return axes


def points_of(fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[Options]:
    """The options of every combination, batches rising; raises InputError if one is impossible."""
    count = math.prod(map(len, axes.values()))
    if count > LIMIT:
        raise InputError(f"a grid of {count:,} points: {LIMIT:,} is the limit; give fewer values")
    chosen = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    found = [options_of({**fixed, **values}) for values in chosen]
    return sorted(found, key=lambda o: o.batch_size) if "batch_size" in axes else found


def execute(command: Sequence[str]) -> Ended:
    """Run `neuralpower bench` in its own process; if interrupted, it still prints its results."""
    runner = [*python("neuralpower"), "bench", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(runner, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        try:
            out, err = process.communicate()
            return Ended(runner, process.returncode, out, err)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)  # a job in the background is deaf to SIGINT
            return Ended(runner, INTERRUPT, *process.communicate())


def run_grid(
    points: Sequence[Options],
    folder: Path,
    show: Callable[[str], None],
    *,
    run: Callable[[Sequence[str]], Ended] = execute,
    retry_failed: bool = False,
) -> list[dict[str, Any]]:
    """Run points that the folder's journal lacks; return all records. Raises DatasetError, DeviceError."""
    with Journal(folder) as journal:
        again = (INTERRUPTED, FAILED) if retry_failed else (INTERRUPTED,)
        done = {r["label"]: r for r in journal.records() if r["type"] == "point" and r["status"] not in again}
        limits: dict[Options, float] = {}  # the smallest batch that did not fit, by all other options

        def note(options: Options, record: Mapping[str, Any]) -> None:
            if record["status"] == OOM:
                others = replace(options, **USUAL)
                limits[others] = min(options.batch_size, limits.get(others, math.inf))

        for record in done.values():
            note(options_of(record["options"]), record)
        labels = [" ".join(arguments(options)) for options in points]
        for number, (options, label) in enumerate(zip(points, labels, strict=True), 1):
            if label in done:
                continue
            smallest = limits.get(replace(options, **USUAL), math.inf)
            found: Outcome = (SKIPPED, f"batch size {smallest} did not fit into memory", {})
            if options.batch_size <= smallest:
                found = _measured(options, run)
            status, error, values = found
            given = {name: plain(value) for name in FIELDS if (value := getattr(options, name)) is not None}
            record = {"type": "point", "label": label, "options": given}
            record |= {"status": status, "error": error, "values": values}
            journal.append(record)
            note(options, record)
            done[label] = record
            said = f"{status}: {error}"
            if status == OK:
                said = f"{values['results.time']:.4g} ms, {values['results.throughput']} samples/s"
            show(f"{number}/{len(points)} {label}: {said}")
            if status == INTERRUPTED:
                raise KeyboardInterrupt
        return [done[label] for label in labels]


def _measured(options: Options, run: Callable[[Sequence[str]], Ended]) -> Outcome:
    try:
        ended = run(arguments(options))
    except KeyboardInterrupt:
        return INTERRUPTED, "interrupted", {}
    code, values = ended.returncode, parse(ended.stdout).values
    if code == INTERRUPT:
        return INTERRUPTED, "interrupted", values
    if code == 0:
        return OK, None, values
    errors = [line for line in ended.stderr.strip().splitlines() if line.startswith("error: ")]
    said = errors[-1].removeprefix("error: ") if errors else ""
    text = values.get("results.error") or said or " ".join(ended.stderr[-300:].split())
    if code == KILLED or values.get("results.reason") == OOM:
        return OOM, text or "killed, probably for lack of memory", values
    return FAILED, text or f"exit code {code}", values


# ---- Tables of many results: exploration, scaling, spread of times, and shares of time ----
# weak scaling      the batch of a device is constant, the devices grow; speed-up by throughput
# strong scaling    the batch of all devices is constant; speed-up by batch time


Values = Mapping[str, Any]  # of a run, by the names of its result lines
WHAT = ("model", "device", "phase", "dtype")


class Summary(NamedTuple):
    """A table; cells are texts, numbers, or None for an unknown value."""

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
        return {"title": self.title, "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows]}

    def texts(self) -> list[list[str]]:
        """Rows with four digits; "-" for an unknown value."""
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
    """Batch time and throughput of every run, or its failure, by model and batch."""
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
    """Statistics of the batches' times (ms)."""
    rows = []
    for v in results:
        if times := v.get("results.time_data"):
            quarters = np.quantile(times, (0, 0.25, 0.5, 0.75, 1)).tolist()
            mean, std = float(np.mean(times)), float(np.std(times))
            rows.append((*what(v), v.get("exp.replica_batch"), len(times), mean, std, std / mean, *quarters))
    return Summary.of("statistics (ms)", "batch each|n|mean|std|std/mean|min|q25|median|q75|max", rows)


def time_analysis(results: Iterable[Values]) -> Summary:
    """The parts of each run's time (s), and the share of the timed part that waited for data."""
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
