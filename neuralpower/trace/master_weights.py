"""Float32 masters of 16-bit weights in the memory of a training step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neuralpower.trace.lifetimes import GRADIENTS, OPTIMIZER, Storage


def with_masters(storages: Sequence[Storage], trained: Sequence[Tensor]) -> tuple[Storage, ...]:
    """The storages, gradients and optimizer's states in float32, with another copy of weights of 16 bits."""
    wide = torch.float32.itemsize
    before = sum(one.nbytes for one in trained)
    masters = sum(wide * one.numel() for one in trained if one.element_size() < wide)
    after = sum(max(wide, one.element_size()) * one.numel() for one in trained)
    wider = (GRADIENTS, OPTIMIZER)
    found = [s._replace(bytes=round(s.bytes * after / before)) if s.part in wider else s for s in storages]
    return (*found, Storage(0, None, masters, OPTIMIZER)) if masters else tuple(found)
