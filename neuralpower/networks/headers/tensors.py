"""The contents of a header: the tensors by type, and the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuralpower.errors import InputError

MOST_TENSORS = 1_000_000  # the largest published checkpoints have some 100,000


class HeaderError(InputError):
    """A file of weights whose header cannot be, or cannot be read."""


@dataclass(frozen=True)
class Header:
    """The tensors of a file, or of all files of an index."""

    name: str
    bytes_by_type: Mapping[str, int]  # the largest first
    parameters: int
    tensors: Mapping[str, tuple[int, ...]]  # name -> sizes, as in torch
    types: Mapping[str, str]  # name -> type
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_type.values())

    def in_words(self) -> str:
        """The sizes as text: `4.58 GiB in 291 tensors: q4_k 3.93 GiB, q6_k 0.65 GiB`."""
        parts = ", ".join(f"{kind} {size / 2**30:.3g} GiB" for kind, size in self.bytes_by_type.items())
        return f"{self.bytes / 2**30:.3g} GiB in {len(self.tensors):,} tensors: {parts}"


def header(name: str, sizes: Mapping[str, tuple[str, int, tuple[int, ...]]], **more: Any) -> Header:
    """The header of tensors, each name -> (type, bytes, sizes)."""
    by_type: dict[str, int] = {}
    for kind, size, _ in sizes.values():
        by_type[kind] = by_type.get(kind, 0) + size
    ordered = dict(sorted(by_type.items(), key=lambda item: -item[1]))
    shapes = {tensor: shape for tensor, (_, _, shape) in sizes.items()}
    types = {tensor: kind for tensor, (kind, _, _) in sizes.items()}
    count = sum(elements(shape) for shape in shapes.values())
    return Header(name, ordered, count, shapes, types, **more)


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor has."""
    product = 1
    for size in shape:
        product *= size
    return product
