"""One forward pass or training step of a real model, repeated; the model is left as it was. Its timeline."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from neuralpower.devices.host import read_cpu
from neuralpower.errors import (
    DeviceError,
    InputError,
    ModelError,
    OutOfMemory,
    UsersError,
    is_count,
    quoted,
    unknown,
)
from neuralpower.measure.calls import by_part, run_training_step
from neuralpower.measure.meters import PowerMeter
from neuralpower.measure.power.energy import PowerWindow, measure_power
from neuralpower.measure.rig import failure
from neuralpower.networks.inputs.promised_values import tensors_within
from neuralpower.networks.users_code import raised, users_code
from neuralpower.prediction.memory.peak import alive
from neuralpower.profiling.conventions import ALL_OPS, Rules, backward_flops, check_convention
from neuralpower.profiling.stopwatch import Account, Clock, CudaClock, Event, HostClock, Span, Stopwatch
from neuralpower.report.perfetto import Counter, Process, Row, Slice
from neuralpower.trace.operators.undisturbed import forget, swapped, undisturbed
from neuralpower.trace.recipe import Loss, default_loss
from neuralpower.trace.records import LOSS

PHASES = ("forward", "training")
CLEAN_PER_TIMED = 2  # runs: instrumentation then costs a few percent of the whole, even for small operators
MINIMUM = 3  # repeats, before a time limit may end them


@dataclass(frozen=True)
class Spread:
    """Repeated times of one thing (s)."""

    samples_s: tuple[float, ...]

    @property
    def middle(self) -> np.ndarray:
        """Indices of the samples without the fastest and the slowest quarter."""
        order, cut = np.argsort(self.samples_s, kind="stable"), len(self.samples_s) // 4
        return order[cut : len(order) - cut]

    @property
    def runtime_s(self) -> float:
        """Interquartile mean: means add up, unlike medians, and a stray repeat does not count."""
        return self.mean_of(self.middle)

    def mean_of(self, repeats: np.ndarray) -> float:
        """The mean of these samples: times of parts add up where the repeats are the whole's."""
        return float(np.mean(np.asarray(self.samples_s)[repeats]))

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.samples_s, share))

    @property
    def outliers(self) -> int:
        """Samples more than one and a half interquartile ranges outside the quartiles (Tukey, 1977)."""
        low, high = self.quantile(0.25), self.quantile(0.75)
        reach = 1.5 * (high - low)
        return sum(not low - reach <= sample <= high + reach for sample in self.samples_s)

    def to_json(self) -> dict[str, float | int]:
        """Number, outliers among them, median, quartiles, fastest."""
        return {
            "n": len(self.samples_s),
            "outliers": self.outliers,
            "median_s": self.quantile(0.5),
            "q25_s": self.quantile(0.25),
            "q75_s": self.quantile(0.75),
            "min_s": min(self.samples_s),
        }


@dataclass(frozen=True)
class Repeat:
    """One instrumented run; times in seconds, by event."""

    events: tuple[Event, ...]
    seconds: tuple[float, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Runs:
    """All repeats: `clean` without instrumentation, `timed` with it, and the account of one more run."""

    clean: Mapping[str, Spread]  # by phase, and "" for the total
    timed: Spread
    repeats: tuple[Repeat, ...]
    account: Account | None
    peak_memory_bytes: int | None
    wall_s: float  # of everything, warm-up and accounting included
    clean_wall_s: float
    window: PowerWindow = PowerWindow(None, "nothing was run")

    @property
    def instrumentation_s(self) -> float:
        """How much longer a timed run takes than the clean run before it: the median, free of a drift."""
        before = self.clean[""].samples_s[::CLEAN_PER_TIMED]
        return float(np.median(np.asarray(self.timed.samples_s) - np.asarray(before)))


@dataclass(frozen=True)
class Settings:
    device: str | torch.device | None = None
    phase: str = "forward"
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    warmup: int = 5
    repeat: int = 20
    time_limit_s: float | None = None
    runtime: bool = True
    memory: bool = True
    power: str = "auto"
    flop_unit: str = "flop"
    convention: str = ALL_OPS
    custom: Rules | None = None
    seed: int = 0
    name: str | None = None

    @property
    def training(self) -> bool:
        return self.phase == "training"

    def check(self) -> None:
        check_convention(self.convention, self.flop_unit, self.phase)
        if self.phase not in PHASES:
            raise unknown("phase", self.phase, PHASES)
        if not ((self.warmup == 0 or is_count(self.warmup)) and is_count(self.repeat)):
            text = "warmup must be 0 or more, repeat 1 or more, both whole numbers"
            raise InputError(f"warmup {self.warmup!r}, repeat {self.repeat!r}: {text}")


@dataclass
class Step:
    model: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    phase: str
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    watch: Stopwatch | None = field(default=None)

    def run(self, clock: Clock, first: bool = False) -> list[tuple[str, Any]]:
        """Run once; (phase that begins, mark), the end last.

        Tensors that a network caches in its `first` pass, such as relative positions, can be trained later.
        """
        marks: list[tuple[str, Any]] = []

        def began(phase: str) -> None:
            self._enter(phase)
            marks.append((phase, clock.mark()))

        if self.phase == "forward":
            began("forward")
            with torch.no_grad() if first else torch.inference_mode():
                self.model(*self.args, **self.kwargs)
            began("")
        else:
            assert self.optimizer is not None  # made by `prepared`
            run_training_step(self._loss, self.optimizer, began)
        return marks

    def _loss(self) -> Tensor:
        output = self.model(*self.args, **self.kwargs)
        self._enter("forward", LOSS)
        return (self.loss or default_loss)(output)

    def _enter(self, phase: str, scope: str = "") -> None:
        if self.watch is not None and phase:
            self.watch.phase, self.watch.scope = phase, scope


def title_of(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return read_cpu().name if device.type == "cpu" else str(device)


def clock_of(device: torch.device) -> Clock:
    """The device's clock; raises DeviceError for one that has none here."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    text = "only cpu and cuda devices can be timed; move the model to one of them"
    raise DeviceError(f"device {device}: {text}")


@contextlib.contextmanager
def prepared(step: Step, device: torch.device, seed: int) -> Iterator[Step]:
    """`step` ready to run; restores weights, buffers, gradients, modes, optimizer and random state."""
    training = step.phase == "training"
    parameters = list(step.model.parameters())
    optimizer, state = step.optimizer, None
    if training:
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            name = type(step.model).__name__
            raise InputError(f"{name} has no parameter that requires a gradient; choose phase forward")
        state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else None
        step.optimizer = optimizer or torch.optim.SGD(trained, lr=1e-4)
    values = [(t, t.detach().clone()) for t in (*step.model.buffers(), *(parameters if training else ()))]
    given = [t for t in tree_iter((step.args, dict(step.kwargs))) if isinstance(t, Tensor) and t.is_leaf]
    gradients = [(t, t.grad) for t in (*parameters, *given)]
    try:
        with undisturbed(step.model, None), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for parameter in parameters if training else ():
                parameter.grad = None
            yield step
    finally:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        for tensor, gradient in gradients:
            tensor.grad = gradient
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)
        step.optimizer = optimizer


def repeat(
    step: Step, clock: Clock, whole: frozenset[tuple[str, str]] | None, asked: Settings, meter: PowerMeter
) -> Runs:
    """Warm up, account one run, then run clean and timed in turn, so that a drift of the machine meets both.

    Where there is a meter, clean runs follow for as long as a power measurement takes.

    Raises:
        ModelError: the model's forward or backward raises.
        DeviceError: the device is out of memory.
    """
    begun = time.perf_counter()
    account, peak = None, None
    with told(type(step.model).__name__, "it was traced, but "):
        forget(step.model)
        for number in range(asked.warmup):
            step.run(clock, first=number == 0)
        clock.wait()
        if asked.memory or asked.training:
            account, peak = accounted(step, clock, whole)
        clean, timed, clean_wall_s = _in_turn(step, clock, whole, asked)

        def run_once() -> None:
            step.run(clock)
            clock.wait()

        window = measure_power(run_once, meter)
    phases = clean[0] if clean else {}
    return Runs(
        clean={phase: Spread(tuple(run[phase] for run in clean)) for phase in phases},
        timed=Spread(tuple(total_s for _, total_s in timed)),
        repeats=tuple(run for run, _ in timed),
        account=account,
        peak_memory_bytes=peak if asked.memory else None,
        wall_s=time.perf_counter() - begun,
        clean_wall_s=clean_wall_s,
        window=window,
    )


def _in_turn(
    step: Step, clock: Clock, whole: frozenset[tuple[str, str]] | None, asked: Settings
) -> tuple[list[dict[str, float]], list[tuple[Repeat, float]], float]:
    """(Seconds of clean runs by phase, timed runs with their seconds, wall time of the clean ones)."""
    clean: list[dict[str, float]] = []
    timed: list[tuple[Repeat, float]] = []
    clean_wall_s, started = 0.0, time.perf_counter()
    limit_s = math.inf if asked.time_limit_s is None else asked.time_limit_s
    for number in range(asked.repeat):
        if number >= MINIMUM and time.perf_counter() - started > limit_s:
            break
        start = time.perf_counter()
        clean.append(_seconds(step.run(clock), clock))
        clean_wall_s += time.perf_counter() - start
        if number % CLEAN_PER_TIMED == 0:
            timed.append(_timed(step, clock, whole))
    return clean, timed, clean_wall_s


@contextlib.contextmanager
def told(name: str, before: str = "") -> Iterator[None]:
    """Raise errors of users' code as OutOfMemory or ModelError, in one line that begins with `before`."""
    try:
        with users_code(name):
            yield
    except UsersError as refused:
        if refused.what != name:
            raise
        error = raised(refused)
        if failure(error)["status"] == "oom":
            text = f"out of memory ({quoted(error)[:200]}); choose a smaller batch"
            raise OutOfMemory(f"{name}: {text}") from error
        text = f"{before}running it raises {quoted(error)[:200]}; check dtype, inputs and device"
        raise ModelError(f"{name}: {text}") from error


def _seconds(marks: Sequence[tuple[str, Any]], clock: Clock) -> dict[str, float]:
    """Seconds by phase, and of the whole under ""."""
    clock.wait()
    return {"": clock.seconds(marks[0][1], marks[-1][1]), **by_part(marks, clock.seconds)}


def _watched(step: Step, clock: Clock, watch: Stopwatch) -> list[tuple[str, Any]]:
    with swapped(step, watch=watch), watch.running():
        return step.run(clock)


def _timed(step: Step, clock: Clock, whole: frozenset[tuple[str, str]] | None) -> tuple[Repeat, float]:
    watch = Stopwatch(step.model, clock, whole)
    total = _seconds(_watched(step, clock, watch), clock)[""]
    events = tuple(watch.events)
    seconds = tuple(clock.seconds(e.start, e.end) for e in events)
    return Repeat(events, seconds, tuple(watch.modules.spans)), total


def accounted(
    step: Step, clock: Clock, whole: frozenset[tuple[str, str]] | None, held: Iterable[Tensor] = ()
) -> tuple[Account, int]:
    """One run whose tensors are accounted; (account, peak bytes: the CUDA allocator's where there is one).

    `held` are tensors that existed before, besides weights, buffers, inputs and the optimizer's state.
    """
    before = [*step.model.parameters(), *step.model.buffers(), *held]
    before += tensors_within((step.args, dict(step.kwargs)))
    states = step.optimizer.state.values() if step.optimizer is not None else ()
    before += [value for state in states for value in state.values() if isinstance(value, Tensor)]
    account = Account(before)
    device = clock.device if isinstance(clock, CudaClock) else None
    if device is not None:
        torch.cuda.reset_peak_memory_stats(device)
    watch = Stopwatch(step.model, clock, whole, account, backward_flops)
    _watched(step, clock, watch)
    clock.wait()
    peak = account.peak if device is None else torch.cuda.max_memory_allocated(device)
    return account, peak


# ---- A profile's typical run as a timeline: modules and operators on the host, with memory and power ----


def typical(runs: Runs) -> Repeat:
    """The timed run of median time (the lower one of two)."""
    order = np.argsort(runs.timed.samples_s, kind="stable")
    return runs.repeats[int(order[(len(order) - 1) // 2])]


def process(model: str, device: str, runs: Runs) -> Process:
    """The typical run, from 0; its times include the instrumentation's cost."""
    run = typical(runs)
    start = min([e.host_start_ns for e in run.events] + [s.start_ns for s in run.spans], default=0)
    rows = [Row("host: modules and operators", slices(run, start, model))]
    counters = []
    sizes = memory_bytes(runs)
    if len(sizes) == len(run.events):
        points = [(event.host_start_ns - start, size) for event, size in zip(run.events, sizes, strict=True)]
        counters.append(Counter("memory", "bytes", points))
    if runs.window.power_w is not None:  # the mean of all runs
        counters.insert(0, Counter("power", "W", [(0, runs.window.power_w)]))
    return Process(f"measured: {model} on {device}", rows, counters)


def slices(run: Repeat, start_ns: int, model: str) -> list[Slice]:
    """A run's phases (where there are several), modules and operators; outer ones before those inside."""
    drawn = []
    phases = dict.fromkeys(event.phase for event in run.events)
    for phase in phases if len(phases) > 1 else ():
        inside = [event for event in run.events if event.phase == phase]
        begins, ends = [event.host_start_ns for event in inside], [event.host_end_ns for event in inside]
        if phase == "forward":
            begins += [span.start_ns for span in run.spans]
            ends += [span.end_ns for span in run.spans]
        drawn.append(Slice(phase, "phase", min(begins) - start_ns, max(ends) - start_ns))
    drawn += [
        Slice(span.path or model, "module", span.start_ns - start_ns, span.end_ns - start_ns)
        for span in reversed(run.spans)  # in the order in which they ended: the inner ones first
    ]
    for event, seconds in zip(run.events, run.seconds, strict=True):
        times = (event.host_start_ns - start_ns, event.host_end_ns - start_ns)
        args = {"path": event.path, "runtime_s": seconds}
        drawn.append(Slice(event.operator, event.phase, *times, args))
    return drawn


def memory_bytes(runs: Runs) -> Sequence[int]:
    """Bytes of tensors alive during each operator call of the accounted run, if there was one."""
    if runs.account is None:
        return ()
    lifetimes = runs.account.lifetimes
    total = alive(lifetimes.storages(), lifetimes.calls + 1)
    return [int(size) for size in total[1 : lifetimes.calls + 1]]
