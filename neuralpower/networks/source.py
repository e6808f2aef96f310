"""A network's source: how it and its inputs are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralpower.errors import BoundError, InputError, ModelError, UsersError, said
from neuralpower.files.stages import stage
from neuralpower.layers.base import Call
from neuralpower.networks.copies import main_dtype, retyped
from neuralpower.networks.inputs.inputs import Inputs, batch_of, in_batches, place, shaped_inputs
from neuralpower.networks.inputs.known_values import (
    promise,
    promised,
    with_values,
    without_data,
    without_values,
)
from neuralpower.networks.inputs.size_limits import InputRequest, bounded, overflows
from neuralpower.networks.refusals import all_inputs
from neuralpower.networks.running import own_randomness
from neuralpower.networks.users_code import check_computed, check_plain, users_code
from neuralpower.quantisation.schemes import Scheme

# what to give for a network that does not say what its inputs look like
AT_A_PROMPT = (
    "--input-shape (without the batch, as in 3x224x224), "
    "or an example_inputs(batch_size) function in the model's file"
)
IN_PYTHON = "inputs, or an input_shape (without the batch, as in (3, 224, 224))"


IMAGE = 3  # sizes of a picture: channels, height, width
WANTS_VALUES = ("meta", "Meta", "data pointer", "storage")  # words of torch's errors where a tensor has none
MOST_UNASKED_BYTES = 2**30  # built with values where no error says that values are missing: some seconds


@dataclass(frozen=True)
class Source:
    """Where a model and its inputs come from.

    `construct` makes the module on torch's current default device, in the given floating dtype; `examples`
    makes the inputs of a module for a request, on the CPU.
    """

    name: str
    construct: Callable[[torch.dtype], nn.Module]
    examples: Callable[[nn.Module, InputRequest], Inputs]
    has_values: bool = True  # whether a build on the CPU has the values of buffers on meta
    # the inputs that come with a module that it built
    brings: Callable[[nn.Module], Inputs | None] | None = None
    weights: Scheme | None = None  # how a checkpoint's weights are quantised; a module is built without that
    untyped: Callable[[], nn.Module] | None = None  # makes a module whose types are not known before
    pictures: bool = False  # whether it has a resolution, as pipelines of diffusion and their parts do
    # of a pipeline: itself with (a given ControlNet, whether the usual one, whether an IP-adapter)
    steered: Callable[[Source | None, bool, bool], Source] | None = None

    def build(self, device: str = "meta", dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model in eval mode with seeded random weights; raises ModelError, also for quantised weights.

        These are described on meta alone. A constructor that needs values (`.item()`) cannot run on meta: its
        model then comes back on the CPU.
        A model's buffers on meta promise the values that they are built with.
        """
        if self.weights is not None and torch.device(device).type != "meta":
            raise ModelError(
                f"the weights of {self.name} are quantized ({self.weights.name}), and such products are "
                "predicted but not run; MODEL?quantization_config=null runs them in --dtype"
            )
        return self._built(device, dtype)

    def _built(self, device: str, dtype: torch.dtype, most_bytes: int | None = None) -> nn.Module:
        """The model, with at most `most_bytes` of values; raises UsersError, BoundError."""
        kind = torch.device(device).type
        try:
            with users_code(f"{self.name} cannot be built"), bounded(self.name, kind, most_bytes):
                return self._promising(self._construct(device, dtype), dtype)
        except UsersError as error:
            if kind != "meta" or _is_final(error.error):
                raise
            return self._built_with_values(dtype, error)

    def _built_with_values(self, dtype: torch.dtype, failed: UsersError) -> nn.Module:
        """The model on the CPU, after it failed on meta; a large one only if it failed for want of values."""
        stage(f"building {self.name} with values")
        wants_values = any(word in said(failed.error) for word in WANTS_VALUES)
        try:
            return self._built("cpu", dtype, None if wants_values else MOST_UNASKED_BYTES)
        except BoundError:
            if wants_values:
                raise
            raise failed from None

    def own_dtype(self) -> torch.dtype | None:
        """The type of most weights that the user's code builds; None where that is not known.

        Raises ModelError.
        """
        if self.untyped is None:
            return None
        own = self.untyped
        return main_dtype(replace(self, construct=lambda dtype: own()).build())

    def inputs(self, model: nn.Module, request: InputRequest | None = None, device: str = "cpu") -> Inputs:
        """Seeded random inputs on `device`; on meta they promise values. Raises InputError or ModelError."""
        request = request or InputRequest()
        request.check()
        if not self.pictures and (given := request.asked_picture.asked):
            option, value = next(iter(given.items()))
            way = "leave it out"
            if option == "resolution":
                width, height = request.asked_picture.resolution or (0, 0)
                value = f"{width}x{height}"
                way = f"its pictures have --input-shape 3x{height}x{width}"
            raise InputError(
                f"--{option.replace('_', '-')} {value}: {self.name} is not a pipeline of diffusion; "
                f"{way}, or take one of `neuralpower models --task image`"
            )
        what = f"inputs of {self.name} cannot be made for batch size {request.batch_size}"
        way_out = "choose other sizes, or give your own inputs in Python: predict(model, inputs)"

        def make(device: str) -> tuple[Any, Any, str, bool, Any]:
            with users_code(what, way_out):
                made = place(self.examples(model, request), device, request.dtype)
            return made.args, made.kwargs, made.note, made.labelled, made.picture

        with own_randomness():
            return Inputs(*(without_values(make) if torch.device(device).type == "meta" else make(device)))

    def batch_size(self, asked: int | None, shape: Sequence[int] | None = None) -> int:
        """The requested batch size, else that of the inputs the network brings, else 1; raises as `build`."""
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
        """`model`; if a run asks for values of its buffers on meta, it is built once more, on the CPU."""

        @functools.cache
        def real() -> dict[str, torch.Tensor]:
            stage(f"building {self.name} with values")
            return dict(self._built("cpu", dtype).named_buffers())

        for name, buffer in model.named_buffers() if self.has_values else ():
            if buffer.is_meta and promised(buffer) is None:
                promise(buffer, partial(lambda name: real()[name], name))
        return model

    def _construct(self, device: str, dtype: torch.dtype) -> nn.Module:
        with own_randomness(), torch.device(device):
            torch.manual_seed(0)
            model = self.construct(dtype)
        check_plain(model.forward, f"the forward of {type(model).__name__}")
        with suppress(NotImplementedError):  # an exported module keeps the mode it was exported in
            model.eval()
        return model


def _is_final(error: BaseException | None) -> bool:
    """Whether a constructor that failed on meta fails on the CPU, too: no package, no memory is enough."""
    final = isinstance(error, (ImportError, RecursionError)) or not isinstance(error, Exception)
    return final or overflows(error)


def by_shape(
    name: str,
    model: nn.Module,
    request: InputRequest,
    natural: tuple[int, ...] | None = None,
    way_out: str = AT_A_PROMPT,
) -> Inputs:
    """Inputs of the requested shape, else of `natural`; a `seq_len` replaces its first size.

    Raises:
        ModelError: there is no shape; says the way out.
        InputError: a `seq_len` for a shape of more than two sizes, which has no steps.
    """
    shape, seq_len = request.input_shape or natural, request.seq_len
    sides = request.input_shape or ()
    if natural is not None and len(natural) == IMAGE and len(sides) == IMAGE - 1:
        given, right = ("x".join(map(str, sizes)) for sizes in (sides, (natural[0], *sides)))
        raise InputError(f"--input-shape {given}: the inputs of {name} have {IMAGE} sizes; write {right}")
    if seq_len is not None:
        if shape is not None and len(shape) > 2:
            raise InputError(
                f"seq_len is {seq_len}, but the inputs of {name} are {shape} without steps; leave seq_len out"
            )
        shape = (seq_len, *(shape or ())[1:])
    if shape is None:
        several = all_inputs(model)
        raise ModelError(
            f"{name} needs several inputs; {several}"
            if several
            else f"{name} has no known input shape; give {way_out}"
        )
    return shaped_inputs(model, request, shape)


def checked_module(value: Any, text: str, dtype: torch.dtype | None) -> nn.Module:
    """`value`, which must be a module, with tensors of its main type in `dtype`, or as they are for None."""
    if isinstance(value, nn.Module):
        if dtype is not None:  # `to` would also change complex weights, and those of 8 bits
            value._apply(partial(retyped, own=main_dtype(value), dtype=dtype))  # type: ignore[no-untyped-call]
        return value
    check_computed(value, text)
    kind = type(value).__name__
    raise ModelError(f"{text} gives a {kind}; it has to return an nn.Module or (module, inputs)")


def brought_inputs(name: str, inputs: Inputs, request: InputRequest) -> Inputs:
    """Inputs that a network brings, in the requested batch size; raises InputError for a length."""
    if request.seq_len is not None:
        raise InputError(
            f"seq_len is {request.seq_len}, but {name} brings its inputs; leave seq_len out, or let it "
            "return the module alone, with an example_inputs(batch_size, seq_len) in its file"
        )
    shapes_only = torch.get_default_device().type == "meta"  # a large batch of real tensors takes memory
    return in_batches(inputs.mapped(without_data if shapes_only else with_values), request.batch_size)
