"""Results of points: a time, or a state that says why there is none; their tables, and the sweep."""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from neuralpower.data.journal import NAME, Journal, read_journal
from neuralpower.dtypes import DTYPES, NETWORK_DTYPES, TENSORFLOAT32
from neuralpower.errors import DatasetError, DeviceError, InputError
from neuralpower.files.atomic import replace_file
from neuralpower.files.csv_files import csv_text as csv_text_of
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import check_regular
from neuralpower.suites.paradnn.points import FAMILIES, FLOP_PER_WEIGHT, Point, counted, family_named


class State:
    OK = "ok"
    OOM = "oom"  # does not fit
    NAN = "nan"  # it ran, and its loss is not a number
    FAILED = "failed"  # it raised
    NEGATIVE = "negative_dimension"  # an image too small for the network
    DEADLINE = "deadline_exceeded"  # not one step within the time of a point
    NOT_RUN = "not_run"  # not tried
    NOT_FINISHED = "not_finished"  # it ended the process twice
    NO_FIGURE = "no_figure"  # it ran, and gave no time
    UNHEALTHY = "unhealthy"  # the device no longer answers
    SOCKET_CLOSED = "socket_closed"  # of a remote device


STATES = tuple(value for name, value in vars(State).items() if name.isupper())
SHORT = {name: DTYPES[name].short for name in NETWORK_DTYPES}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of a run; equal points under another setup are separate measurements."""

    device: str = "cpu"
    dtype: str = "float32"
    mode: str = "train"
    optimizer: str = "rms"
    rmsprop: str = "paradnn"
    amp: bool = False
    tf32: bool = False
    warmup_steps: int = 300
    steps: int = 100
    predictor: str = ""  # its name; "" where the times were measured

    @property
    def arithmetic(self) -> str:
        return TENSORFLOAT32 if self.tf32 else self.dtype


@dataclass(frozen=True, kw_only=True)
class Result:
    """Times in seconds, FLOP of one step; None if unknown."""

    point: Point
    setup: Setup
    machine: str
    state: str = State.OK
    reason: str = ""
    duration_s: float | None = None  # of all timed steps
    steps: int = 0  # that were timed
    warmup_steps: int = 0  # that were run before them
    parameters: int | None = None  # biases and norms among them
    phi: int | None = None
    formula_flops: int | None = None
    counted_flops: int | None = None
    median_step_s: float | None = None
    peak_memory_bytes: int | None = None
    torch: str = ""
    coverage: float | None = None  # of a prediction: share of the time that was trained, not estimated

    @property
    def step_flops(self) -> int | None:
        """By the paper's formula if it has one, else counted."""
        return self.counted_flops if self.formula_flops is None else self.formula_flops

    @property
    def step_s(self) -> float | None:
        return _ratio(self.duration_s, self.steps) or None

    @property
    def flops_per_s(self) -> float | None:
        """By the paper's formula if it has one, else counted."""
        return _ratio(self.step_flops, self.step_s)

    @property
    def counted_flops_per_s(self) -> float | None:
        return _ratio(self.counted_flops, self.step_s)

    @property
    def intensity(self) -> float | None:
        """FLOP of a step per byte of parameters."""
        return _ratio(self.step_flops, (self.parameters or 0) * DTYPES[self.setup.dtype].itemsize)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Result:
        """A result from the fields of a journal; raises DatasetError for another version's."""
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            text = f"not a result ({error}): another version wrote it; sweep again"
            raise DatasetError(text) from None

    def summary(self) -> dict[str, Any]:
        """ParaDnn's result of a point: GFLOP/s, GFLOP of a step, steps and examples per second, FLOP/B."""
        return {
            "labels": self.point.label,
            "kind": self.point.kind,
            "device": self.machine,
            "input_type": SHORT[self.setup.dtype],
            "mode": self.setup.mode,
            "optimizer": self.setup.optimizer,
            "tf32": self.setup.tf32,
            "amp": self.setup.amp,
            "intensity": self.intensity,
            "flops": _ratio(self.flops_per_s, 1e9),
            "params": self.parameters,
            "step_per_sec": _ratio(1, self.step_s),
            "fl": _ratio(self.step_flops, 1e9),
            "counted_fl": _ratio(self.counted_flops, 1e9),
            "example_per_sec": _ratio(self.point.batch_size, self.step_s),
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "duration": self.duration_s,
            "err_jobs": [] if self.state == State.OK else [self.point.label],
            "states": self.state,
            "reason": self.reason,
            "predictor": self.setup.predictor or None,
            "coverage": self.coverage,
            "torch": self.torch,
        }


def _ratio(above: float | None, below: float | None) -> float | None:
    """None if one is unknown, or the divisor is 0."""
    return None if above is None or not below else above / below


def single_text(result: Result) -> str:
    """The output of a single run: version, hyper-parameters, Duration and TFLOPS."""
    point, setup, work = result.point, result.setup, counted(result.point)
    trained = f", optimizer: {setup.optimizer}" if setup.mode == "train" else ""
    lines = [
        f"predictor: {setup.predictor}" if setup.predictor else f"torch: {result.torch}",
        f"device: {result.machine}",
        f"input_type: {SHORT[setup.dtype]}{' AMP' * setup.amp}{' TF32' * setup.tf32}",
        f"mode: {setup.mode}{trained}",
        f"{family_named(point.family).selects}: {point.kind}",
        *(f"{name}: {size}" for name, size in point.named.items()),
        f"parameters: {work.parameters:,}; {work.weights:,} without biases and norms",
    ]
    if result.phi is not None:
        more = "the same" if work.weights == result.phi else f"{work.weights / result.phi - 1:+.1%}"
        lines.append(f"Phi: {result.phi:,} by the paper's formula; as built {more}")
    if result.formula_flops is not None:
        per_weight = FLOP_PER_WEIGHT[setup.mode]
        lines.append(f"FLOP of a step by formula: {result.formula_flops:,} ({per_weight} Phi bs)")
    lines.append(f"FLOP of a step as counted: {result.counted_flops:,}")
    lines.append(f"Duration: {_to(result.duration_s)} s ({result.steps} steps after {result.warmup_steps})")
    if result.coverage is not None:
        text = f"{result.coverage:.1%} of the time is trained; the other part is a roofline estimate"
        lines.append(f"Coverage: {text}")
    if result.peak_memory_bytes is not None:
        lines.append(f"Peak memory: {result.peak_memory_bytes / 1e9:.3f} GB")
    how = " (by formula)" if result.formula_flops else " (counted)"
    lines.append(f"TFLOPS: {_to((result.flops_per_s or 0) / 1e12)}{how}")
    if result.formula_flops is not None:
        lines.append(f"TFLOPS as counted: {_to((result.counted_flops_per_s or 0) / 1e12)}")
    return "\n".join(lines)


def _to(value: float | None) -> str:
    """Six digits; from 1,000 on all before the point, in groups of three."""
    number = value or 0.0
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.6g}"


# ---- The tables of sweeps ----
# `#params` is Phi, the base of the paper's FLOP, for fully connected networks, and all parameters for others.
# `duration` is in seconds, `tflops` in 10^12 FLOP/s (1 multiply-add = 2 FLOP).


SIZES = {
    "fc": "layers nodes batch_size input_size output_size",
    "cnn": "block blocks filters batch_size input_size output_size",
    "rnn": "cell layers embed length vocabulary batch_size",
}
HEADERS = {name: f"device input_type {s} #params duration tflops".split() for name, s in SIZES.items()}
LONG = {short: name for name, short in SHORT.items()}
KNOWN = ("parameters", "step_flops", "step_s", "flops_per_s", "intensity", "coverage", "state")


def row_of(result: Result) -> list[str]:
    """A line of the CSV; raises DatasetError for a result without a time."""
    if result.flops_per_s is None or result.duration_s is None:
        raise DatasetError(f"{result.point.label}: {result.state}; only points with a time belong in a table")
    family = family_named(result.point.family)
    cells: dict[str, object] = {
        **result.point.named,
        family.selects: result.point.kind,
        "device": result.machine,
        "input_type": SHORT[result.setup.dtype],
        "#params": result.parameters if result.phi is None else result.phi,
        "duration": f"{result.duration_s:.6g}",
        "tflops": f"{result.flops_per_s / 1e12:.6g}",
    }
    return [str(cells[name]) for name in HEADERS[family.name]]


def csv_text(family: str, results: Iterable[Result]) -> str:
    """The table of all points with a time."""
    return csv_text_of([HEADERS[family], *(row_of(r) for r in results if r.flops_per_s is not None)])


def read_csv(path: Path) -> tuple[str, list[list[str]]]:
    """(family, rows) of a table; commas can have spaces after them. Raises DatasetError for another file."""
    check_regular(path, DatasetError)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")), skipinitialspace=True))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); give a CSV of `neuralpower paradnn`") from None
    header, *rows = [[cell.strip() for cell in line] for line in lines if line] or [[]]
    family = next((name for name, known in HEADERS.items() if known == header), None)
    if family is None:
        fc = ",".join(HEADERS["fc"])
        raise DatasetError(f"{path}: its header is {','.join(header)!r}; it must be {fc!r} or alike")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            cells = f"row {number} has {len(row)} cells, the header {len(header)}"
            raise DatasetError(f"{path}: {cells}; correct or remove it")
    return family, rows


def merged(tables: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Join tables; of rows with the same device, type and sizes, the last counts. Raises DatasetError."""
    kept: dict[tuple[str, ...], Sequence[str]] = {}
    families = set()
    for family, rows in tables:
        families.add(family)
        kept.update({tuple(row[:-3]): row for row in rows})
    if len(families) != 1:
        found = " and ".join(sorted(families)) or "nothing"
        raise DatasetError(f"tables of {found}: merge tables of one family")
    return csv_text_of([HEADERS[families.pop()], *kept.values()])


def frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per point, with the columns of `csv_frame`."""
    return pd.DataFrame(
        {
            "family": r.point.family,
            "kind": r.point.kind,
            "device": r.machine,
            "dtype": r.setup.arithmetic,
            **r.point.named,
            **{name: getattr(r, name) for name in KNOWN},
            "source": "predicted" if r.setup.predictor else "measured",
            "setup": f"{r.setup.mode}{' amp' if r.setup.amp else ''}",
        }
        for r in results
    )


def csv_frame(path: Path) -> pd.DataFrame:
    """A CSV as a frame; other programs' tables with another number of steps, too. Raises DatasetError."""
    family, rows = read_csv(path)
    table = pd.DataFrame(rows, columns=list(HEADERS[family]))
    try:
        sizes = {name: table[name].astype(int) for name in FAMILIES[family].words}
        numbers = {name: table[name].astype(float) for name in ("#params", "tflops", "duration")}
    except ValueError as error:
        rule = "sizes are whole numbers, the last three columns numbers"
        raise DatasetError(f"{path}: {error}; {rule}") from None
    dtype = table["input_type"].map(LONG)
    itemsize = dtype.map({name: dtype.itemsize for name, dtype in DTYPES.items()})
    return pd.DataFrame(
        {
            "family": family,
            "kind": table.get(FAMILIES[family].selects, ""),
            "device": table["device"],
            "dtype": dtype,
            **sizes,
            "parameters": numbers["#params"],
            "duration_s": numbers["duration"],
            "flops_per_s": numbers["tflops"] * 1e12,
            "intensity": 6 * sizes["batch_size"] / itemsize if family == "fc" else float("nan"),
            "state": State.OK,
            "source": "measured",
            "setup": "csv",
        }
    )


# ---- Run points in turn, and record each at once: the same sweep resumes where it ended ----
# A journal (`neuralpower.data.journal`) keeps points that began and their results. A point that began
# twice without a result has ended the process, as a host without memory does: it is stored as not finished,
# and skipped.


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
            results_by_key, starts = _known(journal.records())
            try:
                for number, point in enumerate(self.points, 1):
                    key = _key(point, self.setup)
                    again = (*self.again, *(OPEN if starts[key] < ATTEMPTS else ()))
                    if key in results_by_key and results_by_key[key].state not in again:
                        continue
                    if key not in results_by_key and starts[key] >= ATTEMPTS:
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
                    results_by_key[key] = result
                    journal.append({"type": "result", "key": key, **asdict(result)})
                    show(number, len(self.points), result)
                    if result.state == State.UNHEALTHY:
                        way = "run the same command again to resume"
                        raise DeviceError(f"{point.label}: {result.reason}; {way}")
            finally:
                results = self._write(results_by_key)
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
    results: dict[str, Result] = {}
    starts: Counter[str] = Counter()
    for record in records:
        key, kind = str(record.get("key")), record.get("type")
        starts[key] += {"start": 1, "stop": -1}.get(str(kind), 0)
        if kind == "result":
            results[key] = Result.from_record(record)
    return results, starts


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
