"""The measured roof of a device: the best of some matrix products, and of some triads.

    product  c = a b          n x n each: 2 n^3 FLOP
    triad    a = b + 3 c      s bytes each: reads 2 s, writes s (McCalpin's STREAM counts in the same way)

The fastest run of the best size counts: a roof is an upper limit, and other load only makes a run slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from neuralpower.layers.call import Call

SCALE = 3.0  # of the triad


class MeasuredRoof(NamedTuple):
    """FLOP/s and B/s, how they were measured, and with how many runs of each size."""

    flops_per_s: float
    bytes_per_s: float
    how: str
    samples: int


def measured_roof(
    timed: Callable[[Call], Sequence[float]],
    place: torch.device,
    dtype: torch.dtype,
    products: Sequence[int],
    triads: Sequence[int],
) -> MeasuredRoof:
    """Time products and triads on a device.

    Args:
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
    return MeasuredRoof(flops_per_s, bytes_per_s, how, min(runs, more))


def _best(
    timed: Callable[[Call], Sequence[float]], make: Callable[[int], tuple[Call, int]], sizes: Sequence[int]
) -> tuple[float, int, int]:
    """(work per second, its size, how often each size ran)."""
    found: list[tuple[float, int]] = []
    runs = []
    for size in sizes:
        call, work = make(size)
        seconds = timed(call)
        del call  # and its arrays, before the next call is made
        found.append((work / min(seconds), size))
        runs.append(len(seconds))
    rate, size = max(found)
    return rate, size, min(runs)


def _product(side: int, place: torch.device, dtype: torch.dtype) -> tuple[Call, int]:
    """A call, and its FLOP."""
    left, right = (torch.randn(side, side, device=place, dtype=torch.float32).to(dtype) for _ in range(2))
    return Call(torch.mm, (left, right), {}), 2 * side**3


def _triad(size: int, place: torch.device) -> tuple[Call, int]:
    """A call, and the bytes that it reads and writes."""
    a, b, c = (torch.ones(size // 4, dtype=torch.float32, device=place) for _ in range(3))
    return Call(torch.add, (b, c), {"alpha": SCALE, "out": a}), 3 * size
