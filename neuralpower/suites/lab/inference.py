"""Run a trained network over test images under torch.profiler, at one batch size on one device."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from neuralpower.errors import DeviceError, InputError
from neuralpower.profiling.steps import clock_of
from neuralpower.suites.lab.images import Split, normalised
from neuralpower.suites.lab.operators import Operator, OperatorTable, operators_of, summed
from neuralpower.suites.lab.training import written

WARM_UP = 3  # batches before anything is measured
TRACED = 10  # batches in a Chrome trace
AT_ONCE = 1000  # batches under one profiler, whose events are objects in memory


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
    """Operators of the network in eval mode over `images` test images (all of them by default), from the first on again.

    The images lie on the device before. A Chrome trace holds the first ten batches only.

    Raises:
        InputError: a batch size or number of images below 1.
        DeviceError: there is not enough memory.
    """
    count = len(test) if images is None else images
    if batch_size < 1 or count < 1:
        raise InputError(f"batch size {batch_size}, {count} images: both must be 1 or more")
    model = model.to(device).eval()
    chosen = torch.arange(count) % len(test)
    try:
        batches = [normalised(test.images[some]).to(device) for some in torch.split(chosen, batch_size)]
        for batch in (batches * WARM_UP)[:WARM_UP]:
            model(batch)
        wall_s = _run(model, batches, device)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        parts: list[Operator] = []
        for first in range(0, len(batches), AT_ONCE):
            with profiler(activities=activities, record_shapes=by_shape, profile_memory=True) as profiled:
                _run(model, batches[first : first + AT_ONCE], device)
            parts += operators_of(profiled.events() or (), by_shape=by_shape, device=device.type == "cuda")
        if trace_file is not None:
            with profiler(activities=activities) as traced:
                _run(model, batches[:TRACED], device)
            written(trace_file, lambda aside: traced.export_chrome_trace(str(aside)))
    except torch.OutOfMemoryError:
        raise DeviceError(
            f"batch size {batch_size} on {device}: not enough memory; choose smaller --profile-batches"
        ) from None
    found = summed(parts)
    return OperatorTable(
        batch_size=batch_size,
        operators=found,
        self_total_s=sum(operator.self_cpu_s for operator in found),
        images=count,
        device=str(device),
        wall_s=wall_s,
    )


def _run(model: nn.Module, batches: list[Tensor], device: torch.device) -> float:
    """Seconds of one pass over the batches, to the end of the last."""
    wait = clock_of(device).wait
    wait()
    start = time.perf_counter()
    for batch in batches:
        model(batch)
    wait()
    return time.perf_counter() - start
