"""Time inference or training steps of one network in some precision; all suites use this.

    settle          warm-up          timed
    |---------------|-- ... --|------|-- draw | forward (loss, backward, optimizer) --|-- ... --|
                                     mark                                             mark      mark

A step runs from mark to mark, so it includes waiting for data. Warm-up and timed steps have separate counts.
"""

from __future__ import annotations

import gc
import math
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuralpower.devices.machine import available_bytes
from neuralpower.dtypes import AUTOCAST_DTYPES, NETWORK_DTYPES
from neuralpower.errors import InputError, first_line, unknown
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.optimizers.registry import runnable
from neuralpower.profiling.steps import Spread, Step, told
from neuralpower.profiling.stopwatch import Clock, CudaClock

# of the free memory, for tensors: kernels work in the others (29 % more in a squeezenet), and so do loaders
SHARE = 0.75
Synchronise = Literal["each", "end"]


def machine_name(device: torch.device) -> str:
    """A machine's name in tables: the GPU's, or HOST-cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.node()}-cpu"


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, or of the system and this process's control group; None if unknown."""
    if device.type != "cuda":
        return available_bytes()
    gc.collect()
    torch.cuda.empty_cache()  # the allocator's cache is free, too
    return int(torch.cuda.mem_get_info(device)[0])


def tensor_room(free: float | None) -> float:
    """The bytes that the tensors of a run may have; without a limit where the free memory is not known."""
    return math.inf if free is None else SHARE * free


def largest_within(room: float, needed: float, batch_size: int, less: float, low: int = 0) -> int:
    """The largest batch that fits, by a line of bytes: `needed` at `batch_size`, `less` at `low`."""
    each = (needed - less) / (batch_size - low)
    return max(0, math.floor(batch_size - (needed - room) / each)) if each > 0 else 0


def elapsed_s(run: Callable[[], object], clock: Clock, calls: int = 1) -> float:
    """Seconds of calls in a row: from the moment when the device rests to the end of the last."""
    clock.wait()
    start = clock.mark()
    for _ in range(calls):
        run()
    end = clock.mark()
    clock.wait()
    return clock.seconds(start, end)


def make_optimizer(name: str, weights: Iterable[Tensor], **settings: float | bool) -> torch.optim.Optimizer:
    """The optimizer of that name; other settings are PyTorch's defaults, momentum 0.9 for "momentum".

    Raises:
        InputError: an unknown optimizer or setting, or a refused value.
    """
    if name not in (known := runnable()):
        raise unknown("optimizer", name, known)
    try:
        return known[name](weights, **settings)
    except (TypeError, ValueError) as error:
        text = f"optimizer {name} with {settings}: {error}; see torch.optim for its settings"
        raise InputError(text) from None


@dataclass(frozen=True)
class Batch:
    """Input of one step; `target` is for the loss."""

    inputs: Inputs
    target: Tensor | None = None


@dataclass
class Work:
    """A network in its mode and on its device, with the source of its batches and its optimizer."""

    model: nn.Module
    draw: Callable[[], Batch]
    loss: Callable[[Any, Tensor | None], Tensor]
    optimizer: torch.optim.Optimizer | None = None
    """None: inference."""

    def step(self, batch: Batch) -> Step:
        phase = "forward" if self.optimizer is None else "training"
        inputs, target, loss = batch.inputs, batch.target, self.loss
        return Step(self.model, inputs.args, inputs.kwargs, phase, lambda o: loss(o, target), self.optimizer)

    def let_go(self) -> None:
        """Drop the network, its optimizer and the source of batches, so that their memory can be freed."""
        self.model, self.optimizer, self.draw = nn.Identity(), None, lambda: Batch(Inputs())


@dataclass(frozen=True)
class Times:
    """Timed steps in seconds; a run that was cut short has fewer."""

    warmup_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()
    data_s: tuple[float, ...] = ()
    """The host's wait for the batch of each timed step."""
    peak_memory_bytes: int | None = None
    """Peak of the CUDA allocator, warm-up included."""

    @property
    def total_s(self) -> float:
        """Time from the beginning of the first timed step to the end of the last."""
        return sum(self.step_s)

    @property
    def spread(self) -> Spread:
        return Spread(self.step_s)

    @property
    def mean_s(self) -> float | None:
        """Mean time of a step; None if none was timed."""
        return float(np.mean(self.step_s)) if self.step_s else None

    @property
    def std_s(self) -> float | None:
        """Standard deviation of the timed steps, as a population."""
        return float(np.std(self.step_s)) if self.step_s else None


@dataclass
class StepTimer:
    """Time steps of some work; after an error or an interruption, `times` still has the measured steps.

    "each" waits for the device after every step; "end" waits once, so the device never idles between steps.
    """

    work: Work
    clock: Clock
    synchronise: Synchronise = "each"
    clock_ns: Callable[[], int] = time.perf_counter_ns
    _warmup_s: list[float] = field(default_factory=list)
    _step_s: list[float] = field(default_factory=list)
    _data_s: list[float] = field(default_factory=list)
    _peak_memory_bytes: int | None = None

    def run(self, *, warmup: int, steps: int) -> Times:
        """Warm up, then time.

        Raises:
            InputError: a negative number of warm-up steps, or no timed step.
            OutOfMemory: the batch does not fit.
            ModelError: the network cannot be run.
        """
        if warmup < 0 or steps < 1:
            raise InputError(f"{warmup} warm-up and {steps} timed steps: must be at least 0 and 1")
        gc.collect()
        device = self.clock.device if isinstance(self.clock, CudaClock) else None
        if device is not None:  # frees cached memory, and resets the peak
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        self.clock.wait()
        try:
            self._series(warmup, self._warmup_s, [])
            self._series(steps, self._step_s, self._data_s)
        finally:
            if device is not None:
                self._peak_memory_bytes = torch.cuda.max_memory_allocated(device)
        return self.times

    @property
    def times(self) -> Times:
        """A copy of the times so far, which later steps do not change."""
        return Times(
            warmup_s=tuple(self._warmup_s),
            step_s=tuple(self._step_s),
            data_s=tuple(self._data_s[: len(self._step_s)]),
            peak_memory_bytes=self._peak_memory_bytes,
        )

    def _series(self, count: int, seconds: list[float], data_s: list[float]) -> None:
        """Run `count` steps and append their times; raises OutOfMemory or ModelError."""
        name = type(self.work.model).__name__
        with told(name):
            marks = [self.clock.mark()]
        try:
            for _ in range(count):
                asked_ns = self.clock_ns()
                batch = self.work.draw()
                waited_s = (self.clock_ns() - asked_ns) / 1e9
                with told(name):
                    self.work.step(batch).run(self.clock)
                    marks.append(self.clock.mark())
                    if self.synchronise == "each":
                        self.clock.wait()
                        seconds.append(self.clock.seconds(marks[-2], marks[-1]))
                data_s.append(waited_s)
        finally:
            if self.synchronise == "end":
                with told(name):
                    self.clock.wait()
                seconds.extend(self.clock.seconds(a, b) for a, b in pairwise(marks))


# ---- Precision of a network: weights of one dtype, autocast, or float32 master copies of half weights ----


MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Precision:
    """`dtype` of weights and inputs; under autocast they are float32, and products have `dtype`."""

    dtype: torch.dtype = torch.float32
    autocast: bool = False
    masters: bool = False
    """Whether an optimizer steps float32 copies of the weights."""

    @property
    def stored(self) -> torch.dtype:
        return torch.float32 if self.autocast else self.dtype

    def cast(self, model: nn.Module) -> nn.Module:
        """The model with floating weights and buffers in dtype `stored`; a wrapper adds autocast."""
        model = model.to(self.stored)
        return Autocasting(model, self.dtype) if self.autocast else model

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        """`make` of the weights with a gradient, or of their masters; raises InputError without any."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            text = "it cannot be trained; choose inference"
            raise InputError(f"a network without a weight that requires a gradient: {text}")
        return with_masters(trained, make) if self.masters else make(trained)


def precision(
    dtype: str, device: torch.device, *, autocast: bool = False, masters: bool = False
) -> Precision:
    """The precision of that name on that device.

    Raises:
        InputError: an unknown dtype, one that the device lacks, or autocast to a dtype of another width.
    """
    if dtype not in NETWORK_DTYPES:
        raise unknown("dtype", dtype, NETWORK_DTYPES)
    if autocast and dtype not in AUTOCAST_DTYPES:
        raise InputError(f"autocast to {dtype}: it needs half precision; choose dtype float16 or bfloat16")
    found = torch_dtype(dtype)
    reason = lacking(found, device)
    if reason is not None:
        raise InputError(f"dtype {dtype}: {device} lacks it ({reason}); choose float32")
    return Precision(found, autocast, masters and not autocast and dtype in AUTOCAST_DTYPES)


def lacking(dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why the device cannot compute products of that dtype; None if it can."""
    on_gpu = device.type == "cuda" and dtype == torch.bfloat16
    if on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "needs compute capability 8.0; below it products are emulated"
    try:
        one = torch.ones(1, 1, 2, 2, dtype=dtype, device=device)
        torch.nn.functional.conv2d(one, one)
        one[0, 0] @ one[0, 0]
    except (RuntimeError, TypeError) as error:
        return first_line(error)[:120]
    return None


class Autocasting(nn.Module):
    """A network whose forward runs under autocast on the device of its weights."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output; a tensor becomes float32, so that the loss does, too."""
        device = next((p.device.type for p in self.model.parameters()), "cpu")
        with torch.autocast(device, self.dtype):
            output = self.model(*args, **kwargs)
        return output.float() if isinstance(output, Tensor) and output.is_floating_point() else output


def with_masters(weights: Iterable[Tensor], make: MakeOptimizer) -> torch.optim.Optimizer:
    """An optimizer of float32 copies of half weights; a step reads gradients and writes the copies back.

    Updates too small for a half weight add up in its copy. The loss scale is 1. Source: Micikevicius and
    others, Mixed Precision Training, arXiv 1710.03740, section 3.1.
    """
    halves = list(weights)
    masters = [w.detach().clone().float().requires_grad_() for w in halves]
    optimizer = make(masters)

    def gradients(*_: Any) -> None:
        for half, master in zip(halves, masters, strict=True):
            master.grad = None if half.grad is None else half.grad.float()

    def written(*_: Any) -> None:
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
                half.grad = None

    optimizer.register_step_pre_hook(gradients)
    optimizer.register_step_post_hook(written)
    return optimizer
