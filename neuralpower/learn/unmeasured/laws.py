"""Laws that hold every answer of a device: no faster than its sheet, not many times slower.

    law    = max(FLOP at the peak of the units that do them, distinct bytes at the memory's bandwidth)
    least  = law at the type's own peak: caches hold what a kernel reads again, not what the one before left
    most   = DENSE x law, LOOSE x law for calls that no vector or tensor core fits, GENERAL x law for torch's
             attention, plus their launches

No sheet states what a few cores of a CPU reach: the rates of a copy and of large products are measured, and
forward calls far from its rows are held:

    law    = max(FLOP at the products' rate, bytes at the copy's), its bytes past twice the last-level cache
             alone for the least
    least  = law / FASTER: convolutions save FLOP, and a server's cache holds more than it lets a guest know
    most   = the kind's `on_cpu` x law + CALL_S

Fewer bits take no longer, but for products that scale their operands first: on an H100, an L40S and a B200,
a third to four fifths of 36,000 in fp8 take longer than in bfloat16.

Measured calls are exempt: tables that repeat one call find its operands in the cache. What was measured on
the very device and lies among its rows is exempt from `most`: its kernels may be as bad as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import DTYPES, FLOATING, TENSORFLOAT32
from neuralpower.layers.base import FORWARD, Layer
from neuralpower.layers.columns import replaced, take
from neuralpower.layers.terms import past
from neuralpower.layers.traits import Traits
from neuralpower.layers.views import most_flops, peak_flops
from neuralpower.learn.fitting.problem import Array

POWER = 4.0  # of the norm over compute and memory: at the ridge a kernel takes 1.19 times the larger
# No factor that whole networks gave to a kind of dense and aligned calls is above the first, none of others
# above the second. Lone calls of odd sizes on an H200 are slower: they count as measured there alone.
DENSE, LOOSE = 3.0, 6.0
# Torch's attention is written for older chips: with heads of 64 it reaches 306 of a B200's 2,250 TFLOP/s, and
# 273 of an H100's 989, in generations by four diffusion networks.
GENERAL = 8.0
# By the bits of a type, those that bound its times.
BOUNDED_BY: Mapping[float, tuple[str, ...]] = {
    32: ("float16", "bfloat16"),
    16: ("float32",),
    8: ("bfloat16", "float32"),
}
HALF = 16  # bits of the usual types
MARKS = ("odd sides", "sides in pairs", "grouped", "strided", "run ", "not last")  # traits of the latter
LAUNCH_S = 5e-6  # of a kernel: to start it, to fill the cores, to end it
# On two EPYCs of two cores. One in a thousand of their 9,000 calls whose law is 0.5 ms and more is faster.
FASTER, CACHES = 2.6, 2
CALL_S = 1e-4  # of a CPU's call besides its work, with a library's code for a new shape


def least_s(columns: Layer, hardware: Hardware) -> Array:
    """Seconds that no such call can stay below, [rows]; 0 for kinds that something else bounds."""
    size = sum(columns.bytes())
    if (on_cpu := _on_cpu(columns, hardware, past(size, CACHES * hardware.llc_bytes))) is not None:
        return on_cpu / FASTER
    if _otherwise_bound(columns, hardware):
        return np.zeros(len(columns.dtype))
    fastest = max(hardware.peak_flops_per_s.values(), default=np.inf)
    peak = most_flops(columns, hardware) if columns.multiplies else fastest
    memory_s = size / hardware.memory_bytes_per_s
    law = np.asarray(np.maximum(columns.law.needed_flops(columns) / peak, memory_s), dtype=float)
    return np.broadcast_to(law, (len(columns.dtype),))


def most_s(columns: Layer, hardware: Hardware) -> Array:
    """Seconds that no such call needs, [rows]; infinite for kinds that something else bounds."""
    traits = columns.law.traits(columns)
    if (on_cpu := _on_cpu(columns, hardware, traits.passes * sum(columns.bytes()))) is not None:
        forward = np.asarray(columns.phase) == FORWARD
        return np.where(forward, columns.law.on_cpu(columns) * on_cpu + CALL_S, np.inf)
    if _otherwise_bound(columns, hardware):
        return np.full(len(columns.dtype), np.inf)
    compute, memory = floors(columns, hardware, traits)
    law = np.maximum(compute, traits.passes * memory)
    launches = np.maximum(np.asarray(columns.law.launches(columns), dtype=float), 1)
    torchs = np.asarray(getattr(columns, "library", "")) == "torch"
    times = np.where(torchs, GENERAL, np.where(_loose(columns, traits), LOOSE, DENSE))
    return np.asarray(times * law + LAUNCH_S * launches)


def floors(columns: Layer, hardware: Hardware, traits: Traits) -> tuple[Array, Array]:
    """(FLOP at the peak of the units that do them, distinct bytes at the memory's bandwidth), s, [rows].

    Lanes do 16 bits no faster than 32, and 64 at their own pace.
    """
    rows, own = len(columns.dtype), peak_flops(columns, hardware)
    products = np.full(rows, columns.multiplies) & ~np.asarray(traits.lanes, dtype=bool)
    peak = np.where(products, own, np.minimum(own, hardware.peak("float32")))
    compute = np.asarray(columns.flops() / peak, dtype=float)
    memory = np.asarray(sum(columns.bytes()) / hardware.memory_bytes_per_s, dtype=float)
    return np.broadcast_to(compute, (rows,)), np.broadcast_to(memory, (rows,))


def other_types(columns: Layer, hardware: Hardware) -> Iterator[tuple[Array, Layer, bool]]:
    """(Rows, these in another type, whether it has more bits) for each type that bounds theirs.

    The narrower type of products has units of its own, whose peak is as high or higher. A pass over memory
    is bounded by its pass over more bytes.
    """
    if np.any(columns.operand_types.quantised):
        return
    peaks, dtypes = hardware.peak_flops_per_s, np.asarray(columns.dtype, dtype=str)
    for mine in np.unique(dtypes).tolist():
        bits = DTYPES[mine].bits if mine in FLOATING else 0
        units = DTYPES[mine].peak or mine  # all types of 8 bits share theirs
        for other in BOUNDED_BY.get(bits, ()) if units in peaks else ():
            wider = DTYPES[other].bits > bits
            narrow, wide = (units, other) if wider else (other, units)
            bounded = peaks[narrow] >= peaks[wide] if columns.multiplies and other in peaks else wider
            if other in peaks and mine != TENSORFLOAT32 and bounded:
                index = np.flatnonzero(dtypes == mine)
                yield index, replaced(take(columns, index), {"dtype": np.full(len(index), other)}), wider


def in_more_bits(columns: Layer, hardware: Hardware) -> list[Layer]:
    """The same calls in each wider type that bounds theirs and that the device has; they are of one type."""
    mine = str(np.asarray(columns.dtype)[0])
    bits = DTYPES[mine].bits if mine in FLOATING else 0
    wider = (name for name in BOUNDED_BY.get(bits, ()) if DTYPES[name].bits > bits)
    rows = len(columns.dtype)
    return [
        replaced(columns, {"dtype": np.full(rows, name)})
        for name in wider
        if name in hardware.peak_flops_per_s
    ]


def _on_cpu(columns: Layer, hardware: Hardware, size: Any) -> Array | None:
    """Seconds of FLOP, or of `size` bytes, by what the CPU was measured to reach, [rows].

    0 for gradients, which may be no more than views. None for other devices, and where nothing was measured.
    """
    if hardware.copied_bytes_per_s is None:
        return None
    memory = size / hardware.copied_bytes_per_s
    rates = hardware.product_flops_per_s
    fastest, dtypes = max(rates.values(), default=np.inf), np.asarray(columns.dtype, dtype=str)
    rate = np.array([rates.get(name, fastest) for name in dtypes.tolist()])
    law = np.maximum(columns.law.needed_flops(columns) / rate, memory)
    return np.where(np.asarray(columns.phase) == FORWARD, law, 0.0)


def _otherwise_bound(columns: Layer, hardware: Hardware) -> bool:
    """Whether neither memory nor FLOP bounds the kind, or the bandwidth is not known."""
    return hardware.memory_bytes_per_s <= 1 or columns.law.bound_s(columns, hardware) is not None


def loose(columns: Layer) -> Array:
    """Whether calls fit no vectors or tensor cores: odd sides, groups, operands out of order, [rows]."""
    return _loose(columns, columns.law.traits(columns))


def _loose(columns: Layer, traits: Traits) -> Array:
    marks = [share for name, share in {**traits.compute, **traits.memory}.items() if name.startswith(MARKS)]
    found = np.zeros(len(columns.dtype), dtype=bool)
    for share in (traits.lanes, *marks):
        found = found | (np.asarray(share) > 0)
    return found
