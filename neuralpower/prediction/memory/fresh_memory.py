"""Fresh memory: what a pass fetches from the system anew, because the allocator gave it back, and its time.

    seconds = bytes that a repeated pass fetches (by a replay of glibc's heap) x measured seconds per byte

Layers are timed in a process that keeps its memory. A plain loop does not keep it: see `measure/cpu/heap.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import IN_RANGE
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.memory.allocator_replay import PASS, STEP, Fetched, fetched
from neuralpower.prediction.prediction import FRESH
from neuralpower.prediction.rows import Row
from neuralpower.trace.lifetimes import Storage, on_library
from neuralpower.trace.recipe import TRAINING

LEAST = 0.01  # of the layers' time: less is not said
# Page faults of loops over 12 networks on an EPYC lay within this factor of the replay's, and in one process
# of a network within 1.7 times of the next one's.
SPREAD = 2.5


def fetched_by(storages: Sequence[Storage], phase: str, predictor: Predictor) -> Fetched | None:
    """What a pass or a step fetches; None where the predictor's times are of memory that is kept."""
    hardware, platform = predictor.hardware, predictor.platform
    if hardware is None or hardware.fresh_s_per_byte is None or platform.allocator != "glibc":
        return None
    habits = {FORWARD: PASS, TRAINING: STEP}.get(phase)
    known = [storage for storage in on_library(storages, platform.library) if storage.bytes]
    return fetched(known, habits) if known and habits else None


def fresh_row(storages: Sequence[Storage], phase: str, predictor: Predictor, busy_s: float) -> Row | None:
    """The row of fresh memory beside layers that take `busy_s`; None where it takes no time worth saying."""
    found = fetched_by(storages, phase, predictor)
    if found is None or predictor.hardware is None:
        return None
    seconds = found.bytes * (predictor.hardware.fresh_s_per_byte or 0.0)
    if seconds < LEAST * busy_s:
        return None
    bounds = seconds / SPREAD, seconds * SPREAD
    return Row(f"({FRESH})", FRESH, 1, seconds, *bounds, 0, found.bytes, "memory", IN_RANGE)
