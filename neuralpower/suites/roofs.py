"""The roof of a device: theoretical, from clocks and widths; or measured, with square products and copies.

peak FLOP/s = 2 (a fused multiply-add) x lanes x boost clock
bandwidth   = 2 (double data rate) x memory clock x bus bits / 8
L1          = bytes per clock of a multiprocessor x multiprocessors x boost clock
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.devices.spec import DeviceSpec
from neuralpower.dtypes import PEAK
from neuralpower.errors import DeviceError, InputError, OutOfMemory, first_line
from neuralpower.layers.base import Call, torch_dtype
from neuralpower.measure.calls import products
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.profiling.steps import clock_of, told
from neuralpower.profiling.stopwatch import Clock
from neuralpower.report.number_format import quantity
from neuralpower.suites.steps import elapsed_s, free_bytes, machine_name, tensor_room

# By compute capability, for a multiprocessor; NVIDIA's architecture white papers. Lanes are for float32.
L1_BYTES_PER_CLOCK = {7.0: 128, 7.5: 64, 8.0: 128, 8.6: 128, 8.9: 128, 9.0: 128}
LANES = {7.0: 64, 7.5: 64, 8.0: 64, 8.6: 128, 8.9: 128, 9.0: 128, 10.0: 128}
REPEATS = 10
BANDWIDTH = "memory_bytes_per_s"
SHEET, HERE = "data sheet", "measured here"  # origins of a roof; a third is fitted
SCALE = 3.0  # of a triad
COPIED = 512 * 2**20  # bytes
TF32_FROM = (8, 0)  # compute capability


@dataclass(frozen=True)
class Roof:
    """Peak FLOP/s and B/s of a device, and where they come from."""

    device: str
    origin: str
    flops_per_s: float
    bytes_per_s: float
    how: str
    samples: int = 0  # of each, where measured

    @property
    def ridge(self) -> float:
        """FLOP per byte from which a kernel can reach the peak."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """FLOP/s of the roof above an intensity (Williams, Waterman, Patterson, CACM 52(4), 2009)."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


def sheet_roof(sheet: DeviceSpec, dtype: str, device: str, origin: str = SHEET) -> Roof | None:
    """A sheet's roof in that dtype, named `device`; None if the sheet lacks a number."""
    peak, bandwidth = (sheet.values.get(key) for key in (PEAK + dtype, BANDWIDTH))
    if peak is None or bandwidth is None:
        return None
    how = f"FLOP/s: {peak.source}; B/s: {bandwidth.source}"
    return Roof(device, origin, peak.value, bandwidth.value, how)


def theoretical(spec: DeviceSpec, dtype: str = "float32") -> Roof:
    """The roof of a GPU's lanes and clock in float32, else the sheet's peak; raises InputError for none."""
    lanes, clock, memory = spec.get("lanes"), spec.get("clock_hz"), spec.get(BANDWIDTH)
    peak, how = spec.peak_flops.get(dtype), f"its peak in {dtype}"
    if dtype == "float32" and lanes and clock and spec.device_class == "gpu":
        peak, how = 2 * int(lanes) * clock, f"2 x {int(lanes)} lanes x {clock / 1e6:.0f} MHz"
    if peak is None or memory is None:
        ways = ", ".join(spec.peak_flops)
        raise InputError(f"{spec.name}: its spec sheet has no peak in {dtype}; choose {ways}")
    return Roof(f"{spec.name}, {dtype}", SHEET, peak, memory, f"spec sheet of {spec.name}: {how}")


def measured(device: str, dtype: str, size: int = 4096) -> Roof:
    """Measure square products of `size`, and a copy of 512 MiB; raises InputError, DeviceError."""
    best = matmul_benchmark(size, dtype, device, warmup=3, steps=5, tf32=False)
    source = f"product of {size} squared, copy of 512 MiB"
    rate = copy_bytes_per_s(device, COPIED)
    return Roof(f"{best.machine} measured, {dtype}", HERE, best.flops_per_s, rate, source)


def copy_bytes_per_s(device: str, size_bytes: int, clock: Clock | None = None) -> float:
    """B/s, both ways, of the best of ten copies; source and target share the size; raises DeviceError."""
    place = torch.device(device)
    try:
        source = torch.ones(max(size_bytes // 8, 1), dtype=torch.float32, device=place)
        target = torch.empty_like(source)
    except (RuntimeError, MemoryError) as error:
        text = f"copy of {size_bytes} bytes on {device}: {first_line(error)}; choose a smaller size"
        raise DeviceError(text) from None
    calls, timed = max(1, 2**22 // max(size_bytes, 1)), clock or clock_of(place)
    best_s = min(elapsed_s(lambda: target.copy_(source), timed, calls) for _ in range(REPEATS + 1))
    return 2 * source.nbytes * calls / best_s


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
    known = {
        "boost clock (MHz)": clock_hz / 1e6,
        "multiprocessors": cores,
        "FMA TFLOP/s": 2 * lanes * clock_hz / 1e12,
        "memory clock (MHz)": memory_hz / 1e6,
        "bus (bit)": bits,
        "DRAM GB/s": 2 * memory_hz * bits / 8 / 1e9,
        "L1 GB/s": L1_BYTES_PER_CLOCK.get(capability, 0) * cores * clock_hz / 1e9,
    }
    return {name: value for name, value in known.items() if value}


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
    needed, free = 3 * size**2 * kind.itemsize, free_bytes(place)
    if free is not None and needed > (most := tensor_room(free)):
        side = int((most / 3 / kind.itemsize) ** 0.5)
        room = f"needs {quantity(needed, 'B')}, {quantity(free, 'B')} are free"
        raise OutOfMemory(f"matmul of {size}: {room}; --size {side} fits")
    clock = clock_of(place)
    gc.collect()
    with products(tf32=used), torch.inference_mode(), told(f"matmul of {size}"):
        left, right = (torch.rand(size, size, dtype=kind, device=place) for _ in range(2))
        out = torch.empty_like(left)

        def multiply() -> None:
            torch.matmul(left, right, out=out)

        elapsed_s(multiply, clock, warmup)
        seconds = elapsed_s(multiply, clock, steps) / steps
        table = _profiled(left, right, out, place) if profiled else ""
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


# ---- the best of several products and triads ----
#
#     product  c = a b          n x n each: 2 n^3 FLOP
#     triad    a = b + 3 c      s bytes each: reads 2 s, writes s (McCalpin's STREAM counts in the same way)
#
# The fastest run of the best size counts: a roof is an upper limit, and other load only makes a run slower.


def measured_roof(
    name: str,
    timed: Callable[[Call], Sequence[float]],
    place: torch.device,
    dtype: torch.dtype,
    products: Sequence[int],
    triads: Sequence[int],
) -> Roof:
    """Time products and triads on a device of that name.

    Args:
        name: of the device.
        timed: seconds of each run of a call, warmed up.
        place: the device.
        dtype: of the products; triads are of float32.
        products: sides of the matrices.
        triads: bytes of an array.
    """
    flops_per_s, side, runs = _best(timed, lambda n: _product(n, place, dtype), products)
    bytes_per_s, size, more = _best(timed, lambda n: _triad(n, place), triads)
    how = (
        f"matrix product {side:,} x {side:,}; triad a = b + {SCALE:g} c of {size / 2**20:,.0f} MiB each; "
        f"the fastest of {min(runs, more)} runs"
    )
    return Roof(name, HERE, flops_per_s, bytes_per_s, how, min(runs, more))


def _best(
    timed: Callable[[Call], Sequence[float]], make: Callable[[int], tuple[Call, int]], sizes: Sequence[int]
) -> tuple[float, int, int]:
    """(work per second, its size, how often each size ran)."""
    rates: list[tuple[float, int]] = []
    runs = []
    for size in sizes:
        call, work = make(size)
        seconds = timed(call)
        del call  # and its arrays, before the next call is made
        rates.append((work / min(seconds), size))
        runs.append(len(seconds))
    rate, size = max(rates)
    return rate, size, min(runs)


def _product(side: int, place: torch.device, dtype: torch.dtype) -> tuple[Call, int]:
    left, right = (torch.randn(side, side, device=place, dtype=torch.float32).to(dtype) for _ in range(2))
    return Call(torch.mm, (left, right), {}), 2 * side**3


def _triad(size: int, place: torch.device) -> tuple[Call, int]:
    """A call, and the bytes that it reads and writes."""
    a, b, c = (torch.ones(size // 4, dtype=torch.float32, device=place) for _ in range(3))
    return Call(torch.add, (b, c), {"alpha": SCALE, "out": a}), 3 * size
