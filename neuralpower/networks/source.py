"""A network's source: how it and its inputs are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError, UsersError
from neuralpower.layers.call import Call
from neuralpower.networks.copies import in_dtype
from neuralpower.networks.inputs import (
    InputRequest,
    Inputs,
    batch_of,
    in_batches,
    place,
    shaped_inputs,
)
from neuralpower.networks.promised_values import promise, promised, with_values, without_values
from neuralpower.networks.running import own_randomness
from neuralpower.networks.size_limits import bounded, overflows
from neuralpower.networks.users_code import check_computed, check_plain, users_code

AT_A_PROMPT = (  # what to give for a network that does not say what its inputs look like
    "--input-shape (without the batch, as in 3x224x224), or an example_inputs(batch_size) function beside the model's"
)
IN_PYTHON = "inputs, or an input_shape (without the batch, as in (3, 224, 224))"


@dataclass(frozen=True)
class Source:
    """Where a model and its inputs come from.

    `construct` makes the module on torch's current default device, in the given floating dtype; `examples` makes the
    inputs of a module for a request, on the CPU.
    """

    name: str
    construct: Callable[[torch.dtype], nn.Module]
    examples: Callable[[nn.Module, InputRequest], Inputs]
    has_values: bool = True  # whether what it builds on the CPU says what buffers on meta hold
    brings: Callable[[nn.Module], Inputs | None] | None = (
        None  # the inputs that come with a module that it built
    )

    def build(self, device: str = "meta", dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model in eval mode with seeded random weights; raises ModelError.

        A constructor that needs values (`.item()`) cannot run on meta: its model then comes back on the CPU. A model's
        buffers on meta promise the values that they are built with.
        """
        try:
            with users_code(f"{self.name} cannot be built"), bounded(self.name, torch.device(device).type):
                return self._promising(self._construct(device, dtype), dtype)
        except UsersError as error:
            if torch.device(device).type != "meta" or _is_final(error.error):
                raise
            return self.build("cpu", dtype)

    def inputs(self, model: nn.Module, request: InputRequest | None = None, device: str = "cpu") -> Inputs:
        """Seeded random inputs on `device`, which on meta promise their values; raises InputError or ModelError."""
        request = request or InputRequest()
        request.check()
        make = partial(self._made, model, request)
        with own_randomness():
            return Inputs(*(without_values(make) if torch.device(device).type == "meta" else make(device)))

    def _made(self, model: nn.Module, request: InputRequest, device: str) -> tuple[Any, Any, str]:
        """(positions, keywords, note) of a call; raises InputError or ModelError."""
        what = f"inputs of {self.name} cannot be made for batch size {request.batch_size}"
        with users_code(
            what, "ask for other sizes, or give inputs of your own in Python: predict(model, inputs)"
        ):
            made = place(self.examples(model, request), device, request.dtype)
        return made.args, made.kwargs, made.note

    def batch_size(self, asked: int | None, shape: Sequence[int] | None = None) -> int:
        """What is asked for, else that of the inputs that come with the network, else 1; raises as `build`."""
        if asked is not None or shape is not None or self.brings is None:
            return 1 if asked is None else asked
        model = self.build()
        with users_code(f"the inputs of {self.name} cannot be read"):
            inputs = self.brings(model)
        return (batch_of(inputs) or 1) if inputs is not None else 1

    def call(self, request: InputRequest, device: str = "cpu") -> Call:
        """The network with random weights and inputs, ready to be timed."""
        module = self.build(device, request.dtype)
        inputs = self.inputs(module, request, device=device)
        tensors = tuple(v for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, torch.Tensor))
        return Call(module, tuple(inputs.args), dict(inputs.kwargs), warm=tensors, recurs=True)

    def _promising(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """`model`; where a run asks for the values of its buffers on meta, it is built once more, on the CPU."""
        if not self.has_values:
            return model
        real = functools.cache(lambda: dict(self.build("cpu", dtype).named_buffers()))

        def bind(name: str, buffer: Tensor) -> None:
            if buffer.is_meta and promised(buffer) is None:
                promise(buffer, lambda: real()[name])

        for name, buffer in model.named_buffers():
            bind(name, buffer)
        return model

    def _construct(self, device: str, dtype: torch.dtype) -> nn.Module:
        with own_randomness(), torch.device(device):
            torch.manual_seed(0)
            model = self.construct(dtype)
        check_plain(model.forward, f"the forward of {type(model).__name__}")
        return _evaluating(model)


def _is_final(error: BaseException | None) -> bool:
    """Whether a constructor that failed on meta fails on the CPU, too: a package is missing, a size is past all memory."""
    return (
        overflows(error)
        or isinstance(error, (ImportError, RecursionError))
        or not isinstance(error, Exception)
    )


def _evaluating(model: nn.Module) -> nn.Module:
    """`model` in eval mode; an exported module keeps the mode it was exported in."""
    with suppress(NotImplementedError):
        model.eval()
    return model


def by_shape(
    name: str,
    model: nn.Module,
    request: InputRequest,
    natural: tuple[int, ...] | None = None,
    way_out: str = AT_A_PROMPT,
) -> Inputs:
    """Inputs from the shape that was asked for, else from `natural`; raises ModelError, with a way out, where there is none."""
    shape = request.input_shape
    if request.seq_len is not None:
        shape = _with_length(name, request.seq_len, shape or natural)
    shape = shape or natural
    if shape is None:
        raise ModelError(f"{name} does not say what its inputs look like; give {way_out}")
    return shaped_inputs(model, request, shape)


def _with_length(name: str, seq_len: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """`shape` with its first size, the steps of a sequence, set to `seq_len`."""
    if shape is not None and len(shape) > 2:
        raise InputError(
            f"seq_len is {seq_len}, but the inputs of {name} are {shape} without steps; leave seq_len out"
        )
    return (seq_len, *(shape or ())[1:])


def checked_module(value: Any, text: str, dtype: torch.dtype) -> nn.Module:
    """`value`, which has to be a module, with floating weights in `dtype`; complex ones stay as they are."""
    if isinstance(value, nn.Module):
        value._apply(partial(in_dtype, dtype=dtype))  # type: ignore[no-untyped-call]  # `to` makes complex weights real
        return value
    check_computed(value, text)
    raise ModelError(
        f"{text} gives a {type(value).__name__}; it has to return an nn.Module or (module, inputs)"
    )


def of_its_own(name: str, own: Inputs, request: InputRequest) -> Inputs:
    """The inputs that came with a network, in the batch that is asked for; raises InputError for a length."""
    if request.seq_len is not None:
        raise InputError(
            f"seq_len is {request.seq_len}, but {name} brings its inputs; leave seq_len out, or let it return the module "
            "alone, with an example_inputs(batch_size, seq_len) beside it"
        )
    shapes_only = torch.get_default_device().type == "meta"
    return in_batches(own if shapes_only else own.mapped(with_values), request.batch_size)
