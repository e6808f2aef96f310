"""The base of activations, arithmetic and movements: a pass over memory, with or without jumps."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from neuralpower.dtypes import DTYPES
from neuralpower.late import Tensor
from neuralpower.layers import Bytes, Described, Hardware, KindLaw, Layer, View, Views
from neuralpower.layers.operands import by_dtype
from neuralpower.layers.tensors import dtype_name
from neuralpower.layers.terms import distinct, past
from neuralpower.layers.traits import DENSE_ON_CPU, Traits, by_code, only, steps
from neuralpower.layers.views import bytes_terms

HEAVY = frozenset(
    """
    tanh mish erf erfc logit atan2 acos asin atan sinh cosh lgamma pow softplus log_sigmoid erfinv digamma
    tan
    """.split()
)
TRANSCENDENTAL = frozenset(
    """
    sigmoid silu exp expm1 log log1p log2 log10 elu selu celu sin cos sqrt rsqrt reciprocal div remainder fmod
    floor_divide exp2 glu logaddexp xlogy gelu_tanh
    """.split()
)
RANDOM = frozenset({"dropout_training", "bernoulli"})  # a random number each: a CPU draws one by one
SORTS = {"gelu": {"gelu"}, "random": RANDOM, "heavy": HEAVY, "transcendental": TRANSCENDENTAL}
EFFORTS = (*SORTS, "cheap")

SEVERAL = 64  # passes over its bytes that a sort takes at most
RUNS = (0, 3, 6, 9)  # exponents of steps of a run of elements that lie side by side: traits


def _fitted_bytes(layer: Pointwise) -> Bytes:
    """All in `dtype` for the function's usual types, as shipped predictors were trained.

    Other types have this times the ratio of their `bytes` to those of the usual types.
    """
    plain = layer._moved(layer.itemsize, layer.itemsize)
    if isinstance(layer.dtype, str) and not layer.from_dtype and not layer.to_dtype:
        return plain
    usual = layer._moved(*_itemsizes(layer.usual_types()))
    more = (own / np.maximum(one, 1) for own, one in zip(layer.bytes(), usual, strict=True))
    return Bytes(*(size * factor for size, factor in zip(plain, more, strict=True)))


def _terms(layer: Pointwise, hardware: Hardware) -> Described:
    """Elements, with the jumps that a stride costs, and past each cache."""
    elements, run = layer.elements, layer.run
    jumps = elements / np.where(np.asarray(run) == 0, np.inf, np.maximum(run, 1))
    return {
        "elements": elements,
        "elements_strided": elements * (np.asarray(run) > 0),
        "elements_one_by_one": elements * (np.asarray(run) == 1),
        "jumps": jumps,
        "jumps_past_l2": jumps * (elements * layer.itemsize > hardware.l2_bytes),
        "elements_fresh": elements * (1 - layer.inplace),
        "elements_past_l2": past(elements * layer.itemsize, hardware.l2_bytes),
        **bytes_terms(layer, hardware),
    }


def _traits(layer: Pointwise) -> Traits:
    """The code; operands that lie in another order than the output; small ones, which end early."""
    code, run = np.asarray(layer.views.cpu.group(layer)), np.asarray(layer.run, dtype=float)
    codes = {str(name): 1.0 * (code == name) for name in layer.group_names}
    apart = only(run > 0, steps("run", run, RUNS))
    return Traits({}, codes | apart, passes=np.where(np.isin(code, layer.several), SEVERAL, 1))


def _features(layer: Pointwise, _: Hardware) -> Described:
    """Which function, jumps, and whether the output is fresh memory."""
    return {
        "function": code(layer.function),
        "run": np.log2(np.asarray(layer.run) + 1.0),
        "inplace": layer.inplace,
        "itemsize": layer.itemsize,
    }


ON_CPU = by_code(
    DENSE_ON_CPU,
    {
        **{"heavy": 12.0, "random": 45.0, **dict.fromkeys("log log2 log10 log1p sqrt".split(), 30.0)},
        **{"masked_fill": 15.0, "upsample_nearest": 27.0, "gather": 45.0, "scatter": 21.0, "sort": 8.0},
    },
)
STRIDED = 2.5  # times that where an operand lies in another order


def _on_cpu(layer: Pointwise) -> Any:
    return ON_CPU(layer) * np.where(np.asarray(layer.run) > 0, STRIDED, 1.0)


@dataclass(frozen=True, kw_only=True)
class Pointwise(Layer):
    """One function of each element."""

    function: str
    elements: int  # of the output
    inplace: bool = False
    run: int = 0  # elements side by side in the worst operand, in the order of the output; 0: all of them
    # Types of what it reads and writes, where they are not those that the function has by itself (`types`).
    from_dtype: str = ""  # of one operand
    to_dtype: str = ""

    several: ClassVar[tuple[str, ...]] = ()  # groups whose code passes over its operands more than once
    dimensions = ("elements",)
    later = frozenset({"from_dtype", "to_dtype"})
    views = Views(cpu=View(terms=_terms, features=_features, moved=_fitted_bytes))
    law = KindLaw(traits=_traits, on_cpu=_on_cpu)

    def usual_types(self) -> tuple[Any, Any]:
        """The types that it reads in one operand and writes where its fields do not say them."""
        return self.dtype, self.dtype

    def types(self) -> tuple[Any, Any]:
        """The types that it reads in one operand, besides `dtype` in the others, and writes."""
        usual_from, usual_to = self.usual_types()
        return _named(self.from_dtype, usual_from), _named(self.to_dtype, usual_to)

    def bytes(self) -> Bytes:
        """B of its operands and of its result, in the type of each."""
        return self._moved(*_itemsizes(self.types()))

    def _moved(self, read: Any, written: Any) -> Bytes:
        """B where numbers of one operand have `read` bytes, and those of the result `written`."""
        return Bytes(read * self.elements, 0, written * self.elements)

    def reading(self) -> Self:
        """The layer whose `tensor` makes numbers of the type that it reads."""
        return replace(self, dtype=self.types()[0], from_dtype="", to_dtype="")

    def typed_as(self, read: Tensor | None, written: Tensor) -> Self:
        """The layer with the types of an operand and of the result, where they are not the usual ones."""
        usual_from, usual_to = self.usual_types()
        own_from, own_to = "" if read is None else dtype_name(read), dtype_name(written)
        return replace(
            self,
            from_dtype=own_from if own_from != usual_from else "",
            to_dtype=own_to if own_to != usual_to else "",
        )


def _itemsizes(types: Iterable[Any]) -> list[Any]:
    return [by_dtype(name, lambda one: DTYPES[one].itemsize) for name in types]


def _named(own: Any, usual: Any) -> Any:
    """The type's name, the usual one for ""; in a table's columns of each row."""
    return own or usual if isinstance(own, str) else np.where(own != "", own, usual)


def code(function: Any) -> Any:
    """A number per function name, the same in any session, by which trees distinguish functions."""
    names, inverse = distinct(np.asarray(function).reshape(-1))
    numbers = np.array([zlib.crc32(str(name).encode()) % 1000 for name in names], dtype=np.float64)[inverse]
    return numbers if np.ndim(function) else float(numbers[0])


def effort(function: Any) -> Any:
    """The effort of each function name; gelu is its own: it is vectorised, and in most transformers."""
    names, inverse = np.unique(np.asarray(function), return_inverse=True)
    found = [next((effort for effort, some in SORTS.items() if name in some), "cheap") for name in names]
    return np.array(found)[inverse].reshape(np.shape(function))


def per_function(function: Any, table: Mapping[str, int], default: int) -> Any:
    """The table's number for a function name, or an array of them for an array of names."""
    if isinstance(function, str):
        return table.get(function, default)
    return np.array([table.get(str(name), default) for name in function], dtype=np.float64)
