"""What a network is run with: its dtype, and inputs of its own, given ones, or those of a shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch

from neuralpower.ask.spread import Given
from neuralpower.errors import InputError, ModelError, NeuralPowerError
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.inputs.inputs import Inputs, batch_of, called_with, one_shape, with_tensors
from neuralpower.networks.inputs.requests import Asked, asked_of, given_to
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.libraries.callables import as_network
from neuralpower.networks.phases import Phase
from neuralpower.networks.source import Source, brought_inputs
from neuralpower.networks.sources import resolve
from neuralpower.prediction.request import Request
from neuralpower.trace.operators.memory_formats import channels_last

Answer = TypeVar("Answer")


def runs_of(
    source: Source, inputs: Any, request: Request, run: str, *, batch_size: int | None, checked: bool
) -> Asked:
    """The pass or the generation that runs with the caller's inputs; raises InputError and ModelError.

    `batch_size`: the one that the caller names; `checked`: whether floating inputs have to be of the dtype.
    """
    if request.seq_len is not None or request.input_shape is not None:
        both = "sizes and inputs are both given, but inputs have their own sizes"
        raise InputError(f"{both}; leave one of them out")
    if request.passed != Phase():
        both = f"inputs and the phase {request.passed.name} are both given"
        raise InputError(f"{both}, and it makes its own inputs; leave one out")
    whole, sharding = one_shape(inputs), request.sharding(run)
    if whole is None and sharding.needed:
        raise InputError(
            "inputs and a layout with tensor or expert ranks are both given; a rank makes its own inputs: "
            "give a shape, or sizes"
        )
    if whole is None:
        inputs = called_with(with_tensors(inputs, torch_dtype(request.dtype)))
        inputs = inputs if request.memory_format is None else inputs.mapped(channels_last)
        return given_to(source, inputs, request.dtype, batch_size, checked=checked)
    batch, *sample = whole
    if batch_size not in (None, batch):
        raise InputError(
            f"shape {whole} begins with a batch of {batch}, and batch_size is {batch_size}; "
            "leave batch_size out"
        )
    dtype = torch_dtype(request.dtype)
    if not sample:
        return given_to(source, torch.ones(whole, dtype=dtype), request.dtype, batch, checked=checked)

    def passed(sizes: InputRequest) -> Asked:
        return asked_of(source, replace(sizes, labels=request.trains), Phase(), sharding=sharding)

    return first_accepted(whole, dtype, passed)


def with_inputs(model: Any, options: Given) -> tuple[Any, Given]:
    """The network with the inputs of the options, and the sizes that they say; raises InputError.

    Their batch can change: tensors with the first one's number of rows repeat or drop rows.
    """
    network, inputs = as_network(model), options.get("inputs")
    options = {name: value for name, value in options.items() if name != "inputs"}
    if inputs is None:
        return network, options
    if options.get("seq_len") is not None or options.get("input_shape") is not None:
        raise InputError("sizes and inputs are both given, but inputs have their own sizes; leave one out")
    if (whole := one_shape(inputs)) is not None:
        return network, {"batch_size": whole[0], **options, "input_shape": whole[1:] or None}
    if isinstance(inputs, str):
        rule = "must be a shape, batch first, such as (8, 3, 224, 224), or tensors"
        raise InputError(f"inputs {inputs!r} {rule}")

    def made(_: torch.nn.Module, request: InputRequest) -> Inputs:
        own = called_with(with_tensors(inputs, request.dtype))
        return replace(brought_inputs(source.name, own, request), note="")

    source = resolve(network)
    given = called_with(with_tensors(inputs, torch.float32))
    return replace(source, examples=made), {"batch_size": batch_of(given) or 1, **options}


@contextlib.contextmanager
def explained(inputs: Any, other: Callable[[tuple[int, ...]], object]) -> Iterator[None]:
    """Explain how a shape was read, if a model does not run with it, and runs with a batch of one.

    `other` predicts the model with another shape.
    """
    try:
        yield
    except ModelError as error:
        whole = one_shape(inputs)
        if whole is None:
            raise
        try:
            other((1, *whole))
        except NeuralPowerError:
            raise error from error.__cause__
        read = f"shape {whole} is a batch of {whole[0]}; for one sample of it write {(1, *whole)}"
        raise ModelError(f"{read}: {error}") from error


def first_accepted(
    whole: tuple[int, ...], dtype: torch.dtype, take: Callable[[InputRequest], Answer]
) -> Answer:
    """The result of `take` for a tensor of that shape, or for tokens if a model reads (samples, tokens)."""
    batch, *sample = whole
    try:
        return take(InputRequest(batch, None, tuple(sample) or None, dtype))
    except ModelError:
        raise
    except InputError:
        if len(sample) != 1:
            raise
        return take(InputRequest(batch, sample[0], None, dtype))
