"""Element-wise arithmetic of one or more tensors: residual additions, scalings, masks, comparisons."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import Unmodelled
from neuralpower.late import Tensor, torch
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
from neuralpower.layers.base import (
    FORWARD,
    NEAR_BYTES,
    RECURRING,
    TRAINING,
    OperatorNames,
)
from neuralpower.layers.pointwise import EFFORTS, RANDOM, Pointwise, effort
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.tensors import (
    common_dtype,
    contiguous_run,
    distinct_shape,
    dtype_name,
    first,
    memory_order,
    strided,
)
from neuralpower.layers.training import KEEPS_INPUTS, KEEPS_NOTHING, KEEPS_OUTPUTS, Args, Named, is_floating

POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
ALIASES = {
    **{"__and__": "bitwise_and", "__or__": "bitwise_or", "special_expit": "sigmoid", "multiply": "mul"},
    **{"rsub": "sub", "subtract": "sub", "true_divide": "div", "divide": "div"},
    **{"clamp_min": "clamp", "clamp_max": "clamp"},
}
BINARY = "add add add mul mul sub div maximum ge masked_fill".split()
INTEGER = "add sub mul ge eq".split()
COMPLEX = tuple(name for name, dtype in DTYPES.items() if dtype.complex)
COMPLEX_UNARY, COMPLEX_BINARY = "mul neg reciprocal exp exp log".split(), "add mul mul sub div".split()
UNARY = "add mul sub div neg abs exp log sqrt rsqrt cos sin square cube pow clamp reciprocal erf".split()
SLOW = [name for name in UNARY if effort(name) == "transcendental"]
# Operands of each pass of a gradient, where it is not one pass over two: x^n asks for n x^(n-1) grad.
PASSES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("square", "cube", "pow", "rsqrt"), (1, 1, 2)),
    **dict.fromkeys(("sqrt", "abs"), (1, 2)),
    **dict.fromkeys(("maximum", "minimum"), (1, 2, 2, 2)),  # ties share it
    "add": (),
    **dict.fromkeys(("neg", "sub"), (1,)),
    "dropout_training": (2,),  # grad times the mask, scaled: aten/src/ATen/native/cuda/Dropout.cu
}
SUMS, PRODUCTS = ("add", "sub", "neg"), ("mul", "div")
TRUTHS = "ge gt le lt eq ne isin logical_not logical_and logical_or logical_xor isnan isinf isfinite".split()
MASKED = ("masked_fill", "where")  # by one operand of truth values
FLAT = frozenset(
    """
    bitwise_not bitwise_and bitwise_or bernoulli sign floor ceil round trunc floor_divide
    """.split()
).union(TRUTHS)  # no gradient passes through
# besides those that torch tags as pointwise
OPERATORS = """
    where masked_fill masked_fill_ rsub square dropout clip true_divide multiply isin nan_to_num special_expit
    lerp addcmul addcdiv glu logical_not bernoulli bernoulli_ floor_divide _weight_norm_interface
"""
DROPOUT, DROPPING = "dropout", "dropout_training"  # nothing in evaluation, a random number each in training
KEPT = 0.9  # share of the elements, in what is measured: it costs nothing more to keep other shares
MOST_STEPS = 32  # parts of what a loop reads, in what is measured
LONG = 16  # from this length on, the length of a broadcast's stretches no longer matters
SCALAR = {"add", "mul", "sub", "div", "ge", "gt", "le", "lt", "eq", "ne", "remainder", "floor_divide"}


class Parts:
    """A function that takes the next part of a tensor [stretches, steps, run] at each call."""

    def __init__(self, function: Any, whole: Tensor) -> None:
        self.function, self.parts = function, itertools.cycle(whole.unbind(1))

    def __call__(self, *others: Any, **kwargs: Any) -> Any:
        return self.function(next(self.parts), *others, **kwargs)


def _has(layer: Elementwise, functions: Collection[str]) -> Any:
    name = layer.function
    return name in functions if isinstance(name, str) else np.isin(name, (*functions,))


def _sample_recurring(kind: type[Elementwise], draw: Draw) -> Elementwise:
    """The same, but more of them read parts, and more take exponentials, as decays and gates do."""
    if draw.chance(0.3):
        function, elements = draw.choice(SLOW), draw.size(2, 2**20)
        return kind(function=function, elements=elements, operands=1, broadcast=False, recurs=True)
    layer = replace(kind.sample(draw), recurs=True)
    whole = layer.operands == 2 and not layer.broadcast and not layer.inplace and layer.dtype in FLOATING
    if whole and draw.chance(0.5):
        run = draw.choice((8, 16, 16, 32, 64, 128, 256))
        return replace(layer, elements=run * draw.octaves(2, 2**13), run=run)
    return layer


def _sample_training(kind: type[Elementwise], draw: Draw) -> Elementwise:
    """Dropout of hidden states and of scores; in place it has random numbers apart."""
    elements, inplace = draw.size(64, 2**24), draw.chance(0.1)
    function = "bernoulli" if inplace else DROPPING
    return kind(function=function, elements=elements, operands=1, broadcast=False, inplace=inplace)


def _terms(layer: Elementwise, hardware: Hardware) -> Described:
    """As for any pass over memory; a broadcast operand is looked up row by row."""
    return {
        **Pointwise.views.cpu.terms(layer, hardware),
        "elements_broadcast": layer.elements * layer.broadcast,
        "elements_operands": layer.elements * layer.operands,
    }


def _features(layer: Elementwise, hardware: Hardware) -> Described:
    return {
        **Pointwise.views.cpu.features(layer, hardware),
        "operands": layer.operands,
        "broadcast": layer.broadcast,
    }


def _keeps(layer: Elementwise) -> str:
    """Nothing of sums, and of products with a number; the factors of other products."""
    if layer.function not in (*SUMS, *PRODUCTS):
        return KEEPS_OUTPUTS
    return KEEPS_NOTHING if layer.function in SUMS or layer.operands == 1 else KEEPS_INPUTS


def _differentiable(layer: Elementwise) -> bool:
    return is_floating(layer) and layer.function not in FLAT


def _backward(layer: Elementwise) -> tuple[Layer, ...]:
    """A pass per operand with a gradient; none for a sum, whose gradient is its operands'.

    A broadcast factor's gradient is summed. What a sum broadcasts counts as a mask, without one.
    """
    if not _differentiable(layer):
        return ()
    factors = (layer.operands,) * layer.operands if layer.function in PRODUCTS else (2,)
    passes = (pass_of(layer.dtype, "mul", layer.elements, n) for n in PASSES.get(layer.function, factors))
    summed = layer.broadcast and layer.function in PRODUCTS
    return (*passes, _summed(layer)) if summed else tuple(passes)


def _summed(layer: Elementwise) -> Reduction:
    """The sum that is the gradient of a broadcast operand."""
    return Reduction(dtype=layer.dtype, function="sum", elements=layer.elements, outputs=1)


def _gradients(layer: Elementwise) -> Mapping[str, tuple[Layer, ...]]:
    """For two operands, one of them broadcast: its gradient is summed, a sum passes the other's on."""
    if not layer.broadcast or layer.operands != 2 or layer.function not in (*PRODUCTS, "add", "sub"):
        return {}
    product = (replace(layer, phase=FORWARD, function="mul", broadcast=False, inplace=False, run=0),)
    passed = product if layer.function in PRODUCTS else ()
    return {"whole": passed, "part": (*passed, _summed(layer))}


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """The operand of the output's shape, and one that is broadcast, where there are these two."""
    y = first(output)
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.numel() > 1]
    whole = [t for t in tensors if t.shape == y.shape]
    return {"whole": whole, "part": [t for t in tensors if t.shape != y.shape]} if len(whole) == 1 else {}


def _group(layer: Elementwise) -> Any:
    """Arithmetic is bandwidth-bound, roots and exponentials are not; random numbers are slowest on a CPU.

    Complex numbers have code of their own, which does not vectorise exponentials.
    """
    found, arithmetic = effort(layer.function), np.isin(layer.function, COMPLEX_BINARY + COMPLEX_UNARY[:3])
    of_complex = np.where(arithmetic, "complex", "complex_transcendental")
    return np.where(np.isin(layer.dtype, COMPLEX), of_complex, found)


@layer_kind("elementwise", *(f"aten.{name}" for name in OPERATORS.split()))
@dataclass(frozen=True, kw_only=True)
class Elementwise(Pointwise):
    """y = function(a, b, ...); the operators that torch tags as pointwise come here, too."""

    operands: int  # tensors with more than one element
    broadcast: bool  # an operand has fewer elements than the output

    sweep_share = 2.5
    recurring_share = 0.2
    training_share = 0.2
    group_names = (*EFFORTS, "complex", "complex_transcendental")
    samples = {TRAINING: _sample_training, RECURRING: _sample_recurring}
    words = {"function": OperatorNames((*UNARY, *BINARY, *PASSES, *POWERS.values()))}
    views = Views(cpu=View(group=_group, terms=_terms, features=_features), of=Pointwise.views)
    training = Training(
        differentiable=_differentiable,
        backward=_backward,
        gradients=_gradients,
        operands_of=_operands_of,
        share_of=lambda layer, asked: len(asked) / 2,  # one of its two passes for each operand
        keeps=_keeps,
        turned=lambda layer: replace(layer, function=DROPPING) if layer.function == DROPOUT else layer,
        only=lambda layer: layer.function in RANDOM,  # dropout, and what it is made of
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """Any operator whose output elements each depend on one element of every operand."""
        name, y = operator.removeprefix("aten."), first(output)
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if not isinstance(y, Tensor):
            raise Unmodelled(f"{operator} returns no tensor")
        if name == "where" and len(args) == 1:
            raise Unmodelled("the places of a mask are found, which nonzero does")
        if name == "glu":  # its halves along an axis
            tensors = [*args[0].chunk(2, args[1] if len(args) > 1 else kwargs.get("dim", -1))]
        read = [t for t in tensors if math.prod(distinct_shape(t)) > 1]
        operands, full = read or [y], [t for t in read if distinct_shape(t) == y.shape]
        runs = [run for run in (contiguous_run(t, y) for t in full) if run]
        fewer = [shape for t in operands if math.prod(shape := distinct_shape(t)) < y.numel()]
        runs += [run for shape in fewer if len(shape) <= y.dim() and (run := _repeated_run(shape, y)) < LONG]
        inplace = name.endswith("_") and not name.endswith("__")
        function = ALIASES.get(name, name.rstrip("_") if inplace else name)
        if function == "pow" and len(args) > 1 and isinstance(args[1], (int, float)):
            function = POWERS.get(args[1], "pow")
        if function == DROPOUT and (args[2] if len(args) > 2 else kwargs.get("train", False)):
            function = DROPPING
        dtype = common_dtype(tensors, y)
        layer = cls(
            dtype=dtype,
            function=function,
            elements=y.numel(),
            operands=len(operands),
            broadcast=len(full) < len(read),
            inplace=inplace,
            run=min(runs, default=0),
        )
        return layer.typed_as(next((t for t in full if dtype_name(t) != dtype), first(full or None)), y)

    def usual_types(self) -> tuple[Any, Any]:
        """Comparisons give truth values, and a mask is one of the operands."""
        masks = _has(self, MASKED) * (1 - self.broadcast) * (np.asarray(self.operands) > 1)
        return _bool_where(masks, self.dtype), _bool_where(_has(self, TRUTHS), self.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """One or two operands, equal or broadcast, fresh or in place, side by side or with jumps."""
        elements = draw.size(2, 2**24)
        make = functools.partial(cls, broadcast=False)
        if draw.chance(0.4):
            return make(function=draw.choice(UNARY), elements=elements, operands=1)
        if draw.chance(0.08):  # of transforms and their inverses
            operands = draw.choice((1, 2))
            function = draw.choice(COMPLEX_UNARY if operands == 1 else COMPLEX_BINARY)
            elements = max(elements // 16, 2)
            return make(dtype="complex64", function=function, elements=elements, operands=operands)
        if draw.chance(0.12):  # positions and masks
            function, operands = draw.choice(INTEGER), draw.choice((1, 2))
            return make(dtype="int64", function=function, elements=elements, operands=operands)
        function = draw.choice(BINARY)
        broadcast = function in ("add", "mul", "sub", "div") and elements >= 64 and draw.chance(0.35)
        inplace = function in ("add", "mul", "sub") and not broadcast and draw.chance(0.25)
        run = 0
        if broadcast and (elements < 2 * LONG**2 or draw.chance(0.3)):
            run = draw.choice((2, 3, 4, 8, 8, 10, 12))
            elements = max(elements // run, 2) * run
        elif broadcast:
            elements -= elements % (2 * LONG)
        elif not inplace and elements >= 64 and draw.chance(0.25):
            run = draw.choice((1, 1, 8, 32, 64))
            elements = max(elements // (4 * run), 2) * 4 * run
        return cls(
            function=function, elements=elements, operands=2, broadcast=broadcast, inplace=inplace, run=run
        )

    def build(self, device: torch.device) -> Call:
        """The torch function of that name, or one of the same effort where it cannot be called so."""
        parted = self.recurs and self.run and self.phase == FORWARD and not self.broadcast
        if parted and self.function != "where":
            return self._parted(device)
        short = self.broadcast and 0 < self.run < LONG
        typed = self.reading() if self.from_dtype else self
        dense = self.operands > 1
        x = strided(self if dense else typed, self.elements, 0 if short else self.run, device, dense=dense)
        if short:
            x = x.reshape(-1, self.run)
        elif self.broadcast:
            longest = min(1024, math.isqrt(self.elements))
            x = x.reshape(-1, next((d for d in range(longest, 1, -1) if self.elements % d == 0), 1))
        # one number for each stretch, else a row, or as many numbers
        shape = (len(x), 1) if short else x.shape[-1:] if self.broadcast else x.shape
        makers = (typed, *(self,) * (self.operands - 2)) if dense else ()
        others = [maker.tensor(*shape, device=device) for maker in makers]
        warm = (*others, x) if not self.broadcast else (x,)
        name = self.function
        if name == "masked_fill" and others:
            return Call(torch.masked_fill, (x, others[0] > 0, 0.5), warm=(x,))
        if name == "where" and self.from_dtype and not others:
            return Call(torch.where, (x > 0, 1.0, 0.0), warm=(x,))
        if name == "where" and others:
            return Call(torch.where, (others[0] > 0, x, others[1] if len(others) > 1 else 0.0), warm=(x,))
        if name == DROPPING:
            return Call(torch.dropout, (x, 1 - KEPT, True), warm=warm)
        if name == "bernoulli" and self.inplace:
            return Call(Tensor.bernoulli_, (x, KEPT), warm=warm)
        if name == "clamp":
            return Call(torch.clamp, (x, -0.5, 0.5), warm=warm)
        if name in ("cube", "pow") and not others:
            return Call(torch.pow, (x, 3.0 if name == "cube" else 1.7), warm=warm)
        function: Any = None if name.startswith("_") else getattr(torch, name, None)
        if self.inplace:
            function = getattr(Tensor, f"{name}_", function)
        if name in SCALAR and not others:
            return Call(function, (x, 1.5 if self.dtype in FLOATING else 1), warm=warm)
        if function is not None:
            with contextlib.suppress(TypeError, RuntimeError):  # its arguments may be others
                function(*(torch.empty_like(t, device="meta") for t in (x, *others)))
                return Call(function, (x, *others), warm=warm)
        # else it costs what its class of work costs
        stand_ins: dict[str, Any] = {"cheap": torch.add, "transcendental": torch.exp}
        stand_in = stand_ins.get(str(effort(name)), torch.erf)
        return Call(stand_in, (x, others[0] if others else 1.5) if stand_in is torch.add else (x,), warm=warm)

    def _parted(self, device: torch.device) -> Call:
        """The call as a loop makes it: at each step another part of a tensor that was just computed."""
        stretches = self.elements // self.run
        steps = int(np.clip(NEAR_BYTES // (self.elements * self.itemsize), 2, MOST_STEPS))
        typed = self.reading() if self.from_dtype and self.operands == 1 else self
        whole = typed.tensor(stretches, steps, self.run, device=device)
        alike = replace(self, recurs=False, run=0, inplace=False).build(device)
        others = (a.reshape(stretches, self.run) if isinstance(a, Tensor) else a for a in alike.args[1:])
        return Call(Parts(alike.function, whole), tuple(others), alike.kwargs, warm=(whole,))

    def flops(self) -> int:
        return self.elements * np.maximum(self.operands - 1, 1)

    def _moved(self, read: Any, written: Any) -> Bytes:
        """Operands in (a broadcast one is read from the cache), the result out."""
        others = np.maximum(self.operands - self.broadcast, 1) - 1
        return Bytes((read + self.itemsize * others) * self.elements, 0, written * self.elements)


def pass_of(dtype: str, function: str, elements: int, operands: int = 2) -> Elementwise:
    """A pass over operands of one size."""
    return Elementwise(dtype=dtype, function=function, elements=elements, operands=operands, broadcast=False)


def _bool_where(holds: Any, dtype: Any) -> Any:
    """Truth values where `holds`, else `dtype`, for one layer or each of a table."""
    if isinstance(dtype, str):
        return "bool" if holds else dtype
    return np.where(holds, "bool", dtype)


def _repeated_run(own: Sequence[int], y: Tensor) -> int:
    """Elements of y in a row for which a smaller operand has one, or one each: what an inner loop takes.

    `own` is the operand's shape; rows are those of y's memory.
    """
    shape = (1,) * (y.dim() - len(own)) + tuple(own)
    run, repeats = 1, None
    for axis in reversed(memory_order(y)):
        if y.shape[axis] == 1:
            continue
        if repeats is not None and repeats != (shape[axis] == 1):
            break
        repeats = shape[axis] == 1
        run *= y.shape[axis]
    return run
