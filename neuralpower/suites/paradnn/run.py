"""Train, run or predict one point; optimizers have the settings of ParaDnn and others, rates fall.

ParaDnn trains with TensorFlow's RMSProp(learning rate .1, decay .9, momentum .9, epsilon 1). PyTorch adds
epsilon to the root of the mean square. TensorFlow adds it under the root, and starts mean squares at one, not
zero (`apply_rms_prop` in tensorflow/core/kernels/training_ops.cc): `tensorflow` among COMPAT is that rule.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError, LostDeviceError, ModelError, NeuralPowerError, OutOfMemory, unknown
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.optimizer import Optimizer
from neuralpower.learn.estimates import ROOFLINE
from neuralpower.learn.predictor import Predictor
from neuralpower.measure.calls import products
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.phases import Phase
from neuralpower.networks.sources import resolve
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request
from neuralpower.profiling import profile
from neuralpower.profiling.steps import clock_of
from neuralpower.report.number_format import quantity
from neuralpower.suites.paradnn.points import (
    BATCH,
    INFER,
    MODES,
    TRAIN,
    Point,
    counted,
    described,
    family_named,
)
from neuralpower.suites.paradnn.sweep import Result, Setup, State
from neuralpower.suites.steps import (
    Batch,
    Precision,
    StepTimer,
    Work,
    free_bytes,
    machine_name,
    make_optimizer,
    precision,
    tensor_room,
)

PARADNN = {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "eps": 1.0, "weight_decay": 0.0}
COMPAT: Mapping[str, Mapping[str, float]] = {
    "paradnn": PARADNN,
    "ifarm": {**PARADNN, "alpha": 0.99, "weight_decay": 0.9},  # a decay in the wrong place
    "pytorch": {"lr": 0.01, "alpha": 0.99, "momentum": 0.0, "eps": 1e-8, "weight_decay": 0.0},
    "keras": {"lr": 0.001, "alpha": 0.9, "momentum": 0.0, "eps": 1e-7, "weight_decay": 0.0},
    "tensorflow": {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "eps": 1.0},
}
ADAM_EPS = 1e-8
HALF_ADAM_EPS = 1e-4  # 1e-8 is 0 in float16, whose smallest number is 6e-8
# the optimizer's function in layer kind `optimizer`, and the numbers that it keeps per parameter
LAYER_FUNCTIONS = {"rms": "rmsprop", "sgd": "sgd", "momentum": "sgd", "adam": "adam"}
STATES = {"rms": 2, "sgd": 0, "momentum": 1, "adam": 2}
DECAY: Mapping[str, tuple[float, float] | None] = {"fc": None, "cnn": (0.97, 25_000), "rnn": (0.9, 10_000)}


class TensorFlowRMSprop(torch.optim.Optimizer):
    """Mean square s, momentum m: s = alpha s + (1 - alpha) g^2, m = momentum m + lr g / sqrt(s + eps)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, alpha: float, momentum: float, eps: float
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "momentum": momentum, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if not self.state[w]:
                    self.state[w].update(square=torch.ones_like(w), momentum=torch.zeros_like(w))
            if not weights:
                continue
            gradients = [w.grad for w in weights]
            squares = [self.state[w]["square"] for w in weights]
            momenta = [self.state[w]["momentum"] for w in weights]
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
            roots = torch._foreach_sqrt(torch._foreach_add(squares, group["eps"]))
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_addcdiv_(momenta, gradients, roots, group["lr"])
            torch._foreach_sub_(weights, momenta)
        return loss


def optimizer_settings(name: str, dtype: torch.dtype, compat: str = "paradnn") -> dict[str, float]:
    """The arguments of an optimizer of weights of a dtype; raises InputError for an unknown name."""
    if name not in LAYER_FUNCTIONS:
        raise unknown("optimizer", name, LAYER_FUNCTIONS)
    if compat not in COMPAT:
        raise unknown("RMSprop", compat, COMPAT)
    if name == "rms":
        return dict(COMPAT[compat])
    if name == "adam":
        return {"lr": 1e-3, "eps": HALF_ADAM_EPS if dtype == torch.float16 else ADAM_EPS}
    return {"lr": 0.1, **({"momentum": 0.9} if name == "momentum" else {})}


def optimizer_of(
    name: str, weights: Iterable[Tensor], dtype: torch.dtype, compat: str = "paradnn"
) -> torch.optim.Optimizer:
    """The optimizer of some weights; raises InputError for an unknown name."""
    settings: dict[str, Any] = optimizer_settings(name, dtype, compat)
    if name == "rms" and compat == "tensorflow":
        return TensorFlowRMSprop(weights, **settings)
    return make_optimizer(LAYER_FUNCTIONS[name], weights, **settings)


def learning_rate(family: str, step: int, start: float = 0.1) -> float:
    """The rate of a step from 0 on: start x 0.97^(step / 25000) for cnn, x 0.9^(step / 10000) for rnn."""
    decay = DECAY[family]
    return start if decay is None else start * decay[0] ** (step / decay[1])


def scheduled(optimizer: torch.optim.Optimizer, family: str) -> torch.optim.Optimizer:
    """The same optimizer, whose learning rate falls after every step like the family's."""
    if DECAY[family] is not None:
        schedule = LambdaLR(optimizer, lambda step: learning_rate(family, step, start=1.0))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


# ---- Run one point: a network with random weights, and a new random batch on the device for every step ----
#     settle | pilot, if the time is limited | warm-up, 300 steps | settle | 100 steps, wait for the device |
#
# Before the steps, garbage is collected, cached memory freed and the memory's peak reset. The steps follow
# each other without waiting for the device; the duration covers all timed steps.


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
        check_room(point, setup, free_bytes(device) if available is None else available)
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
    figures = {
        "duration_s": times.total_s,
        "steps": len(times.step_s),
        "warmup_steps": counts["warmup"],
        "median_step_s": times.spread.quantile(0.5),
        "peak_memory_bytes": times.peak_memory_bytes,
    }
    if times.total_s <= 0:
        return {**figures, "state": State.NO_FIGURE, "reason": "the clock did not move"}
    if loss.last is not None and not math.isfinite(value := float(loss.last.detach())):
        reason = f"the loss of the last step is {value}; the time is that of the steps all the same"
        return {**figures, "state": State.NAN, "reason": reason}
    return figures


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
        total = sum(self.seconds.values())
        return {kind: seconds / total for kind, seconds in self.seconds.items()} if total else {}


def operator_times(point: Point, setup: Setup, *, repeats: int = 10, warmup: int = 3) -> OperatorTimes:
    """Self times by kind of a run here; raises NeuralPowerError if it cannot run."""
    work = work_of(point, setup, check_setup(setup), torch.device(setup.device))
    batch = work.draw()
    profiled = profile(
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
    for row in profiled.by_kind():
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
        return int(weights + 2 * samples * work.widest_bytes)
    states = 2 + STATES[setup.optimizer] + (itemsize / 4 if setup.amp else 0)
    return int(weights * states + samples * (work.activation_bytes + work.widest_bytes))


def check_room(point: Point, setup: Setup, available: int | None) -> None:
    """Raise OutOfMemory, with the largest sizes of the sweep that fit, if a point needs too much memory."""
    room_bytes = tensor_room(available)
    if available is None or (needed := needed_bytes(point, setup)) <= room_bytes:
        return
    ways, family = [], family_named(point.family)
    for name in (family.depth, family.width, BATCH):
        smaller = [size for size in family.ranges[name] if size < point.named[name]]
        for size in reversed(smaller):
            if needed_bytes(point.replaced(**{name: size}), setup) <= room_bytes:
                ways.append(f"--{name} {size}")
                break
    advice = "no single smaller size of the sweep makes it fit"
    if ways:
        advice = f"the largest that fits is {', or '.join(ways)}"
    room = f"needs about {quantity(needed, 'B')} in {setup.dtype}, {quantity(available, 'B')} are free"
    raise OutOfMemory(f"{point.label}: {room}; {advice}")


# ---- Predict points instead of running them ----
# A training step is forward, backward and optimizer. If the predictor is not trained on all three, inference
# is predicted instead, with a note.


TRAINING = (FORWARD, BACKWARD, "optimizer")


def predictable(setup: Setup, predictor: Predictor) -> tuple[Setup, str]:
    """The setup that can be predicted, and a note on its change or ""; raises PredictorError, InputError."""
    optimizer_settings(setup.optimizer, torch.float32, setup.rmsprop)
    predictor.check(setup.arithmetic, FORWARD)
    name = predictor.name or predictor.device
    named = replace(setup, predictor=name, warmup_steps=0)
    missing = " and ".join(phase for phase in TRAINING if phase not in predictor.phases)
    if setup.mode == TRAIN and missing:
        return replace(
            named, mode=INFER
        ), f"{name} was not trained on {missing}; inference is predicted instead"
    return named, ""


def predict_point(point: Point, setup: Setup, predictor: Predictor) -> Result:
    """Predict a point's time; an error becomes its state."""
    known: dict[str, Any] = {"point": point, "setup": setup, "machine": predictor.device}
    try:
        known |= described(point, setup.mode)
        step_s, coverage = _step(point, setup, predictor)
        return Result(**known, duration_s=setup.steps * step_s, steps=setup.steps, coverage=coverage)
    except NeuralPowerError as error:
        return Result(**known, state=State.FAILED, reason=str(error))


def _step(point: Point, setup: Setup, predictor: Predictor) -> tuple[float, float]:
    """Seconds of one step, and the share that was trained; raises PredictorError or ModelError."""
    request = Request(point.model, point.batch_size, dtype=setup.arithmetic)
    phases = (FORWARD, BACKWARD) if setup.mode == TRAIN else (FORWARD,)
    passes = [predict_request(replace(request, phase=Phase(name)), predictor)[0] for name in phases]
    parts = [(one.runtime_s.value, one.coverage) for one in passes]
    if setup.mode == TRAIN:
        work, function = counted(point), LAYER_FUNCTIONS[setup.optimizer]
        sizes: dict[str, Any] = {"tensors": work.tensors, "elements": work.parameters}
        estimate = predictor.estimate([Optimizer(dtype=setup.dtype, function=function, **sizes)])
        parts.append((float(estimate.runtime_s[0]), float(estimate.basis[0] != ROOFLINE)))
    total = sum(seconds for seconds, _ in parts)
    return total, sum(seconds * share for seconds, share in parts) / total if total else 1.0
