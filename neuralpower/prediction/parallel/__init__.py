"""A network on several devices: schedules, exchanges, memory and energy of all ranks."""

from neuralpower.prediction.parallel.composition import Shared, lanes, predict_layout, predict_work
from neuralpower.prediction.parallel.memory import serving_memories, stage_memories
from neuralpower.prediction.parallel.pieces import one_micro_batch, pieces_of

__all__ = [
    "Shared",
    "lanes",
    "one_micro_batch",
    "pieces_of",
    "predict_layout",
    "predict_work",
    "serving_memories",
    "stage_memories",
]
