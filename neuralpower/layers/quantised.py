"""Products whose operands have types of their own, as quantised networks have them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.layers.base import Layer
from neuralpower.layers.operands import Operand, Operands

OWN = ("weights_dtype", "weights_group", "input_dtype", "input_group", "output_dtype")


@dataclass(frozen=True, kw_only=True)
class OwnOperands(Layer):
    """A layer that multiplies in `dtype`, and whose operands may have other types in memory.

    W4A16 has `dtype` bfloat16 and `weights_dtype` int4. W8A8 has `dtype` int8 and `output_dtype` bfloat16.
    """

    weights_dtype: str = ""  # of weights, or of a product's right factor; "": `dtype`
    weights_group: int = 0  # weights of one output that share a scale; 0: as their type says
    input_dtype: str = ""  # "": `dtype`
    input_group: int = 0  # inputs of one row that share a scale
    output_dtype: str = ""  # "": `dtype`

    later = frozenset(OWN)

    def operand_types(self) -> Operands:
        """Each by its own type where it has one."""
        return self._operand_types

    @functools.cached_property
    def _operand_types(self) -> Operands:
        usual = Operand(self.dtype)
        return Operands(
            self._operand(self.input_dtype, self.input_group, usual),
            self._operand(self.weights_dtype, self.weights_group, usual),
            self._operand(self.output_dtype, 0, usual),
            self.dtype,
        )

    def _operand(self, dtype: Any, group: Any, usual: Operand) -> Operand:
        if isinstance(dtype, str):
            return Operand(dtype or self.dtype, group) if dtype or group else usual
        named = dtype != ""  # of a table's rows
        return Operand(np.where(named, dtype, self.dtype), group) if np.any(named) or np.any(group) else usual

    def quantised(self) -> Any:
        """Whether an operand has a type or scales of its own."""
        own = [getattr(self, name) for name in OWN]
        if isinstance(self.dtype, str):
            return any(own)
        return np.logical_or.reduce([value > 0 if value.dtype.kind == "f" else value != "" for value in own])

    def check_buildable(self) -> None:
        """Raise InputError where an operand has a type of its own: torch's products take one type."""
        for name in OWN:
            value = getattr(self, name)
            if value:
                raise InputError(
                    f"{self.kind} with {name} {value} cannot be built: torch multiplies operands of one "
                    "type; leave it out, or bring such measurements in as a table"
                )
