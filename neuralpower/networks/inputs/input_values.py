"""Values of inputs that a user's code makes together with its network, whose weights must take no memory.

A function returns a network and its inputs from one call, which runs under `torch.device("meta")`: the inputs
then have shapes and no values. They promise the values of a second call, made once a trace asks for a number.
For it a small network is simply built on the CPU, so that random inputs are those of a real run; a larger one
gets no memory for its weights.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.inputs import Inputs, called_with
from neuralpower.networks.inputs.known_values import (
    HELD_BYTES,
    WHOLE_BYTES,
    promise,
    promised,
    say_made_up,
)
from neuralpower.networks.running import name_of, own_randomness

EMPTY = ("aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided")
WITHOUT = "given as memory that nothing was written to, such as torch.empty"
# modules between a user and an operator
MACHINERY = ("torch._", "torch.utils._", "torch.overrides", "torch.functional", __name__)


def with_values_of(inputs: Inputs, again: Callable[[], Any], weight_bytes: int) -> Inputs:
    """Inputs that came with a network: their tensors on meta promise the values of a second call off meta.

    Args:
        inputs: the call that came with the network.
        again: makes them once more; returns the call alone.
        weight_bytes: size of the network.
    """
    tensors = inputs.tensors
    found = functools.cache(lambda: _values(tensors, again, weight_bytes))
    for place, tensor in enumerate(tensors):
        if tensor.is_meta and promised(tensor) is None:
            promise(tensor, functools.partial(lambda at: found()[at], place))
    return inputs


def _values(tensors: list[Tensor], again: Callable[[], Any], weight_bytes: int) -> list[Tensor]:
    """Each tensor with values, from the first way to call `again` that works; else made up, saying why."""
    ways: tuple[Callable[[], AbstractContextManager[None]], ...]
    ways = (nullcontext, weightless) if weight_bytes <= WHOLE_BYTES else (weightless,)
    why = ""
    for way in ways:
        try:
            with own_randomness(), torch.device("cpu"), way(), written() as memory:
                torch.manual_seed(0)
                found = memory.marked(called_with(again())).tensors
        except Exception as error:
            why = f"given, but without a device's memory its function raises {quoted(error)[:120]}"
            continue
        if [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in tensors]:
            return _held(found)
        why = "given, but with other shapes at each call of its function"
    return [drawn(tensor, why) for tensor in tensors]


def _held(tensors: list[Tensor]) -> list[Tensor]:
    """The smallest of them with their values, up to HELD_BYTES together, the others with made-up ones."""
    left, held = HELD_BYTES, list(tensors)
    for place, tensor in sorted(enumerate(tensors), key=lambda numbered: numbered[1].nbytes):
        left -= tensor.nbytes
        if left < 0 or tensor.is_meta:
            held[place] = drawn(tensor, f"given, but beyond the {HELD_BYTES / 2**20:.0f} MiB that are kept")
    return held


def drawn(tensor: Tensor, why: str) -> Tensor:
    """One of that shape with made-up values: normal floats, ones for other types."""
    if tensor.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor.dtype)
    else:
        values = torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")
    return say_made_up(values, why)


@contextmanager
def weightless() -> Iterator[None]:
    """Put weights of networks made within on meta, and all that is too large for inputs; keep others real.

    What torch.nn makes is on meta at once, a user's own parameter as soon as a module gets it.
    """
    moved = WeakTensorKeyDictionary()  # one that two modules share stays one

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        if parameter not in moved:
            meta = parameter.detach().to("meta")
            moved[parameter] = nn.Parameter(meta, requires_grad=parameter.requires_grad)
        return moved[parameter]  # type: ignore[no-any-return]

    # torch takes what the hook returns, though its type does not say so
    with register_module_parameter_registration_hook(to_meta), _Weightless():  # type: ignore[arg-type]
        yield


class _Weightless(TorchFunctionMode):
    """Gives a device to what makes a tensor and names none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _device_constructors() or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        meta = {**kwargs, "device": "meta"}
        if _of_torch(sys._getframe(1)):
            return func(*args, **meta)
        try:
            size = func(*args, **meta).nbytes
        except Exception:  # it has none on meta
            size = 0
        return func(*args, **(meta if size > HELD_BYTES else {**kwargs, "device": "cpu"}))


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
    """Fills empty memory, up to HELD_BYTES together, with normal floats, and with ones for other types."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._left = HELD_BYTES
        self._filled: dict[int, Tensor] = {}  # by storage, whose identity lasts as long as the tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if getattr(getattr(func, "_schema", None), "is_mutable", False):
            for tensor in tensors_in((args, kwargs)):
                self._filled.pop(tensor.untyped_storage()._cdata, None)
        if name_of(func) in EMPTY and output.device.type == "cpu" and not _of_torch(sys._getframe(1)):
            self._left -= output.nbytes
            if self._left >= 0:
                output.copy_(drawn(output, WITHOUT))
                self._filled[output.untyped_storage()._cdata] = output
        return output

    def marked(self, inputs: Inputs) -> Inputs:
        """`inputs`; tensors in memory that nothing was written to say so."""
        for tensor in inputs.tensors:
            if tensor.untyped_storage()._cdata in self._filled:
                say_made_up(tensor, WITHOUT)
        return inputs
