"""Time inference or training steps of one network; all suites use this.

    settle          warm-up          timed
    |---------------|-- ... --|------|-- draw | forward (loss, backward, optimizer) --|-- ... --|
                                     mark                                             mark      mark

A step runs from mark to mark, so it includes waiting for data. Warm-up and timed steps have separate counts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, unknown
from neuralpower.networks.inputs import Inputs
from neuralpower.optimizers.registry import runnable
from neuralpower.profiling.steps import Spread, Step, told
from neuralpower.profiling.stopwatch import Clock, CudaClock

Synchronise = Literal["each", "end"]


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
        """One step on a batch."""
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
        """Quantiles of the timed steps."""
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
