"""Many benchmarks from one command: the Cartesian product of values, one process each, kept in a journal.

A point in the journal is not run again. After a batch that does not fit into memory, larger batches of the
 same model, device, phase and dtype are stored as skipped.
"""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralpower.data.journal import Journal
from neuralpower.errors import InputError
from neuralpower.processes.tether import environment, python
from neuralpower.suites.bench.logs import parse
from neuralpower.suites.bench.options import FIELDS, Options, arguments, options_of, plain

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
