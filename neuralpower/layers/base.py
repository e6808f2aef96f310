"""The base of layer kinds; fields are table columns, variables of a polynomial, and the recipe to build one.

Formulas (`flops`, `bytes`, `terms`, `features`, `group`) are plain arithmetic on `self`. So they serve one
layer, whose fields are integers, and a whole table (`columns_of`), whose fields are arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import DTYPES, FLOATING, TENSORFLOAT32
from neuralpower.errors import DatasetError, Unmodelled, unknown
from neuralpower.layers.call import Call
from neuralpower.layers.operands import Operand, Operands, by_dtype, whole
from neuralpower.layers.sweep import Draw
from neuralpower.layers.terms import MAPPED_BYTES, beyond_launch, past
from neuralpower.layers.traits import Traits

FORWARD, BACKWARD, TRAINING = "forward", "backward", "training"
GRADIENT = "gradient"  # phase of a forward pass that stands for a part of a backward pass, as `backward` says
KEEPS_NOTHING, KEEPS_INPUTS, KEEPS_OUTPUTS = "nothing", "inputs", "outputs"

LARGEST = 2**53  # whole number that a table's column holds exactly
RECURRING = "recurring"  # last word of a group of calls that a loop makes again and again
# Last word before it of a group of calls whose operands have types of their own; the format stands before it.
QUANTISED = "quantised"
FORMAT = re.compile(rf"( \[[^\]]*\])? {QUANTISED}$")
NEAR_BYTES = 16 * 2**20  # what goes through the caches from one repeated call to the next, at most

Args = Sequence[Any]  # of a call, by position
Named = Mapping[str, Any]  # by name


class Bytes(NamedTuple("_Bytes", [("input", int), ("weights", int), ("output", int)])):
    """Whole bytes that must cross memory once: what is read besides weights, the weights, what is written."""

    __slots__ = ()

    def __new__(cls, input: Any, weights: Any, output: Any) -> Self:  # noqa: A002  # the fields' names
        """Round each up to whole bytes."""
        return super().__new__(cls, whole(input), whole(weights), whole(output))


class OperatorNames(frozenset[str]):
    """Some names, and that of any operator: aten's by itself, another library's as library.name."""

    def __contains__(self, name: object) -> bool:
        """Whether it is one of them, or an operator."""
        if super().__contains__(name):
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
    # Degrees of the polynomial where kernels run over many cores: most networks exceed measured shapes.
    kernel_degrees: ClassVar[tuple[int, ...]] = (0,)
    # Counted FLOP for each that a clever kernel runs, at most; clocks above the sheet's are in it, too.
    savings: ClassVar[float] = 1.1
    multiplies: ClassVar[bool] = False  # made of products, which tensor cores may take in TF32
    sweep_share: ClassVar[float] = 1.0  # how many layers of a sweep are of this kind, relative to others
    by_default: ClassVar[bool] = True  # whether a sweep draws them; kernels of engines only where named
    by_itself: ClassVar[bool] = True  # whether one process can time it
    recurring_share: ClassVar[float] = 0.0  # how many more a loop repeats, for each of these
    training_share: ClassVar[float] = 0.0  # how many more only training has, besides backward passes
    short_s: ClassVar[float] = 3e-5  # the part of a warm call with its own correction from networks
    # Fields that older datasets lack: at 0 they do not distinguish layers; every kind has `recurs`.
    later: ClassVar[frozenset[str]] = frozenset()
    # What `group` and its like can give: a predictor's file has no regressor of another.
    group_names: ClassVar[Collection[str]] = ("all",)
    alone: ClassVar[frozenset[str]] = frozenset()  # groups that no other stands in for
    # Features of kernels: the residual is a curve along the first, one for each value of the second.
    curve: ClassVar[tuple[str, ...]] = ()
    paged: ClassVar[frozenset[str]] = frozenset()  # sizes that lie in pages: their alignment costs nothing
    spreads: ClassVar[
        tuple[str, ...]
    ] = ()  # sizes over which the work of a call is spread: more may be faster
    rule: ClassVar[str] = ""  # as text: how its fields must agree
    # Allowed values of its text fields, besides dtype and phase.
    words: ClassVar[Mapping[str, Collection[str]]] = {}

    @classmethod
    @abstractmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """Read a call, given its output and arguments; raises Unmodelled where the fields cannot say it."""

    @classmethod
    @abstractmethod
    def sample(cls, draw: Draw) -> Self:
        """One layer of a sweep."""

    @classmethod
    def sample_training(cls, draw: Draw) -> Self:
        """One layer of a sweep that only training has, where `training_share` is above 0."""
        return cls.sample(draw).in_training()

    @classmethod
    def sample_recurring(cls, draw: Draw) -> Self:
        """One layer of a sweep as a loop makes it, where `recurring_share` is above 0."""
        return dataclasses.replace(cls.sample(draw), recurs=True)

    @abstractmethod
    def build(self, device: torch.device) -> Call:
        """The call to time, with random tensors on `device`."""

    @abstractmethod
    def flops(self) -> int:
        """FLOP of the call; 1 multiply-add = 2 FLOP."""

    def needed_flops(self) -> Any:
        """FLOP that kernels cannot pass by, where `flops` counts more by convention."""
        return self.flops()

    @abstractmethod
    def bytes(self) -> Bytes:
        """B that must cross memory."""

    def fitted_bytes(self) -> Bytes:
        """B as terms and features take them: not `bytes` where predictors were trained on another number."""
        return self.bytes()

    @functools.cached_property
    def operand_types(self) -> Operands:
        """The types of what it reads and writes: `dtype`, unless the kind has fields that say otherwise."""
        one = Operand(self.dtype)
        return Operands(one, one, one, self.dtype)

    def quantised(self) -> Any:
        """Whether an operand has a type or scales of its own: such calls run different code."""
        return False

    def format(self) -> Any:
        """A short name of how operands of types of their own lie in memory, which libraries have code for."""
        return ""

    def shape(self) -> Self:
        """The same without sizes in which neighbours hardly differ: all of a shape are held out together."""
        return self

    def parameters(self) -> int:
        """Trained parameters that the call reads."""
        return 0

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """The shape that such a call returns by the fields, which `check_output` compares with the real one.

        Its axes may stand in any order, be joined or of size 1. None where the fields cannot say it.
        """
        return None

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Special terms besides the polynomial, all non-negative: bytes, and bytes beyond the caches."""
        moved = self.fitted_bytes()
        total = sum(moved)
        return {
            "bytes": total,
            "output_bytes": moved.output,
            "bytes_past_l2": past(total, hardware.l2_bytes * hardware.cores),
            "bytes_past_llc": past(total, hardware.llc_bytes),
            "output_bytes_mapped": moved.output * (moved.output >= MAPPED_BYTES),
        }

    def kernel_terms(self, hardware: Hardware) -> dict[str, Any]:
        """Special terms where kernels run over many cores, in seconds at the device's peaks."""
        moved, memory = self.fitted_bytes(), hardware.memory_bytes_per_s
        total = sum(moved)
        return {
            "flops": self.flops() / peak_flops(self, hardware),
            "bytes": total / memory,
            "output_bytes": moved.output / memory,
            "bytes_past_l2": past(total, hardware.l2_bytes) / memory,
            **beyond_launch(total / memory),
        }

    def own_terms(self, hardware: Hardware) -> dict[str, Any]:
        """More terms, which only the device's own rows can weigh; `..._past_...` are thresholds."""
        return {}

    def pooled_terms(self, hardware: Hardware) -> dict[str, Any]:
        """More terms, which only several devices can weigh: one's caches and cores hide what they mean."""
        return {}

    def alignment(self) -> dict[str, Any]:
        """Fit to kernels, as shares from 0 to 1: rows that begin aligned, how full tiles are."""
        return {}

    def tells_of_others(self) -> Any:
        """Whether its time on one device helps on another, which may choose other code for its size."""
        return True

    def features(self) -> dict[str, Any]:
        """Features of the residual, besides the logarithms of the dimensions."""
        return {}

    def kernel_features(self, hardware: Hardware) -> dict[str, Any]:
        """Features of the residual for kernels, besides the logarithms of the dimensions."""
        return self.features()

    def power_features(self, hardware: Hardware) -> dict[str, Any]:
        """Further features of the residual for kernels' power, besides the use of the units."""
        return {}

    def traits(self) -> Traits:
        """What changes the share of a device's peaks that its kernels reach (`neuralpower.layers.traits`)."""
        return Traits()

    @classmethod
    def alike(cls) -> str:
        """The name under which a prior knows the kind: kinds that run the same code share one."""
        return cls.kind

    def differentiable(self) -> bool:
        """Whether a gradient passes through it, so that it has a backward pass."""
        return self.dtype in FLOATING

    def backward(self) -> tuple[Layer, ...]:
        """Layers whose forward passes do the work of its backward pass, where none was measured."""
        return tuple(itertools.chain(*self.gradients().values())) or (self,)

    def gradients(self) -> Mapping[str, tuple[Layer, ...]]:
        """The same by the operand, as `operands_of` names it, whose gradient it makes; "" is for any of them.

        Empty where one pass makes all gradients.
        """
        return {}

    @classmethod
    def operands_of(cls, operator: str, output: Any, args: Args, kwargs: Named) -> Named:
        """Tensors of a call, by the names that `gradients` gives to them."""
        return {}

    def is_reversed_in_parts(self) -> bool:
        """Whether no sweep measures its backward pass as a whole."""
        return False

    def backward_of(self, asked: Collection[str] | None) -> tuple[Layer, ...]:
        """The part of `backward` that makes the gradients of these operands; all of it for None."""
        if asked is None:
            return self.backward()
        made = (layers for name, layers in self.gradients().items() if name in ("", *asked))
        return tuple(itertools.chain(*made))

    def share_of(self, asked: Collection[str]) -> float:
        """The share of a whole backward pass that makes the gradients of these operands.

        It goes by the products, of which the whole has twice the forward pass's, else by bytes.
        """
        parts = self.backward_of(asked)
        products = [int(part.flops()) for part in parts if part.kind == self.kind]
        if self.multiplies and any(products):
            return sum(products) / (2 * self.flops())
        size = sum(sum(part.bytes()) for part in self.backward())
        return float(sum(sum(part.bytes()) for part in parts) / size) if size else 0.0

    def keeps(self) -> str:
        """Tensors of the forward pass that its backward pass reads: none, inputs alone, or outputs, too."""
        return KEEPS_OUTPUTS

    def of_real(self) -> Self:
        """The real product that computes a complex one with these fields; raises Unmodelled.

        (a + bi)(c + di) is [a, b] times [[c, d], [-d, c]]: the inner side and the results double.
        """
        raise Unmodelled("products of complex numbers are not modelled")

    def possible(self) -> Any:
        """Whether its fields agree, as `rule` says; ZeroDivisionError where one that divides is 0."""
        return True

    def in_training(self) -> Self:
        """The layer in training: a batch norm then uses the batch's own statistics."""
        return self

    def only_in_training(self) -> bool:
        """Whether evaluation has no such call: its forward pass is then measured with its backward pass."""
        return False

    def group(self) -> Any:
        """Calls of one kind that run different code are fitted apart, by this name."""
        return "all"

    def kernel_group(self) -> Any:
        """The same where kernels run over many cores."""
        return self.group()

    def pooled_group(self) -> Any:
        """The same where several such devices are pooled."""
        return self.kernel_group()

    def launches(self) -> Any:
        """Steps that the host issues in a row for a call, up to a factor: its time grows with them."""
        return 1

    def between(self, asked: Any) -> tuple[Any, Any, Self, Self] | None:
        """(Rows, shares of the way, the next smaller size, the next larger) where a time runs straight.

        `asked`: which rows count, bool, [rows]. None: there are none.
        """
        return None

    def instead(self) -> Self | None:
        """What a program may run in its place, where that is faster; None: nothing."""
        return None

    def bound_s(self, hardware: Hardware) -> Any:
        """Seconds at the device's peaks of what neither memory nor FLOP bounds; None: they bound it."""
        return None

    @classmethod
    def alike_by(cls, hardware: Hardware, dtype: str) -> float | None:
        """By what devices run the kind alike: FLOP that a core multiplies in a cycle; None: by nothing."""
        known = cls.multiplies and dtype in hardware.peak_flops_per_s
        return hardware.width(dtype) if known else None

    def bound_by(self, hardware: Hardware) -> str:
        """The part of the device that bounds it instead, as text; "" where `bound_s` is None."""
        return ""

    @property
    def itemsize(self) -> int:
        """Bytes per element of `dtype`; a fraction where that has less than 8 bits."""
        size: int = by_dtype(self.dtype, lambda name: DTYPES[name].itemsize)
        return size

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type as torch names it."""
        return torch_dtype(self.dtype)

    def tensor(self, *shape: int, device: torch.device) -> Tensor:
        """Random normal numbers of the layer's dtype; integers are 1 or 2, booleans true.

        Raises DatasetError where torch has no tensors of it.
        """
        if self.dtype in FLOATING:
            return torch.randn(shape, device=device, dtype=torch.float32).to(self.torch_dtype)
        if self.torch_dtype.is_complex:
            return torch.randn(shape, device=device, dtype=self.torch_dtype)
        # without zeros: an integer division by one traps
        return torch.randint(1, 3, shape, device=device).to(self.torch_dtype)

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Column names of the kind, `dtype`, `phase` and `recurs` first."""
        return tuple(_declared(cls))

    @classmethod
    def plain_dimensions(cls) -> tuple[str, ...]:
        """The fields that are sizes, which the numbers that share a scale are not."""
        sizes = (name for name, f in _declared(cls).items() if f.type == "int")
        return tuple(name for name in sizes if not name.endswith("_group"))

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Columns that a table may leave out, with the value they then have."""
        return {name: f.default for name, f in _declared(cls).items() if f.default is not dataclasses.MISSING}

    def to_row(self) -> dict[str, Any]:
        """The fields as a table's row."""
        return {name: getattr(self, name) for name in self.field_names()}

    def identity(self) -> dict[str, Any]:
        """The key of its configuration's name: kind and fields, without later ones that are 0."""
        later = later_fields(self)
        return {"kind": self.kind, **{n: v for n, v in self.to_row().items() if v or n not in later}}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The layer of a row; raises DatasetError where a field is missing or invalid."""
        values: dict[str, Any] = {}
        for name, f in _declared(cls).items():
            value = row.get(name)
            if value is None or value != value:
                if f.default is dataclasses.MISSING:
                    needed = ", ".join(cls.field_names())
                    raise DatasetError(f"{cls.kind}: no value for {name!r}; it needs {needed}")
                value = f.default
            values[name] = _as_field(cls.kind, name, f.type, value)
        for name, known in _words(cls).items():
            if values[name] not in known:
                raise unknown(f"{name} of {cls.kind}", values[name], known, DatasetError)
        layer = cls(**values)
        with contextlib.suppress(ZeroDivisionError):
            if layer.possible():
                return layer
        raise DatasetError(f"{cls.kind}: its fields contradict each other; {cls.rule}")


L = TypeVar("L", bound=Layer)


def plain_group(group: str) -> str:
    """The group without the words for calls that are quantised or recur."""
    return FORMAT.sub("", group.removesuffix(f" {RECURRING}"))


def measured_phase(phase: Any) -> Any:
    """The phase as which calls are measured: what makes a gradient is measured as a forward pass."""
    if isinstance(phase, str):
        return FORWARD if phase == GRADIENT else phase
    return np.where(phase == GRADIENT, FORWARD, phase)


def later_fields(layer: Layer) -> frozenset[str]:
    """Fields that older datasets have no column for."""
    return layer.later | {"recurs"}


@functools.cache
def _declared(kind: type[Layer]) -> Mapping[str, dataclasses.Field[Any]]:
    """A kind's fields by name, `dtype`, `phase` and `recurs` first."""
    return {f.name: f for f in dataclasses.fields(kind)}


@functools.cache
def _words(kind: type[Layer]) -> Mapping[str, Collection[str]]:
    """Allowed values of a kind's text fields."""
    phase = str(_declared(kind)["phase"].default)
    phases = (FORWARD, BACKWARD, GRADIENT) if phase == FORWARD else (phase,)
    return {**dtype_words(kind), "phase": phases, **kind.words}


@functools.cache
def dtype_words(kind: type[Layer]) -> Mapping[str, Collection[str]]:
    """Allowed values of a kind's type fields; "" stands for that of `dtype`."""
    own = {name: frozenset(("", *DTYPES)) for name in _declared(kind) if name.endswith("_dtype")}
    return {"dtype": DTYPES, **own}


def _as_field(kind: str, name: str, declared: Any, value: Any) -> Any:
    """`value` as the field's declared type ("str", "bool" or "int"); raises DatasetError."""
    if declared == "str":
        return str(value).removeprefix("torch.")  # a dtype as torch prints it
    if type(value).__name__ == declared and (declared != "int" or 0 <= value <= LARGEST):
        return value
    if isinstance(value, str):
        plain: Any = value.strip().lower().replace("true", "1").replace("false", "0")
    else:
        plain = value
    try:
        number = float(plain)
    except (TypeError, ValueError, OverflowError):
        raise DatasetError(f"{kind}: {name} is {value!r}, but must be a number") from None
    if declared == "bool":
        if number not in (0, 1):
            raise DatasetError(f"{kind}: {name} is {value!r}, but must be true or false")
        return bool(number)
    if not number.is_integer() or not 0 <= number <= LARGEST:
        raise DatasetError(f"{kind}: {name} is {value!r}, but must be a whole number from 0 to {LARGEST}")
    return int(number)


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


def in_tf32(layer: L) -> L:
    """A float32 layer as it is where products are allowed TF32; any other as it was."""
    return typed(layer, TENSORFLOAT32) if layer.dtype == "float32" else layer


def peak_flops(layer: Any, hardware: Hardware) -> Any:
    """FLOP/s of the layer's dtype at best; an array where the layer is a table's columns."""
    return by_dtype(layer.dtype, hardware.peak)


def most_flops(layer: Any, hardware: Hardware) -> Any:
    """FLOP/s that no such layer can exceed: its dtype's own peak, infinite where that is not known."""
    return by_dtype(layer.dtype, lambda dtype: hardware.peak_flops_per_s.get(dtype, math.inf))
