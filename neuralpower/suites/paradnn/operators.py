"""Where the time of a point goes, by kind of operator, as `neuralpower.profile` finds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from neuralpower.profiling import profile
from neuralpower.report.tables import grid, quantity
from neuralpower.suites.paradnn.formulas import TRAIN
from neuralpower.suites.paradnn.points import Point
from neuralpower.suites.paradnn.result import Setup
from neuralpower.suites.paradnn.run import check_setup, work_of

OVERHEAD = "overhead"  # of the profiler: no part of a step


@dataclass(frozen=True)
class OperatorTimes:
    """Seconds of one step by kind, the phase after it where there are several; the slowest first."""

    label: str
    seconds: Mapping[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Of the whole."""
        total = sum(self.seconds.values())
        return {kind: seconds / total for kind, seconds in self.seconds.items()} if total else {}


def operator_times(point: Point, setup: Setup, *, repeats: int = 10, warmup: int = 3) -> OperatorTimes:
    """Self times by kind of a run here; raises NeuralPowerError where it cannot be run."""
    work = work_of(point, setup, check_setup(setup), torch.device(setup.device))
    batch = work.draw()
    found = profile(
        work.model,
        batch.inputs.args,
        phase="training" if setup.mode == TRAIN else "forward",
        loss=lambda output: work.loss(output, batch.target),
        optimizer=work.optimizer,
        warmup=warmup,
        repeat=repeats,
        memory=False,
        power="none",
    )
    seconds: defaultdict[str, float] = defaultdict(float)
    for row in found.by_kind():
        if row.runtime_s and row.kind != OVERHEAD:
            name = row.kind if row.phase in ("", "forward", row.kind) else f"{row.kind} ({row.phase})"
            seconds[name] += row.runtime_s
    return OperatorTimes(point.label, dict(sorted(seconds.items(), key=lambda pair: -pair[1])))


def operators_text(times: OperatorTimes) -> str:
    """A table."""
    rows = [[kind, quantity(s, "s"), f"{times.shares[kind]:.1%}"] for kind, s in times.seconds.items()]
    return grid(["kind", "runtime of a step", "share"], rows)
