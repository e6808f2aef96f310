"""Power of layers without trained power: from how far they use the device's units and its memory.

A GPU that works draws a share of its limit that grows with the FLOP/s and the bytes/s that it reaches, each
relative to its peaks, until the limit. The law was fitted to matrix products, attention and experts of 0.1 ms
and more on H200, B200 and GB200 (AIConfigurator's tables, vLLM 0.22.0, power by NVML).
"""

from __future__ import annotations

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import Layer
from neuralpower.layers.views import peak_flops
from neuralpower.learn.problem import Array
from neuralpower.platforms import platform_of

# Shares of the limit: of a busy device, added at the peak of FLOP/s, added at the peak of bytes/s; and the
# exponents of both shares of the peaks.
ACTIVE, BY_FLOPS, BY_BYTES, FLOPS_POWER, BYTES_POWER = 0.19, 0.76, 0.21, 0.24, 0.2
LOW, HIGH = 0.6, 1.6  # measured / said: 5 % of these rows lie below, and 5 % above; 20 % off in the mean
# Share of the limit that an idle device draws, where no sheet states it: value, low, high.
IDLE = 0.15, 0.05, 0.3


def carried_power(columns: Layer, hardware: Hardware, runtime_s: Array) -> tuple[Array, Array, Array]:
    """(W, low, high), each [rows], of layers that take `seconds`; NaN where the limit is not known."""
    limit = hardware.limit_w
    if limit is None or platform_of(hardware).family == "cpu":
        unknown = np.full(len(runtime_s), np.nan)
        return unknown, unknown.copy(), unknown.copy()
    seconds = np.maximum(runtime_s, np.finfo(float).tiny)
    flops = np.minimum(np.asarray(columns.flops() / peak_flops(columns, hardware)) / seconds, 1.0)
    moved = np.minimum(np.asarray(sum(columns.bytes()) / hardware.memory_bytes_per_s) / seconds, 1.0)
    share = ACTIVE + BY_FLOPS * flops**FLOPS_POWER + BY_BYTES * moved**BYTES_POWER
    idle, _, _ = idle_power(hardware)
    value = np.minimum(share * np.ones(len(runtime_s)), 1.0) * limit
    low, high = np.maximum(LOW * value, idle), np.minimum(HIGH * value, limit)
    return np.maximum(value, idle), low, high


def idle_power(hardware: Hardware) -> tuple[float, float, float]:
    """(W, low, high) of an idle device of known limit: its sheet's value, else a usual share of the limit."""
    if hardware.idle_w is not None:
        return (hardware.idle_w,) * 3
    value, low, high = (share * (hardware.limit_w or 0.0) for share in IDLE)
    return value, low, high
