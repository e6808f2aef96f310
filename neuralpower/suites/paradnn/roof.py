"""The roof of a device: theoretical, from clocks and widths; or measured, with square products and copies.

peak FLOP/s = 2 (a fused multiply-add) x lanes x boost clock
bandwidth   = 2 (double data rate) x memory clock x bus bits / 8
L1          = bytes per clock of a multiprocessor x multiprocessors x boost clock
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.devices.spec import DeviceSpec
from neuralpower.errors import DeviceError, InputError, OutOfMemory, first_line
from neuralpower.layers.base import torch_dtype
from neuralpower.measure.calls import products
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.profiling.steps import clock_of, told
from neuralpower.report.number_format import quantity
from neuralpower.suites.paradnn.run import SHARE, available_bytes, machine_name

# By compute capability, for a multiprocessor; NVIDIA's architecture white papers. Lanes are for float32.
L1_BYTES_PER_CLOCK = {7.0: 128, 7.5: 64, 8.0: 128, 8.6: 128, 8.9: 128, 9.0: 128}
LANES = {7.0: 64, 7.5: 64, 8.0: 64, 8.6: 128, 8.9: 128, 9.0: 128, 10.0: 128}
REPEATS = 10
COPIED = 512 * 2**20  # bytes
TF32_FROM = (8, 0)  # compute capability


@dataclass(frozen=True)
class Roof:
    """`flops_per_s` of products in one dtype, `bytes_per_s` of memory."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    source: str

    def attainable(self, intensity: float) -> float:
        """FLOP/s at FLOP per byte; Williams, Waterman and Patterson, CACM 52(4), 2009."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


def theoretical(spec: DeviceSpec, dtype: str = "float32") -> Roof:
    """The roof of a GPU's lanes and clock in float32, else the sheet's peak; raises InputError for none."""
    lanes, clock, memory = spec.get("lanes"), spec.get("clock_hz"), spec.get("memory_bytes_per_s")
    peak, how = spec.peak_flops.get(dtype), f"its peak in {dtype}"
    if dtype == "float32" and lanes and clock and spec.device_class == "gpu":
        peak, how = 2 * int(lanes) * clock, f"2 x {int(lanes)} lanes x {clock / 1e6:.0f} MHz"
    if peak is None or memory is None:
        ways = ", ".join(spec.peak_flops)
        raise InputError(f"{spec.name}: its spec sheet has no peak in {dtype}; choose {ways}")
    return Roof(f"{spec.name}, {dtype}", peak, memory, f"spec sheet of {spec.name}: {how}")


def measured(device: str, dtype: str, size: int = 4096) -> Roof:
    """Measure square products of `size`, and a copy of 512 MiB; raises InputError, DeviceError."""
    best = matmul_benchmark(size, dtype, device, warmup=3, steps=5, tf32=False)
    source = f"product of {size} squared, copy of 512 MiB"
    rate = copy_bytes_per_s(device, COPIED)
    return Roof(f"{best.machine} measured, {dtype}", best.flops_per_s, rate, source)


def copy_bytes_per_s(device: str, size_bytes: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """B/s, both ways, of the best of ten copies; source and target share the size; raises DeviceError."""
    place = torch.device(device)
    try:
        source = torch.ones(max(size_bytes // 8, 1), dtype=torch.float32, device=place)
        target = torch.empty_like(source)
    except (RuntimeError, MemoryError) as error:
        text = f"copy of {size_bytes} bytes on {device}: {first_line(error)}; choose a smaller size"
        raise DeviceError(text) from None
    calls = max(1, 2**22 // max(size_bytes, 1))
    best, wait = float("inf"), clock_of(place).wait
    for _ in range(REPEATS + 1):
        wait()
        begun = clock()
        for _ in range(calls):
            target.copy_(source)
        wait()
        best = min(best, (clock() - begun) / calls)
    return 2 * source.nbytes / best


def cache_roof(device: str) -> float | None:
    """B/s of a copy within half of the last cache; None if the cache's size is unknown."""
    properties = torch.cuda.get_device_properties
    size = int(properties(device).L2_cache_size) if device.startswith("cuda") else read_cpu().llc_bytes
    return copy_bytes_per_s(device, size // 2) if size else None


def figures(properties: Any) -> dict[str, float]:
    """Theoretical numbers, if known, from a device's CUDA properties (clocks in kHz)."""
    capability = float(f"{properties.major}.{properties.minor}")
    clock_hz = 1e3 * float(getattr(properties, "clock_rate", 0))
    memory_hz = 1e3 * float(getattr(properties, "memory_clock_rate", 0))
    bits, cores = int(getattr(properties, "memory_bus_width", 0)), int(properties.multi_processor_count)
    lanes = LANES.get(capability, 0) * cores
    found = {
        "boost clock (MHz)": clock_hz / 1e6,
        "multiprocessors": cores,
        "FMA TFLOP/s": 2 * lanes * clock_hz / 1e12,
        "memory clock (MHz)": memory_hz / 1e6,
        "bus (bit)": bits,
        "DRAM GB/s": 2 * memory_hz * bits / 8 / 1e9,
        "L1 GB/s": L1_BYTES_PER_CLOCK.get(capability, 0) * cores * clock_hz / 1e9,
    }
    return {name: value for name, value in found.items() if value}


# ---- the product of two square matrices, the highest rate of a device ----


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
        return 2 * self.size**3 / self.product_s


def tf32_by_default(dtype: str, device: torch.device) -> bool:
    """Whether products are in TF32: those of float32 from compute capability 8.0 on."""
    floats = device.type == "cuda" and dtype == "float32"
    return floats and torch.cuda.get_device_capability(device) >= TF32_FROM


def matmul_benchmark(
    size: int = 16384,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    warmup: int = 20,
    steps: int = 10,
    tf32: bool | None = None,
    profiled: bool = False,
) -> MatmulResult:
    """Multiply; `tf32` None: from compute capability 8.0 on.

    Raises InputError for counts below 1, an unknown device or dtype, or TF32 if there is none; DeviceError
    for a missing device; OutOfMemory if the three matrices do not fit.
    """
    if size < 1 or steps < 1 or warmup < 0:
        counts = f"size {size}, {warmup} warm-up and {steps} timed steps"
        raise InputError(f"{counts}: must be at least 1, 0 and 1")
    if not re.fullmatch(r"float(16|32|64)|bfloat16", dtype):
        raise InputError(f"dtype {dtype!r}: must be float16, bfloat16, float32 or float64")
    kind, place = torch_dtype(dtype), device_named(device)
    allowed = tf32_by_default(dtype, place)
    if tf32 and not allowed:
        rule = "needs float32 on CUDA from compute capability 8.0; leave it out"
        raise InputError(f"tf32 with {dtype} on {device}: {rule}")
    used = allowed if tf32 is None else tf32
    needed, free = 3 * size**2 * kind.itemsize, available_bytes(device)
    if free is not None and needed > SHARE * free:
        side = int((SHARE * free / 3 / kind.itemsize) ** 0.5)
        room = f"needs {quantity(needed, 'B')}, {quantity(free, 'B')} are free"
        raise OutOfMemory(f"matmul of {size}: {room}; --size {side} fits")
    clock = clock_of(place)
    gc.collect()
    with products(tf32=used), torch.inference_mode(), told(f"matmul of {size}"):
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
    seconds = clock.seconds(begin, end) / steps
    return MatmulResult(machine_name(place), size, dtype, used, seconds, steps, table)


def _profiled(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, device: torch.device) -> str:
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
        torch.matmul(left, right, out=out)
        if cuda:
            torch.cuda.synchronize(device)
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    return str(found.key_averages().table(sort_by=order, row_limit=10))
