"""The memory that a call reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from neuralpower.late import Tensor, torch

if TYPE_CHECKING:
    from neuralpower.trace.lifetimes import Lifetimes


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
