"""Embedding: rows of a table, picked by number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import F, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.base import BACKWARD
from neuralpower.layers.elementwise import pass_of
from neuralpower.layers.movement import Movement
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.terms import either
from neuralpower.layers.views import bytes_terms

RENORM = "aten.embedding_renorm_"  # what `max_norm` runs before a lookup
RENORMED = "each row that is looked up is assumed longer than max_norm, and scaled"


def _terms(layer: Embedding, hardware: Hardware) -> Described:
    """Rows of tables that no cache holds."""
    table = layer.vocabulary * layer.width
    return {
        "elements": layer.tokens * layer.width,
        "elements_large_table": layer.tokens * layer.width * (table * layer.itemsize > hardware.llc_bytes),
        "table_backward": table * (np.asarray(layer.phase) == BACKWARD),  # zeros to add to
        **bytes_terms(layer, hardware),
    }


def _backward(layer: Embedding) -> tuple[Layer, ...]:
    """Rows of the gradient are added into zeros: after a fill, a scatter moves what a lookup moves."""
    zeros = Movement(dtype=layer.dtype, function="fill", elements=layer.vocabulary * layer.width)
    return zeros, replace(layer, phase="forward")


@layer_kind("embedding", "aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only")
@dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """y [tokens, width] from a table [vocabulary, width]."""

    tokens: int
    vocabulary: int
    width: int
    bags: int = 0  # sums that the rows are added up to; 0: each row is a result

    later = frozenset({"bags"})
    dimensions = ("tokens", "width")
    sweep_share = 0.5
    views = Views(cpu=View(terms=_terms))
    training = Training(backward=_backward)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.embedding(table, indices)`; bags add up the rows that they look up."""
        table, indices = args[:2]
        bags = 0 if operator == "aten.embedding" else output[0].shape[0]
        return cls(tokens=indices.numel(), vocabulary=table.shape[0], width=table.shape[1], bags=bags)

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.rows, self.width

    @property
    def rows(self) -> Any:
        return either(self.bags, self.tokens)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Tables of words, positions and token types."""
        tokens, vocabulary = draw.octaves(1, 4096), draw.choice((2, draw.octaves(100, 60000)))
        return cls(tokens=tokens, vocabulary=vocabulary, width=draw.size(16, 4096))

    def build(self, device: torch.device) -> Call:
        indices = torch.randint(0, self.vocabulary, (self.tokens,), device=device)
        table = self.tensor(self.vocabulary, self.width, device=device)
        if not self.bags:
            return Call(F.embedding, (indices, table))
        starts = torch.arange(self.bags, device=device) * self.tokens // self.bags
        return Call(F.embedding_bag, (indices, table, starts), {"mode": "sum"})

    def flops(self) -> int:
        """None of a copy; an addition for each number of a bag's rows."""
        return (self.bags > 0) * self.tokens * self.width

    def bytes(self) -> Bytes:
        """Indices and the rows they name in, the rows out."""
        size = self.itemsize * self.width
        return Bytes(8 * self.tokens, size * self.tokens, size * self.rows)

    def parameters(self) -> int:
        return self.vocabulary * self.width


def renormalised(dtype: str, rows: int, width: int) -> tuple[Layer, ...]:
    """`aten.embedding_renorm_` sorts the places, takes each row's norm and scales the row."""
    return (
        Movement(dtype="int64", function="sort", elements=rows, run=rows),
        Reduction(dtype=dtype, function="norm", elements=rows * width, outputs=rows),
        replace(pass_of(dtype, "mul", rows * width, 1), inplace=True),
    )
