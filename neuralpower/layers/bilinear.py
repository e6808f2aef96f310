"""Products that PyTorch makes of more than two factors, or of longer ones: forms of `matmul`, with backward passes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.layers.base import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.registry import form

OF_BILINEAR = ([1, 3], [0], [1, 2], [2, 3])  # axes that each factor lacks, and those that are summed over


@form("aten._trilinear")
@dataclass(frozen=True, kw_only=True)
class Bilinear(Matmul):
    """y [rows, outputs], y_o = x1 W_o x2: for each output x1 [rows, in1] W_o [in1, in2], its rows then multiplied by those of x2.

    The second product has `in2` multiply-adds for each row: as many as one more column of x1 (`inner` is in1 + 1). From
    aten/src/ATen/native/Linear.cpp, `_trilinear`, which walks over the outputs; the bias is an addition of its own.
    """

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten._trilinear(x1, W, x2, expand1, expand2, expand3, sumdim, unroll_dim)`, as `bilinear` calls it."""
        x, weight, *_ = args
        if tuple(map(list, args[3:7])) != OF_BILINEAR:
            raise Unmodelled(f"{operator} over other axes than a bilinear layer has")
        outputs, first, second = weight.shape
        return cls(batch=outputs, rows=x.shape[0], inner=first + 1, columns=second)

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """[rows, outputs]."""
        return self.rows, self.batch

    def gradients(self) -> Mapping[str, tuple[Layer, ...]]:
        """For each output, grad y_o times the one other factor or its product, and a product with the other."""
        outputs, rows, first, second = self.batch, self.rows, self.inner - 1, self.columns
        of_left = Matmul(dtype=self.dtype, batch=outputs * rows, rows=1, inner=second, columns=first)
        of_weight = Matmul(dtype=self.dtype, batch=outputs, rows=first, inner=rows, columns=second)
        of_right = Matmul(dtype=self.dtype, batch=outputs, rows=rows, inner=first, columns=second)
        return {
            "left": (self._scaled(outputs * rows * first * second), of_left),
            "weight": (self._scaled(outputs * rows * first), of_weight),
            "right": (of_right, self._scaled(outputs * rows * second)),
        }

    def _scaled(self, elements: int) -> Elementwise:
        return Elementwise(dtype=self.dtype, function="mul", elements=elements, operands=2, broadcast=True)

    @classmethod
    def operands_of(
        cls, operator: str, output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The first three."""
        return dict(zip(("left", "weight", "right"), args, strict=False))


@form("aten._euclidean_dist")
@dataclass(frozen=True, kw_only=True)
class Distances(Matmul):
    """Distances of all rows of x to all of y, |x - y|^2 = |x|^2 - 2 x y + |y|^2: the squares are two more columns of each.

    From aten/src/ATen/native/Distance.cpp, `_euclidean_dist`: [-2 x, |x|^2, 1] by [y, 1, |y|^2].
    """

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten._euclidean_dist(x [..., m, k], y [..., n, k])`."""
        x, y = (t.new_empty((*t.shape[:-1], t.shape[-1] + 2)) for t in args[:2])
        return super().from_call("aten.bmm", output, x, y.mT)

    def gradients(self) -> Mapping[str, tuple[Layer, ...]]:
        """Both products, whichever is asked for, with the rows of the other side, which have no columns for squares."""
        batch, rows, columns, inner = self.batch, self.rows, self.columns, self.inner - 2
        of_x = Matmul(dtype=self.dtype, batch=batch, rows=rows, inner=columns, columns=inner)
        return {"": (of_x, Matmul(dtype=self.dtype, batch=batch, rows=columns, inner=rows, columns=inner))}

    @classmethod
    def operands_of(
        cls, operator: str, output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The two sides."""
        return {"left": args[0], "right": args[1]}
