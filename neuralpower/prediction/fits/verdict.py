"""The verdict on a memory, and how sure it is.

    fits           the upper bound of the peak is within the memory
    tight          the expected peak is within it, the upper bound is not
    does not fit   the expected peak is above it

The probability that the peak is within the memory follows from the value and the upper bound. The rule
assumes that the logarithm of the real peak is normal: its median is the value, and its quantile `COVERED` is
the upper bound. Below the bytes of the tensors alone, which are exact, the probability is 0.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from neuralpower.prediction.memory.peak import Memory

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"

# Share of real peaks that the upper bound must cover: docs/memory.md holds it against measured ones.
COVERED = 0.98
_NORMAL = NormalDist()
_AT_BOUND = _NORMAL.inv_cdf(COVERED)  # standard deviations between the value and the upper bound


def verdict_of(memory: Memory, room_bytes: float) -> str:
    """`FITS`, `TIGHT` or `DOES_NOT_FIT`, for the bytes that a network may take."""
    return verdict_between(memory.value_bytes, memory.high_bytes, room_bytes)


def verdict_between(value_bytes: float, high_bytes: float, room_bytes: float) -> str:
    """The same of the expected bytes and their upper bound."""
    if high_bytes <= room_bytes:
        return FITS
    return TIGHT if value_bytes <= room_bytes else DOES_NOT_FIT


def probability_of(memory: Memory, room_bytes: float) -> float:
    """The probability, 0 to 1, that the peak is within the bytes that a network may take."""
    if room_bytes <= 0 or room_bytes < memory.low_bytes:
        return 0.0
    if memory.value_bytes <= 0:
        return 1.0
    distance = math.log(room_bytes / memory.value_bytes)
    spread = math.log(max(memory.high_bytes / memory.value_bytes, 1.0)) / _AT_BOUND
    if spread == 0:
        return float(distance >= 0)
    return _NORMAL.cdf(distance / spread)
