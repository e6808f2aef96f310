"""Fully connected layer: y = x W^T + b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
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
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.terms import ceil_to, past
from neuralpower.layers.tiles import chosen_tile
from neuralpower.layers.training import Args, Named, keeps_inputs
from neuralpower.layers.views import bytes_terms

FEW_ROWS = 16  # for which a CPU's library has other code than for many
ROW_BY_ROW = 3  # rows that each take what one takes; four are a block of their own
PAGE = 1024  # numbers of four bytes; rows of weights a multiple of it apart share few sets of a cache


def _terms(layer: Linear, hardware: Hardware) -> Described:
    """Products padded to register tiles, and weights that must come from memory."""
    _, m, n, k = layer.sides()
    weights = n * k * layer.operand_types.weights.itemsize
    return {
        "macs_tile_8x16": ceil_to(m, 8) * ceil_to(n, 16) * k,
        "macs_tile_48x64": ceil_to(m, 48) * ceil_to(n, 64) * k,
        "weights_few_rows": n * k * (m <= FEW_ROWS),
        "macs_row_by_row": m * n * k * (m <= ROW_BY_ROW),
        "outputs_row_by_row": m * n * (m <= ROW_BY_ROW),
        "weights_past_l2": past(weights, hardware.l2_bytes * hardware.cores),
        "weights_as_in_out": n * k * (1 - layer.transposed),
        "macs_as_in_out": m * n * k * (1 - layer.transposed),
        **bytes_terms(layer, hardware),
    }


def _power_features(layer: Linear, hardware: Hardware) -> Described:
    return chosen_tile(hardware, *layer.sides()[1:])


def _features(layer: Linear, _: Hardware) -> Described:
    return {
        "rows_mod_8": layer.rows % 8,
        "rows_mod_4": layer.rows % 4,
        "out_mod_16": layer.out_features % 16,
        "in_mod_16": layer.in_features % 16,
        "in_from_page": np.minimum(layer.in_features % PAGE, -layer.in_features % PAGE),
        "bias": layer.bias,
        "transposed": layer.transposed,
    }


def _gradients(layer: Linear) -> Mapping[str, tuple[Layer, ...]]:
    """Two more products, grad x = grad y W and grad W = (grad y)^T x; grad b sums grad y's rows."""
    rows, n, k = layer.rows, layer.out_features, layer.in_features
    left, right = (n, k) if layer.transposed else (k, n)  # the weights' gradient lies as they do
    summed = Reduction(dtype=layer.dtype, function="sum", elements=rows * n, outputs=n, last=False)
    return {
        "input": (_product(layer, rows, n, k, transposed=not layer.transposed),),
        "weight": (_product(layer, left, rows, right, transposed=False),),
        "bias": (summed,) if layer.bias else (),
    }


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """Operands by name. An added matrix does not count as a bias: its gradient is the output's."""
    if operator != "aten.addmm":
        return {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    added, x, weight = args[:3]
    return {"input": x, "weight": weight, "bias": added if added.shape != output.shape else None}


def _product(layer: Linear, rows: int, inner: int, columns: int, transposed: bool) -> Linear:
    """[rows, inner] x [inner, columns], without a bias."""
    lies = transposed or 1 in (inner, columns)
    return Linear(
        dtype=layer.dtype, rows=rows, in_features=inner, out_features=columns, bias=False, transposed=lies
    )


def _group(layer: Linear) -> Any:
    """One row is a matrix-vector product, other code in every library; a few rows read the weights."""
    rows = np.asarray(layer.rows)
    return np.where(rows > FEW_ROWS, "matrix", np.where(rows == 1, "vector", "few"))


def _kernel_group(layer: Linear) -> Any:
    """Tiles, waves and bytes tell the time of any number of rows but one."""
    return np.where(np.asarray(layer.rows) == 1, "vector", "matrix")


@layer_kind("linear", "aten.linear", "aten.addmm")
@dataclass(frozen=True, kw_only=True)
class Linear(MatrixProduct):
    """y [rows, out_features] from x [rows, in_features]."""

    rows: int  # product of all axes but the last
    in_features: int
    out_features: int
    bias: bool
    transposed: bool = True  # weights lie as [out, in] (nn.Linear), not as [in, out] (GPT-2's Conv1D)

    dimensions = ("rows", "in_features", "out_features")
    group_names = ("vector", "few", "matrix")
    sweep_share = 4.0
    recurring_share = 0.15
    doubled = ("in_features", "out_features")
    views = Views(
        cpu=View(group=_group, terms=_terms, features=_features),
        kernels=View(group=_kernel_group, power_features=_power_features, degrees=(0, 1, 2, 3)),
        of=MatrixProduct.views,
    )
    training = Training(gradients=_gradients, operands_of=_operands_of, keeps=keeps_inputs)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.linear(x, W, b)`, and `aten.addmm(b, x, W)`, where b may be a matrix: little work."""
        if operator == "aten.addmm":
            x, weight = args[1:3]
            return cls(
                rows=x.shape[0],
                in_features=x.shape[1],
                out_features=weight.shape[1],
                bias=True,
                transposed=weight.stride(0) == 1 or 1 in weight.shape,
            )
        x, weight = args[:2]
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if weight.dim() != 2:
            raise Unmodelled(f"linear with weights of shape {tuple(weight.shape)}")
        return cls(
            rows=x.numel() // max(x.shape[-1], 1),
            in_features=x.shape[-1],
            out_features=weight.shape[0],
            bias=bias is not None,
            transposed=weight.stride(0) != 1 or 1 in weight.shape,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Half with few rows, as in decoders, half of these with weights of large ones; some vocabularies."""
        few = draw.chance(0.5)
        rows = 1 if few and draw.chance(0.25) else draw.octaves(1, 16) if few else draw.octaves(8, 4096)
        if few and draw.chance(0.5):
            inner, out = draw.size(1024, 16384), draw.size(1024, 32768)
        elif draw.chance(0.25 if few else 0.12):
            inner, out = draw.size(256, 4096 if few else 2048), draw.size(8192, 131072 if few else 65536)
        else:
            inner, out = draw.size(8, 8192), draw.size(1, 8192)
        return cls(
            rows=rows,
            in_features=inner,
            out_features=out,
            bias=draw.chance(0.6),
            transposed=draw.chance(0.85) or 1 in (inner, out),
        )

    def build(self, device: torch.device) -> Call:
        """The functional call, weights as they lie in the network.

        Raises InputError where an operand has a type of its own.
        """
        self.check_buildable()
        x = self.tensor(self.rows, self.in_features, device=device)
        bias = self.tensor(self.out_features, device=device) if self.bias else None
        if self.transposed:
            weight = self.tensor(self.out_features, self.in_features, device=device)
            return Call(F.linear, (x, weight, bias), warm=(x,))
        weight = self.tensor(self.in_features, self.out_features, device=device)
        if bias is None:
            return Call(F.linear, (x, weight.t()), warm=(x,))
        return Call(torch.addmm, (bias, x, weight), warm=(x,))

    def shape(self) -> Self:
        """The weights: a product of one row more takes the same kernel, or one of its neighbours'."""
        return replace(self, rows=1 if isinstance(self.dtype, str) else np.ones(len(self.dtype)))

    def sides(self) -> tuple[Any, Any, Any, Any]:
        return 1, self.rows, self.out_features, self.in_features

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.rows, self.out_features

    def flops(self) -> int:
        """2 M N K; the bias is not counted, as is the convention."""
        return 2 * self.rows * self.in_features * self.out_features

    def bytes(self) -> Bytes:
        """Inputs, weights and outputs, once each, in their own types; a bias is of the output's."""
        operands = self.operand_types
        bias = operands.output.bytes(1, self.out_features * self.bias)
        return Bytes(
            self.given.bytes(self.rows, self.in_features),
            operands.weights.bytes(self.out_features, self.in_features) + bias,
            operands.output.bytes(self.rows, self.out_features),
        )

    def parameters(self) -> int:
        return self.in_features * self.out_features + self.out_features * self.bias
