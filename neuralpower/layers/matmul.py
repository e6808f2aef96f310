"""Batched matrix product of activations: C[b] = A[b] B[b], and calls that PyTorch composes of products.

Products of more than two factors, or of longer ones, have backward passes of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.late import torch
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
from neuralpower.layers.base import form
from neuralpower.layers.columns import between_tiles
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.layers.terms import ceil_to
from neuralpower.layers.training import Args, Named, keeps_inputs
from neuralpower.layers.views import bytes_terms

# position of the left operand among the arguments
LEFT = {
    **dict.fromkeys(("aten.bmm", "aten.mm", "aten.mv", "aten.dot", "aten.vdot"), 0),
    **dict.fromkeys(("aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.addr"), 1),
    **dict.fromkeys(("aten._grouped_mm", "aten._scaled_mm", "aten._int_mm"), 0),
}
OF_BILINEAR = ([1, 3], [0], [1, 2], [2, 3])  # axes that each factor lacks, and those that are summed over
LIBRARY = (
    400  # multiply-adds of a matrix from which a CPU's bmm asks MKL: aten/src/ATen/native/LinearAlgebra.cpp
)


def _native(layer: Matmul) -> Any:
    """Whether a CPU takes it by PyTorch's own loop."""
    return layer.rows * layer.inner * layer.columns < LIBRARY


def _terms(layer: Matmul, hardware: Hardware) -> Described:
    """Products padded to register tiles; a batch is shared out over the cores in whole matrices."""
    b, m, n, k = layer.sides()
    by_library = 1.0 - _native(layer)
    return {
        "macs": b * m * n * k,
        "macs_tile_8x16": b * ceil_to(m, 8) * ceil_to(n, 16) * k,
        "macs_wave": ceil_to(b, hardware.cores) * m * n * k,
        "macs_one_row": b * m * n * k * (m == 1),
        "macs_transposed": b * m * n * k * layer.transposed,
        "right_transposed": b * n * k * layer.transposed,
        "left": b * m * k,
        "right": b * n * k,
        "product": b * m * n,
        "macs_native": b * m * n * k * _native(layer),
        "library": by_library,
        "matrices_library": b * by_library,
        **bytes_terms(layer, hardware),
    }


def _features(layer: Matmul, _: Hardware) -> Described:
    """How the operands fit the tiles, and what there is to do for each matrix."""
    return {
        "rows_mod_8": layer.rows % 8,
        "columns_mod_16": layer.columns % 16,
        "inner_mod_16": layer.inner % 16,
        "transposed": layer.transposed,
        "native": 1.0 * _native(layer),
        "narrowest": np.log2(np.minimum(np.minimum(layer.rows, layer.columns), layer.inner)),
        "macs_each": np.log2(layer.rows * layer.inner * layer.columns),
    }


def _gradients(layer: Matmul) -> Mapping[str, tuple[Layer, ...]]:
    """Two more products: grad A = grad C B^T and grad B = A^T grad C."""
    b, m, n, k = layer.sides()
    turned = not layer.transposed and min(n, k) > 1
    return {
        "left": (Matmul(dtype=layer.dtype, batch=b, rows=m, inner=n, columns=k, transposed=turned),),
        "right": (Matmul(dtype=layer.dtype, batch=b, rows=k, inner=m, columns=n),),
    }


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """The two factors; the gradient of what is added to their product comes for nothing."""
    first = LEFT[operator]
    return {"left": args[first], "right": args[first + 1]}


def _between(layer: Matmul, asked: Any) -> tuple[Any, Any, Matmul, Matmul] | None:
    """Time runs straight along a batch: one product more begins no wave over the cores by itself."""
    return between_tiles(layer, "batch", asked)


@layer_kind("matmul", *LEFT)
@dataclass(frozen=True, kw_only=True)
class Matmul(MatrixProduct):
    """[batch, rows, inner] x [batch, inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int
    transposed: bool = False  # the right operand lies as [columns, inner], as keys do

    dimensions = ("batch", "rows", "inner", "columns")
    sweep_share = 2.0
    recurring_share = 0.15
    doubled = ("inner", "columns")
    views = Views(cpu=View(terms=_terms, features=_features), of=MatrixProduct.views)
    law = replace(MatrixProduct.law, between=_between)
    training = Training(gradients=_gradients, operands_of=_operands_of, keeps=keeps_inputs)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """The products with and without a batch axis or an added matrix; vectors count as thin matrices."""
        left, right = args[LEFT[operator]], args[LEFT[operator] + 1]
        if (
            operator == "aten._grouped_mm"
        ):  # tokens by expert: how many each gets is data, here an equal share
            if left.dim() != 2 or right.dim() != 3:
                raise Unmodelled(f"grouped product of {tuple(left.shape)} and {tuple(right.shape)}")
            left = left.new_empty((right.shape[0], -(-left.shape[0] // right.shape[0]), left.shape[1]))
        elif operator == "aten.addbmm":  # sums the products of a batch: one with all inner sides in a row
            left, right = left.transpose(0, 1).flatten(1), right.flatten(0, 1)
        elif operator == "aten.addr":  # a column by a row
            left, right = left.unsqueeze(1), right.unsqueeze(0)
        if left.dim() == 1:
            left = left.unsqueeze(0)
        if right.dim() == 1:
            right = right.unsqueeze(1)
        if left.dim() not in (2, 3) or left.shape[-1] != right.shape[-2]:
            raise Unmodelled(f"product of {tuple(left.shape)} and {tuple(right.shape)}")
        return cls(
            batch=left.shape[0] if left.dim() == 3 else 1,
            rows=left.shape[-2],
            inner=left.shape[-1],
            columns=right.shape[-1],
            transposed=right.stride(-2) == 1 and right.shape[-1] > 1 and right.shape[-2] > 1,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Attention scores and contexts, one-row decoding, and anything between."""
        batch = draw.octaves(1, 128)
        head = draw.choice((16, 32, 40, 64, 64, 80, 96, 128))
        length, rows = draw.octaves(4, 1024), draw.octaves(1, 1024)
        shape = draw.random.random()
        if shape < 0.3:
            transposed = draw.chance(0.8) and length > 1
            return cls(batch=batch, rows=rows, inner=head, columns=length, transposed=transposed)
        if shape < 0.6:
            return cls(batch=batch, rows=rows, inner=length, columns=head)
        inner, columns, batch = draw.size(1, 2048), draw.size(1, 2048), draw.octaves(1, 16)
        transposed = draw.chance(0.3) and min(inner, columns) > 1
        return cls(batch=batch, rows=rows, inner=inner, columns=columns, transposed=transposed)

    def build(self, device: torch.device) -> Call:
        """torch.bmm on operands that were both just written; raises InputError where they have own types."""
        self.check_buildable()
        left = self.tensor(self.batch, self.rows, self.inner, device=device)
        lies = (self.columns, self.inner) if self.transposed else (self.inner, self.columns)
        right = self.tensor(self.batch, *lies, device=device)
        right = right.transpose(1, 2) if self.transposed else right
        return Call(torch.bmm, (left, right), warm=(right, left))

    def sides(self) -> tuple[Any, Any, Any, Any]:
        return self.batch, self.rows, self.columns, self.inner

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """[batch, rows, columns]; None for experts, whose shares of the tokens are assumed."""
        return None if operator == "aten._grouped_mm" else (self.batch, self.rows, self.columns)

    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.inner * self.columns

    def bytes(self) -> Bytes:
        """Both operands in, the product out, each in its own type."""
        operands = self.operand_types
        left = self.given.bytes(self.batch * self.rows, self.inner)
        right = operands.weights.bytes(self.batch * self.columns, self.inner)
        return Bytes(left + right, 0, operands.output.bytes(self.batch * self.rows, self.columns))


def _bilinear_gradients(layer: Bilinear) -> Mapping[str, tuple[Layer, ...]]:
    """For each output, grad y_o times one other factor or its product, and a product with the other."""
    scaled = functools.partial(Elementwise, dtype=layer.dtype, function="mul", operands=2, broadcast=True)
    outputs, rows, first, second = layer.batch, layer.rows, layer.inner - 1, layer.columns
    of_left = Matmul(dtype=layer.dtype, batch=outputs * rows, rows=1, inner=second, columns=first)
    of_weight = Matmul(dtype=layer.dtype, batch=outputs, rows=first, inner=rows, columns=second)
    of_right = Matmul(dtype=layer.dtype, batch=outputs, rows=rows, inner=first, columns=second)
    return {
        "left": (scaled(elements=outputs * rows * first * second), of_left),
        "weight": (scaled(elements=outputs * rows * first), of_weight),
        "right": (of_right, scaled(elements=outputs * rows * second)),
    }


@form("aten._trilinear")
@dataclass(frozen=True, kw_only=True)
class Bilinear(Matmul):
    """y [rows, outputs], y_o = x1 W_o x2: for each output x1 [rows, in1] W_o [in1, in2] by the rows of x2.

    The second product has `in2` multiply-adds for each row, as one more column of x1: `inner` is in1 + 1.
    Source: aten/src/ATen/native/Linear.cpp, `_trilinear`, which walks over the outputs. The bias is an
    addition of its own.
    """

    training = replace(
        Matmul.training,
        gradients=_bilinear_gradients,
        operands_of=lambda operator, output, args, kwargs: dict(
            zip(("left", "weight", "right"), args, strict=False)
        ),
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten._trilinear(x1, W, x2, expand1, expand2, expand3, sumdim, unroll_dim)` of `bilinear`."""
        x, weight, *_ = args
        if tuple(map(list, args[3:7])) != OF_BILINEAR:
            raise Unmodelled(f"{operator} over other axes than a bilinear layer has")
        outputs, first, second = weight.shape
        return cls(batch=outputs, rows=x.shape[0], inner=first + 1, columns=second)

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.rows, self.batch


def _distances_gradients(layer: Distances) -> Mapping[str, tuple[Layer, ...]]:
    """Both products, for any gradient, with the other side's rows, without columns for squares."""
    batch, rows, columns, inner = layer.batch, layer.rows, layer.columns, layer.inner - 2
    of_x = Matmul(dtype=layer.dtype, batch=batch, rows=rows, inner=columns, columns=inner)
    return {"": (of_x, Matmul(dtype=layer.dtype, batch=batch, rows=columns, inner=rows, columns=inner))}


@form("aten._euclidean_dist")
@dataclass(frozen=True, kw_only=True)
class Distances(Matmul):
    """Distances of all rows of x to all of y, |x - y|^2 = |x|^2 - 2 x y + |y|^2; the squares are two columns.

    Source: aten/src/ATen/native/Distance.cpp, `_euclidean_dist`: [-2 x, |x|^2, 1] by [y, 1, |y|^2].
    """

    training = replace(
        Matmul.training,
        gradients=_distances_gradients,
        operands_of=lambda operator, output, args, kwargs: {"left": args[0], "right": args[1]},
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten._euclidean_dist(x [..., m, k], y [..., n, k])`."""
        x, y = (t.new_empty((*t.shape[:-1], t.shape[-1] + 2)) for t in args[:2])
        return super().from_call("aten.bmm", output, x, y.mT)
