"""Recurrent networks over whole sequences: LSTM, GRU and plain cells.

The work of packed sequences follows from the steps that they have together: lengths 20, 7 and 3 have 30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import Self

from neuralpower.late import Tensor, nn, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.base import torch_dtype
from neuralpower.layers.pointwise import per_function
from neuralpower.layers.terms import either
from neuralpower.layers.training import Args, Named
from neuralpower.layers.views import by_function, bytes_terms

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _launches(layer: Recurrent) -> Any:
    """One cell after the other, along the steps and up the layers."""
    return layer.steps * layer.num_layers * layer.directions


def _again_bytes(layer: Recurrent) -> Any:
    return layer.itemsize * (layer.steps - 1) * layer.weights


def _gradients(layer: Recurrent) -> Mapping[str, tuple[Layer, ...]]:
    """Two products for each of the forward pass, step by step: as two passes.

    One goes back through the steps, whichever gradient is needed; the other is the weights'.
    """
    again = replace(layer, phase="forward")
    return {"": (again,), "weights": (again,)}


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """The list of weights and biases; packed, the batch of each step stands before it."""
    return {"weights": args[2 + _is_packed(args)]}


def _terms(layer: Recurrent, hardware: Hardware) -> Described:
    """Steps are sequential: each pays for its dispatch and reads the weights again."""
    return {
        "macs": layer.sequence_steps * layer.weights,
        "weights_each_step": layer.steps * layer.weights,
        "cells": _launches(layer),
        "states": layer.num_layers
        * layer.directions
        * layer.sequence_steps
        * layer.hidden_size
        * layer.gates,
        **bytes_terms(layer, hardware),
    }


def _features(layer: Recurrent, _: Hardware) -> Described:
    return {"bidirectional": layer.bidirectional, "hidden_mod_16": layer.hidden_size % 16}


@layer_kind("recurrent", *(f"aten.{name}" for name in GATES))
@dataclass(frozen=True, kw_only=True)
class Recurrent(Layer):
    """x [batch, steps, input_size] through num_layers of hidden_size, in one direction or both.

    Packed, `batch` counts the sequences, and `steps` those of the longest.
    """

    function: str
    batch: int
    steps: int
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    packed_steps: int = 0  # of all sequences together, where their lengths differ; 0: steps of each
    proj_size: int = 0  # to which an LSTM projects its output; 0: it does not

    dimensions = ("batch", "steps", "input_size", "hidden_size", "num_layers")
    multiplies = True
    sweep_share = 2.0  # few rows of each function are no fit
    words = {"function": GATES}
    group_names = tuple(GATES)
    later = frozenset({"packed_steps", "proj_size"})
    views = Views(cpu=View(group=by_function, terms=_terms, features=_features))
    law = KindLaw(launches=_launches, again_bytes=_again_bytes, on_cpu=lambda layer: 12.0)
    training = Training(gradients=_gradients, operands_of=_operands_of)
    rule = "packed steps must be enough for the longest sequence and one of each other, "
    rule += "and at most the steps of all"

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.lstm(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)`.

        Packed, it is `(x [steps of all sequences, inputs], batch of each step, hx, ..., bidirectional)`; the
        first step has all sequences, as the states do.
        """
        function, x = operator.removeprefix("aten."), args[0]
        packed = _is_packed(args)
        hidden, _, _, layers, *_ = args[1 + packed :]
        state = hidden[0] if isinstance(hidden, (tuple, list)) else hidden
        # of a cell, which may hand on fewer numbers
        width = hidden[1].shape[2] if function == "lstm" else state.shape[2]
        if packed:
            batch, steps = state.shape[1], args[1].numel()
        else:
            batch, steps = (x.shape[0], x.shape[1]) if args[8] else (x.shape[1], x.shape[0])
        return cls(
            function=function,
            batch=batch,
            steps=steps,
            input_size=x.shape[-1],
            hidden_size=width,
            num_layers=int(layers),
            bidirectional=bool(args[7 + packed]),
            packed_steps=x.shape[0] if packed and x.shape[0] != batch * steps else 0,
            proj_size=state.shape[2] if state.shape[2] != width else 0,
        )

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.sequence_steps, self.directions * self.outputs

    def possible(self) -> Any:
        fewest, most = self.steps + self.batch - 1, self.batch * self.steps
        return (self.packed_steps == 0) | (fewest <= self.packed_steps) & (self.packed_steps <= most)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """One to three layers, short and long sequences."""
        return cls(
            function=draw.choice(tuple(GATES)[:3] + ("lstm",)),
            batch=draw.octaves(1, 32),
            steps=draw.octaves(1, 128),
            input_size=draw.size(8, 1024),
            hidden_size=draw.size(8, 1024),
            num_layers=draw.choice((1, 1, 2, 3)),
            bidirectional=draw.chance(0.3),
        )

    def build(self, device: torch.device) -> Call:
        make = {"lstm": nn.LSTM, "gru": nn.GRU}.get(self.function, nn.RNN)
        where: dict[str, Any] = {"device": device, "dtype": torch_dtype(self.dtype)}
        options: dict[str, Any] = {"batch_first": True, "bidirectional": self.bidirectional, **where}
        options |= {"nonlinearity": self.function.removeprefix("rnn_")} if make is nn.RNN else {}
        options |= {"proj_size": self.proj_size} if self.proj_size else {}
        module = make(self.input_size, self.hidden_size, self.num_layers, **options).eval()
        x: Any = self.tensor(self.batch, self.steps, self.input_size, device=device)
        warm = x
        if self.packed_steps:
            warm = self.tensor(self.packed_steps, self.input_size, device=device)
            x = nn.utils.rnn.PackedSequence(warm, self._batches())
        states = self.num_layers * self.directions, self.batch
        state, cell = (torch.zeros(*states, size, **where) for size in (self.outputs, self.hidden_size))
        # its code runs at each step: it is warm in any network, but would not be in turn with other layers
        hidden = (state, cell) if self.function == "lstm" else state
        return Call(module, (x, hidden), warm=(warm,), recurs=True)

    def _batches(self) -> Tensor:
        """Sequences at each step: the longest has all steps, the others share evenly."""
        each, more = divmod(self.packed_steps - self.steps, max(self.batch - 1, 1))
        lengths = torch.full((self.batch,), each)
        lengths[1 : 1 + more] += 1
        lengths[0] = self.steps
        return (lengths[:, None] > torch.arange(self.steps)).sum(0)

    @property
    def directions(self) -> Any:
        return 1 + self.bidirectional

    @property
    def gates(self) -> Any:
        return per_function(self.function, GATES, 1)

    @property
    def outputs(self) -> Any:
        """Numbers that a direction hands on at each step."""
        return either(self.proj_size, self.hidden_size)

    @property
    def sequence_steps(self) -> Any:
        return either(self.packed_steps, self.batch * self.steps)

    @property
    def weights(self) -> Any:
        first = self.input_size + self.outputs
        later = (self.num_layers - 1) * (self.directions * self.outputs + self.outputs)
        projections = self.num_layers * self.proj_size * self.hidden_size
        return self.directions * (self.gates * self.hidden_size * (first + later) + projections)

    def flops(self) -> int:
        """2 FLOP per weight, for every step of every sequence."""
        return 2 * self.sequence_steps * self.weights

    def bytes(self) -> Bytes:
        return Bytes(
            self.itemsize * self.sequence_steps * self.input_size,
            self.itemsize * self.weights,
            self.itemsize * self.sequence_steps * self.outputs * self.directions,
        )

    def parameters(self) -> int:
        """Matrices and the two biases of each gate."""
        return self.weights + 2 * self.gates * self.hidden_size * self.directions * self.num_layers


def _is_packed(args: Args) -> bool:
    """Whether the second argument is the batch of each step, rather than the states."""
    return isinstance(args[1], Tensor) and not args[1].is_floating_point()
