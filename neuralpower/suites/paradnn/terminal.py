"""Run `neuralpower paradnn fc`, `cnn` and `rnn`: print one point, or sweep many into a folder."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neuralpower.ask import texts
from neuralpower.cli import parsing
from neuralpower.cli.output import say
from neuralpower.devices.host import read_cpu
from neuralpower.errors import DeviceError, InputError, OutOfMemory, unknown
from neuralpower.files.csv_files import csv_text
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible
from neuralpower.report.grid import grid as table
from neuralpower.report.number_format import quantity
from neuralpower.suites.paradnn.options import Common
from neuralpower.suites.paradnn.points import FAMILIES, Point, grid, sampled, sharded, walk
from neuralpower.suites.paradnn.sweep import (
    CSV,
    HEADERS,
    SHORT,
    STATES,
    Measure,
    Result,
    Setup,
    State,
    Sweep,
    array_script,
    row_of,
    single_text,
    states_of,
)

MODES = {"train": "train", "training": "train", "infer": "infer", "inference": "infer", "forward": "infer"}
COVERED = 0.95  # least share of a predicted time that must come from trained regressors, without a warning


def run(start: Point, kinds: Sequence[str], common: Common) -> None:
    """Run one point, or the sweep around it; raises NeuralPowerError."""
    if not common.swept:
        for name in ("shard", "slurm", "out", "time_budget", "again"):
            if (value := getattr(common, name)) is not None:
                option = f"--{name.replace('_', '-')} {value}"
                rule = "needs a sweep; add --benchmark, --grid or --sample N, or leave it out"
                raise InputError(f"{option}: {rule}")
    elif common.as_json:
        rule = "a sweep writes results.json into its folder; leave --json out"
        raise InputError(f"--json is for a single run; {rule}")
    if common.slurm is not None:
        say(array_script(sys.argv[1:], common.slurm, gpu=common.place != "cpu"), end="")
        return
    if common.operators and (common.predicted or common.swept):
        other = f"neuralpower predict '{start.model}' --batch-size {start.batch_size}"
        which = "a sweep" if common.swept else "a predictor"
        raise InputError(
            f"--operators with {which}: is for a single run here; leave it out, or run `{other}`"
        )
    prepared = [prepare(setup, common) for setup in setups_of(common)]
    if common.swept:
        sweep(points_of(start, kinds, common), prepared, start.family, common)
    elif len(prepared) > 1:
        rule = "only a sweep accepts several; choose one, or add --benchmark"
        raise InputError(f"input_type {common.input_type!r}: {rule}")
    else:
        single(start, *prepared[0], common)


def setups_of(common: Common) -> list[Setup]:
    """Setups of the points, one for each dtype; raises InputError."""
    dtypes = [parsing.dtype(name) for name in texts.names(common.input_type, "input_type") or ()]
    for name in dtypes:
        if name not in (known := (*SHORT.values(), *SHORT)):
            raise unknown("input_type", name, known)
    if common.mode not in MODES:
        raise unknown("mode", common.mode, MODES)
    if common.warmup_steps < 0 or common.steps < 1:
        counts = f"{common.warmup_steps} warm-up and {common.steps} timed steps"
        raise InputError(f"{counts}: must be at least 0 and 1")
    if common.intra < 0 or common.inter < 0:
        numbers = f"intra {common.intra}, inter {common.inter}"
        raise InputError(f"{numbers}: must be numbers of threads, or 0 for the default")
    same = ("optimizer", "rmsprop", "amp", "tf32", "warmup_steps", "steps")
    given = {name: getattr(common, name) for name in same}
    return [Setup(device=common.place, dtype=dtype, mode=MODES[common.mode], **given) for dtype in dtypes]


def prepare(setup: Setup, common: Common) -> tuple[Setup, Measure]:
    """The setup that is possible here, and the source of times; raises NeuralPowerError."""
    if common.predicted:
        from neuralpower.suites.paradnn.run import predict_point, predictable

        trained = parsing.predictor(common.predictor)
        setup, changed = predictable(setup, trained)
        if changed:
            print(f"Note: {changed}", file=sys.stderr)
        return setup, lambda point: predict_point(point, setup, trained)

    import torch

    from neuralpower.measure.cpu.timer import prepare_process
    from neuralpower.suites.paradnn.run import check_setup, measure

    check_setup(setup)
    if setup.device == "cpu":
        if common.inter:
            with contextlib.suppress(RuntimeError):  # allowed once per process
                torch.set_num_interop_threads(common.inter)
        prepare_process(common.intra or read_cpu().cores)
    limit_s = parsing.duration_s(common.point_budget, "point budget") if common.point_budget else None
    return setup, lambda point: measure(point, setup, limit_s)


def points_of(start: Point, kinds: Sequence[str], common: Common) -> list[Point]:
    """The points to sweep; raises InputError."""
    family = FAMILIES[start.family]
    if common.benchmark and (common.grid or common.sample is not None):
        text = "varies one size at a time, --grid and --sample the whole sweep; choose one"
        raise InputError(f"--benchmark {text}")
    chosen = walk(start) if common.benchmark else grid(family, kinds)
    if common.sample is not None:
        chosen = sampled(chosen, common.sample, common.seed)
    return list(sharded(chosen, parsing.shard(common.shard)))


def single(point: Point, setup: Setup, timed: Measure, common: Common) -> None:
    """Run one point and print it; raises NeuralPowerError where it has no time."""
    result = timed(point)
    if result.state in (State.FAILED, State.NEGATIVE):
        raise InputError(result.reason)
    if result.duration_s is None:
        raise (OutOfMemory if result.state == State.OOM else DeviceError)(result.reason)
    say(json_text({"schema": 1, **result.summary()}) if common.as_json else single_text(result))
    _warn_of_estimates(result.coverage)
    if result.state != State.OK:
        print(f"Warning: {result.state}: {result.reason}", file=sys.stderr)
    if common.operators:
        from neuralpower.suites.paradnn.run import operator_times

        times = operator_times(point, setup)
        rows = [[kind, quantity(s, "s"), f"{times.shares[kind]:.1%}"] for kind, s in times.seconds.items()]
        say("\n" + table(["kind", "runtime of a step", "share"], rows))


def sweep(
    points: Sequence[Point], prepared: Sequence[tuple[Setup, Measure]], family: str, common: Common
) -> None:
    """Sweep under each setup, and print each row when it is ready; raises NeuralPowerError."""
    again = texts.names(common.again, "again") or ()
    for name in again:
        if name not in STATES:
            raise unknown("state", name, STATES)
    folder = folder_of(family, prepared[0][0], common)
    budget_s = parsing.duration_s(common.time_budget) if common.time_budget else None
    say(csv_text([HEADERS[family]]), end="")

    def show(number: int, total: int, result: Result) -> None:
        if result.flops_per_s is not None:
            say(csv_text([row_of(result)]), end="")
        if result.state != State.OK:
            text = f"{number}/{total} {result.point.label}: {result.state}: {result.reason}"
            print(visible(text), file=sys.stderr)

    results, begun = [], time.monotonic()
    for setup, timed in prepared:
        left_s = None if budget_s is None else max(budget_s - (time.monotonic() - begun), 0.0)
        try:
            results += Sweep(points, setup, folder, again).run(timed, show, budget_s=left_s)
        except KeyboardInterrupt:
            text = f"{folder / CSV} has the results so far; run the same command again to resume"
            print(text, file=sys.stderr)
            raise
    least = min(results, key=lambda r: 1.0 if r.coverage is None else r.coverage, default=None)
    if least is not None:
        _warn_of_estimates(least.coverage, f"{least.point.label}: ")
    print(f"{folder / CSV}: {states_of(results)} of {len(results)} points", file=sys.stderr)


def _warn_of_estimates(coverage: float | None, what: str = "") -> None:
    if coverage is not None and coverage < COVERED:
        text = f"{what}{coverage:.0%} of the time is trained; the other part is a roofline estimate"
        print(f"Warning: {text}", file=sys.stderr)


def folder_of(family: str, setup: Setup, common: Common) -> Path:
    """The folder of a sweep; a shard has its own folder below."""
    where = setup.device.replace(":", "-") if setup.device != "cpu" else read_cpu().slug
    name = f"predicted-{Path(setup.predictor).stem}" if setup.predictor else where
    folder = common.out or Path("paradnn") / f"{family}-{name}"
    number, shards = parsing.shard(common.shard)
    return folder if shards == 1 else folder / f"shard-{number}-of-{shards}"
