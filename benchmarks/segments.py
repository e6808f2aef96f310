"""How often PyTorch asks CUDA for memory in a pass that begins with an empty cache, as NeuSight's did.

Sizes are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.1). Free neighbours of one segment are not
joined here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.networks.running import Answers
from neuralpower.trace.lifetimes import INPUTS, WEIGHTS, Lifetimes, Storage

MIB = 2**20
ROUND = 512
SMALL, SMALL_SEGMENT = 1 * MIB, 2 * MIB  # blocks up to the one share segments of the other
LARGE, LARGE_SEGMENT = 10 * MIB, 20 * MIB  # so do those below the one
STEP = 2 * MIB  # of segments that are for one block

Block = tuple[int, bool]  # bytes, and whether of a small segment


class _Follower(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Notes what memory a pass brings into the world and frees."""

    def __init__(self) -> None:
        super().__init__()
        self.lifetimes = Lifetimes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        output = super().__torch_dispatch__(func, types, args, kwargs)
        self.lifetimes.called(output)
        return output


def segments(model: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor], training: bool) -> int:
    """Segments that a forward pass on meta tensors asks for; training keeps what backward passes need."""
    follower = _Follower()
    follower.lifetimes.hold([*model.parameters(), *model.buffers()], WEIGHTS)
    follower.lifetimes.hold([*args, *kwargs.values()], INPUTS)
    with torch.set_grad_enabled(training), follower:
        output = model.train(training)(*args, **kwargs)
    found = asked_for(follower.lifetimes.storages())
    del output  # lives to the end of the pass
    return found


def asked_for(storages: Sequence[Storage]) -> int:
    """Segments that storages of a pass need, where each takes the smallest free block that holds it."""
    events = [(s.birth, True, i) for i, s in enumerate(storages) if s.birth > 0]
    events += [(s.death, False, i) for i, s in enumerate(storages) if s.birth > 0 and s.death is not None]
    free: list[Block] = []
    held: dict[int, Block] = {}
    count = 0
    for _, born, i in sorted(events, key=lambda event: (event[0], not event[1])):
        if not born:
            free.append(held.pop(i))
            continue
        size = -(-storages[i].bytes // ROUND) * ROUND
        small = size <= SMALL
        fitting = [block for block in free if block[1] == small and block[0] >= size]
        if fitting:
            whole = min(fitting)[0]
            free.remove((whole, small))
        else:
            count += 1
            whole = SMALL_SEGMENT if small else LARGE_SEGMENT if size < LARGE else -(-size // STEP) * STEP
        rest = whole - size
        splits = rest >= ROUND if small else rest > SMALL
        if splits:
            free.append((rest, small))
        held[i] = (size if splits else whole, small)
    return count
