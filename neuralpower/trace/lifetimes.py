"""Lifetimes of tensors' memory, counted in operator calls; and what calls read and write of it.

A storage counts from the operator that returned its first tensor until it is freed, whatever views of it
there are. A kernel's own work space while it runs is not seen: the caller gives it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from neuralpower.late import Tensor, torch
from neuralpower.layers.tensors import tensors_in
from neuralpower.layers.workspace import workspace_bytes
from neuralpower.networks.inputs.size_limits import MOST_CALLS, check_calls, most

WEIGHTS, INPUTS, ACTIVATIONS = "weights", "inputs", "activations"
GRADIENTS, OPTIMIZER, CACHE, WORKSPACE = "gradients", "optimizer", "cache", "workspace"
PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, CACHE, INPUTS, ACTIVATIONS, WORKSPACE)
MOVING = (GRADIENTS, ACTIVATIONS, WORKSPACE)  # come and go, and leave holes


class Storage(NamedTuple):
    """Memory that lives from operator call `birth` (0: before all) to `death` (None: beyond the last)."""

    birth: int
    death: int | None
    bytes: int
    part: str
    blocks: tuple[int, ...] = ()  # of work space: what it is made of (`workspace_blocks`)
    library: str = ""  # of work space: whose kernels need it (`Platform.library`)
    name: str = ""  # of a parameter or buffer, as the model names it
    origin: tuple[str, str] = ("", "")  # path of the module and operator that made it

    def of_size(self, size: int) -> Storage:
        """The same with other bytes, of which each block has its share."""
        blocks = tuple(round(block * size / max(self.bytes, 1)) for block in self.blocks)
        return self._replace(bytes=size, blocks=blocks)


def on_library(storages: Iterable[Storage], library: str) -> list[Storage]:
    """The storages, with the work space of one library alone; "" for none."""
    return [one for one in storages if one.part != WORKSPACE or one.library == library]


class StepLifetimes(NamedTuple):
    """Lifetimes of memory in the first training step, in operator calls, and its parts' ends."""

    storages: tuple[Storage, ...]
    passes: tuple[int, ...]  # forward, backward, forward, backward, ... of one micro-batch after the other
    end: int
    compiler: bool  # whether torch's compiler comes with the step
    blocks: tuple[
        tuple[str, int], ...
    ] = ()  # (path, operator calls before it) of repeated blocks, as they run
    products: tuple[tuple[int, str], ...] = ()  # (operator call, weight that it reads) of matrix products
    note: str = ""  # why the step is not compiled as asked


class Lifetimes:
    """Follows the storages of the tensors that it is shown."""

    def __init__(self) -> None:
        self.calls = 0  # operator calls so far
        self._most_calls = most("NEURALPOWER_MOST_CALLS", MOST_CALLS)
        self.live = 0  # bytes now
        self.peak = 0  # the most bytes at once
        self._seen: list[Storage] = []
        self._known: dict[int, int] = {}  # identity of a living storage -> its place among those seen
        self._numbers: dict[int, int] = {}  # identity of a living storage -> its place in `storages`
        self._listed = 0  # how many `storages` has so far

    def hold(self, tensors: Iterable[Any], part: str) -> None:
        """Memory that is there before the next call, such as inputs."""
        for tensor in _dense(tensors):
            self._count(tensor, part)

    def hold_state(self, state: Mapping[str, Any]) -> None:
        """The parameters and buffers, by name; what several share has the name of the first."""
        for name, tensor in state.items():
            before = len(self._seen)
            self.hold([tensor], WEIGHTS)
            self._seen[before:] = [storage._replace(name=name) for storage in self._seen[before:]]

    def hold_sizes(self, sizes: Mapping[str, int]) -> None:
        """Weights that no tensor stands for, by name."""
        self._seen += (Storage(self.calls, None, size, WEIGHTS, name=name) for name, size in sizes.items())
        self._listed += sum(size > 0 for size in sizes.values())
        self.live += sum(sizes.values())
        self.peak = max(self.peak, self.live)

    def called(
        self,
        output: Any,
        workspaces: Mapping[str, tuple[int, ...]] | None = None,
        origin: tuple[str, str] = ("", ""),
    ) -> int:
        """A call has returned `output`, its kernels made these blocks; bytes of what is new in it."""
        self.calls += 1
        check_calls(self.calls, self._most_calls)
        for library, blocks in (workspaces or {}).items():
            size = workspace_bytes(library, blocks)
            own = Storage(self.calls, self.calls, size, WORKSPACE, blocks, library, origin=origin)
            self._seen.append(own)
            self._listed += own.bytes > 0
        return sum(self._count(tensor, ACTIVATIONS, origin) for tensor in _dense(tensors_in(output)))

    def assign(self, tensors: Iterable[Any], part: str) -> None:
        """Set the part of living tensors; those not seen before are held from now on."""
        for tensor in _dense(tensors):
            self._count(tensor, part)
            place = self._known[tensor.untyped_storage()._cdata]
            self._seen[place] = self._seen[place]._replace(part=part)

    def resize(self, tensor: Tensor, size: int) -> None:
        """Say how many bytes a living tensor's storage takes elsewhere."""
        place = self._known[tensor.untyped_storage()._cdata]
        self.live += size - self._seen[place].bytes
        self._seen[place] = self._seen[place]._replace(bytes=size)

    def storages(self) -> tuple[Storage, ...]:
        """All storages so far, the earliest first."""
        return tuple(storage for storage in self._seen if storage.bytes)

    def number(self, tensor: Tensor) -> int:
        """The place in `storages` of the memory that a living tensor lies in; -1 where it is not there."""
        return self._numbers.get(tensor.untyped_storage()._cdata, -1)

    def name(self, tensor: Tensor) -> str:
        """The name of the parameter or buffer whose memory a living tensor lies in; "" for others."""
        place = self._known.get(tensor.untyped_storage()._cdata)
        return "" if place is None else self._seen[place].name

    def _count(self, tensor: Tensor, part: str, origin: tuple[str, str] = ("", "")) -> int:
        """Bytes of the tensor's storage if it is new."""
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._known:
            return 0
        size, place = storage.nbytes(), len(self._seen)
        self._known[identity] = place
        if size:
            self._numbers[identity] = self._listed
            self._listed += 1
        self._seen.append(Storage(self.calls, None, size, part, origin=origin))
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, identity, place).atexit = False
        return size

    def _free(self, identity: int, place: int) -> None:
        self._known.pop(identity, None)
        self._numbers.pop(identity, None)
        self._seen[place] = self._seen[place]._replace(death=self.calls)
        self.live -= self._seen[place].bytes


def _dense(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the values, sparse ones as what they are made of."""
    for value in values:
        if isinstance(value, Tensor):
            sparse = value.layout == torch.sparse_coo
            yield from (value._indices(), value._values()) if sparse else (value,)


class Access(NamedTuple):
    """A tensor that a call reads or writes, by the memory that it lies in."""

    storage: int  # place in `Trace.storages`; -1: memory of which nothing else is known
    offset: int  # bytes from the storage's begin
    bytes: int  # different ones: those of an expanded axis count once


class Flow(NamedTuple):
    """The reads and writes of a call, tensor by tensor, in the order of its arguments and results."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


def accesses(tensors: Iterable[Tensor], lifetimes: Lifetimes) -> tuple[Access, ...]:
    """The accesses of storages that reading or writing these tensors means."""
    return tuple(
        Access(lifetimes.number(t), int(t.storage_offset()) * t.element_size(), different_bytes(t))
        for t in tensors
        if t.layout == torch.strided
    )


def different_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, those of an expanded axis once."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or not length else 1
    return size


def total_bytes(some: Iterable[Access], storages: Mapping[int, int]) -> int:
    """Different bytes of accesses: equal ones count once, and no storage has more than it holds."""
    apart: dict[int, set[Access]] = {}
    for one in some:
        apart.setdefault(one.storage, set()).add(one)
    sums = ((place, sum(one.bytes for one in parts)) for place, parts in apart.items())
    return sum(min(size, storages.get(place, size)) for place, size in sums)
