"""How often PyTorch asks CUDA for memory in a pass that begins with an emptied cache."""

import torch
from torch import nn

from benchmarks.segments import MIB, asked_for, segments
from neuralpower.trace.lifetimes import Storage


def storage(birth: int, death: int | None, size: int) -> Storage:
    return Storage(birth, death, size, "activations")


def test_storages_share_segments_by_size_and_one_after_the_other() -> None:
    # four of 6 MiB: three fit a segment of 20 MiB (6 + 6 + 6, 2 left), the fourth takes another
    assert asked_for([storage(i, None, 6 * MIB) for i in range(1, 5)]) == 2
    # each of 12 MiB has its own; one that comes after another's death takes its place, but not during the
    # same call
    assert asked_for([storage(1, 2, 12 * MIB), storage(3, None, 12 * MIB)]) == 1
    assert asked_for([storage(1, 2, 12 * MIB), storage(2, None, 12 * MIB)]) == 2
    # 5,000 numbers of 512 B or less: 4,096 to a segment of 2 MiB; they never lie in segments of larger ones
    assert asked_for([storage(i, None, 100) for i in range(1, 5001)]) == 2
    assert asked_for([storage(1, None, 6 * MIB), storage(2, None, 100)]) == 2
    # what is there before the first call, such as weights, is asked for by nobody
    assert asked_for([storage(0, None, 50 * MIB)]) == 0


def test_training_keeps_what_backward_passes_need() -> None:
    # 1,024 x 4,096 x 4 B = 16 MiB each, of one linear layer and its relu, four times over. Evaluation needs
    # two or three at a time; in training every relu's output is kept, and the linear's goes as soon as the
    # relu has read it
    with torch.device("meta"):
        model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(4096, 4096), nn.ReLU())))
        x = torch.empty(1024, 4096)
    assert segments(model, (x,), {}, training=False) == 2
    assert segments(model, (x,), {}, training=True) == 5
