"""Matrix products, whose operands may have other element types than the products themselves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.layers import Training
from neuralpower.layers.operands import OWN, Operand, Operands, either_operand, own_operand
from neuralpower.layers.tiles import TiledProduct
from neuralpower.layers.training import keeps_inputs


@dataclass(frozen=True, kw_only=True)
class MatrixProduct(TiledProduct):
    """Products of matrices of the same sizes in `dtype`, whose operands may have other types in memory.

    W4A16 has `dtype` bfloat16 and `weights_dtype` int4. W8A8 has `dtype` int8 and `output_dtype` bfloat16.
    docs/datasets.md lists the usual formats.
    """

    weights_dtype: str = ""  # of weights, or of a product's right factor; "": `dtype`
    weights_group: int = 0  # weights of one output that share a scale; 0: as their type says
    weights_rows_group: int = 0  # outputs whose groups share it, too, as in blocks; 0: each has its own
    input_dtype: str = ""  # "": `dtype`
    input_group: int = 0  # inputs of one row that share a scale
    output_dtype: str = ""  # "": `dtype`
    # The call reads inputs in the output's type, finds their scales and rounds them first ("dynamic").
    quantises: bool = False

    later = frozenset(OWN)
    multiplies = True
    training = Training(keeps=keeps_inputs)

    @functools.cached_property
    def operand_types(self) -> Operands:
        """Each by its own type where it has one; the format is the weights', and who quantises inputs."""
        usual = Operand(self.dtype)
        return Operands(
            own_operand(self.dtype, self.input_dtype, self.input_group, usual),
            own_operand(self.dtype, self.weights_dtype, self.weights_group, usual, self.weights_rows_group),
            own_operand(self.dtype, self.output_dtype, 0, usual),
            self.dtype,
            self._marks,
        )

    def _marks(self) -> tuple[Any, Any]:
        own = [getattr(self, name) for name in OWN]
        parts = (self.weights_dtype, self.weights_rows_group, self.quantises)
        if isinstance(self.dtype, str):
            return any(own), _format(*parts)
        marked = [value > 0 if value.dtype.kind == "f" else value != "" for value in own]
        quantised = np.logical_or.reduce(marked)
        named = [_format(*part) for part in zip(*parts, strict=True)] if any(quantised) else ""
        return quantised, np.array(named)

    @functools.cached_property
    def given(self) -> Operand:
        """The type of the call's input: that of the product, unless the call quantises it first."""
        return either_operand(self.quantises, self.operand_types.output, self.operand_types.input)

    def check_buildable(self) -> None:
        """Raise InputError where an operand has a type of its own: torch's products take one type."""
        for name in OWN:
            value = getattr(self, name)
            if value:
                raise InputError(
                    f"{self.kind} with {name} {value} cannot be built: torch multiplies operands of one "
                    "type; leave it out, or bring such measurements in as a table"
                )


@functools.cache
def _format(weights_dtype: str, weights_rows_group: float, quantises: float) -> str:
    """Such as "int4", "static" or "block-dynamic"; numbers with and without zero points are one."""
    words = [weights_dtype.removeprefix("u"), "block" if weights_rows_group else ""]
    words.append("dynamic" if quantises else "" if weights_dtype else "static")
    return "-".join(filter(None, words))
