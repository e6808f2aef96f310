"""Many benchmarks from one command: the Cartesian product of values, one process each, kept in a journal point by point.

A point that is in the journal is not run again. When a batch does not fit into memory, larger ones of the same model, device,
phase and numbers are stored as skipped.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuralpower.data.journal import Journal
from neuralpower.errors import InputError
from neuralpower.processes.tether import environment
from neuralpower.suites.bench.lines import parse
from neuralpower.suites.bench.options import FIELDS, Options, arguments, options_of

OK, OOM, FAILED, SKIPPED, INTERRUPTED = "ok", "oom", "failed", "skipped", "interrupted"
LIMIT = 100_000  # points
KILLED = -9  # by the kernel, which needed memory
INTERRUPT = 130


@dataclass(frozen=True)
class Executed:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str


Execute = Callable[[Sequence[str]], Executed]


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
    """The options of every combination, batches rising; raises InputError for the first that makes no sense."""
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > LIMIT:
        raise InputError(f"a grid of {count:,} points: {LIMIT:,} is the limit; leave values out")
    found = [options_of({**fixed, **dict(zip(axes, c, strict=True))}) for c in itertools.product(*axes.values())]
    return sorted(found, key=lambda o: o.batch_size) if "batch_size" in axes else found


def label_of(options: Options) -> str:
    """What tells a point from others: its command line."""
    return " ".join(arguments(options))


def family(options: Options) -> Options:
    """What points have in common whose memory grows with the batch alone."""
    return replace(
        options,
        batch_size=1,
        num_batches=1,
        num_warmup_batches=0,
        data_shuffle=False,
        num_loader_threads=0,
        master_port=0,
        monitor_frequency=0.0,
        seed=0,
    )


def execute(command: Sequence[str]) -> Executed:
    """Run `neuralpower bench` in a process of its own; interrupted, it says what it measured until then."""
    runner = [sys.executable, "-m", "neuralpower", "bench", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(runner, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        try:
            out, err = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)  # a job in the background is deaf to SIGINT
            return Executed(INTERRUPT, *process.communicate())
    return Executed(process.returncode, out, err)


def run_grid(
    points: Sequence[Options],
    folder: Path,
    show: Callable[[str], None],
    *,
    run: Execute = execute,
    retry_failed: bool = False,
) -> list[dict[str, Any]]:
    """Run what is not in the folder's journal yet; the records of these points, in their order.

    Raises:
        DatasetError: the folder cannot be used, or another process uses it.
        DeviceError: the disk is full.
        KeyboardInterrupt: interrupted; what was measured is in the journal.
    """
    with Journal(folder) as journal:
        again = (INTERRUPTED, FAILED) if retry_failed else (INTERRUPTED,)
        done = {r["label"]: r for r in journal.records() if r["type"] == "point" and r["status"] not in again}
        limits = _limits(done.values())
        for number, options in enumerate(points, 1):
            label = label_of(options)
            if label in done:
                continue
            smallest = limits.get(family(options))
            if smallest is not None and options.batch_size > smallest:
                record = _record(options, SKIPPED, {}, f"batch size {smallest} did not fit into memory")
            else:
                record = _measured(options, run)
            journal.append(record)
            done[label] = record
            if record["status"] == OOM:
                limits[family(options)] = options.batch_size
            show(f"{number}/{len(points)} {label}: {_told(record)}")
            if record["status"] == INTERRUPTED:
                raise KeyboardInterrupt
        return [done[label_of(options)] for options in points]


def _limits(records: Any) -> dict[Options, int]:
    """The smallest batch that did not fit, by family."""
    limits: dict[Options, int] = {}
    for record in records:
        if record["status"] == OOM:
            options = options_of(record["options"])
            limits[family(options)] = min(options.batch_size, limits.get(family(options), options.batch_size))
    return limits


def _measured(options: Options, run: Execute) -> dict[str, Any]:
    try:
        ended = run(arguments(options))
    except KeyboardInterrupt:
        return _record(options, INTERRUPTED, {}, "interrupted")
    values = parse(ended.out).values
    said = next((line for line in reversed(ended.err.strip().splitlines()) if line.startswith("error: ")), "")
    text = values.get("results.error") or said.removeprefix("error: ") or " ".join(ended.err[-300:].split())
    if ended.code == INTERRUPT:
        return _record(options, INTERRUPTED, values, "interrupted")
    if ended.code == 0:
        return _record(options, OK, values, None)
    if ended.code == KILLED or values.get("results.reason") == OOM:
        return _record(options, OOM, values, text or "killed, as for want of memory")
    return _record(options, FAILED, values, text or f"exit code {ended.code}")


def _record(options: Options, status: str, values: dict[str, Any], error: str | None) -> dict[str, Any]:
    given = {name: _plain(value) for name in FIELDS if (value := getattr(options, name)) is not None}
    return {
        "type": "point",
        "label": label_of(options),
        "options": given,
        "status": status,
        "error": error,
        "values": values,
    }


def _plain(value: Any) -> Any:
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


def _told(record: Mapping[str, Any]) -> str:
    if record["status"] != OK:
        return f"{record['status']}: {record['error']}"
    values = record["values"]
    return f"{values['results.time']:.4g} ms, {values['results.throughput']} samples/s"


def values_of(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The result lines of each point, with its options under `exp.` where it printed none."""
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
