"""Reductions: sums, means, extrema, norms over some axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.late import Tensor, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.base import OperatorNames
from neuralpower.layers.movement import Movement
from neuralpower.layers.tensors import first, memory_order
from neuralpower.layers.training import is_floating
from neuralpower.layers.traits import DENSE_ON_CPU, Traits, by_code
from neuralpower.layers.views import bytes_terms, seconds_terms

FUNCTIONS = """
    sum mean var std amax amin argmax argmin max min prod linalg_vector_norm logsumexp any all norm var_mean
    std_mean
""".split()
NORMS = ("linalg_vector_norm", "norm")
SPREADS, INDICES = ("var", "std", "var_mean", "std_mean"), ("argmax", "argmin")
WITH_INDICES = (*INDICES, "max", "min")  # max and min along an axis return places, too
EXTREMA = (*WITH_INDICES, "amax", "amin")
OF_INTEGERS = (*EXTREMA, "sum", "prod", "any", "all")
# 512 threads with 16 numbers each: PyTorch splits longer rows, aten/src/ATen/native/cuda/Reduce.cuh
ELEMENTS_OF_A_BLOCK = 8192
SHORT_KERNEL_S = 2e-6  # of a short kernel more, up to a factor
IN_VECTORS = ("sum", "mean", "amax", "amin", "any", "all")  # across rows: a CPU adds whole rows
ON_CPU = {
    **dict.fromkeys((*SPREADS, "prod"), 30.0),
    **dict.fromkeys((*WITH_INDICES, "logsumexp", "norm"), 14.0),
}
SWEPT = ("sum", "mean", "mean", "mean", "var", "amax", "argmax", "linalg_vector_norm", "logsumexp", "max")


def _terms(layer: Reduction, hardware: Hardware) -> Described:
    """Reads along rows and across them, by vectors or not, functions that need two passes, outputs."""
    across = 1 - layer.last
    function = np.asarray(layer.function)
    return {
        "elements_across": layer.elements * across,
        "elements_across_singly": layer.elements * across * ~np.isin(function, IN_VECTORS),
        "elements_two_passes": layer.elements * np.isin(function, (*SPREADS, "logsumexp")),
        "elements_extrema": layer.elements * np.isin(function, EXTREMA),
        "outputs_across": layer.outputs * across,
        **bytes_terms(layer, hardware),
    }


def _kernel_terms(layer: Reduction, hardware: Hardware) -> Described:
    """Reads across rows, functions of several kernels, and few blocks, which keep few cores busy.

    Several blocks share a long row.
    """
    across, function = 1 - layer.last, np.asarray(layer.function)
    size, memory = layer.itemsize * layer.elements, hardware.memory_bytes_per_s
    row = np.asarray(layer.elements) / np.maximum(layer.outputs, 1)
    blocks = np.maximum(layer.outputs, 1) * np.maximum(np.ceil(row / ELEMENTS_OF_A_BLOCK), 1)
    idle = hardware.cores / np.minimum(blocks, hardware.cores)
    others = seconds_terms(layer, hardware)
    # Few measured rows write more than a thousandth of their bytes. A weight for that would be fitted to
    # launches, and millions of results would take a hundred times too long.
    del others["output_bytes"]
    return {
        "kernels_several": SHORT_KERNEL_S * (function == "logsumexp"),
        "two_passes": size * np.isin(function, SPREADS) / memory,
        "bytes_across": size * across / memory,
        "bytes_few_results": size * idle / memory,
        "small_across": SHORT_KERNEL_S * across,
        **others,
    }


def _traits(layer: Reduction) -> Traits:
    """Outputs side by side that are summed over axes before them."""
    return Traits({}, {"not last": 1.0 - np.asarray(layer.last, dtype=float)})


def _features(layer: Reduction, _: Hardware) -> Described:
    function = np.asarray(layer.function)
    return {
        "last": layer.last,
        "width": np.log2(np.maximum(layer.elements / layer.outputs, 1)),
        "two_passes": np.isin(function, SPREADS) * 1.0,
        "exponential": (function == "logsumexp") * 1.0,
        "index": np.isin(function, WITH_INDICES) * 1.0,
        "sum": np.isin(function, ("sum", "mean")) * 1.0,
    }


def _differentiable(layer: Reduction) -> bool:
    """No index and no truth value has a gradient."""
    return is_floating(layer) and layer.function not in (*INDICES, "any", "all", "count_nonzero")


def _backward(layer: Reduction) -> tuple[Layer, ...]:
    """Results' gradients spread over the inputs: a few numbers in, all elements out, as a fill."""
    if not _differentiable(layer):
        return ()
    return (Movement(dtype=layer.dtype, function="fill", elements=layer.elements),)


@layer_kind("reduction", *(f"aten.{name}" for name in FUNCTIONS), "aten.count_nonzero")
@dataclass(frozen=True, kw_only=True)
class Reduction(Layer):
    """elements numbers in, outputs numbers out."""

    function: str
    elements: int
    outputs: int
    last: bool = True  # the axes that vanish are the last ones, in the order of memory

    dimensions = ("elements", "outputs")
    spreads = ("outputs",)
    sweep_share = 1.2
    recurring_share = 0.2
    words = {"function": OperatorNames(FUNCTIONS)}
    views = Views(cpu=View(terms=_terms, features=_features), kernels=View(terms=_kernel_terms))
    law = KindLaw(traits=_traits, on_cpu=by_code(DENSE_ON_CPU, ON_CPU))
    training = Training(differentiable=_differentiable, backward=_backward)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.mean(x)`, `aten.mean(x, dim, keepdim)` and their like."""
        x, y = args[0], first(output)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise Unmodelled(f"{operator} without a tensor")
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        if operator == "aten.linalg_vector_norm":
            axes = args[2] if len(args) > 2 else kwargs.get("dim")
        axes = [axes] if isinstance(axes, int) and not isinstance(axes, bool) else axes
        last = True
        if isinstance(axes, (tuple, list)) and axes and x.dim():
            gone = {a % x.dim() for a in axes if isinstance(a, int)}
            order = [d for d in memory_order(x) if x.shape[d] > 1 and x.stride(d)]
            kept = [d not in gone for d in order]
            last = kept == sorted(kept, reverse=True)
        function, outputs = operator.removeprefix("aten."), max(y.numel(), 1)
        return cls(function=function, elements=x.numel(), outputs=outputs, last=last)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Statistics of rows, maps and batches, and means over the heads of an attention's weights."""
        outputs, width = draw.octaves(1, 2**14), draw.size(2, 2**12)
        last = draw.chance(0.75) or outputs == 1
        if not last and draw.chance(0.4):
            outputs, width = draw.octaves(2**14, 2**21), draw.size(2, 16)
        return cls(function=draw.choice(SWEPT), elements=outputs * width, outputs=outputs, last=last)

    def build(self, device: torch.device) -> Call:
        width = max(self.elements // self.outputs, 1)
        shape = (self.outputs, width) if self.last else (width, self.outputs)
        x = self.tensor(*shape, device=device)
        if not x.is_floating_point() and self.function not in OF_INTEGERS:
            x = x.float()
        name = self.function if self.function in FUNCTIONS else "sum"
        function = torch.linalg.vector_norm if name in NORMS else getattr(torch, name)
        return Call(function, (x,), {"dim": -1 if self.last else 0}, warm=(x,))

    def flops(self) -> int:
        return self.elements

    def bytes(self) -> Bytes:
        return Bytes(self.itemsize * self.elements, 0, self.itemsize * self.outputs)
