"""The calls of a profiler's trace as layers: each operator is made again on meta tensors, and traced.

A trace is a stranger's: operators are looked up among aten's, those without a tensor are refused, and all
tensors are on the meta device, where they take no memory.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralpower.errors import Unmodelled, quoted
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.networks.running import META
from neuralpower.trace.tracer import trace_call
from neuralpower.traces.events import OVER_BUS, Events, read_events

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


@dataclass(frozen=True)
class TracedCall:
    """An operator of a trace: its layers, or why there are none, and the time of its kernels."""

    operator: str
    layers: tuple[Layer, ...]
    kernels: int
    device_s: float
    why: str = ""  # it cannot be priced; "": it can


@dataclass(frozen=True)
class TracedCalls:
    """The calls of a trace that ran kernels, and where."""

    device: str
    calls: tuple[TracedCall, ...]
    elsewhere_s: float


def read_calls(path: Path) -> TracedCalls:
    """The calls of a trace in order; raises InputError as `read_events`."""
    events = read_events(path)
    usual = _usual(events)
    known: dict[tuple[str, str], tuple[tuple[Layer, ...], str]] = {}
    calls = []
    for one in (operator for operator in events.operators if operator.kernels):
        key = one.name, repr(one.inputs)
        if key not in known:
            known[key] = _layers(one.name, one.inputs, usual)
        layers, why = known[key]
        if any(word in kernel for kernel in one.kernels for word in OVER_BUS):
            layers, why = (), "copies between host and device"
        calls.append(TracedCall(one.name, layers, len(one.kernels), one.device_s, why))
    return TracedCalls(events.device, tuple(calls), events.elsewhere_s)


def _layers(
    name: str, inputs: Mapping[str, Sequence[Any]], usual: torch.dtype
) -> tuple[tuple[Layer, ...], str]:
    """(layers that a recorded call makes, "" or why it cannot be priced)."""
    try:
        call = _call(name, inputs, usual)
        found = trace_call(call)
    except Unmodelled as error:
        return (), str(error)
    except Exception as error:  # an operator refuses what a trace says of its inputs, in any way
        return (), quoted(error)
    if found.unmodelled:
        return (), found.unmodelled[0].reason
    return tuple(by_torch(layer) for layer in found.layers), ""


def _call(name: str, inputs: Mapping[str, Sequence[Any]], usual: torch.dtype) -> Callable[[], Any]:
    """A recorded call on meta tensors, by the first overload that takes its inputs; raises Unmodelled."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise Unmodelled(f"{name} is not an operator of this version of torch")
    recorded = _recorded(inputs, usual)
    if not any(isinstance(one, (Tensor, list)) for one in recorded):
        raise Unmodelled(f"{name} was recorded without tensors")
    for overload in packet.overloads():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        operator = getattr(packet, overload)
        arguments = operator._schema.arguments
        if len(arguments) != len(recorded) or _splits(operator._schema):
            continue
        try:
            values = [_value(one, value) for one, value in zip(arguments, recorded, strict=True)]
        except (ValueError, KeyError):
            continue
        both = [*zip(arguments, values, strict=True)]
        named = {one.name: value for one, value in both if one.kwarg_only}
        return functools.partial(operator, *(value for one, value in both if not one.kwarg_only), **named)
    raise Unmodelled(f"{name}: none of its forms takes what was recorded")


def _splits(schema: Any) -> bool:
    """Whether an operator makes several tensors of one, perhaps as many as it has elements."""
    lists = ["List[Tensor]" in str(one.type) for one in (*schema.returns, *schema.arguments)]
    return any(lists[: len(schema.returns)]) and not any(lists[len(schema.returns) :])


def _recorded(inputs: Mapping[str, Sequence[Any]], usual: torch.dtype) -> list[Any]:
    """Each input: a tensor, a list of tensors, else the text of a number or a list; raises ValueError."""
    types, sizes = inputs.get("Input type", ()), inputs.get("Input Dims", ())
    steps = inputs.get("Input Strides") or [None] * len(types)
    texts = inputs.get("Concrete Inputs") or [""] * len(types)
    found: list[Any] = []
    for kind, of, by, text in zip(types, sizes, steps, texts, strict=True):
        if kind == LISTED:
            found.append([_tensor(usual, *one) for one in zip(of, by or [None] * len(of), strict=True)])
        else:
            found.append(_tensor(DTYPES[kind], of, by) if kind in DTYPES else str(text))
    return found


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
    whole = sort in ("int", "SymInt") or (sort in ("number", "Scalar") and text.lstrip("-").isdigit())
    if not whole and sort not in ("float", "number", "Scalar"):
        raise ValueError(f"an argument of type {sort}")
    return int(text) if whole else float(text)


def _usual(events: Events) -> torch.dtype:
    """The type of most floating tensors, which lists are taken to be of."""
    floats = {name for name, dtype in DTYPES.items() if dtype.is_floating_point}
    often = Counter(str(kind) for one in events.operators for kind in one.inputs.get("Input type", ()))
    return DTYPES[max(floats, key=lambda name: (often[name], name == "float"))]
