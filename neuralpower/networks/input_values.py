"""Values of the inputs that a user's code makes beside its network, whose weights must take no memory.

A function returns a network and its inputs from one call, which runs under `torch.device("meta")`: the inputs have shapes then,
and no values. They promise those of a second call, which is made once a trace asks for a number. A small network is simply
built on the CPU for it, so that random inputs are those of a real run. Of a larger one only what is no weight gets memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from neuralpower.errors import quoted
from neuralpower.networks.inputs import Inputs, called_with
from neuralpower.networks.promised_values import (
    HELD_BYTES,
    WHOLE_BYTES,
    promise,
    promised,
    say_made_up,
    tensors_of,
)
from neuralpower.networks.repeats import tensors_in
from neuralpower.networks.running import name_of, own_randomness

EMPTY = ("aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided")
WITHOUT = "given as memory that nothing was written to, as torch.empty has it"
MACHINERY = (
    "torch._",
    "torch.utils._",
    "torch.overrides",
    "torch.functional",
    __name__,
)  # between a user and an operator


def with_values_of(inputs: Inputs, again: Callable[[], Any], weight_bytes: int) -> Inputs:
    """`inputs`, whose tensors on meta promise the values that they have in what `again` returns off meta.

    Args:
        inputs: that came with a network.
        again: calls what made them once more; returns the call alone.
        weight_bytes: of the network.
    """
    tensors = tensors_of((inputs.args, inputs.kwargs))
    found = functools.cache(lambda: _values(tensors, again, weight_bytes))
    for place, tensor in enumerate(tensors):
        if tensor.is_meta and promised(tensor) is None:
            promise(tensor, functools.partial(lambda at: found()[at], place))
    return inputs


def _values(tensors: list[Tensor], again: Callable[[], Any], weight_bytes: int) -> list[Tensor]:
    """The like of each tensor with values, from the first way to call `again` that works; else made up, saying why."""
    ways = (_whole, weightless) if weight_bytes <= WHOLE_BYTES else (weightless,)
    why = ""
    for way in ways:
        try:
            with own_randomness(), torch.device("cpu"), way(), written() as memory:
                torch.manual_seed(0)
                called = memory.marked(called_with(again()))
                found = tensors_of((called.args, called.kwargs))
        except Exception as error:
            why = f"given, but without a device's memory its function raises {quoted(error)[:120]}"
            continue
        if [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in tensors]:
            return _held(found)
        why = "given, but of other shapes each time that its function is called"
    return [drawn(tensor, why) for tensor in tensors]


def _held(tensors: list[Tensor]) -> list[Tensor]:
    """The smallest of them with their values, up to HELD_BYTES together, the others with made-up ones."""
    left = HELD_BYTES
    held = list(tensors)
    for place in sorted(range(len(tensors)), key=lambda at: tensors[at].nbytes):
        left -= tensors[place].nbytes
        if left < 0 or tensors[place].is_meta:
            held[place] = drawn(
                tensors[place], f"given, but beyond the {HELD_BYTES / 2**20:.0f} MiB that are held"
            )
    return held


def drawn(tensor: Tensor, why: str) -> Tensor:
    """One of that shape with made-up values: normal numbers, ones where these are no floats."""
    if tensor.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor.dtype)
    else:
        values = torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")
    return say_made_up(values, why)


# ---- ways to call a function that makes a network and its inputs ----


@contextmanager
def _whole() -> Iterator[None]:
    """As it is."""
    yield


@contextmanager
def weightless() -> Iterator[None]:
    """Weights of networks that are made within go to meta, and whatever is larger than inputs may be; the rest is real.

    What torch.nn makes is there at once, a user's own parameter as soon as a module gets it.
    """
    moved = WeakTensorKeyDictionary()  # one that two modules share stays one

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        if parameter not in moved:
            moved[parameter] = nn.Parameter(
                parameter.detach().to("meta"), requires_grad=parameter.requires_grad
            )
        same: nn.Parameter = moved[parameter]
        return same

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # what it returns is taken
    try:
        with _Weightless():
            yield
    finally:
        handle.remove()


class _Weightless(TorchFunctionMode):
    """Gives a device to what makes a tensor and names none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of torch."""
        kwargs = kwargs or {}
        if func not in _device_constructors() or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        if _of_torch(sys._getframe(1)):
            return func(*args, **{**kwargs, "device": "meta"})
        try:
            size = func(*args, **{**kwargs, "device": "meta"}).nbytes
        except Exception:  # it has none on meta
            size = 0
        return func(*args, **{**kwargs, "device": "meta" if size > HELD_BYTES else "cpu"})


def _of_torch(frame: FrameType | None) -> bool:
    """Whether a layer of torch makes this tensor, rather than a user."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(MACHINERY):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.nn.")


@contextmanager
def written() -> Iterator[Written]:
    """Memory that a user's code takes within without writing to it holds numbers, not what was there before.

    An example is often `torch.empty`, or `torch.Tensor` of sizes.
    """
    mode = Written()
    with mode:
        yield mode


class Written(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Fills what is empty, up to HELD_BYTES together, with normal numbers, or ones where these are no floats."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._left = HELD_BYTES
        self._filled: dict[int, Tensor] = {}  # by storage, whose identity lasts as long as the tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        output = func(*args, **(kwargs or {}))
        if getattr(getattr(func, "_schema", None), "is_mutable", False):
            for tensor in tensors_in((args, kwargs)):
                self._filled.pop(tensor.untyped_storage()._cdata, None)
        if name_of(func) in EMPTY and output.device.type == "cpu" and not _of_torch(sys._getframe(1)):
            self._fill(output)
        return output

    def _fill(self, tensor: Tensor) -> None:
        self._left -= tensor.nbytes
        if self._left >= 0:
            tensor.copy_(drawn(tensor, WITHOUT))
            self._filled[tensor.untyped_storage()._cdata] = tensor

    def marked(self, inputs: Inputs) -> Inputs:
        """`inputs`, of which those that nothing was written to say so."""
        for tensor in tensors_of((inputs.args, inputs.kwargs)):
            if tensor.untyped_storage()._cdata in self._filled:
                say_made_up(tensor, WITHOUT)
        return inputs
