"""Products of groups of rows, each group with a matrix of its own, in one call: what experts are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import Tensor, torch
from neuralpower.layers import Bytes, Call, Described, Draw, Hardware, View, Views, layer_kind
from neuralpower.layers.fused import Fused, fused_operator
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.layers.training import keeps_inputs

ALIGNED = 16  # bytes: what torch's grouped product asks of strides


def _kernel_features(layer: Grouped, hardware: Hardware) -> Described:
    """With how uneven the groups are, and the rows of one."""
    mean = layer.rows / layer.groups
    uneven = {"mean_rows": np.log2(mean), "fullest_over_mean": np.log2(layer.fullest / mean)}
    return {**MatrixProduct.views.kernels.features(layer, hardware), **uneven}


@layer_kind("grouped", "neuralpower.grouped")
@dataclass(frozen=True, kw_only=True)
class Grouped(Fused, MatrixProduct):
    """[rows, inner] in `groups` groups, each by a matrix [inner, columns] of its own.

    Groups without a row do not count: their matrices are not read. `fullest` is the largest number of rows in
    a group; the others are assumed to share the other rows evenly.
    """

    groups: int
    rows: int  # of all groups
    fullest: int
    inner: int
    columns: int

    dimensions = ("groups", "rows", "inner", "columns")
    rule = "each group has a row, and none more than the fullest"
    views = Views(kernels=View(features=_kernel_features), of=MatrixProduct.views)
    training = replace(Fused.training, keeps=keeps_inputs)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.grouped(x, weights [groups, columns, inner], ends, fullest)`."""
        x, weights, _, fullest = args
        groups, columns, inner = weights.shape
        return cls(groups=groups, rows=x.shape[0], fullest=fullest, inner=inner, columns=columns)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Experts of a decoder's step, where each gets a few rows, and of a prompt."""
        groups, mean = draw.octaves(1, 128), draw.octaves(1, 256)
        fullest = mean if draw.chance(0.5) else draw.octaves(mean, 8 * mean)
        rows = max(fullest + groups - 1, min(groups * mean, groups * fullest))
        inner, columns = (16 * draw.octaves(2, 256) for _ in range(2))
        return cls(groups=groups, rows=rows, fullest=fullest, inner=inner, columns=columns)

    def possible(self) -> Any:
        return possible_load(self.rows, self.groups, self.fullest)

    def build(self, device: torch.device) -> Call:
        """The call on rows that lie group by group; raises InputError where operands have own types."""
        self.check_buildable()
        x = self.tensor(self.rows, self.inner, device=device)
        weights = self.tensor(self.groups, self.columns, self.inner, device=device)
        ends = load_ends(self.rows, self.groups, self.fullest, device)
        return Call(torch.ops.neuralpower.grouped, (x, weights, ends, self.fullest), warm=(x,))

    def sides(self) -> tuple[Any, Any, Any, Any]:
        """A product for each group, with as many rows as there are in the mean."""
        return self.groups, self.rows / self.groups, self.columns, self.inner

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.rows, self.columns

    def flops(self) -> int:
        """2 M N K over the rows of all groups."""
        return 2 * self.rows * self.inner * self.columns

    def bytes(self) -> Bytes:
        """Rows in and out, and the matrices of the groups that have rows."""
        return Bytes(
            self.given.bytes(self.rows, self.inner),
            self.operand_types.weights.bytes(self.groups * self.columns, self.inner),
            self.operand_types.output.bytes(self.rows, self.columns),
        )

    def parameters(self) -> int:
        return self.groups * self.inner * self.columns

    def tiles(self, hardware: Hardware, x: int, y: int) -> tuple[Any, Any]:
        """(tiles, waves): a tile holds rows of one group alone."""
        others = np.maximum(self.groups - 1, 1)
        down = np.ceil(self.fullest / x)
        down = down + (self.groups - 1) * np.ceil((self.rows - self.fullest) / others / x)
        tiles = down * np.ceil(self.columns / y)
        return tiles, np.ceil(tiles / hardware.cores)


def possible_load(rows: Any, groups: Any, fullest: Any) -> Any:
    """Whether `groups` can share the rows: each has one, none more than `fullest`, and one has that."""
    most, fewest = groups * fullest, fullest + groups - 1
    return (groups > 0) & (fullest > 0) & (fewest <= rows) & (rows <= most)


def load_ends(rows: int, groups: int, fullest: int, device: torch.device) -> Tensor:
    """Where each group's rows end, [groups] int32: the first is the fullest, the others share."""
    each, more = divmod(rows - fullest, max(groups - 1, 1))
    sizes = [fullest, *(each + (place < more) for place in range(groups - 1))]
    return torch.tensor(np.cumsum(sizes), dtype=torch.int32).to(device)


def grouped_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows [rows, inner] that lie group by group, by weights [groups, columns, inner]: [rows, columns].

    torch's own grouped product where it takes the operands, else a product for each group.
    """
    if x.is_meta:
        return x.new_empty((x.shape[0], weights.shape[1]))
    sides = (weights.shape[1], weights.shape[2])
    if x.dtype == torch.bfloat16 and all(side * x.element_size() % ALIGNED == 0 for side in sides):
        return torch._grouped_mm(x, weights.transpose(1, 2), ends)
    starts = [0, *ends.tolist()]
    parts = [x[a:b] @ matrix.t() for a, b, matrix in zip(starts, starts[1:], weights, strict=False)]
    return torch.cat(parts)


@fused_operator("grouped(Tensor x, Tensor weights, Tensor ends, int fullest) -> Tensor")
def _grouped(x: Tensor, weights: Tensor, ends: Tensor, fullest: int) -> Tensor:
    return grouped_product(x, weights, ends)
