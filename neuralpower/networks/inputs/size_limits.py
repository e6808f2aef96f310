"""The sizes that a user requests, and how large a network may become while it is built.

Modules are counted as they are made, numbers as they become parameters or buffers, however a network is
built. On the CPU numbers take memory, which is bounded; on the meta device modules alone do.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neuralpower.devices.machine import available_bytes
from neuralpower.errors import BoundError, InputError, is_count, said
from neuralpower.late import Tensor, nn, torch
from neuralpower.networks.diffusion.pictures import NOTHING, PictureRequest

# The requested sizes of a network's inputs.

TOKENS = 128  # default text length, clipped to the model's maximum


@dataclass(frozen=True)
class InputRequest:
    """The requested sizes of inputs; `None` leaves one to the model.

    `seq_len` counts tokens of text (128, or the model's maximum if that is less) or frames of audio (one
    second); `input_shape` is without the batch; `dtype` is that of the floating inputs; `labels` asks for
    what the own loss of a network of transformers compares with, for a training step.
    """

    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: torch.dtype = field(default_factory=lambda: torch.float32)
    labels: bool = False
    picture: PictureRequest | None = None  # of a pipeline of diffusion

    @property
    def asked_picture(self) -> PictureRequest:
        return self.picture or NOTHING

    def check(self) -> None:
        """Raise InputError for a size that is not a positive whole number."""
        check_count("batch_size", self.batch_size)
        check_count("seq_len", self.seq_len)
        shape = self.input_shape
        shaped = isinstance(shape, (tuple, list)) and shape and all(map(is_count, shape))
        if shape is not None and not shaped:
            raise InputError(
                f"input_shape is {shape}, but every size must be a whole number from 1 to 2**53; "
                "give it without the batch, as in 3x224x224"
            )


def check_count(name: str, value: object) -> None:
    """Raise InputError for a number that is neither None nor positive and whole."""
    if value is not None and not is_count(value):
        raise InputError(f"{name} is {value}, but must be a whole number from 1 to 2**53")


# 58 layers of DeepSeek-V3 with 256 experts each, as modules of their own, are 60 thousand modules;
# one takes some 4 kB and 50 us on meta.
MOST_MODULES = 100_000
SET_MODULES = "NEURALPOWER_MOST_MODULES"  # the environment variable that sets another bound
MOST_CALLS = 1_000_000  # of operators in a pass: some minutes of tracing and 1 GB
MOST_NUMBERS = 10**13  # in parameters and buffers: the largest networks that were published have 2e12
# Words in names of configuration fields that count parts made one by one; names with NO_PARTS do not.
LAYERS = ("layer", "block", "depth", "stage")
PARTS = (*LAYERS, "expert", "num_labels", "head")
LEAST = 10  # modules of which a layer is usually made
NO_PARTS = ("size", "dim", "vocab", "token", "offset", "width", "length")


def most(name: str, usual: int) -> int:
    """The bound that the environment variable sets, else the usual; raises InputError."""
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else usual
        if not 1 <= value < float("inf"):
            raise ValueError(text)
    except ValueError:
        raise InputError(
            f"{name} {text!r}: must be a number of 1 or more; leave it out for {usual:g}"
        ) from None
    return int(value)


def check_calls(count: int, bound: int) -> None:
    """Raise BoundError beyond a bound on the operator calls of a pass, as for a loop without end."""
    if count > bound:
        raise BoundError(
            f"a pass calls more than {bound:,} operators; a loop over tokens or "
            "without end? Choose smaller sizes, or set NEURALPOWER_MOST_CALLS to allow more"
        )


def check_room(tensors: Iterable[Tensor]) -> None:
    """Raise BoundError where tensors that are to have values take more memory than is free."""
    room, size = available_bytes(), sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if room is not None and size > room:
        raise BoundError(
            f"it has to be run with values and needs {size / 1e9:.3g} GB, but {room / 1e9:.3g} GB are "
            "free; choose smaller sizes"
        )


def overflows(error: BaseException | None) -> bool:
    """Whether torch refuses a tensor whose size no memory has: on every device it is the same."""
    return isinstance(error, (RuntimeError, OverflowError)) and "overflow" in said(error)


class _Counter:
    """Counts what is registered in modules; raises BoundError beyond a bound."""

    def __init__(self, name: str, room_bytes: int | None) -> None:
        self.name, self.room_bytes = name, room_bytes
        self.most_modules = most(SET_MODULES, MOST_MODULES)
        self.most_numbers = most("NEURALPOWER_MOST_PARAMETERS", MOST_NUMBERS)
        self.modules = self.tensors = self.numbers = self.bytes = 0

    def module(self) -> None:
        self.modules += 1
        if self.modules > self.most_modules:
            self.refuse(f"has more than {self.most_modules:,} modules; choose fewer layers", SET_MODULES)

    def tensor(self, _module: nn.Module, _name: str, tensor: Any) -> None:
        """A module gets a parameter or a buffer."""
        if not isinstance(tensor, Tensor) or nn.parameter.is_lazy(tensor):
            return
        self.tensors += 1
        self.numbers += tensor.numel()
        tensors = LEAST * self.most_modules
        if self.tensors > tensors:
            self.refuse(f"has more than {tensors:,} tensors of parameters; choose fewer layers", SET_MODULES)
        if self.numbers > self.most_numbers:
            what = f"has more than {self.most_numbers:.3g} parameters; choose smaller sizes"
            self.refuse(what, "NEURALPOWER_MOST_PARAMETERS")
        if self.room_bytes is not None and tensor.device.type == "cpu":
            self.bytes += tensor.numel() * tensor.element_size()
            if self.bytes > self.room_bytes:
                raise BoundError(
                    f"{self.name} takes more than the {self.room_bytes / 1e9:.3g} GB of memory that are free "
                    "here, and has to be built with values; choose smaller sizes, or a machine "
                    "with more memory"
                )

    def refuse(self, what: str, variable: str) -> None:
        """Raise BoundError, which names the variable that sets the bound."""
        raise BoundError(f"{self.name} {what}, or set {variable} to allow more")


@contextmanager
def bounded(name: str, device: str, most_bytes: int | None = None) -> Iterator[None]:
    """Raise BoundError as soon as a network built within has too many modules, numbers or CPU bytes.

    CPU bytes are those that are free, or `most_bytes` if these are fewer.
    """
    rooms = [room for room in (available_bytes(), most_bytes) if room is not None and device == "cpu"]
    counter = _Counter(name, min(rooms, default=None))
    make = nn.Module.__init__

    @functools.wraps(make)
    def counted(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        counter.module()
        make(module, *args, **kwargs)

    handles = [
        nn.modules.module.register_module_parameter_registration_hook(counter.tensor),
        nn.modules.module.register_module_buffer_registration_hook(counter.tensor),
    ]
    # torch has a hook only for what is put into a module
    nn.Module.__init__ = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__init__ = make  # type: ignore[method-assign]
        for handle in handles:
            handle.remove()


def check_counts(what: str, values: Mapping[str, Any]) -> None:
    """Raise BoundError for a configuration of more parts than there may be modules, before it is made."""
    modules = most(SET_MODULES, MOST_MODULES)
    for name, value in values.items():
        if isinstance(value, Mapping):
            check_counts(what, value)
        if not _has_one_of(PARTS, name) or _has_one_of(NO_PARTS, name):
            continue
        bound = modules // LEAST if _has_one_of(LAYERS, name) else modules
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(number, int) and number > bound:
                raise BoundError(
                    f"{name} {number} of {what}: at most {bound:,} are built, of {modules:,} modules in all; "
                    f"choose fewer, or set {SET_MODULES} to allow more"
                )


def _has_one_of(words: Iterable[str], name: object) -> bool:
    return any(word in str(name) for word in words)
