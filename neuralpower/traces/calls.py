"""The calls of a profiler's trace as layers: each operator is made again on meta tensors, and traced.

A trace is a stranger's: operators are looked up among aten's, those without a tensor are refused, and all
tensors are on the meta device, where they take no memory.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralpower.errors import Unmodelled, quoted
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.tensors import torchs_dtype_name
from neuralpower.networks.running import META
from neuralpower.trace.tracer import trace_call
from neuralpower.traces.events import EXCHANGE, Operator, Ran, Recording, read_recording
from neuralpower.traces.libraries import Recorded, layers_of, table_of

DTYPES: Mapping[str, torch.dtype] = {
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "c10::complex<float>": torch.complex64,
}
"""Types of tensors by the names that the profiler gives them."""
SHORT_NAMES: Mapping[str, torch.dtype] = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2,
    "Long": torch.int64,
    "Int": torch.int32,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
"""The same by the names that exchanges between devices have."""
CODED: Mapping[str, Mapping[str, Any]] = {
    "bool": {"True": True, "False": False},
    "Layout": {"0": torch.strided},
    "MemoryFormat": dict(
        zip(
            "0123",
            (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d),
            strict=True,
        )
    ),
    "ScalarType": {
        "0": torch.uint8,
        "1": torch.int8,
        "2": torch.int16,
        "3": torch.int32,
        "4": torch.int64,
        "5": torch.float16,
        "6": torch.float32,
        "7": torch.float64,
        "11": torch.bool,
        "15": torch.bfloat16,
    },
}
"""Values by the texts that they are recorded as (c10/core/ScalarType.h, MemoryFormat.h), by their type."""
MOST_AXES, MOST_ELEMENTS = 16, 2**40
LISTED = "TensorList"  # whose tensors are recorded without types


ALIKE: Mapping[str, tuple[str, Sequence[int | None]]] = {
    # PyTorch's choices among kernels: the operator that they do the work of, and which inputs it takes
    "_scaled_dot_product_flash_attention": ("scaled_dot_product_attention", (0, 1, 2, None, 3, 4)),
    "_scaled_dot_product_efficient_attention": ("scaled_dot_product_attention", (0, 1, 2, 3, 5, 6)),
    "_scaled_dot_product_cudnn_attention": ("scaled_dot_product_attention", (0, 1, 2, 3, 5, 6)),
}
# kernels of attention that no operator says in one call: backward passes, and what other libraries call
ATTENDS = re.compile(
    "_scaled_dot_product_[a-z]+_attention_backward|_(flash|efficient)_attention_(for|back)ward"
)
FUSED_STEPS: Mapping[str, str] = {f"_fused_{name}_": name for name in ("adam", "adamw", "sgd", "adagrad")}
"""Steps of optimizers in one kernel, and the optimizer."""
ABSENT: Mapping[str, Any] = {"Input type": "", "Input Dims": [], "Input Strides": [], "Concrete Inputs": ""}
MADE = frozenset("arange zeros ones full rand randn randint randperm empty eye linspace".split())
"""Operators that make tensors of numbers alone."""
MOST_REPLAYED = 20_000  # different calls, of some 2 ms each


@dataclass(frozen=True)
class Replay:
    """What a recorded call comes to: its layers, else the bytes of its tensors, and why."""

    layers: tuple[Layer, ...] = ()
    bytes: int = 0  # that operators move which no kind describes
    why: str = ""  # some of it has no layer; "": all has


@dataclass(frozen=True)
class TracedCall:
    """An operator of a trace: its layers, or why there are none, and the time of its kernels."""

    operator: str
    layers: tuple[Layer, ...]
    kernels: int
    device_s: float
    why: str = ""  # it has no layers, or not for all of its work; "": it has


@dataclass(frozen=True)
class TracedCalls:
    """The calls of a trace that ran kernels, and where."""

    device: str
    calls: tuple[TracedCall, ...]
    elsewhere_s: float


def read_calls(path: Path) -> TracedCalls:
    """The calls of a trace in order; raises InputError as `read_recording`."""
    recording = read_recording(path)
    replays = Replays(recording)
    taken, count, bus = ([0.0] * len(recording.operators) for _ in range(3))
    elsewhere_s = 0.0
    for one in recording.ran:
        if one.owner < 0:
            elsewhere_s += one.took / 1e6
            continue
        taken[one.owner] += one.took / 1e6
        count[one.owner] += 1
        bus[one.owner] += one.over_bus
    calls = []
    for i, operator in enumerate(recording.operators):
        replay = replays.of(operator)
        if bus[i]:
            replay = Replay(why="copies between host and device")
        layers = () if replay.why else tuple(by_torch(layer) for layer in replay.layers)
        calls.append(TracedCall(operator.name, layers, int(count[i]), taken[i], replay.why))
    return TracedCalls(recording.device, tuple(calls), elsewhere_s)


class Replays:
    """Recorded calls made again, each distinct one once; past MOST_REPLAYED the others are refused."""

    def __init__(self, recording: Recording) -> None:
        self.usual, self.ranks = _usual(recording.operators), recording.ranks
        self._known: dict[tuple[int, str], Replay] = {}
        self._tables: dict[int, tuple[int, int]] = {}
        for operator in {one.key: one for one in recording.operators if "lookup" in one.name}.values():
            with suppress(ValueError):
                self._tables |= table_of(_tensors(_recorded(operator.inputs, self.usual))) or {}

    def of(self, operator: Operator, kernels: Sequence[Ran] = ()) -> Replay:
        """What a recorded call comes to; `kernels`: what it ran, which may tell sizes."""
        key = operator.key, operator.step
        if key not in self._known:
            if len(self._known) >= MOST_REPLAYED:
                return Replay(why=f"more than {MOST_REPLAYED:,} different calls")
            if operator.of_aten:
                self._known[key] = _replayed(operator.name, operator.inputs, self.usual)
            else:
                self._known[key] = self._of_library(operator, kernels)
        return self._known[key]

    def size(self, operator: Operator) -> int:
        """Bytes of the largest tensor of a call; 0 where none is known."""
        with suppress(ValueError, TypeError):
            return max((t.nbytes for t in _tensors(_recorded(operator.inputs, self.usual))), default=0)
        return 0

    def _of_library(self, operator: Operator, kernels: Sequence[Ran]) -> Replay:
        """A call of another library, by the rules of `libraries`."""
        name, ranks = operator.name, self.ranks
        try:
            tensors = _tensors(_recorded(operator.inputs, self.usual))
            if EXCHANGE in operator.inputs:
                said, sent, received, kind, ranks = operator.inputs[EXCHANGE]
                name, tensors = (
                    f"{name} {said}",
                    [_tensor(SHORT_NAMES[str(kind)], [max(sent, received)], None)],
                )
            texts = [str(one) for one in operator.inputs.get("Concrete Inputs", ())]
            ran = [(one.name, one.grid) for one in kernels]
            layers, why = layers_of(
                Recorded(name, tensors, texts, operator.step, int(ranks), ran, self._tables)
            )
        except Exception as error:  # a trace may say anything of an operator
            return Replay(why=quoted(error))
        return Replay(layers, 0, why)


def _tensors(recorded: Sequence[Any]) -> list[Tensor]:
    """The tensors among what was recorded, those of lists, too."""
    flat = (one for some in recorded for one in (some if isinstance(some, list) else [some]))
    return [one for one in flat if isinstance(one, Tensor)]


def _replayed(name: str, inputs: Mapping[str, Sequence[Any]], usual: torch.dtype) -> Replay:
    alike, kept = ALIKE.get(name, (name, None))
    if kept is not None:
        inputs = {
            one: [values[i] if i is not None and i < len(values) else ABSENT[one] for i in kept]
            for one, values in inputs.items()
        }
    try:
        recorded = _recorded(inputs, usual)
        if name in FUSED_STEPS:
            return Replay((_step(name, recorded),))
        if ATTENDS.fullmatch(name) and (layers := _attention(name, recorded, inputs)):
            return Replay(layers)
        call = _call(alike, recorded)
        if call is None:
            return _by_tensors(name, recorded)
        try:
            traced = trace_call(call)
        except (NotImplementedError, ValueError) as error:
            # the operator needs real tensors, or values that were not recorded, as `clamp` its bounds
            if isinstance(error, ValueError) and inputs.get("Concrete Inputs"):
                raise
            return _by_tensors(name, recorded)
    except Unmodelled as error:
        return Replay(why=str(error))
    except Exception as error:  # an operator refuses what a trace says of its inputs, in any way
        return Replay(why=quoted(error))
    why = traced.unmodelled[0].reason if traced.unmodelled else ""
    return Replay(traced.layers, sum(missing.work_bytes for missing in traced.unmodelled), why)


def _step(name: str, recorded: Sequence[Any]) -> Layer:
    """The step of an optimizer over the first list, its weights; raises Unmodelled without sizes."""
    weights = next((one for one in recorded if isinstance(one, list) and one), None)
    if weights is None:
        raise Unmodelled(f"{name} was recorded without the sizes of its tensors")
    return Optimizer(
        function=FUSED_STEPS[name],
        tensors=len(weights),
        elements=sum(one.numel() for one in weights),
        implementation="fused",
        dtype=torchs_dtype_name(weights[0]),
    )


def _attention(name: str, recorded: Sequence[Any], inputs: Mapping[str, Sequence[Any]]) -> tuple[Layer, ...]:
    """Attention by one of PyTorch's kernels; those behind its one function have heads before lengths."""
    tensors = _tensors(recorded)
    if name.startswith("_scaled"):
        tensors = [one.transpose(1, 2) if one.dim() == 4 else one for one in tensors]
    texts = [str(one) for one in inputs.get("Concrete Inputs", ())]
    return layers_of(Recorded(name, tensors, texts))[0]


def _by_tensors(name: str, recorded: Sequence[Any]) -> Replay:
    """A call whose numbers were not recorded: its tensors in, and the largest of them out."""
    sizes = [one.nbytes for one in _tensors(recorded)]
    if not any(sizes):
        raise Unmodelled(f"{name} was recorded without the sizes of its tensors")
    return Replay((), sum(sizes) + max(sizes), f"{name}: none of its forms takes what was recorded")


def _call(name: str, recorded: Sequence[Any]) -> Callable[[], Any] | None:
    """A call on meta tensors, by the first overload that takes its inputs; None if none does.

    Raises Unmodelled.
    """
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise Unmodelled(f"{name} is not an operator of this version of torch")
    if name not in MADE and not any(isinstance(one, (Tensor, list)) for one in recorded):
        raise Unmodelled(f"{name} was recorded without tensors")
    for overload in packet.overloads():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        operator = getattr(packet, overload)
        arguments = operator._schema.arguments
        more = arguments[len(recorded) :]
        if len(arguments) < len(recorded) or not all(one.has_default_value() for one in more):
            continue
        if _splits(operator._schema):
            raise Unmodelled(f"{name} makes several tensors of one")
        try:
            values = [_value(one, value) for one, value in zip(arguments, recorded, strict=False)]
        except (ValueError, KeyError):
            continue
        if name in MADE:
            _check_made(values)
        both = [*zip(arguments, values, strict=False)]
        named = {one.name: value for one, value in both if one.kwarg_only}
        if name in MADE:
            named["device"] = META
        return functools.partial(operator, *(value for one, value in both if not one.kwarg_only), **named)
    return None


def _check_made(values: Sequence[Any]) -> None:
    """Raise ValueError for sizes that no tensor has."""
    for value in values:
        sizes = value if isinstance(value, list) else [value]
        numbers = [one for one in sizes if isinstance(one, (int, float)) and not isinstance(one, bool)]
        if any(not abs(one) <= MOST_ELEMENTS for one in numbers):
            raise ValueError("sizes that no tensor has")
        if isinstance(value, list) and math.prod(numbers) > MOST_ELEMENTS:
            raise ValueError("sizes that no tensor has")


def _splits(schema: Any) -> bool:
    """Whether an operator makes several tensors of one, perhaps as many as it has elements."""
    lists = ["List[Tensor]" in str(one.type) for one in (*schema.returns, *schema.arguments)]
    return any(lists[: len(schema.returns)]) and not any(lists[len(schema.returns) :])


def _recorded(inputs: Mapping[str, Sequence[Any]], usual: torch.dtype) -> list[Any]:
    """Each input: a tensor, a list of tensors, else the text of a number or a list; raises ValueError."""
    types, sizes = inputs.get("Input type", ()), inputs.get("Input Dims", ())
    steps = inputs.get("Input Strides") or [None] * len(types)
    texts = inputs.get("Concrete Inputs") or [""] * len(types)
    values: list[Any] = []
    for kind, of, by, text in zip(types, sizes, steps, texts, strict=True):
        if kind == LISTED:
            values.append([_tensor(usual, *one) for one in zip(of, by or [None] * len(of), strict=True)])
        else:
            values.append(_tensor(DTYPES[kind], of, by) if kind in DTYPES else str(text))
    return values


def _tensor(dtype: torch.dtype, sizes: Sequence[Any], steps: Sequence[Any] | None) -> Tensor:
    """A tensor without memory; raises ValueError for sizes that none has."""
    whole = all(
        type(one) is int and 0 <= one <= MOST_ELEMENTS for some in (sizes, steps or ()) for one in some
    )
    if not whole or len(sizes) > MOST_AXES or math.prod(sizes) > MOST_ELEMENTS:
        raise ValueError("sizes that no tensor has")
    if steps and len(steps) == len(sizes):
        return torch.empty_strided(sizes, steps, dtype=dtype, device=META)
    return torch.empty(sizes, dtype=dtype, device=META)


def _value(argument: Any, recorded: Any) -> Any:
    """A recorded input as an operator's argument; raises ValueError or KeyError where it is none."""
    sort = str(argument.real_type)
    plain = sort.removeprefix("Optional[").removesuffix("]") if sort.startswith("Optional[") else sort
    if plain == "Device":
        return META
    if recorded == "":
        if plain == sort and not argument.has_default_value():
            raise ValueError("missing")
        return argument.default_value if argument.has_default_value() else None
    if isinstance(recorded, str) == ("Tensor" in plain) or isinstance(recorded, list) != (
        "List" in plain and "Tensor" in plain
    ):
        raise ValueError("a tensor, a list of them or a number in the place of another")
    if not isinstance(recorded, str):
        return recorded
    if plain.startswith("List["):
        items = (part.strip() for part in recorded.strip("[]").split(","))
        return [_number(plain.removeprefix("List[").removesuffix("]"), one) for one in items if one]
    return _number(plain, recorded)


def _number(sort: str, text: str) -> Any:
    """A number of a schema's type; raises ValueError or KeyError."""
    if sort in CODED:
        return CODED[sort][text]
    if sort in ("number", "Scalar") and text in CODED["bool"]:
        return CODED["bool"][text]
    if sort == "str":
        return text
    whole = sort in ("int", "SymInt") or (sort in ("number", "Scalar") and text.lstrip("-").isdigit())
    if not whole and sort not in ("float", "number", "Scalar"):
        raise ValueError(f"an argument of type {sort}")
    return int(text) if whole else float(text)


def _usual(operators: Sequence[Operator]) -> torch.dtype:
    """The type of most floating tensors, which lists are taken to be of."""
    floats = {name for name, dtype in DTYPES.items() if dtype.is_floating_point}
    often = Counter(str(kind) for one in operators for kind in one.inputs.get("Input type", ()))
    return DTYPES[max(floats, key=lambda name: (often[name], name == "float"))]
