"""The base of layer kinds; fields are table columns, variables of a polynomial, and the recipe to build one.

Formulas (`flops`, `bytes`, and the functions of `views` and `law`) are plain arithmetic. So they serve one
layer, whose fields are integers, and a whole table (`columns_of`), whose fields are arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from typing_extensions import Self

from neuralpower.dtypes import DTYPES, FLOATING, TENSORFLOAT32
from neuralpower.errors import DatasetError, Unmodelled
from neuralpower.late import Tensor, torch
from neuralpower.layers.operands import Bytes, Operand, Operands, by_dtype
from neuralpower.layers.training import Training
from neuralpower.layers.traits import KindLaw
from neuralpower.layers.views import Views


@dataclass(frozen=True)
class Call:
    """One call to time: `function(*args, **kwargs)`; the tensors in `warm` are written afresh just before it.

    With `recurs` it is timed just after an untimed run of its own, as a network is, or what a loop repeats.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    warm: tuple[Tensor, ...] = ()
    recurs: bool = False

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


FORWARD, BACKWARD, TRAINING = "forward", "backward", "training"
GRADIENT = "gradient"  # phase of a forward pass that stands for a part of a backward pass, as `backward` says
RECURRING = "recurring"  # last word of a group of calls that a loop makes again and again
# Last word before it of a group of calls whose operands have types of their own; the format stands before it.
QUANTISED = "quantised"
FORMAT = re.compile(rf"( \[[^\]]*\])? {QUANTISED}$")
NEAR_BYTES = 16 * 2**20  # what goes through the caches from one repeated call to the next, at most


# Operators of every version of torch, which are known without importing it.
USUAL = frozenset("eq ne lt le gt ge where bitwise_not bitwise_and bitwise_or dropout".split())


class OperatorNames(frozenset[str]):
    """Some names, and that of any operator: aten's by itself, another library's as library.name."""

    def __contains__(self, name: object) -> bool:
        """Whether it is one of them, or an operator."""
        if super().__contains__(name) or name in USUAL:
            return True
        library, _, own = str(name).rpartition(".")
        valid = all(part.isidentifier() for part in str(name).split("."))
        if not valid or library in ("aten", "torch", "Tensor"):
            return False
        return bool(library) or isinstance(getattr(torch.ops.aten, own, None), torch._ops.OpOverloadPacket)


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """One call of one kind, on any device; subclasses, frozen data classes as this, add their fields."""

    dtype: str = "float32"
    phase: str = "forward"
    recurs: bool = False  # repeated by a loop of Python's: code, weights and operands are in the caches

    kind: ClassVar[str] = ""
    operators: ClassVar[tuple[str, ...]] = ()
    dimensions: ClassVar[tuple[str, ...]] = ()  # the polynomial's variables, names of fields or properties
    # Counted FLOP for each that a clever kernel runs, at most; clocks above the sheet's are in it, too.
    savings: ClassVar[float] = 1.1
    multiplies: ClassVar[bool] = False  # made of products, which tensor cores may take in TF32
    sweep_share: ClassVar[float] = 1.0  # how many layers of a sweep are of this kind, relative to others
    by_default: ClassVar[bool] = True  # whether a sweep draws them; kernels of engines only where named
    by_itself: ClassVar[bool] = True  # whether one process can time it
    recurring_share: ClassVar[float] = 0.0  # how many more a loop repeats, for each of these
    training_share: ClassVar[float] = 0.0  # how many more only training has, besides backward passes
    # Draws of the latter two that `sample` does not make, by TRAINING or RECURRING: (kind, draw) -> layer.
    samples: ClassVar[Mapping[str, Callable[[Any, Draw], Any]]] = {}
    short_s: ClassVar[float] = 3e-5  # the part of a warm call with its own correction from networks
    # Fields that older datasets lack: at 0 they do not distinguish layers; every kind has `recurs`.
    later: ClassVar[frozenset[str]] = frozenset()
    # What groups of its views can be: a predictor's file has no regressor of another.
    group_names: ClassVar[Collection[str]] = ("all",)
    alone: ClassVar[frozenset[str]] = frozenset()  # groups that no other stands in for
    paged: ClassVar[frozenset[str]] = frozenset()  # sizes that lie in pages: their alignment costs nothing
    spreads: ClassVar[
        tuple[str, ...]
    ] = ()  # sizes over which the work of a call is spread: more may be faster
    # The inner side and the results, which double in the product of real numbers for a complex one.
    doubled: ClassVar[tuple[str, ...]] = ()
    rule: ClassVar[str] = ""  # as text: how its fields must agree
    # Allowed values of its text fields, besides dtype and phase.
    words: ClassVar[Mapping[str, Collection[str]]] = {}

    views: ClassVar[Views] = Views()  # its groups, terms and features
    law: ClassVar[KindLaw] = KindLaw()  # what bounds its time
    training: ClassVar[Training] = Training()  # its backward pass

    @classmethod
    @abstractmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """Read a call, given its output and arguments; raises Unmodelled where the fields cannot say it."""

    @classmethod
    @abstractmethod
    def sample(cls, draw: Draw) -> Self:
        """One layer of a sweep."""

    @abstractmethod
    def build(self, device: torch.device) -> Call:
        """The call to time, with random tensors on `device`."""

    @abstractmethod
    def flops(self) -> int:
        """FLOP of the call; 1 multiply-add = 2 FLOP."""

    @abstractmethod
    def bytes(self) -> Bytes:
        """B that must cross memory."""

    def parameters(self) -> int:
        """Trained parameters that the call reads."""
        return 0

    def possible(self) -> Any:
        """Whether its fields agree, as `rule` says; ZeroDivisionError where one that divides is 0."""
        return True

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """The shape that such a call returns by the fields, which `check_output` compares with the real one.

        Its axes may stand in any order, be joined or of size 1. None where the fields cannot say it.
        """
        return None

    def shape(self) -> Self:
        """The same without sizes in which neighbours hardly differ: all of a shape are held out together."""
        return self

    @functools.cached_property
    def operand_types(self) -> Operands:
        """The types of what it reads and writes: `dtype`, unless the kind has fields that say otherwise."""
        usual = Operand(self.dtype)
        return Operands(usual, usual, usual, self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes per element of `dtype`; a fraction where that has less than 8 bits."""
        size: int = by_dtype(self.dtype, lambda name: DTYPES[name].itemsize)
        return size

    def tensor(self, *shape: int, device: torch.device) -> Tensor:
        """Random normal numbers of the layer's dtype; integers are 1 or 2, booleans true.

        Raises DatasetError where torch has no tensors of it.
        """
        dtype = torch_dtype(self.dtype)
        if self.dtype in FLOATING:
            return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
        if dtype.is_complex:
            return torch.randn(shape, device=device, dtype=dtype)
        # without zeros: an integer division by one traps
        return torch.randint(1, 3, shape, device=device).to(dtype)


L = TypeVar("L", bound=Layer)


def plain_group(group: str) -> str:
    """The group without the words for calls that are quantised or recur."""
    return FORMAT.sub("", group.removesuffix(f" {RECURRING}"))


def measured_phase(phase: Any) -> Any:
    """The phase as which calls are measured: what makes a gradient is measured as a forward pass."""
    if isinstance(phase, str):
        return FORWARD if phase == GRADIENT else phase
    return np.where(phase == GRADIENT, FORWARD, phase)


def torch_dtype(name: str) -> torch.dtype:
    """torch.float32 for "float32", and for "tensorfloat32", which is one in memory.

    Raises DatasetError for a name that nothing has, and for a type of which torch has no tensors.
    """
    known = DTYPES.get(name) if isinstance(name, str) else None
    if known and known.torch is None:
        raise DatasetError(
            f"dtype {name}: torch has no tensors of it; choose int8 or float8_e4m3fn, or bring such "
            "measurements in as a table"
        )
    dtype = getattr(torch, str(known.torch if known else name), None)
    if not isinstance(dtype, torch.dtype):
        raise DatasetError(f"unknown dtype {name!r}: known are {', '.join(DTYPES)}")
    return dtype


def typed(layer: L, dtype: str) -> L:
    """The layer in another element type.

    TF32 is a way to multiply: a layer without products gets the type that it is in memory, float32.
    """
    if not layer.multiplies:
        dtype = DTYPES[dtype].stored_as or dtype
    return dataclasses.replace(layer, dtype=dtype)


def of_real(layer: L) -> L:
    """The real product that computes a complex one with these fields; raises Unmodelled for other kinds.

    (a + bi)(c + di) is [a, b] times [[c, d], [-d, c]]: the inner side and the results double.
    """
    if not layer.doubled:
        raise Unmodelled("products of complex numbers are not modelled")
    return dataclasses.replace(layer, **{name: 2 * getattr(layer, name) for name in layer.doubled})


def in_tf32(layer: L) -> L:
    """A float32 layer as it is where products are allowed TF32; any other as it was."""
    return typed(layer, TENSORFLOAT32) if layer.dtype == "float32" else layer


# ---- The kinds by name and by operator ----


KINDS: dict[str, type[Layer]] = {}
BY_OPERATOR: dict[str, type[Layer]] = {}


def form(*operators: str) -> Callable[[type[L]], type[L]]:
    """Have a class read operators as layers of the kind that it derives from; raises ValueError if taken."""

    def register(kind: type[L]) -> type[L]:
        for operator in operators:
            if operator in BY_OPERATOR:
                raise ValueError(
                    f"operator {operator!r} already belongs to kind {BY_OPERATOR[operator].kind!r}"
                )
        BY_OPERATOR.update(dict.fromkeys(operators, kind))
        return kind

    return register


def layer_kind(name: str, *operators: str) -> Callable[[type[L]], type[L]]:
    """Register a kind for operators ("aten.softmax"); raises ValueError where a name is taken."""

    def register(kind: type[L]) -> type[L]:
        if name in KINDS:
            raise ValueError(f"layer kind {name!r} is already defined by {KINDS[name].__module__}")
        form(*operators)(kind)
        kind.kind, kind.operators = name, operators
        KINDS[name] = kind
        return kind

    return register


# ---- Seeded draws of a sweep's sizes ----

T = TypeVar("T")


class Draw:
    """A seeded source of layer sizes: log-uniform, aligned and not, as networks have them."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def octaves(self, low: int, high: int) -> int:
        """An integer in [low, high], uniform in its logarithm."""
        return round(math.exp(self.random.uniform(math.log(low), math.log(high))))

    def size(self, low: int, high: int) -> int:
        """As `octaves`, but three times in four a multiple of a power of two, as networks' widths are."""
        value = self.octaves(low, high)
        if self.random.random() < 0.25:
            return value
        step = self.random.choice((4, 8, 16, 32, 64))
        return min(max(round(value / step) * step, low), high) if value >= step else value

    def choice(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability
