"""Softmax: y[i, j] = exp(x[i, j] - m[i]) / sum_j exp(x[i, j] - m[i]), with m[i] = max_j x[i, j]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import torch
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
from neuralpower.layers.operands import Operand, own_operand
from neuralpower.layers.tensors import common_dtype, dtype_name, first
from neuralpower.layers.terms import LINE, SECTOR, aligned, beyond_launch, ceil_to, evicted
from neuralpower.layers.traits import WIDTHS, Traits, sides_of, steps
from neuralpower.layers.views import as_one, bytes_terms, seconds_terms

LONGEST_IN_A_WARP = 1024  # PyTorch's dispatch, aten/src/ATen/native/cuda/SoftMax.cu
# Threads that a core holds; a block of up to 1,024 takes a row, four elements a thread and turn
THREADS, THREADS_OF_A_ROW, ELEMENTS_OF_A_THREAD = 2048, 1024, 4
EVICTED = (
    0.125,
    0.5,
)  # shares of the L2 in flight from which some, and all, of a row is read from memory again
CACHE_STEPS = (1, 2, 4)  # of the L2: bytes cost most until so much of it is filled
LAUNCHES_US = (5, 10)  # the part of the bytes' time, at the peak, that a launch hides
NAMES = ("softmax", "_softmax", "log_softmax", "_log_softmax", "special_softmax", "_safe_softmax")


def _terms(layer: Softmax, hardware: Hardware) -> Described:
    elements = layer.rows * layer.width
    return {
        "elements": elements,
        "elements_16": layer.rows * ceil_to(layer.width, 16),
        "elements_strided": elements * layer.strided,
        **bytes_terms(layer, hardware),
    }


def _kernel_group(layer: Softmax) -> Any:
    """Two kernels: a warp holds a short row and reads it once, a block reads a long one several times."""
    return np.where(_held_by_a_warp(layer), "short", "long")


def _kernel_terms(layer: Softmax, hardware: Hardware) -> Described:
    """A warp's rows are padded to a power of 2."""
    padded = layer.rows * 2.0 ** np.ceil(np.log2(np.maximum(layer.width, 1))) * layer.itemsize
    terms = seconds_terms(layer, hardware)
    return {**terms, "bytes_padded_rows": padded * _held_by_a_warp(layer) / hardware.memory_bytes_per_s}


def _held_by_a_warp(layer: Softmax) -> Any:
    return np.asarray(layer.width) <= LONGEST_IN_A_WARP


def _own_terms(layer: Softmax, hardware: Hardware) -> Described:
    """Bytes that outlast a launch, until the cache is full: they cost more than those that follow.

    These terms stop growing, so that small softmaxes do not bend the terms of the largest.
    """
    memory, total = hardware.memory_bytes_per_s, sum(layer.bytes())
    held = {step: np.minimum(total, step * hardware.l2_bytes) / memory for step in CACHE_STEPS}
    return {
        f"bytes_up_to_{step}_l2_{name}": seconds
        for step, bytes_s in held.items()
        for name, seconds in beyond_launch(bytes_s, LAUNCHES_US).items()
    }


def _alignment(layer: Softmax) -> Described:
    """Alignment of rows that a warp holds: it reads them 32 elements at a time."""
    short = _held_by_a_warp(layer) & ~np.asarray(layer.strided, dtype=bool)
    shares = aligned("short_row_bytes", layer.width * layer.itemsize, SECTOR, LINE)
    return {name: share * short for name, share in shares.items()}


def _pooled_terms(layer: Softmax, hardware: Hardware) -> Described:
    """Long rows are read three times, from memory where those in flight outgrow the cache."""
    long, terms = ~_held_by_a_warp(layer), _kernel_terms(layer, hardware)
    rows = THREADS // THREADS_OF_A_ROW
    elements = np.maximum(THREADS * ELEMENTS_OF_A_THREAD, rows * np.asarray(layer.width))
    share = evicted(hardware.cores * elements * layer.itemsize, hardware.l2_bytes, *EVICTED)
    return {
        **terms,
        "bytes_long_rows": terms["bytes"] * long,
        "bytes_long_rows_past_l2": terms["bytes_past_l2"] * long,
        "long_rows_again": layer.bytes().input / hardware.memory_bytes_per_s * long * share,
    }


def _traits(layer: Softmax) -> Traits:
    """Width; rows that begin at no vector's place; an axis that is not the last."""
    strided = {"strided": np.asarray(layer.strided, dtype=float)}
    return Traits({}, strided | steps("width", layer.width, WIDTHS) | sides_of(layer.itemsize, layer.width))


def _features(layer: Softmax, _: Hardware) -> Described:
    return {"width_mod_16": layer.width % 16, "strided": layer.strided}


def _backward(layer: Softmax) -> tuple[Layer, ...]:
    """Grad y and y in, grad x out, row by row: three tensors, which one and a half softmaxes move."""
    return (replace(layer, phase="forward", rows=-(-3 * layer.rows // 2), copied=False, to_dtype=""),)


@layer_kind("softmax", *(f"aten.{name}" for name in NAMES))
@dataclass(frozen=True, kw_only=True)
class Softmax(Layer):
    """One softmax, or its logarithm, over an axis."""

    rows: int  # product of all axes but the softmax's
    width: int  # size of the softmax's axis
    strided: bool = False  # the axis is not the last
    copied: bool = False  # the input does not lie in order: it is copied first
    to_dtype: str = ""  # of the result; "": `dtype`

    later = frozenset({"copied", "to_dtype"})
    dimensions = ("rows", "width")
    group_names = ("all", "short", "long")
    sweep_share = 0.8
    recurring_share = 0.2
    views = Views(
        cpu=View(terms=_terms, features=_features),
        kernels=View(group=_kernel_group, terms=_kernel_terms, own_terms=_own_terms, alignment=_alignment),
        # both kernels together: separately, five devices have too little data of each
        pooled=View(group=as_one, terms=_pooled_terms),
    )
    law = KindLaw(traits=_traits, launches=lambda layer: 1 + layer.copied, on_cpu=lambda layer: 10.0)
    training = Training(backward=_backward)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.softmax(x, dim, ...)`, x [..., width, ...]."""
        x, dim = args[0], args[1] if len(args) > 1 else kwargs["dim"]
        width = x.shape[dim] if x.dim() else 1
        inner = x.dim() > 0 and any(size > 1 for size in x.shape[dim % x.dim() + 1 :])
        y = dtype_name(first(output))
        return cls(
            rows=x.numel() // max(width, 1),
            width=width,
            strided=inner,
            copied=not x.is_contiguous(),
            to_dtype=y if y != common_dtype(x, output) else "",
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Attention scores, class probabilities, vocabularies."""
        if draw.chance(0.15):
            return cls(rows=draw.octaves(1, 256), width=draw.octaves(1000, 65536))
        rows = draw.octaves(1, 2**16)
        return cls(rows=rows, width=draw.octaves(2, 4096), strided=draw.chance(0.1) and rows > 1)

    def build(self, device: torch.device) -> Call:
        shape = (self.width, self.rows) if self.strided else (self.rows, self.width)
        x = self.tensor(*(reversed(shape) if self.copied else shape), device=device)
        x = x.t() if self.copied else x
        to = {"dtype": torch_dtype(self.to_dtype)} if self.to_dtype else {}
        return Call(torch.softmax, (x, 0 if self.strided else -1), to, warm=(x,))

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """All its numbers, since the axis may be any."""
        return (self.rows * self.width,)

    def flops(self) -> int:
        """Max, subtract, exp, sum and divide, one each per element."""
        return 5 * self.rows * self.width

    def bytes(self) -> Bytes:
        """X in, y out; a copy goes out and in besides."""
        elements = self.rows * self.width
        size, written = (
            self.itemsize * elements,
            own_operand(self.dtype, self.to_dtype, 0, Operand(self.dtype)),
        )
        return Bytes(size * (1 + self.copied), 0, size * self.copied + written.itemsize * elements)
