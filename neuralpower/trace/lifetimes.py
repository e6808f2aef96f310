"""When tensors' memory is born and dies, counted in operator calls: who keeps account of a run asks here.

A storage counts from the operator that returned its first tensor until it is freed, whatever views of it there are. What
a kernel needs for itself while it runs is not seen: who knows it says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neuralpower.layers.workspace import workspace_bytes
from neuralpower.networks.repeats import tensors_in
from neuralpower.networks.size_limits import MOST_CALLS, check_calls, most

WEIGHTS, INPUTS, ACTIVATIONS = "weights", "inputs", "activations"
GRADIENTS, OPTIMIZER, CACHE, WORKSPACE = "gradients", "optimizer", "cache", "workspace"
PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, CACHE, INPUTS, ACTIVATIONS, WORKSPACE)
MOVING = (GRADIENTS, ACTIVATIONS, WORKSPACE)  # come and go, and leave holes


class Storage(NamedTuple):
    """One piece of memory: there from operator call `birth` (0: before the first) to `death` (None: beyond the last)."""

    birth: int
    death: int | None
    bytes: int
    part: str
    blocks: tuple[int, ...] = ()  # of work space: what it is made of (`workspace_blocks`)


class Lifetimes:
    """Follows the storages of the tensors that it is shown."""

    def __init__(self) -> None:
        self.calls = 0  # operator calls so far
        self._most_calls = most("NEURALPOWER_MOST_CALLS", MOST_CALLS)
        self.live = 0  # bytes now
        self.peak = 0  # the most bytes at once
        self._births: list[int] = []
        self._deaths: list[int | None] = []
        self._sizes: list[int] = []
        self._parts: list[str] = []
        self._blocks: list[tuple[int, ...]] = []
        self._known: dict[int, int] = {}  # identity of a living storage -> its place in the lists

    def hold(self, tensors: Iterable[Any], part: str) -> None:
        """Memory that is there before the next call, such as weights."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._count(tensor, part)

    def called(self, output: Any, workspace: tuple[int, ...] = ()) -> int:
        """One operator call has returned `output`, and its kernel made these blocks: bytes of what is new in `output`."""
        self.calls += 1
        check_calls(self.calls, self._most_calls)
        if workspace:
            self._note(workspace_bytes(workspace), WORKSPACE, self.calls, workspace)
        return sum(self._count(t, ACTIVATIONS) for t in tensors_in(output))

    def assign(self, tensors: Iterable[Any], part: str) -> None:
        """Say what living tensors are; those that were not seen before are held from now on."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._count(tensor, part)
                for one in (
                    (tensor._indices(), tensor._values()) if tensor.layout == torch.sparse_coo else (tensor,)
                ):
                    self._parts[self._known[one.untyped_storage()._cdata]] = part

    def storages(self) -> tuple[Storage, ...]:
        """All that were seen, the earliest first."""
        columns = zip(self._births, self._deaths, self._sizes, self._parts, self._blocks, strict=True)
        return tuple(Storage(*column) for column in columns if column[2])

    def _count(self, tensor: Tensor, part: str) -> int:
        """Bytes of the tensor's storage if it is new; a sparse one is what it is made of."""
        if tensor.layout == torch.sparse_coo:
            return self._count(tensor._indices(), part) + self._count(tensor._values(), part)
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._known:
            return 0
        size = storage.nbytes()
        place = self._known[identity] = self._note(size, part)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, identity, place).atexit = False
        return size

    def _note(self, size: int, part: str, death: int | None = None, blocks: tuple[int, ...] = ()) -> int:
        self._births.append(self.calls)
        self._deaths.append(death)
        self._sizes.append(size)
        self._parts.append(part)
        self._blocks.append(blocks)
        return len(self._births) - 1

    def _free(self, identity: int, place: int) -> None:
        self._known.pop(identity, None)
        self._deaths[place] = self.calls
        self.live -= self._sizes[place]
