"""Run one point: a network with random weights, and a new random batch on the device for every step.

    settle | pilot, if the time is limited | warm-up, 300 steps | settle | 100 steps, wait for the device |

Before the steps, garbage is collected, cached memory freed and the memory's peak reset. The steps follow
each other without waiting for the device; the duration covers all timed steps.
"""

from __future__ import annotations

import gc
import math
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.devices.machine import available_bytes as host_bytes
from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError, LostDeviceError, ModelError, NeuralPowerError, OutOfMemory, unknown
from neuralpower.measure.calls import products
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.networks.inputs import Inputs
from neuralpower.networks.sources import resolve
from neuralpower.profiling import profile
from neuralpower.profiling.steps import clock_of
from neuralpower.report.number_format import quantity
from neuralpower.suites.paradnn.formulas import MODES, TRAIN, counted, described
from neuralpower.suites.paradnn.learning import STATES, optimizer_of, optimizer_settings, scheduled
from neuralpower.suites.paradnn.points import BATCH, Point, family_named
from neuralpower.suites.paradnn.result import Result, Setup, State
from neuralpower.suites.precision import Precision, precision
from neuralpower.suites.steps import Batch, StepTimer, Work

SHARE = 0.9  # share of the free memory that can be used
OVERHEAD = 1.1  # factor for workspaces and fragments, which are not counted
PROFILER = "overhead"  # a kind that is not part of a step
PILOT = 2  # steps whose time determines the number that fits


@dataclass
class Loss:
    """The loss of the family; it keeps its last value."""

    last: Tensor | None = None

    def __call__(self, output: Any, target: Tensor | None) -> Tensor:
        """Mean cross entropy of scores [batch, classes] or [batch, steps, classes]; label -100 is unknown."""
        assert target is not None  # drawn with every batch
        self.last = nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
        return self.last


def machine_name(device: torch.device) -> str:
    """Value of the column `device` of a table: the GPU's name, or HOST-cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.node()}-cpu"


def check_setup(setup: Setup) -> Precision:
    """The setup's precision; raises InputError for an impossible one, DeviceError for a missing device."""
    device = device_named(setup.device)
    if setup.mode not in MODES:
        raise unknown("mode", setup.mode, MODES)
    if setup.tf32 and (device.type != "cuda" or setup.dtype != "float32"):
        where = f"{setup.device} in {setup.dtype}"
        raise InputError(f"tf32 on {where}: needs float32 on CUDA; leave --tf32 out")
    if setup.tf32 and torch.cuda.get_device_capability(device) < (8, 0):
        raise InputError(f"tf32 on {machine_name(device)}: needs compute capability 8.0; leave --tf32 out")
    optimizer_settings(setup.optimizer, torch.float32, setup.rmsprop)
    return precision(setup.dtype, device, autocast=setup.amp)


def measure(point: Point, setup: Setup, limit_s: float | None = None, available: int | None = None) -> Result:
    """Run a point; its errors become its state. Errors of the setup raise InputError or DeviceError."""
    chosen, device = check_setup(setup), torch.device(setup.device)
    known: dict[str, Any] = {"point": point, "setup": setup, "machine": machine_name(device)}
    known["torch"] = str(torch.__version__)
    try:
        known |= described(point, setup.mode)
        check_room(point, setup, available_bytes(setup.device) if available is None else available)
        return Result(**known, **_timed(point, setup, chosen, device, limit_s))
    except NeuralPowerError as error:
        return Result(**known, state=_state(error), reason=str(error))


def _state(error: NeuralPowerError) -> str:
    """The state of a point after an error; after an error of CUDA itself, every further call fails, too."""
    if isinstance(error, OutOfMemory):
        return State.OOM
    if isinstance(error, ModelError) and "five halvings" in str(error):
        return State.NEGATIVE
    fatal = r"CUDA error|CUDNN_STATUS_EXECUTION_FAILED|device-side assert"
    lost = isinstance(error, ModelError) and re.search(fatal, str(error))
    return State.UNHEALTHY if lost or isinstance(error, LostDeviceError) else State.FAILED


def _timed(
    point: Point, setup: Setup, chosen: Precision, device: torch.device, limit_s: float | None
) -> dict[str, Any]:
    loss, clock = Loss(), clock_of(device)
    seeded = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with products(tf32=setup.tf32), seeded:  # the process's own random numbers continue afterwards
        torch.manual_seed(0)
        work = work_of(point, setup, chosen, device, loss)
        counts = {"warmup": setup.warmup_steps, "steps": setup.steps}
        if limit_s is not None:
            step_s = StepTimer(work, clock, "end").run(warmup=1, steps=PILOT).total_s / PILOT
            if step_s > limit_s:
                reason = f"a step takes {step_s:.3g} s, more than the {limit_s:g} s of a point"
                return {"state": State.DEADLINE, "reason": reason}
            counts = affordable(step_s, setup, limit_s)
        times = StepTimer(work, clock, "end").run(**counts)
    found = {
        "duration_s": times.total_s,
        "steps": len(times.step_s),
        "warmup_steps": counts["warmup"],
        "median_step_s": times.spread.quantile(0.5),
        "peak_memory_bytes": times.peak_memory_bytes,
    }
    if times.total_s <= 0:
        return {**found, "state": State.NO_FIGURE, "reason": "the clock did not move"}
    if loss.last is not None and not math.isfinite(value := float(loss.last.detach())):
        reason = f"the loss of the last step is {value}; the time is that of the steps all the same"
        return {**found, "state": State.NAN, "reason": reason}
    return found


def affordable(step_s: float, setup: Setup, limit_s: float) -> dict[str, int]:
    """Warm-up and timed steps that fit into a time, in the given proportion; one or more timed steps."""
    share = min(1.0, limit_s / max(step_s * (setup.warmup_steps + setup.steps), 1e-12))
    return {"warmup": int(share * setup.warmup_steps), "steps": max(int(share * setup.steps), 1)}


def work_of(
    point: Point, setup: Setup, chosen: Precision, device: torch.device, loss: Loss | None = None
) -> Work:
    """A point's network with random weights, the source of its batches, and its optimizer in training."""
    model = resolve(point.model).build(str(device), chosen.stored).train(setup.mode == TRAIN)
    optimizer = None
    if setup.mode == TRAIN:
        how: dict[str, Any] = {"dtype": chosen.stored, "compat": setup.rmsprop}
        made = chosen.optimizer(model, lambda weights: optimizer_of(setup.optimizer, weights, **how))
        optimizer = scheduled(made, point.family)
    return Work(chosen.cast(model), drawing(point, chosen.stored, device), loss or Loss(), optimizer)


def drawing(point: Point, dtype: torch.dtype, device: torch.device) -> Callable[[], Batch]:
    """A function that makes a batch on the device: inputs uniform in [0, 1) or token ids, and labels.

    Recurrent networks get sequences of random lengths; a token's label is the next, unknown after the end.
    """
    sizes, batch = point.named, point.batch_size

    def draw() -> Batch:
        if point.family == "rnn":
            length = sizes["length"]
            tokens = torch.randint(sizes["vocabulary"], (batch, length + 1), device=device)
            ends = torch.randint(1, length + 1, (batch, 1), device=device)
            beyond = torch.arange(length, device=device) >= ends
            return Batch(Inputs((tokens[:, :-1],)), tokens[:, 1:].masked_fill(beyond, -100))
        side = sizes["input_size"]
        shape = (batch, side) if point.family == "fc" else (batch, 3, side, side)
        x = torch.rand(shape, dtype=dtype, device=device)
        return Batch(Inputs((x,)), torch.randint(sizes["output_size"], (batch,), device=device))

    return draw


# ---- shares of time, from `neuralpower.profile` ----


@dataclass(frozen=True)
class OperatorTimes:
    """Seconds of one step by kind, with its phase if there are several; the slowest first."""

    label: str
    seconds: Mapping[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the whole step."""
        total = sum(self.seconds.values())
        return {kind: seconds / total for kind, seconds in self.seconds.items()} if total else {}


def operator_times(point: Point, setup: Setup, *, repeats: int = 10, warmup: int = 3) -> OperatorTimes:
    """Self times by kind of a run here; raises NeuralPowerError if it cannot run."""
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
        if row.runtime_s and row.kind != PROFILER:
            name = row.kind if row.phase in ("", "forward", row.kind) else f"{row.kind} ({row.phase})"
            seconds[name] += row.runtime_s
    return OperatorTimes(point.label, dict(sorted(seconds.items(), key=lambda pair: -pair[1])))


# ---- whether it fits, before it is tried: a host that runs out of memory ends the process ----


def needed_bytes(point: Point, setup: Setup) -> int:
    """Weights, gradients, optimizer states and all activations in training, the two largest in inference."""
    work, itemsize = counted(point), DTYPES[setup.dtype].itemsize
    weights = work.parameters * (4 if setup.amp else itemsize)
    samples = point.batch_size * itemsize / 4  # activations are counted in float32
    if setup.mode != TRAIN:
        return int(OVERHEAD * (weights + 2 * samples * work.widest_bytes))
    states = 2 + STATES[setup.optimizer] + (itemsize / 4 if setup.amp else 0)
    return int(OVERHEAD * (weights * states + samples * (work.activation_bytes + work.widest_bytes)))


def available_bytes(device: str) -> int | None:
    """Free memory of a GPU, or of the system and this process's control group; None if unknown."""
    if not device.startswith("cuda"):
        return host_bytes()
    gc.collect()
    torch.cuda.empty_cache()  # the allocator's cache is free, too
    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def check_room(point: Point, setup: Setup, available: int | None) -> None:
    """Raise OutOfMemory, with the largest sizes of the sweep that fit, if a point needs too much memory."""
    if available is None or (needed := needed_bytes(point, setup)) <= SHARE * available:
        return
    ways, family = [], family_named(point.family)
    for name in (family.depth, family.width, BATCH):
        smaller = [size for size in family.ranges[name] if size < point.named[name]]
        for size in reversed(smaller):
            if needed_bytes(point.replaced(**{name: size}), setup) <= SHARE * available:
                ways.append(f"--{name} {size}")
                break
    advice = "no single smaller size of the sweep makes it fit"
    if ways:
        advice = f"the largest that fits is {', or '.join(ways)}"
    room = f"needs about {quantity(needed, 'B')} in {setup.dtype}, {quantity(available, 'B')} are free"
    raise OutOfMemory(f"{point.label}: {room}; {advice}")
