"""What a device reaches at best, for layers that no regressor knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neuralpower.devices.spec import FASTEST_FLOPS
from neuralpower.layers import Hardware
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.network_rows import Total


def work_of_totals(totals: Sequence[Total]) -> dict[str, np.ndarray]:
    """The same of whole networks, each under the dtype of most of its FLOP (of its bytes, where they are equal)."""
    parts: dict[str, list[tuple[float, float, float]]] = {}
    for total in totals:
        each: dict[str, tuple[float, float]] = {}
        for layer, n in zip(total.layers, total.counts, strict=True):
            flops, size = each.get(layer.dtype, (0.0, 0.0))
            each[layer.dtype] = flops + n * layer.flops(), size + n * sum(layer.bytes())
        flops, size = (sum(column) for column in zip(*each.values(), strict=True))
        parts.setdefault(max(each, key=lambda dtype: each[dtype]), []).append((flops, size, total.runtime_s))
    return {dtype: np.array(some).T for dtype, some in parts.items()}


def learn_rooflines(
    everything: Sequence[Mapping[str, np.ndarray]], hardware: Hardware
) -> dict[str, Roofline]:
    """Per dtype the device's peaks where they are known, else those that fit the rows best, over a grid of 5 % steps."""
    parts: dict[str, list[np.ndarray]] = {}
    for work in everything:
        for dtype, chunk in work.items():
            parts.setdefault(dtype, []).append(chunk)
    rooflines = {}
    for dtype, chunks in parts.items():
        flops, size, t = np.concatenate(chunks, axis=1)
        fastest = (
            float(np.max(flops / t)) or FASTEST_FLOPS,
            float(np.max(size / t)),
        )  # of copies alone memory tells all
        grid = 1.05 ** -np.arange(0, 100)
        alone = min(grid, key=lambda c: float(np.sum(np.abs(flops / (fastest[0] * c) - t))))
        only = fastest[0] * float(alone)
        if dtype in hardware.peak_flops_per_s and hardware.memory_bytes_per_s > 1:
            rooflines[dtype] = Roofline(hardware.peak_flops_per_s[dtype], hardware.memory_bytes_per_s, only)
            continue
        costs = [
            (float(np.sum(np.abs(np.maximum(flops / (fastest[0] * a), size / (fastest[1] * b)) - t))), a, b)
            for a in grid[::2]
            for b in grid[::2]
        ]
        _, a, b = min(costs)
        rooflines[dtype] = Roofline(fastest[0] * a, fastest[1] * b, only)
    return rooflines
