"""Who makes and who reads which memory: what fusing calls, or leaving some out, has to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neuralpower.trace.lifetimes import Lifetimes
    from neuralpower.trace.records import LayerCall, Trace, UnmodelledCall


class Access(NamedTuple):
    """A tensor that a call reads or writes, by the memory that it lies in."""

    storage: int  # place in `Trace.storages`; -1: memory of which nothing else is known
    offset: int  # bytes from the storage's begin
    bytes: int  # different ones: those of an expanded axis count once


class Flow(NamedTuple):
    """What a call reads and writes, tensor by tensor, in the order of its arguments and results."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


def accesses(tensors: Iterable[Tensor], lifetimes: Lifetimes) -> tuple[Access, ...]:
    """What reading or writing these tensors means for their storages."""
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


@dataclass
class Node:
    """One operator call; a call that made several layers, or none, is left as it is."""

    at: int
    calls: list[LayerCall | UnmodelledCall]
    flow: Flow
    sources: list[int | None] = field(default_factory=list)  # of each read: the node that wrote it
    readers: list[int] = field(default_factory=list)  # nodes that read what it wrote
    after: set[int] = field(default_factory=set)  # nodes that must run before it
    final: bool = False  # what it writes is there after the pass

    @property
    def call(self) -> LayerCall | UnmodelledCall | None:
        """The only call."""
        return self.calls[0] if len(self.calls) == 1 else None


class Dataflow:
    """The calls of a trace as nodes, in order, with what depends on what."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        found: dict[int, Node] = {}
        for call in sorted(trace.every_call, key=lambda call: call.at):
            node = found.get(call.at)
            if node is None:
                node = found[call.at] = Node(call.at, [], trace.flows.get(call.at, Flow()))
            node.calls.append(call)
        self.nodes = list(found.values())
        self.bytes = {place: storage.bytes for place, storage in enumerate(trace.storages)}
        writer: dict[int, int] = {}
        read_since: dict[int, list[int]] = {}  # storage -> nodes that read it since it was last written
        for i, node in enumerate(self.nodes):
            for access in node.flow.reads:
                source = writer.get(access.storage)
                node.sources.append(source)
                if source is not None:
                    node.after.add(source)
                    if not self.nodes[source].readers or self.nodes[source].readers[-1] != i:
                        self.nodes[source].readers.append(i)
                read_since.setdefault(access.storage, []).append(i)
            for access in node.flow.writes:
                node.after.update(read_since.pop(access.storage, ()))
                node.after.discard(i)
                if access.storage in writer:
                    node.after.add(writer[access.storage])
                writer[access.storage] = i
                node.final = node.final or self._stays(access.storage)

    def _stays(self, place: int) -> bool:
        """Whether memory is there after the pass, or was before it."""
        storages = self.trace.storages
        if not 0 <= place < len(storages):
            return True
        return storages[place].death is None or storages[place].birth == 0
