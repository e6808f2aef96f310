"""Recurrent networks over a whole sequence: LSTM, GRU and plain cells."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Self

from neuralpower.layers.base import Bytes, Call, Draw, Hardware, Layer, memory_terms
from neuralpower.layers.pointwise import per_function
from neuralpower.layers.registry import layer_kind

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@layer_kind("recurrent", *(f"aten.{name}" for name in GATES))
@dataclass(frozen=True, kw_only=True)
class Recurrent(Layer):
    """x [batch, steps, input_size] through num_layers of hidden_size, in one direction or both."""

    function: str
    batch: int
    steps: int
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool

    dimensions = ("batch", "steps", "input_size", "hidden_size", "num_layers")
    multiplies = True
    sweep_share = 1.0
    words = {"function": GATES}
    group_names = tuple(GATES)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.lstm(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)`.

        A packed sequence is `(x [numbers of all steps, inputs], batch of each step, hx, ..., bidirectional)`: its steps are taken
        to have as many samples each.
        """
        function, x = operator.removeprefix("aten."), args[0]
        packed = isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()
        hidden, params, _, layers, *_ = args[1 + packed :]
        state = hidden[0] if isinstance(hidden, (tuple, list)) else hidden
        if packed:
            steps = max(args[1].numel(), 1)
            batch = max(round(x.shape[0] / steps), 1)
        else:
            batch, steps = (x.shape[0], x.shape[1]) if args[8] else (x.shape[1], x.shape[0])
        found = cls(
            function=function,
            batch=batch,
            steps=steps,
            input_size=x.shape[-1],
            hidden_size=state.shape[2],
            num_layers=int(layers),
            bidirectional=bool(args[7 + packed]),
        )
        if function == "lstm" and hidden[1].shape[2] != state.shape[2]:
            return found._with_weights(sum(p.numel() for p in params if p.dim() == 2))
        return found

    def _with_weights(self, numbers: int) -> Self:
        """One as wide as it takes to have so many in its matrices: what an LSTM that projects its output does as much as."""
        square = self.gates * self.directions * (1 + (self.num_layers - 1) * (self.directions + 1))
        linear = self.gates * self.directions * self.input_size
        width = (math.sqrt(linear**2 + 4 * square * numbers) - linear) / (2 * square)
        return replace(self, hidden_size=max(round(width), 1))

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
        """The torch module in eval mode."""
        make = {"lstm": nn.LSTM, "gru": nn.GRU}.get(self.function, nn.RNN)
        options = {"nonlinearity": self.function.removeprefix("rnn_")} if make is nn.RNN else {}
        module = make(
            self.input_size,
            self.hidden_size,
            self.num_layers,
            batch_first=True,
            device=device,
            dtype=self.torch_dtype,
            bidirectional=self.bidirectional,
            **options,
        ).eval()
        x = self.tensor(self.batch, self.steps, self.input_size, device=device)
        state = torch.zeros(
            self.num_layers * (1 + self.bidirectional),
            self.batch,
            self.hidden_size,
            device=device,
            dtype=self.torch_dtype,
        )
        # step after step its code runs, so that it is warm in any network, which it is not in turn with other layers
        return Call(module, (x, (state, state.clone()) if self.function == "lstm" else state), warm=(x,), recurs=True)

    @property
    def directions(self) -> Any:
        """1 or 2."""
        return 1 + self.bidirectional

    @property
    def gates(self) -> Any:
        """Matrices per cell."""
        return per_function(self.function, GATES, 1)

    @property
    def weights(self) -> Any:
        """Numbers in all matrices."""
        first = self.input_size + self.hidden_size
        later = (self.num_layers - 1) * (self.directions * self.hidden_size + self.hidden_size)
        return self.gates * self.hidden_size * self.directions * (first + later)

    def launches(self) -> Any:
        """One cell after the other, along the steps and up the layers."""
        return self.steps * self.num_layers * self.directions

    def flops(self) -> int:
        """2 FLOP per weight, step and sequence."""
        return 2 * self.batch * self.steps * self.weights

    def bytes(self) -> Bytes:
        """Sequences in and out, weights."""
        return Bytes(
            self.itemsize * self.batch * self.steps * self.input_size,
            self.itemsize * self.weights,
            self.itemsize * self.batch * self.steps * self.hidden_size * self.directions,
        )

    def parameters(self) -> int:
        """Matrices and the two biases of each gate."""
        return self.weights + 2 * self.gates * self.hidden_size * self.directions * self.num_layers

    def backward(self) -> tuple[Layer, ...]:
        """Two products for each of the forward pass, step by step: as two passes."""
        again = replace(self, phase="forward")
        return again, again

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Steps are sequential: each pays for its dispatch and reads the weights again."""
        cells = self.steps * self.num_layers * self.directions
        return {
            "macs": self.batch * self.steps * self.weights,
            "weights_each_step": self.steps * self.weights,
            "cells": cells,
            "states": cells * self.batch * self.hidden_size * self.gates,
            **memory_terms(self, hardware),
        }

    def features(self) -> dict[str, Any]:
        """Directions."""
        return {"bidirectional": self.bidirectional, "hidden_mod_16": self.hidden_size % 16}

    def group(self) -> Any:
        """Each cell type is code of its own."""
        return np.asarray(self.function)
