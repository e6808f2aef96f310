"""Run points in turn, and record each at once: the same sweep resumes where it ended.

A journal (`neuralpower.data.journal`) keeps points that began and their results. A point that began
twice without a result has ended the process, as a host without memory does: it is stored as not finished, and
skipped.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuralpower.data.journal import NAME, Journal, read_journal
from neuralpower.errors import DatasetError, DeviceError, InputError
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text
from neuralpower.suites.paradnn.points import Point
from neuralpower.suites.paradnn.result import STATES, Result, Setup, State
from neuralpower.suites.paradnn.table import csv_text

ATTEMPTS = 2
OPEN = (State.NOT_RUN, State.UNHEALTHY)  # states after which a point runs again
CSV, JSON = "results.csv", "results.json"

OWN_OPTIONS = ("--slurm", "--shard")  # options with a value that a script of jobs sets itself
ARRAY = """#!/bin/bash
#SBATCH --job-name=paradnn
#SBATCH --array=1-{jobs}
#SBATCH --ntasks=1
#SBATCH --exclusive
{gpu}#SBATCH --output=paradnn-%A-%a.log
# A job that is cut off resumes when it is submitted again.
srun neuralpower {command} --shard "$SLURM_ARRAY_TASK_ID/{jobs}"
"""

Measure = Callable[[Point], Result]
Show = Callable[[int, int, Result], None]


@dataclass(frozen=True)
class Sweep:
    """Points under one setup, and the folder of their results."""

    points: Sequence[Point]
    setup: Setup
    folder: Path
    again: Collection[str] = ()
    """States whose points run again, such as oom on a machine with more memory."""

    def run(
        self,
        measure: Measure,
        show: Show = lambda number, total, result: None,
        *,
        budget_s: float | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> list[Result]:
        """Measure points without a result, until the time is up; return all points' results, in order.

        Results are on disk, and in the tables, also after an interruption or an error. Raises DatasetError if
        the folder cannot be used, or is in use; DeviceError for a full disk or a lost device.
        """
        begun = clock_s()
        with Journal(self.folder) as journal:
            found, starts = _known(journal.records())
            try:
                for number, point in enumerate(self.points, 1):
                    key = _key(point, self.setup)
                    again = (*self.again, *(OPEN if starts[key] < ATTEMPTS else ()))
                    if key in found and found[key].state not in again:
                        continue
                    if key not in found and starts[key] >= ATTEMPTS:
                        reason = f"it was begun {ATTEMPTS} times, and the process ended each time"
                        result = self._without(point, State.NOT_FINISHED, reason)
                    elif budget_s is not None and clock_s() - begun >= budget_s:
                        break
                    else:
                        journal.append({"type": "start", "key": key})
                        try:
                            result = measure(point)
                        except BaseException:  # an interruption is not an error of the point
                            with contextlib.suppress(DeviceError):
                                journal.append({"type": "stop", "key": key})
                            raise
                    found[key] = result
                    journal.append({"type": "result", "key": key, **asdict(result)})
                    show(number, len(self.points), result)
                    if result.state == State.UNHEALTHY:
                        way = "run the same command again to resume"
                        raise DeviceError(f"{point.label}: {result.reason}; {way}")
            finally:
                results = self._write(found)
        return results

    def _without(self, point: Point, state: str, reason: str) -> Result:
        return Result(point=point, setup=self.setup, machine="", state=state, reason=reason)

    def _write(self, known: Mapping[str, Result]) -> list[Result]:
        """Write the tables of all results, and of untried points; return these points' results."""
        keys = [_key(point, self.setup) for point in self.points]
        every = dict(known)
        for key, point in zip(keys, self.points, strict=True):
            every.setdefault(key, self._without(point, State.NOT_RUN, "not tried yet"))
        lines = [json_text(result.summary()) for result in every.values()]
        replace_file(self.folder / JSON, "[\n" + ",\n".join(lines) + "\n]\n")
        if self.points:
            family = self.points[0].family
            text = csv_text(family, (r for r in known.values() if r.point.family == family))
            replace_file(self.folder / CSV, text)
        return [every[key] for key in keys]


def read_results(folder: Path) -> list[Result]:
    """The latest result of each point in a folder and its shards; raises DatasetError for none."""
    places = [folder, *sorted(folder.glob("shard-*-of-*"))]
    records = [record for place in places for record in read_journal(place)]
    found, _ = _known(records)
    if not found:
        text = f"has no results ({NAME} of a sweep); give the --out of `neuralpower paradnn`"
        raise DatasetError(f"{folder}: {text}")
    return list(found.values())


def states_of(results: Iterable[Result]) -> str:
    """The number of points in each state: "178 ok, 2 oom"."""
    counts = Counter(result.state for result in results)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _known(records: Iterable[dict[str, Any]]) -> tuple[dict[str, Result], Counter[str]]:
    """The latest result by key, and how often each began and was not interrupted."""
    found: dict[str, Result] = {}
    starts: Counter[str] = Counter()
    for record in records:
        key, kind = str(record.get("key")), record.get("type")
        starts[key] += {"start": 1, "stop": -1}.get(str(kind), 0)
        if kind == "result":
            found[key] = Result.from_record(record)
    return found, starts


def _key(point: Point, setup: Setup) -> str:
    how = " ".join(f"{name}={value}" for name, value in asdict(setup).items())
    return f"{point.family} {point.kind} {point.label} {how}"


def array_script(arguments: Sequence[str], jobs: int, *, gpu: bool) -> str:
    """A script for `sbatch` whose jobs share `neuralpower ARGUMENTS`; raises InputError without a job."""
    if jobs < 1:
        raise InputError(f"array of {jobs} jobs: must be 1 or more")
    kept, rest = [], iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name not in OWN_OPTIONS:
            kept.append(argument)
        elif not equals:
            next(rest, None)  # its value
    return ARRAY.format(jobs=jobs, gpu="#SBATCH --gres=gpu:1\n" if gpu else "", command=shlex.join(kept))
