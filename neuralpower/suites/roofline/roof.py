"""The roof that a device really has: FLOP/s of large matrix products, B/s of a large copy.

The product's work is 2 n^3 FLOP; a copy of s bytes reads s and writes s. The better of several sizes counts, each by the
statistic that networks are timed with (`measure.Timing` on a CPU, the median on a GPU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neuralpower.layers.call import Call
from neuralpower.suites.roofline.records import Roof

PRODUCTS = {"cpu": (1024, 2048, 3072), "cuda": (4096, 8192, 16384)}
COPIES = {"cpu": (2**27, 2**28), "cuda": (2**30, 2**32)}  # bytes: several times the last-level cache
SAMPLES = 9

Timer = Callable[[Call], Sequence[float]]
Statistic = Callable[[Sequence[float]], float]


def measured_roof(
    device: str,
    place: torch.device,
    dtype: torch.dtype,
    timer: Timer,
    statistic: Statistic,
    products: Sequence[int] | None = None,
    copies: Sequence[int] | None = None,
) -> Roof:
    """Time products and copies at `place` with `timer`, which gives samples in seconds."""
    flops, size, n = 0.0, 0, 0
    for side in products or PRODUCTS[place.type]:
        left, right = (torch.randn(side, side, device=place, dtype=torch.float32).to(dtype) for _ in range(2))
        samples = timer(Call(torch.mm, (left, right), {}))
        n = len(samples)
        if 2 * side**3 / statistic(samples) > flops:
            flops, size = 2 * side**3 / statistic(samples), side
    del left, right
    bandwidth, copied = 0.0, 0
    for amount in copies or COPIES[place.type]:
        source = torch.ones(amount // 4, dtype=torch.float32, device=place)
        target = torch.empty_like(source)
        samples = timer(Call(target.copy_, (source,), {}))
        n = min(n, len(samples))
        if 2 * amount / statistic(samples) > bandwidth:
            bandwidth, copied = 2 * amount / statistic(samples), amount
    how = (
        f"product of two {size} x {size} matrices, 2 n^3 FLOP; copy of {copied / 2**20:.0f} MiB, read and written; "
        f"warmed up, {n} samples each"
    )
    return Roof(device, "measured here", flops, bandwidth, how, n)
