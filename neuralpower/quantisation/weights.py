"""The weights of a network: name, sort, shape and bytes, without values."""

from __future__ import annotations

import math
from dataclasses import dataclass

LINEAR, EXPERTS, HEAD, EMBEDDING, OTHER = "linear", "experts", "head", "embedding", "other"
"""Roles of weights.

    linear     of a fully connected layer, [outputs, inputs]
    experts    of all experts of a mixture, stacked in one tensor of three axes
    head       of the layer that gives a language model's logits, unless it is the embedding's own
    embedding  a table of rows that are looked up
    other      norms, biases, convolutions, routers, buffers
"""


@dataclass(frozen=True)
class Weight:
    """One parameter or buffer, shared ones once."""

    name: str  # as in `named_parameters`
    sort: str  # one of the sorts above
    shape: tuple[int, ...]
    dtype: str  # of the network before it is quantised
    bytes: int
    tied: bool = False  # an embedding that is the head, too
    turned: bool = False  # a matrix that lies as [inputs, outputs], as GPT-2's

    @property
    def module(self) -> str:
        """Path of the module that holds it."""
        return self.name.rpartition(".")[0]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def matrices(self) -> tuple[int, int, int]:
        """(matrices, outputs of each, inputs of each), as its shape alone says."""
        *most, outputs, inputs = (1, 1, *self.shape)
        if self.turned:
            outputs, inputs = inputs, outputs
        return math.prod(most), outputs, inputs


Matrices = tuple[int, int, int]  # (matrices, outputs of each, inputs of each)
