"""Building blocks of the terms that layer kinds give to the fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SECTOR, LINE = 32, 128  # bytes that an accelerator's memory hands over at least, and of a cache's line
FEW_LABELS = 8
LAUNCHES_US = (5, 10, 20, 40, 80)
CALL_CYCLES = "call_cycles"  # the term of a short kernel's cycles, which its device's clock sets
# Outputs of this size and more are mapped afresh at each call by glibc (DEFAULT_MMAP_THRESHOLD_MAX).
MAPPED_BYTES = 32 * 2**20


def floor_div(value: Any, by: Any) -> Any:
    """`value // by` of whole numbers, integers or float64 arrays, whose own // takes eight times as long."""
    return np.floor(value / by) if isinstance(value, np.ndarray) else value // by


def ceil_to(value: Any, step: int) -> Any:
    """`value` rounded up to a multiple of `step`; integers or arrays."""
    return -floor_div(-value, step) * step


def either(value: Any, usual: Any) -> Any:
    """`value` where it is above 0, else what is usual; integers or arrays."""
    return np.where(value > 0, value, usual) if isinstance(value, np.ndarray) else value or usual


def chosen(first: Any, one: Any, other: Any) -> Any:
    """`one` where `first` holds, else `other`; of one layer, or row by row."""
    return np.where(first, one, other) if isinstance(first, np.ndarray) else one if first else other


def past(value: Any, threshold: float) -> Any:
    """The part of `value` above `threshold`, else 0: the slope of a cost that grows once a cache is full."""
    return np.maximum(value - threshold, 0)


def aligned(name: str, run: Any, *units: int) -> dict[str, Any]:
    """Share, by name and unit, of contiguous rows of length `run` that begin at a multiple of the unit."""
    return {f"{name}_at_{unit}": np.gcd(np.asarray(run, dtype=np.int64), unit) / unit for unit in units}


def evicted(in_flight_bytes: Any, cache_bytes: float, start: float, end: float) -> Any:
    """Share, in [0, 1], of what is read again that has left the cache, by how much of the cache is in flight.

    It is 0 up to the share `start`, 1 from `end` on, and straight in the logarithm between.
    """
    octaves = np.log2(np.maximum(in_flight_bytes, 1) / (start * cache_bytes)) / np.log2(end / start)
    return np.clip(octaves, 0.0, 1.0)


def distinct(labels: np.ndarray) -> tuple[Any, Any]:
    """(different labels, each row's position among them); fast for few, as in a table of one kind."""
    code, names = np.zeros(len(labels), dtype=np.intp), list(labels[:1])
    rest = np.flatnonzero(labels != labels[0]) if names else code
    while len(rest) and len(names) < FEW_LABELS:
        code[rest] += 1
        names.append(labels[rest[0]])
        rest = rest[labels[rest] != names[-1]]
    return (np.array(names), code) if not len(rest) else np.unique(labels, return_inverse=True)


def beyond_launch(seconds: Any, steps_us: Sequence[int] = LAUNCHES_US) -> dict[str, Any]:
    """The part of the work, in seconds at the device's peaks, that outlasts launches of these steps."""
    return {f"beyond_{step}_us": past(seconds, step * 1e-6) for step in steps_us}


def causal_share(causal: Any, queries: Any, keys: Any) -> Any:
    """The part of all pairs that a causal mask shows, at least half; queries are the last of the keys."""
    shown = 1 - (np.minimum(queries, keys) - 1) / (2 * np.maximum(keys, 1))
    return np.where(causal, shown, 1.0)
