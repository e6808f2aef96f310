"""The base of linear attention and scans: a state for each head, which tokens read and change in turn.

A prompt goes in chunks, within which products stand for the recurrence, so that only the states between them
follow one another. A decoder's step reads the state, changes it and writes it back.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.late import Tensor, torch
from neuralpower.layers import Bytes, Described, Hardware, View, Views
from neuralpower.layers.fused import Fused
from neuralpower.layers.operands import Operand, own_operand
from neuralpower.layers.terms import chosen, past
from neuralpower.layers.views import peak_flops

STEPS_AT_ONCE = (1, 4)  # heads' chunks that a core has in flight


def _kernel_terms(layer: Recurrence, hardware: Hardware) -> Described:
    """FLOP and bytes, and what waits: chunks of a head follow one another, heads share the cores."""
    peak, memory, cores = peak_flops(layer, hardware), hardware.memory_bytes_per_s, hardware.cores
    moved = layer.bytes()
    total, work = sum(moved), layer.flops() / peak
    heads = layer.batch * layer.heads_in_all
    chunks = np.ceil(layer.length / layer.chunk_tokens)
    each = work / (heads * chunks)  # of a head's chunk
    chunked = 1.0 * (np.asarray(layer.chunk) > 0)
    terms = {
        "flops": work,
        "flops_chunks": work * chunked,
        "bytes": total / memory,
        "bytes_chunks": total / memory * chunked,
        "output_bytes": moved.output / memory,
        "bytes_past_l2": past(total, hardware.l2_bytes) / memory,
        "states": heads * layer.state_numbers * 4 * chunks * chunked / memory,  # between chunks
        "tokens_alone": heads * layer.length * (1 - chunked) / (memory / layer.state_numbers / 4),
        "conv": layer.tokens * layer.channels * 2 * layer.itemsize * (layer.conv > 0) / memory,
        "conv_calls": 1.0 * (layer.conv > 0),
        "chain": chunks * each * cores,
    }
    for at_once in STEPS_AT_ONCE:
        waves = np.ceil(heads / (cores * at_once))
        terms[f"waves_{at_once}"] = waves * cores * at_once * chunks * each
    return terms


def _kernel_features(layer: Recurrence, hardware: Hardware) -> Described:
    """Sizes of a head, and how heads fill the cores."""
    moved, heads = sum(layer.bytes()), layer.batch * layer.heads_in_all
    return {
        "heads": np.log2(layer.heads_in_all),
        "state": np.log2(layer.state_numbers),
        "channels": np.log2(layer.channels),
        "conv": layer.conv,
        "chunk": layer.chunk,
        "chunks": np.log2(np.ceil(layer.length / layer.chunk_tokens)),
        "fill": np.minimum(np.log2(heads / hardware.cores), 6),
        "in_l2": np.log2(moved / hardware.l2_bytes),
        "intensity": np.log2(layer.flops() / moved),
    }


def _group(layer: Recurrence) -> Any:
    """Chunks of a prompt, or a step."""
    return np.where(np.asarray(layer.chunk) > 0, "chunks", "step")


@dataclass(frozen=True, kw_only=True)
class Recurrence(Fused):
    """`length` tokens of each of `batch` sequences; with `conv` numbers of a convolution before it."""

    batch: int
    length: int  # new tokens of each sequence
    conv: int = 4  # numbers of the depthwise convolution over tokens before it; 0: without it
    chunk: int = 64  # tokens of a chunk; 0: token after token, as in a decoder's step
    state_dtype: str = "float32"  # of the states in memory; "": `dtype`

    group_names = ("chunks", "step")
    savings = 2.2  # products within a chunk are causal
    views = Views(cpu=View(group=_group), kernels=View(terms=_kernel_terms, features=_kernel_features))

    @property
    @abstractmethod
    def heads_in_all(self) -> Any:
        """Heads with a state of their own."""

    @property
    @abstractmethod
    def state_numbers(self) -> Any:
        """Numbers of a head's state."""

    @property
    @abstractmethod
    def channels(self) -> Any:
        """Numbers of a token that the convolution takes."""

    @property
    @abstractmethod
    def token_numbers(self) -> tuple[Any, Any]:
        """Numbers of a token that the call reads, and that it writes."""

    @abstractmethod
    def chunk_flops(self) -> Any:
        """FLOP of a token of a chunk, all heads."""

    @abstractmethod
    def step_flops(self) -> Any:
        """FLOP of a token by itself, all heads."""

    @property
    def tokens(self) -> Any:
        return self.batch * self.length

    @property
    def chunk_tokens(self) -> Any:
        """Tokens of a chunk, at most all."""
        if isinstance(self.chunk, int):
            return min(max(self.chunk, 1), self.length)
        return np.clip(self.chunk, 1, self.length)

    def flops(self) -> int:
        """FLOP of the tokens and of the convolution, 2 for each of its numbers and channels."""
        each = chosen(self.chunk > 0, self.chunk_flops(), self.step_flops())
        flops: int = self.tokens * (each + 2 * self.conv * self.channels)
        return flops

    def bytes(self) -> Bytes:
        """Tokens in and out; states of heads and of the convolution, which a step reads, too; its weights."""
        usual = Operand(self.dtype)
        kept = own_operand(self.dtype, self.state_dtype, 0, usual)
        read, written = self.token_numbers
        states = kept.bytes(self.batch * self.heads_in_all, self.state_numbers)
        states = states + usual.bytes(self.batch, past(self.conv, 1) * self.channels)
        before = states * (self.chunk == 0)  # a prompt begins with none
        weights = usual.bytes(1, self.conv * self.channels)
        return Bytes(
            usual.bytes(self.tokens, read) + before, weights, usual.bytes(self.tokens, written) + states
        )


def convolved(x: Tensor, weights: Tensor) -> Tensor:
    """Depthwise convolution over tokens, then SiLU: x [batch, length, channels], weights [channels, conv]."""
    padded = torch.nn.functional.pad(x.transpose(1, 2), (weights.shape[1] - 1, 0))
    made = torch.nn.functional.conv1d(padded, weights.unsqueeze(1), groups=weights.shape[0])
    return torch.nn.functional.silu(made).transpose(1, 2)
