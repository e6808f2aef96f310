"""What is known of a point after it was tried: a time, or the state that says why there is none."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from neuralpower.dtypes import DTYPES, NETWORK_DTYPES
from neuralpower.errors import DatasetError
from neuralpower.suites.paradnn.points import Point

OK = "ok"
OOM = "oom"  # does not fit
NAN = "nan"  # it ran, and its loss is no number
FAILED = "failed"  # it raised
NEGATIVE = "negative_dimension"  # an image too small for the network
DEADLINE = "deadline_exceeded"  # not one step within the time of a point
NOT_RUN = "not_run"  # nobody tried
NOT_FINISHED = "not_finished"  # it was begun and ended the process, twice
NO_FIGURE = "no_figure"  # it ran, and gave no time
UNHEALTHY = "unhealthy"  # the device answers no more
SOCKET_CLOSED = "socket_closed"  # of a remote device
STATES = (OK, OOM, NAN, FAILED, NEGATIVE, DEADLINE, NOT_RUN, NOT_FINISHED, NO_FIGURE, UNHEALTHY, SOCKET_CLOSED)
SHORT = {name: DTYPES[name].short for name in NETWORK_DTYPES}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How points are run; equal points under another setup are other measurements."""

    device: str = "cpu"
    dtype: str = "float32"
    mode: str = "train"
    optimizer: str = "rms"
    rmsprop: str = "paradnn"
    amp: bool = False
    tf32: bool = False
    warmup_steps: int = 300
    steps: int = 100
    predictor: str = ""  # the name of the one that said the times; "" where they were measured

    @property
    def key(self) -> str:
        """All of it in one line."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True, kw_only=True)
class Result:
    """Times in seconds, FLOP of one step; None where not known."""

    point: Point
    setup: Setup
    machine: str
    state: str = OK
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
    coverage: float | None = (
        None  # of a prediction: the share of the time that is learnt; the rest is a roofline estimate
    )

    @property
    def step_flops(self) -> int | None:
        """By the paper's formula where it has one, else counted."""
        return self.counted_flops if self.formula_flops is None else self.formula_flops

    @property
    def step_s(self) -> float | None:
        """Mean of a step."""
        return None if not self.duration_s or not self.steps else self.duration_s / self.steps

    @property
    def flops_per_s(self) -> float | None:
        """By the paper's formula where it has one, else counted."""
        return None if self.step_s is None or self.step_flops is None else self.step_flops / self.step_s

    @property
    def counted_flops_per_s(self) -> float | None:
        """FLOP/s as counted."""
        return None if self.step_s is None or self.counted_flops is None else self.counted_flops / self.step_s

    @property
    def intensity(self) -> float | None:
        """FLOP of a step per byte of parameters."""
        if self.step_flops is None or not self.parameters:
            return None
        return self.step_flops / (self.parameters * DTYPES[self.setup.dtype].itemsize)

    def record(self) -> dict[str, Any]:
        """Every field, for the journal."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "point": asdict(self.point), "setup": asdict(self.setup)}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Result:
        """From what `record` gave; raises DatasetError where it is of another version."""
        try:
            point = record["point"]
            known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
            return cls(
                **{
                    **known,
                    "point": Point(point["family"], point["kind"], tuple(point["sizes"])),
                    "setup": Setup(**record["setup"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise DatasetError(f"a result without a usable {error}: another version wrote it; sweep again") from None

    def summary(self) -> dict[str, Any]:
        """ParaDnn's result of a point: GFLOP/s, GFLOP of a step, steps and examples per second, intensity in FLOP/B."""
        rate = None if self.step_s is None else 1 / self.step_s
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
            "flops": None if self.flops_per_s is None else self.flops_per_s / 1e9,
            "params": self.parameters,
            "step_per_sec": rate,
            "fl": None if self.step_flops is None else self.step_flops / 1e9,
            "counted_fl": None if self.counted_flops is None else self.counted_flops / 1e9,
            "example_per_sec": None if rate is None else rate * self.point.batch_size,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "duration": self.duration_s,
            "err_jobs": [] if self.state == OK else [self.point.label],
            "states": self.state,
            "reason": self.reason,
            "predictor": self.setup.predictor or None,
            "coverage": self.coverage,
            "torch": self.torch,
        }
