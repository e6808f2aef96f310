"""A network on several devices: schedules, exchanges, memory and energy of all ranks."""

from neuralpower.predict.parallel.composition import Shared, lanes, predict_layout, predict_work
from neuralpower.predict.parallel.fitting import serving_memories, stage_memories
from neuralpower.predict.parallel.pieces import one_micro_batch

__all__ = [
    "Shared",
    "lanes",
    "one_micro_batch",
    "predict_layout",
    "predict_work",
    "serving_memories",
    "stage_memories",
]
