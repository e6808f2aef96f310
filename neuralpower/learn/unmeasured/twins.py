"""Boards of one chip, which differ in links, memory, clocks, enabled cores or power limit.

A predictor that was trained on one board serves the others. The part of a time that the trained board's
bandwidth or sustained FLOP/s explain changes as these do. Launches do not change, nor do steps that wait for
one another. Exchanges follow the links. With an H200's bfloat16 products, an H100's are off by 4.9 % in the
mean, by 9.4 where nothing is scaled, by 10.5 with the H100's numbers in the H200's formulas: many of the
bytes in these come from a cache, which both boards have.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.devices.hardware import TENSOR_DTYPES, TENSOR_POWER, Hardware
from neuralpower.layers.base import Layer
from neuralpower.layers.views import peak_flops
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.fitting.problem import Array

# Two sheets print one number of one chip, rounded: 989.4 and 989.5 TFLOP/s of H100 and H800.
ROUNDED = 0.01
# FLOP/s that a power limit allows grow with this power of the watts for each core: clock and voltage rise
# together. The top of power sweeps (Zeus; club-3090): 0.3 to 0.5 on V100, Quadro RTX 6000, A40, RTX 3090 and
# 5090, 1 and more below half of the limit. Best products of a chip's boards (mag-/gpu_benchmark, on GitHub):
# A100 PCIe and GH200 0.15, H100 PCIe 0.6, H100 NVL 0.9.
BY_POWER = 0.5
# Standard deviation of log(measured / said): of any other board, and for each unit of the change's logarithm.
# With them, 94 % of 246,000 rows of six boards lie within their bounds.
BOARD, CHANGED = 0.06, 0.25
SHORTEST = 1e-12  # s
# Tensor cores' instructions take 64 rows since Hopper (PTX ISA, wgmma), so few rows cost as much as 64. It
# shows on an H20, whose FLOP/s are a sixth of an H200's and whose bandwidth is nearly the same.
TILES = ("tiles_64x64_packed", "tiles_64x64")
SHARP = 4.0  # exponent of the norm of memory's and FLOP's time, which kernels overlap but for a part


@dataclass(frozen=True)
class Twin:
    """The device that a predictor was trained on, for another one of the same chip."""

    name: str
    hardware: Hardware

    @property
    def origin(self) -> str:
        return f"carried from {self.name}, the same chip"

    def differs_in_links(self, here: Hardware) -> bool:
        """Whether the device `here` has its memory and units: what was measured on it was measured there."""
        return octaves_apart(here, self.hardware) < ROUNDED

    def carried(self, columns: Layer, seconds: Array, here: Hardware) -> tuple[Array, Array]:
        """(Seconds on the device `here`, standard deviation of log(measured / said) that this adds), [rows].

        `seconds`: on the device that was trained on.
        """
        there, other = self._reached(here)
        explained, instead = (np.maximum(_peaks_s(columns, one), SHORTEST) for one in (there, other))
        share = np.minimum(explained / np.maximum(seconds, SHORTEST), 1.0)
        factor = 1 + share * (instead / explained - 1)
        return seconds * factor, BOARD + CHANGED * np.abs(np.log(factor))

    def roofline(self, dtype: str, fitted: Roofline, here: Hardware) -> Roofline:
        """The same for the device `here`."""
        there, other = self._reached(here)
        faster = other.peak(dtype) / there.peak(dtype)
        wider = here.memory_bytes_per_s / self.hardware.memory_bytes_per_s
        only = fitted.flops_only_per_s * faster
        return Roofline(fitted.flops_per_s * faster, fitted.bytes_per_s * wider, only)

    def _reached(self, here: Hardware) -> tuple[Hardware, Hardware]:
        """Both devices with the peaks that products sustain, the other's by this one's."""
        there, scale = self.hardware, self._power_scale(here)
        mine: dict[str, float] = {}
        other = dict(here.peak_flops_per_s)
        for dtype, peak in there.peak_flops_per_s.items():
            allowed = there.tensor_flops_allowed(dtype) if dtype in TENSOR_DTYPES else math.inf
            if dtype == "float32":
                peak, allowed = peak * there.issued(), there.allowed()
            mine[dtype] = min(peak, allowed)
            if dtype in here.peak_flops_per_s:
                wide = (here.width(dtype) / there.width(dtype)) ** TENSOR_POWER
                own = here.peak_flops_per_s[dtype] * (here.issued() if dtype == "float32" else 1.0)
                other[dtype] = min(own, allowed * scale * wide, here.tensor_flops_for_long(dtype))
        return (
            dataclasses.replace(there, peak_flops_per_s=mine),
            dataclasses.replace(here, peak_flops_per_s=other),
        )

    def _power_scale(self, here: Hardware) -> float:
        """FLOP/s that the other's power limit allows over those that this one's does."""
        if not here.limit_w or not self.hardware.limit_w:
            return 1.0
        return float((here.limit_w / self.hardware.limit_w * here.cores / self.hardware.cores) ** BY_POWER)


def _peaks_s(columns: Layer, hardware: Hardware) -> Any:
    """Seconds at the peaks: of links for exchanges, of memory and units for all else."""
    bound = columns.law.bound_s(columns, hardware)
    if bound is not None:
        return bound
    memory = sum(columns.bytes()) / hardware.memory_bytes_per_s
    if columns.multiplies:
        terms = columns.views.kernels.terms(columns, hardware)
        whole = (terms[name] for name in TILES if name in terms)
        compute = np.maximum(columns.flops() / peak_flops(columns, hardware), next(whole, 0.0))
    else:
        compute = columns.flops() / hardware.peak("float32")
    return (compute**SHARP + memory**SHARP) ** (1 / SHARP)


def rounded_alike(here: Hardware, there: Hardware) -> Hardware:
    """The device `here` with the numbers of `there` where they are the same, rounded, and the chip's facts.

    The latter are the year, of which energy per FLOP follows, and clocks where its sheet has none. Boards
    that differ in their links alone have one base clock, whatever their sheets state.
    """
    changes: dict[str, Any] = {
        name: getattr(there, name)
        for name in ("cores", "l2_bytes", "llc_bytes", "memory_bytes_per_s", "limit_w", "clock_hz")
        if _alike(getattr(here, name), getattr(there, name))
    }
    if here.base_clock == Hardware.base_clock or octaves_apart(here, there) < ROUNDED:
        changes["base_clock"] = there.base_clock
    peaks = {
        dtype: there.peak_flops_per_s[dtype] if _alike(peak, there.peak_flops_per_s.get(dtype)) else peak
        for dtype, peak in here.peak_flops_per_s.items()
    }
    return dataclasses.replace(
        here,
        **changes,
        peak_flops_per_s=peaks,
        year=there.year or here.year,
        lanes_per_scheduler=here.lanes_per_scheduler or there.lanes_per_scheduler,
    )


def _alike(number: float | None, other: float | None) -> bool:
    """Whether both are known, and the same when rounded."""
    if number is None or other is None:
        return False
    return abs(number - other) <= ROUNDED * max(abs(number), abs(other))


def completed(hardware: Hardware | None, sheet: Hardware) -> Hardware:
    """A predictor's device with what its sheet states besides, as sheets state more than older files have.

    Among it are the peaks of types that the predictor was not trained on.
    """
    if hardware is None:
        return sheet
    lacks = [field.name for field in dataclasses.fields(Hardware) if getattr(hardware, field.name) is None]
    peaks = {**sheet.peak_flops_per_s, **hardware.peak_flops_per_s}
    stated = {name: getattr(sheet, name) for name in lacks}
    return dataclasses.replace(hardware, **stated, peak_flops_per_s=peaks)


def octaves_apart(hardware: Hardware, other: Hardware) -> float:
    """How far two devices are from each other in bandwidth, cores and power limit together."""
    names = ("memory_bytes_per_s", "cores", "limit_w")
    numbers = ((getattr(hardware, name), getattr(other, name)) for name in names)
    return sum(abs(math.log2(mine / its)) for mine, its in numbers if mine and its)
