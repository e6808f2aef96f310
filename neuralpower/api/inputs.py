"""What a network is run with: its dtype, and inputs of its own, given ones, or those of a shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from neuralpower.api.options import PredictOptions
from neuralpower.dtypes import full_name
from neuralpower.errors import InputError, ModelError, NeuralPowerError
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.given_shapes import one_shape, with_tensors
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.requests import Asked, asked_of, given_to
from neuralpower.networks.sharding import Sharding
from neuralpower.networks.source import Source
from neuralpower.networks.sources import published_dtype

Answer = TypeVar("Answer")


def named_dtype(dtype: str | torch.dtype) -> str:
    """The full name of a dtype: "bfloat16" for "bf16" and torch.bfloat16."""
    return full_name(str(dtype).removeprefix("torch."))


def dtype_of(model: Any) -> str:
    """The dtype of a module's weights, or in which a model was published, or float32; raises ModelError."""
    return published_dtype(model) or "float32"


@dataclass(frozen=True)
class Sizes:
    """The request for a model's inputs."""

    batch_size: int | None
    dtype: str
    checked: bool  # whether the caller named the dtype
    phase: Phase
    options: PredictOptions
    sharding: Sharding | None = None
    labels: bool = False  # whether a training step needs them


def runs_of(source: Source, inputs: Any, sizes: Sizes) -> Asked:
    """The pass or the generation that runs; raises InputError and ModelError."""
    seq_len, shape = sizes.options.get("seq_len"), sizes.options.get("input_shape")
    if inputs is None:
        shape = tuple(shape) if isinstance(shape, Iterable) else shape
        dtype, batch = torch_dtype(sizes.dtype), int(sizes.batch_size or 1)
        request = InputRequest(batch, seq_len, shape, dtype, sizes.labels)
        own = sizes.batch_size is None
        return asked_of(source, request, sizes.phase, own_batch=own, sharding=sizes.sharding)
    if seq_len is not None or shape is not None:
        both = "sizes and inputs are both given, but inputs have their own sizes"
        raise InputError(f"{both}; leave one of them out")
    if sizes.phase != Phase():
        both = f"inputs and the phase {sizes.phase.name} are both given"
        raise InputError(f"{both}, and it makes its own inputs; leave one out")
    whole = one_shape(inputs)
    if whole is not None:
        return _of_shape(source, whole, sizes)
    if sizes.sharding is not None and sizes.sharding.needed:
        raise InputError(
            "inputs and a layout with tensor or expert ranks are both given; a rank makes its own inputs: "
            "give a shape, or sizes"
        )
    inputs = with_tensors(inputs, torch_dtype(sizes.dtype))
    return given_to(source, inputs, sizes.dtype, sizes.batch_size, checked=sizes.checked)


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


def _of_shape(source: Source, whole: tuple[int, ...], sizes: Sizes) -> Asked:
    """The pass over one tensor of a shape; for a language model (samples, tokens). Raises InputError."""
    batch, *sample = whole
    if sizes.batch_size not in (None, batch):
        raise InputError(
            f"shape {whole} begins with a batch of {batch}, and batch_size is {sizes.batch_size}; "
            "leave batch_size out"
        )
    dtype = torch_dtype(sizes.dtype)
    if not sample:
        tensor = torch.ones(whole, dtype=dtype)
        return given_to(source, tensor, sizes.dtype, batch, checked=sizes.checked)

    def passed(request: InputRequest) -> Asked:
        request = replace(request, labels=sizes.labels)
        return asked_of(source, request, sizes.phase, sharding=sizes.sharding)

    return first_accepted(whole, dtype, passed)


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
