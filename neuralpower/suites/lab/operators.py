"""Which operators take a network's time, from torch.profiler's events, at one batch size on one device.

Events are nested: `conv2d` contains `convolution`, which contains `_convolution`, which contains the kernel.
An operator's *self* time excludes its calls; only self times add up. Its *total* includes its calls, once,
even if it calls itself. Shares are of the sum of all self times. The profiler's own events are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from neuralpower.errors import DeviceError, InputError
from neuralpower.profiling.rows import total
from neuralpower.profiling.steps import clock_of
from neuralpower.suites.lab.images import Split, normalised
from neuralpower.suites.lab.training import written

OVERHEAD = {
    *("Activity Buffer Request", "Buffer Flush", "Resource", "Lazy Function Loading", "Command Buffer Full"),
    *("Instrumentation", "Instrumentation Overhead", "Activity Buffer Flush"),
    "Runtime Triggered Module Loading",
}
NOT_OPERATORS = ("[memory]", "profiler::", "[pytorch|profiler", "ProfilerStep")
TOP = 10
SUMMED = ("self_cpu_s", "cpu_s", "calls", "self_memory_bytes", "memory_bytes", "self_device_s", "device_s")
WARM_UP = 3  # warm-up batches
TRACED = 10  # batches in a Chrome trace
AT_ONCE = 1000  # batches under one profiler, whose events are objects in memory

Event = Any  # as in torch.profiler; times in microseconds


@dataclass(frozen=True)
class Operator:
    """All calls of one operator; seconds and bytes."""

    name: str
    self_cpu_s: float
    cpu_s: float  # including its calls
    calls: int
    self_memory_bytes: int | None = None  # allocated less freed
    memory_bytes: int | None = None
    self_device_s: float | None = None  # on a GPU; None without one
    device_s: float | None = None
    shapes: str = ""  # of the inputs, if calls are grouped by them

    @property
    def average_s(self) -> float:
        """Time of one call, including its calls."""
        return self.cpu_s / self.calls


@dataclass(frozen=True)
class OperatorTable:
    """One run of the network over a set of images."""

    batch_size: int
    operators: tuple[Operator, ...]
    self_total_s: float  # self times of all operators, also of unlisted ones
    images: int | None = None
    device: str = "cpu"
    wall_s: float | None = None  # of the run without profiler

    def top(self, count: int = TOP, by: str = "cpu_s") -> tuple[Operator, ...]:
        """The most expensive ones by a field of `Operator`."""
        ranked = sorted(self.operators, key=lambda operator: -(getattr(operator, by) or 0))
        return tuple(ranked[:count])

    def share(self, seconds: float) -> float:
        """Part of the sum of all self times."""
        return seconds / self.self_total_s if self.self_total_s else 0.0

    def named(self, name: str) -> Operator | None:
        """All calls of the operator of that name together; None if there are none."""
        found = summed(replace(operator, shapes="") for operator in self.operators if operator.name == name)
        return found[0] if found else None


def summed(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Rows by name and input shapes, in the order of their first call, summed over several runs."""
    groups: dict[tuple[str, str], list[Operator]] = {}
    for operator in operators:
        groups.setdefault((operator.name, operator.shapes), []).append(operator)
    return tuple(
        Operator(name, shapes=shapes, **{field: total(getattr(o, field) for o in some) for field in SUMMED})
        for (name, shapes), some in groups.items()
    )


def is_operator(event: Event) -> bool:
    """Whether an event is an operator of the network: not the profiler's, an allocation or a GPU kernel."""
    if event.name in OVERHEAD or event.name.startswith(NOT_OPERATORS) or getattr(event, "is_async", False):
        return False
    on_host = str(getattr(event, "device_type", "DeviceType.CPU")).endswith("CPU")
    return on_host and getattr(event, "activity_type", None) != "overhead"


def operators_of(
    events: Iterable[Event], *, by_shape: bool = False, device: bool = False
) -> tuple[Operator, ...]:
    """The events by operator, in the order of their first call.

    Args:
        events: of one thread or several, nested by `cpu_parent`.
        by_shape: whether each combination of input shapes has its own row.
        device: whether the events have times on a GPU.
    """

    def call(event: Event) -> Operator:
        outermost = not _inside_itself(event)  # else its caller includes its total
        return Operator(
            event.name,
            self_cpu_s=event.self_cpu_time_total * 1e-6,
            cpu_s=outermost * event.cpu_time_total * 1e-6,
            calls=1,
            self_memory_bytes=event.self_cpu_memory_usage,
            memory_bytes=outermost * event.cpu_memory_usage,
            self_device_s=getattr(event, "self_device_time_total", 0.0) * 1e-6 if device else None,
            device_s=outermost * getattr(event, "device_time_total", 0.0) * 1e-6 if device else None,
            shapes=str(getattr(event, "input_shapes", "")) if by_shape else "",
        )

    return summed(call(event) for event in events if is_operator(event))


def _inside_itself(event: Event) -> bool:
    above = event.cpu_parent
    while above is not None and above.name != event.name:
        above = above.cpu_parent
    return above is not None


@torch.inference_mode()
def profile_inference(
    model: nn.Module,
    test: Split,
    batch_size: int,
    *,
    images: int | None = None,
    device: torch.device,
    by_shape: bool = False,
    trace_file: Path | None = None,
) -> OperatorTable:
    """Operators of the network in eval mode over `images` test images (all by default), repeated if too few.

    The images are on the device beforehand. A Chrome trace contains only the first ten batches.

    Raises:
        InputError: a batch size or number of images below 1.
        DeviceError: not enough memory.
    """
    count = len(test) if images is None else images
    if batch_size < 1 or count < 1:
        raise InputError(f"batch size {batch_size}, {count} images: both must be 1 or more")
    model, on_gpu = model.to(device).eval(), device.type == "cuda"
    chosen = torch.arange(count) % len(test)
    profiling = partial(profiler, activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu])
    parts: list[Operator] = []
    try:
        batches = [normalised(test.images[some]).to(device) for some in torch.split(chosen, batch_size)]
        for batch in (batches * WARM_UP)[:WARM_UP]:
            model(batch)
        wall_s = _run(model, batches, device)
        for first in range(0, len(batches), AT_ONCE):
            with profiling(record_shapes=by_shape, profile_memory=True) as profiled:
                _run(model, batches[first : first + AT_ONCE], device)
            parts += operators_of(profiled.events() or (), by_shape=by_shape, device=on_gpu)
        if trace_file is not None:
            with profiling() as traced:
                _run(model, batches[:TRACED], device)
            written(trace_file, lambda aside: traced.export_chrome_trace(str(aside)))
    except torch.OutOfMemoryError:
        text = f"batch size {batch_size} on {device}: not enough memory; choose smaller --profile-batches"
        raise DeviceError(text) from None
    found = summed(parts)
    return OperatorTable(batch_size, found, sum(o.self_cpu_s for o in found), count, str(device), wall_s)


def _run(model: nn.Module, batches: list[Tensor], device: torch.device) -> float:
    """Seconds of one pass over the batches, to the end of the last."""
    wait = clock_of(device).wait
    wait()
    start = time.perf_counter()
    for batch in batches:
        model(batch)
    wait()
    return time.perf_counter() - start
