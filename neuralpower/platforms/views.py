"""Views of a platform: which terms, features and groups of its kinds' tables describe layers there.

    CpuView          one CPU: counts of FLOP and bytes, and what no longer fits each cache
    KernelView       one device that runs kernels over many cores: seconds at its peaks, tiles and waves
    PooledView       several CPUs at once: what is relative to their peaks alone
    PooledKernelView several such devices at once

A view takes `columns`, a layer with arrays [rows] as fields, or one layer, and returns arrays or numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import QUANTISED, RECURRING, Layer
from neuralpower.layers.terms import past
from neuralpower.layers.views import View as KindView
from neuralpower.layers.views import peak_flops

# Share of a GPU's memory bandwidth: the most by any of 300,000 calls on five of NVIDIA's, 2016 to 2020.
REACHED_AT_MOST = 0.9


class View:
    """The base of views: a polynomial in the sizes, and the kind's table."""

    kernels: ClassVar[bool] = False  # whether layers are kernels over many cores
    pooled: ClassVar[str] = ""  # by what rows of several devices are pooled; "" where they are not

    def hardware(self, hardware: Hardware) -> Hardware:
        return hardware

    def of(self, columns: Layer) -> KindView:
        """The row of the kind's table that describes its layers here."""
        return columns.views.kernels if self.kernels else columns.views.cpu

    def degrees(self, columns: Layer) -> tuple[int, ...]:
        """Degrees of the polynomial that are tried; (0,) for none."""
        return self.of(columns).degrees

    def group(self, columns: Layer) -> Any:
        """The name of the code that runs, by which calls of one kind are fitted apart, quantised ones too."""
        code, operands = self.of(columns).group(columns), columns.operand_types
        quantised = operands.quantised
        if not np.any(quantised):
            return code
        named = np.char.add(np.char.add(np.asarray(code, dtype=str), " ["), operands.format)
        return _marked(np.where(quantised, np.char.add(named, "]"), code), QUANTISED, quantised)

    def any_dtype(self, columns: Layer) -> bool:
        """Whether rows of all dtypes are pooled: they differ in their bytes alone."""
        return False

    def terms(self, columns: Layer, hardware: Hardware) -> dict[str, Any]:
        """Terms besides the polynomial, none below 0, with "flops"; for kernels in seconds at the peaks."""
        terms = self.of(columns).terms(columns, hardware)
        terms.setdefault("flops", columns.flops())
        return terms

    def axes(self, columns: Layer, hardware: Hardware) -> dict[str, Any]:
        """Axes of the sampled box besides the layers' own, as base-2 logarithms."""
        return {}

    def features(
        self, columns: Layer, hardware: Hardware, axes: Mapping[str, Any], flops: Any, size: Any
    ) -> dict[str, Any]:
        """Features of the residual's trees; `size` in bytes."""
        own = self.of(columns).features(columns, hardware)
        return {**axes, "flops": np.log2(flops + 1), "bytes": np.log2(size + 1), **own}

    def held_by_power(self, columns: Layer, hardware: Hardware) -> bool:
        """Whether the level of a device's rows depends on how warm it got, and is fitted separately."""
        return False

    def least_s(self, columns: Layer, hardware: Hardware) -> Any:
        """Seconds that no such call can stay below; 0 where the device's rows tell."""
        return 0.0

    def unknown(self, hardware: Hardware) -> Iterator[str]:
        """Names of what a sheet should say of the device for its products, and does not."""
        return iter(())


class CpuView(View):
    """One CPU, where calls that a loop makes again and again find code and operands in the caches."""

    def group(self, columns: Layer) -> Any:
        """With another name for what recurs."""
        return _marked(super().group(columns), RECURRING, columns.recurs)


class KernelView(View):
    """One device that runs kernels over many cores."""

    kernels = True

    def any_dtype(self, columns: Layer) -> bool:
        """True for all but products: such a kernel waits for its bytes."""
        return not columns.multiplies

    def terms(self, columns: Layer, hardware: Hardware) -> dict[str, Any]:
        """The kind's terms, in seconds at the peaks; all but products compute in float32."""
        terms = super().terms(columns, hardware)
        if not columns.multiplies:
            terms["flops"] = columns.flops() / hardware.peak("float32")
        return terms

    def least_s(self, columns: Layer, hardware: Hardware) -> Any:
        """Seconds of memory, at its full bandwidth, for the bytes that the last-level cache cannot hold.

        Weights of 1.9 GB, 16 times those of any measured product of its kind, were predicted in half of that.
        """
        if hardware.memory_bytes_per_s <= 1:  # not known
            return 0.0
        return past(sum(columns.bytes()), hardware.llc_bytes) / hardware.memory_bytes_per_s


class PooledView(View):
    """Several CPUs at once, each relative to its peaks; the devices' own numbers are axes of the box."""

    pooled = "what is relative to their peaks"

    def hardware(self, hardware: Hardware) -> Hardware:
        return hardware.sustained()

    def degrees(self, columns: Layer) -> tuple[int, ...]:
        """None: a size's worth differs from device to device."""
        return (0,)

    def axes(self, columns: Layer, hardware: Hardware) -> dict[str, Any]:
        """The peaks that each device's terms are relative to; all but products compute in float32."""
        peak = peak_flops(columns, hardware) if columns.multiplies else hardware.peak("float32")
        return {
            "device_flops_per_s": np.log2(peak),
            "device_bytes_per_s": np.log2(hardware.memory_bytes_per_s),
            "device_cores": np.log2(hardware.cores),
            "device_l2_bytes": np.log2(hardware.l2_bytes),
        }

    def features(
        self, columns: Layer, hardware: Hardware, axes: Mapping[str, Any], flops: Any, size: Any
    ) -> dict[str, Any]:
        """In seconds at the peaks, and the kind's own."""
        compute, memory = flops / peak_flops(columns, hardware), size / hardware.memory_bytes_per_s
        own = self.of(columns).features(columns, hardware)
        sides = {name: axes[name] for name in columns.dimensions}
        return {**sides, "flops": np.log2(compute + 1e-9), "bytes": np.log2(memory + 1e-9), **own}

    def held_by_power(self, columns: Layer, hardware: Hardware) -> bool:
        """Whether the power limit sets the pace of products."""
        return columns.multiplies and hardware.held_by_power


class PooledKernelView(PooledView):
    """Several devices that run kernels over many cores."""

    kernels = True

    def any_dtype(self, columns: Layer) -> bool:
        """True for all but products: such a kernel waits for its bytes."""
        return not columns.multiplies

    def of(self, columns: Layer) -> KindView:
        return columns.views.pooled

    def terms(self, columns: Layer, hardware: Hardware) -> dict[str, Any]:
        """In seconds at the device's peaks; no FLOP of a pass, which waits for its bytes."""
        terms = super().terms(columns, hardware)
        if not columns.multiplies:
            del terms["flops"]  # what they would say of it, they say of other devices' peaks
        return terms

    def least_s(self, columns: Layer, hardware: Hardware) -> Any:
        """Seconds of memory for the weights, and for other bytes beyond the last-level cache."""
        given, weights, written = columns.bytes()
        crossing = weights + np.maximum(given + written - hardware.llc_bytes, 0)
        return np.asarray(crossing / (REACHED_AT_MOST * hardware.memory_bytes_per_s))

    def unknown(self, hardware: Hardware) -> Iterator[str]:
        """The power limit, and the year that says what an operation costs in energy."""
        return (name for name in ("limit_w", "year") if getattr(hardware, name) is None)


def _marked(group: Any, word: str, holds: Any) -> Any:
    """The group with a word behind it where that holds."""
    if holds is False or not np.any(holds):  # the first alone is fast where layers come one by one
        return group
    return np.where(holds, np.char.add(np.asarray(group, dtype=str), f" {word}"), group)
