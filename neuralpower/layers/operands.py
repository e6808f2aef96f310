"""Operands of a layer: the type of each, how many of its numbers share a scale, and the bytes that follow."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Self

from neuralpower.dtypes import DTYPES
from neuralpower.layers.terms import distinct, floor_div

# Fields of a quantised layer that distinguish its operands.
OWN = (
    "weights_dtype",
    "weights_group",
    "weights_rows_group",
    "input_dtype",
    "input_group",
    "output_dtype",
    "quantises",
)
OF_KEYS = ("key_dtype", "key_itemsize")  # those of attention over a cache of another type


@dataclass(frozen=True)
class Operand:
    """An operand that a layer reads or writes; in a table's columns both fields are arrays, [rows]."""

    dtype: Any  # name of an element type
    group: Any = 0  # numbers in a row that share a scale; 0: as many as the type itself says
    rows_group: Any = 0  # rows whose groups share it, too, as in scales of blocks; 0: each has its own

    @functools.cached_property
    def itemsize(self) -> Any:
        """Bytes of one number, a fraction where it has less than 8 bits, without scales."""
        return by_dtype(self.dtype, lambda name: DTYPES[name].itemsize)

    def bytes(self, rows: Any, length: Any) -> Any:
        """B of [rows, length] numbers, and of the scales of their groups, both rounded up to whole bytes."""
        numbers, group = whole(self.itemsize * rows * length), self._numbers_of_a_scale
        if not np.any(group):
            return numbers
        scale_bits = by_dtype(self.dtype, lambda name: DTYPES[name].scale_bits)
        scales = -floor_div(-length, np.maximum(group, 1)) * (group > 0)  # of a row
        blocks = -floor_div(-rows, np.maximum(self.rows_group, 1))
        return numbers + whole(blocks * scales * scale_bits / 8)

    @functools.cached_property
    def _numbers_of_a_scale(self) -> Any:
        own = by_dtype(self.dtype, lambda name: DTYPES[name].group)
        return np.where(np.asarray(self.group) > 0, self.group, own) if np.any(self.group) else own


@dataclass(frozen=True)
class Operands:
    """The operands of a layer that takes products in `dtype`."""

    input: Operand
    weights: Operand  # what the input is multiplied by: weights, the right factor, keys and values
    output: Operand
    dtype: Any
    # Gives `quantised` and `format`, which bytes do not need; None: no operand has its own type or scales.
    marks: Callable[[], tuple[Any, Any]] | None = None

    @functools.cached_property
    def quantised(self) -> Any:
        """Whether one has a type or scales of its own: such calls run different code."""
        return self.marks is not None and self.marks()[0]

    @property
    def format(self) -> Any:
        """A short name of how those lie in memory, which libraries have code for."""
        return "" if self.marks is None else self.marks()[1]

    @property
    def accumulate(self) -> Operand:
        """Sums of products before they are written: float32 for shorter floats, int32 for 8 bits and less."""
        return Operand(by_dtype(self.dtype, lambda name: DTYPES[name].accumulates_in or name))


def own_operand(dtype: Any, own: Any, group: Any, usual: Operand, rows_group: Any = 0) -> Operand:
    """The operand of type `own` ("": `dtype`) and its groups; `usual` where it has neither of its own."""
    if isinstance(own, str):
        return Operand(own or dtype, group, rows_group) if own or group else usual
    named = own != ""  # of a table's rows
    if np.any(named) or np.any(group):
        return Operand(np.where(named, own, dtype), group, rows_group)
    return usual


def either_operand(first: Any, one: Operand, other: Operand) -> Operand:
    """`one` where `first` holds, else `other`; of a table's rows each its own."""
    if not isinstance(first, np.ndarray):
        return one if first else other
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("dtype", "group", "rows_group"))
    return Operand(*(np.where(first > 0, mine, others) for mine, others in pairs))


def by_dtype(dtype: Any, value: Callable[[str], Any]) -> Any:
    """The value of a type's name; of a table's names each row's, [rows]."""
    if isinstance(dtype, str):
        return value(dtype)
    names, inverse = distinct(dtype)
    found = np.array([value(str(name)) for name in names])
    return (found.astype(np.float64) if found.dtype.kind == "i" else found)[inverse]


def whole(size: Any) -> Any:
    """Bytes rounded up to whole ones, of one layer or of each in a table; infinite values and NaN stay."""
    if isinstance(size, np.ndarray):
        return np.ceil(size) if size.dtype.kind == "f" else size
    return math.ceil(size) if isinstance(size, float) and math.isfinite(size) else size


class Bytes(NamedTuple("_Bytes", [("input", int), ("weights", int), ("output", int)])):
    """Whole bytes that must cross memory once: what is read besides weights, the weights, what is written."""

    __slots__ = ()

    def __new__(cls, input: Any, weights: Any, output: Any) -> Self:  # noqa: A002  # the fields' names
        """Round each up to whole bytes."""
        return super().__new__(cls, whole(input), whole(weights), whole(output))
