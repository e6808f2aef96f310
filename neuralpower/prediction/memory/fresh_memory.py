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
from neuralpower.prediction.memory.glibc_allocator import PADDING
from neuralpower.prediction.prediction import FRESH
from neuralpower.prediction.rows import Row
from neuralpower.trace.lifetimes import Storage, on_library
from neuralpower.trace.recipe import TRAINING

# Page faults of a loop, the mean of three processes, lay within this factor of the replay's in nine of ten
# networks with large activations on an EPYC; the tenth had none where 12 MiB were expected. Processes that
# run the same loop differ by up to 2.5 times, by chance of what lies at the heap's end.
SPREAD = 2.5


def is_priced(predictor: Predictor) -> bool:
    """Whether the predictor knows what fresh memory costs; without, its times are of memory that is kept."""
    hardware = predictor.hardware
    known = hardware is not None and hardware.fresh_s_per_byte is not None
    return known and predictor.platform.allocator == "glibc"


def fetched_by(storages: Sequence[Storage], phase: str, predictor: Predictor) -> Fetched | None:
    """What a pass or a step fetches; None where the predictor's times are of memory that is kept."""
    if not is_priced(predictor):
        return None
    habits = {FORWARD: PASS, TRAINING: STEP}.get(phase)
    known = [storage for storage in on_library(storages, predictor.platform.library) if storage.bytes]
    return fetched(known, habits) if known and habits else None


def fresh_row(
    storages: Sequence[Storage], phase: str, predictor: Predictor, times: float = 1.0
) -> Row | None:
    """The row of fresh memory; None for less than a heap keeps at its end, which is chance.

    `times`: how often what the storages describe runs.
    """
    found = fetched_by(storages, phase, predictor)
    if found is None or predictor.hardware is None or found.bytes < PADDING:
        return None
    size = times * found.bytes
    seconds = size * (predictor.hardware.fresh_s_per_byte or 0.0)
    bounds = seconds / SPREAD, seconds * SPREAD
    return Row(f"({FRESH})", FRESH, 1, seconds, *bounds, 0, round(size), "memory", IN_RANGE)
