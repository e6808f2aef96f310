"""Many benchmarks from one command: the Cartesian product of values, one process each, kept in a journal.

A point that is in the journal is not run again. When a batch does not fit into memory, larger ones of the same
model, device, phase and numbers are stored as skipped.
"""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralpower.data.journal import Journal
from neuralpower.errors import InputError
from neuralpower.processes.tether import environment
from neuralpower.suites.bench.logs import parse
from neuralpower.suites.bench.options import FIELDS, Options, arguments, options_of, plain

OK, OOM, FAILED, SKIPPED, INTERRUPTED = "ok", "oom", "failed", "skipped", "interrupted"
LIMIT = 100_000  # points
KILLED = -9  # by the kernel, which needed memory
INTERRUPT = 130
IRRELEVANT = (  # for what memory is needed, but for the batch
    *("batch_size", "num_batches", "num_warmup_batches", "data_shuffle", "num_loader_threads"),
    *("master_port", "monitor_frequency", "seed"),
)


Ended = subprocess.CompletedProcess[str]


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
    """The options of every combination, batches rising; raises InputError where one makes no sense."""
    count = math.prod(map(len, axes.values()))
    if count > LIMIT:
        raise InputError(f"a grid of {count:,} points: {LIMIT:,} is the limit; leave values out")
    found = [
        options_of({**fixed, **dict(zip(axes, c, strict=True))}) for c in itertools.product(*axes.values())
    ]
    return sorted(found, key=lambda o: o.batch_size) if "batch_size" in axes else found


def label_of(options: Options) -> str:
    """What tells a point from others: its command line."""
    return " ".join(arguments(options))


def family(options: Options) -> Options:
    """What points have in common whose memory grows with the batch alone."""
    usual: dict[str, Any] = {name: FIELDS[name].default for name in IRRELEVANT}
    return replace(options, **usual)


def execute(command: Sequence[str]) -> Ended:
    """Run `neuralpower bench` in a process of its own; interrupted, it says what it measured until then."""
    runner = [sys.executable, "-m", "neuralpower", "bench", *command]
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
    """Run what is not in the folder's journal yet; the records of these points, in their order.

    Raises:
        DatasetError: the folder cannot be used, or another process uses it.
        DeviceError: the disk is full.
        KeyboardInterrupt: interrupted; what was measured is in the journal.
    """
    with Journal(folder) as journal:
        again = (INTERRUPTED, FAILED) if retry_failed else (INTERRUPTED,)
        done = {r["label"]: r for r in journal.records() if r["type"] == "point" and r["status"] not in again}
        limits: dict[Options, float] = {}  # the smallest batch that did not fit, by family

        def note(record: Mapping[str, Any]) -> None:
            if record["status"] == OOM:
                options = options_of(record["options"])
                limits[family(options)] = min(options.batch_size, limits.get(family(options), math.inf))

        for record in done.values():
            note(record)
        for number, options in enumerate(points, 1):
            label = label_of(options)
            if label in done:
                continue
            smallest = limits.get(family(options), options.batch_size)
            if options.batch_size > smallest:
                record = _record(options, SKIPPED, {}, f"batch size {smallest} did not fit into memory")
            else:
                record = _measured(options, run)
            journal.append(record)
            note(record)
            done[label] = record
            show(f"{number}/{len(points)} {label}: {_told(record)}")
            if record["status"] == INTERRUPTED:
                raise KeyboardInterrupt
        return [done[label_of(options)] for options in points]


def _measured(options: Options, run: Callable[[Sequence[str]], Ended]) -> dict[str, Any]:
    try:
        ended = run(arguments(options))
    except KeyboardInterrupt:
        return _record(options, INTERRUPTED, {}, "interrupted")
    code, values = ended.returncode, parse(ended.stdout).values
    if code == INTERRUPT:
        return _record(options, INTERRUPTED, values, "interrupted")
    if code == 0:
        return _record(options, OK, values, None)
    said = next(
        (line for line in reversed(ended.stderr.strip().splitlines()) if line.startswith("error: ")), ""
    )
    text = (
        values.get("results.error") or said.removeprefix("error: ") or " ".join(ended.stderr[-300:].split())
    )
    if code == KILLED or values.get("results.reason") == OOM:
        return _record(options, OOM, values, text or "killed, as for want of memory")
    return _record(options, FAILED, values, text or f"exit code {code}")


def _record(options: Options, status: str, values: dict[str, Any], error: str | None) -> dict[str, Any]:
    given = {name: plain(value) for name in FIELDS if (value := getattr(options, name)) is not None}
    head = {"type": "point", "label": label_of(options), "options": given}
    return {**head, "status": status, "error": error, "values": values}


def _told(record: Mapping[str, Any]) -> str:
    if record["status"] != OK:
        return f"{record['status']}: {record['error']}"
    values = record["values"]
    return f"{values['results.time']:.4g} ms, {values['results.throughput']} samples/s"
