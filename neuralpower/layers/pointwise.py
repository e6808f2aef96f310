"""The base of activations, arithmetic and movements: a pass over memory, with or without jumps."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.layers import Hardware, Layer
from neuralpower.layers.terms import distinct, past
from neuralpower.layers.traits import Traits, only, steps

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

RUNS = (0, 3, 6, 9)  # exponents of steps of a run of elements that lie side by side: traits


@dataclass(frozen=True, kw_only=True)
class Pointwise(Layer):
    """One function of each element."""

    function: str
    elements: int  # of the output
    inplace: bool = False
    run: int = 0  # elements side by side in the worst operand, in the order of the output; 0: all of them

    dimensions = ("elements",)

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Elements, with the jumps that a stride costs, and past each cache."""
        elements, run = self.elements, self.run
        jumps = elements / np.where(np.asarray(run) == 0, np.inf, np.maximum(run, 1))
        return {
            "elements": elements,
            "elements_strided": elements * (np.asarray(run) > 0),
            "elements_one_by_one": elements * (np.asarray(run) == 1),
            "jumps": jumps,
            "jumps_past_l2": jumps * (elements * self.itemsize > hardware.l2_bytes),
            "elements_fresh": elements * (1 - self.inplace),
            "elements_past_l2": past(elements * self.itemsize, hardware.l2_bytes),
            **super().terms(hardware),
        }

    def traits(self) -> Traits:
        """The code; operands that lie in another order than the output; small ones, which end early."""
        code, run = np.asarray(self.group()), np.asarray(self.run, dtype=float)
        codes = {str(name): 1.0 * (code == name) for name in self.group_names}
        apart = only(run > 0, steps("run", run, RUNS))
        return Traits({}, codes | apart)

    def features(self) -> dict[str, Any]:
        """Which function, jumps, and whether the output is fresh memory."""
        return {
            "function": code(self.function),
            "run": np.log2(np.asarray(self.run) + 1.0),
            "inplace": self.inplace,
            "itemsize": self.itemsize,
        }


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
