"""The result of a point: a time, or a state that says why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from neuralpower.dtypes import DTYPES, NETWORK_DTYPES, TENSORFLOAT32
from neuralpower.errors import DatasetError
from neuralpower.suites.paradnn.formulas import FLOP_PER_WEIGHT, counted
from neuralpower.suites.paradnn.points import Point, family_named
from neuralpower.suites.words import template


class State:
    """The state of a point."""

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
        """The predictor's name of the dtype."""
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
        """Mean of a step."""
        return _ratio(self.duration_s, self.steps) or None

    @property
    def flops_per_s(self) -> float | None:
        """By the paper's formula if it has one, else counted."""
        return _ratio(self.step_flops, self.step_s)

    @property
    def counted_flops_per_s(self) -> float | None:
        """FLOP/s as counted."""
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
    """The output of a single run, from `single.jinja`: version, hyper-parameters, Duration and TFLOPS."""
    values = {
        "result": result,
        "setup": result.setup,
        "short": SHORT[result.setup.dtype],
        "selects": family_named(result.point.family).selects,
        "work": counted(result.point),
        "per_weight": FLOP_PER_WEIGHT[result.setup.mode],
    }
    return template("neuralpower.suites.paradnn", "single.jinja").render(values).rstrip("\n")
