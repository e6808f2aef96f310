"""The roof of a device: what its clocks and widths make, and what is measured.

peak FLOP/s = 2 (a fused multiply-add) x lanes x boost clock
bandwidth   = 2 (double data rate) x memory clock x bus bits / 8
L1          = bytes per clock of a multiprocessor x multiprocessors x boost clock
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.devices.spec import DeviceSpec
from neuralpower.errors import DeviceError, InputError, first_line
from neuralpower.profiling.steps import clock_of

L1_BYTES_PER_CLOCK = {7.0: 128, 7.5: 64, 8.0: 128, 8.6: 128, 8.9: 128, 9.0: 128}  # NVIDIA's architecture white papers
LANES = {7.0: 64, 7.5: 64, 8.0: 64, 8.6: 128, 8.9: 128, 9.0: 128, 10.0: 128}  # float32, of a multiprocessor
REPEATS = 10


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


def fma_flops_per_s(lanes: int, clock_hz: float) -> float:
    """FLOP/s of so many lanes with a fused multiply-add each per clock."""
    return 2 * lanes * clock_hz


def dram_bytes_per_s(memory_clock_hz: float, bus_bits: int) -> float:
    """B/s of a memory with double data rate."""
    return 2 * memory_clock_hz * bus_bits / 8


def l1_bytes_per_s(capability: float, cores: int, clock_hz: float) -> float | None:
    """B/s of all first-level caches; None for an architecture whose width is not known."""
    width = L1_BYTES_PER_CLOCK.get(capability)
    return None if width is None else width * cores * clock_hz


def theoretical(spec: DeviceSpec, dtype: str = "float32") -> Roof:
    """Of a spec sheet: of lanes and clock in float32 where it has them, else its peak; raises InputError where it lacks both."""
    lanes, clock, memory = spec.get("lanes"), spec.get("clock_hz"), spec.get("memory_bytes_per_s")
    peak = spec.peak_flops.get(dtype)
    source = f"spec sheet of {spec.name}: its peak in {dtype}"
    if dtype == "float32" and lanes and clock and spec.device_class == "gpu":
        peak = fma_flops_per_s(int(lanes), clock)
        source = f"spec sheet of {spec.name}: 2 x {int(lanes)} lanes x {clock / 1e6:.0f} MHz"
    if peak is None or memory is None:
        raise InputError(f"{spec.name}: its spec sheet has no peak in {dtype}; choose {', '.join(spec.peak_flops)}")
    return Roof(f"{spec.name}, {dtype}", peak, memory, source)


def measured(device: str, dtype: str, size: int = 4096) -> Roof:
    """Square products of `size`, and a copy of 512 MiB; raises InputError, or DeviceError where they do not fit."""
    from neuralpower.suites.paradnn.matmul import matmul_benchmark

    best = matmul_benchmark(size, dtype, device, warmup=3, steps=5, tf32=False)
    rate = copy_bytes_per_s(device, 512 * 2**20)
    name = best.machine
    return Roof(f"{name} measured, {dtype}", best.flops_per_s, rate, f"product of {size} squared, copy of 512 MiB")


def copy_bytes_per_s(device: str, size_bytes: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """B/s read and written by copies of so many bytes together, the best of ten; raises DeviceError where it does not fit."""
    place = torch.device(device)
    try:
        source = torch.ones(max(size_bytes // 8, 1), dtype=torch.float32, device=place)
        target = torch.empty_like(source)
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(f"copy of {size_bytes} bytes on {device}: {first_line(error)}; choose fewer") from None
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
    """B/s of a copy that stays in the last cache, half of which holds source and target; None where its size is not known."""
    place = torch.device(device)
    size = read_cpu().llc_bytes if place.type == "cpu" else int(torch.cuda.get_device_properties(place).L2_cache_size)
    return copy_bytes_per_s(device, size // 2) if size else None


def figures(properties: Any) -> dict[str, float]:
    """Theoretical figures from what CUDA says of a device (clocks in kHz); what torch or this table do not know is left out."""
    capability = float(f"{properties.major}.{properties.minor}")
    clock_hz = 1e3 * float(getattr(properties, "clock_rate", 0))
    memory_hz = 1e3 * float(getattr(properties, "memory_clock_rate", 0))
    bits, cores = int(getattr(properties, "memory_bus_width", 0)), int(properties.multi_processor_count)
    lanes = LANES.get(capability, 0) * cores
    found = {
        "boost clock (MHz)": clock_hz / 1e6,
        "multiprocessors": cores,
        "FMA TFLOP/s": fma_flops_per_s(lanes, clock_hz) / 1e12,
        "memory clock (MHz)": memory_hz / 1e6,
        "bus (bit)": bits,
        "DRAM GB/s": dram_bytes_per_s(memory_hz, bits) / 1e9,
        "L1 GB/s": (l1_bytes_per_s(capability, cores, clock_hz) or 0) / 1e9,
    }
    return {name: value for name, value in found.items() if value}
