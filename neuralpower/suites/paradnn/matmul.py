"""The product of two square matrices, the most that a device gives: 16384 x 16384 by default, 20 warm-ups."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from neuralpower.errors import InputError, OutOfMemory
from neuralpower.measure.calls import products
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.profiling.steps import clock_of, told
from neuralpower.report.tables import quantity
from neuralpower.suites.paradnn.roof import check_dtype
from neuralpower.suites.paradnn.room import SHARE, available_bytes
from neuralpower.suites.paradnn.run import machine_name

SIZE, WARMUP, STEPS = 16384, 20, 10
TF32_FROM = (8, 0)  # compute capability


@dataclass(frozen=True)
class MatmulResult:
    """Seconds of one product, and FLOP/s: 2 size^3 of each."""

    machine: str
    size: int
    dtype: str
    tf32: bool
    product_s: float
    steps: int
    table: str  # of the profiler, by device time

    @property
    def flops_per_s(self) -> float:
        """1 multiply-add = 2 FLOP."""
        return 2 * self.size**3 / self.product_s


def tf32_by_default(dtype: str, device: torch.device) -> bool:
    """Float32 products are taken in TF32 from compute capability 8.0 on."""
    return device.type == "cuda" and dtype == "float32" and torch.cuda.get_device_capability(device) >= TF32_FROM


def matmul_benchmark(
    size: int = SIZE,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    warmup: int = WARMUP,
    steps: int = STEPS,
    tf32: bool | None = None,
    profiled: bool = False,
) -> MatmulResult:
    """Multiply; `tf32` None: from compute capability 8.0 on.

    Raises:
        InputError: a size or number of steps below 1, a device or dtype that is none, or TF32 where there is none.
        DeviceError: a device that is not there, or on which three such matrices do not fit (OutOfMemory).
    """
    if size < 1 or steps < 1 or warmup < 0:
        raise InputError(f"size {size}, {warmup} warm-up and {steps} timed steps: at least 1, 0 and 1 are needed")
    kind, place = check_dtype(dtype), device_named(device)
    allowed = tf32_by_default(dtype, place)
    if tf32 and not allowed:
        raise InputError(f"tf32 with {dtype} on {device}: is float32 on CUDA from compute capability 8.0; leave it out")
    needed, free = 3 * size**2 * kind.itemsize, available_bytes(device)
    if free is not None and needed > SHARE * free:
        side = int((SHARE * free / 3 / kind.itemsize) ** 0.5)
        raise OutOfMemory(
            f"matmul of {size}: needs {quantity(needed, 'B')}, {quantity(free, 'B')} are free; --size {side} fits"
        )
    clock = clock_of(place)
    gc.collect()
    with products(tf32=allowed if tf32 is None else tf32), torch.inference_mode(), told(f"matmul of {size}"):
        left, right = (torch.rand(size, size, dtype=kind, device=place) for _ in range(2))
        out = torch.empty_like(left)
        for _ in range(warmup):
            torch.matmul(left, right, out=out)
        clock.wait()
        begin = clock.mark()
        for _ in range(steps):
            torch.matmul(left, right, out=out)
        end = clock.mark()
        clock.wait()
        table = _profiled(left, right, out, place) if profiled else ""
    used = allowed if tf32 is None else tf32
    return MatmulResult(machine_name(place), size, dtype, used, clock.seconds(begin, end) / steps, steps, table)


def _profiled(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, device: torch.device) -> str:
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
        torch.matmul(left, right, out=out)
        if cuda:
            torch.cuda.synchronize(device)
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    return str(found.key_averages().table(sort_by=order, row_limit=10))
