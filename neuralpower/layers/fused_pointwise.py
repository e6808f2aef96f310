"""A kernel that several calls became: point-wise ones, with the reductions between them.

Intermediate results stay in registers, so its time follows the bytes that it reads and writes. PyTorch has no
such operator; `neuralpower::fused` stands for one, and does as much in several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import Tensor, once_imported, torch
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
from neuralpower.layers.fused import define
from neuralpower.layers.terms import either
from neuralpower.layers.traits import WIDTHS, Traits, only, steps

SCHEMA = "fused(Tensor x, int written, int operations, int row) -> Tensor"


def _fused(x: Tensor, written: int, operations: int, row: int) -> Tensor:
    """`written` numbers from those of x, less the mean of each row where rows are reduced."""
    y = x.new_empty(written)
    if x.is_meta:
        return y
    if row and x.numel() % row == 0:
        x = (x.view(-1, row) - x.view(-1, row).mean(-1, keepdim=True)).view(-1)
    return y.copy_(x.repeat(-(-written // max(x.numel(), 1)))[:written])


def _keep_size(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size = inputs[0].numel()


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """A gradient for each number read, of those of the numbers written: as much memory as the real one."""
    return gradient.repeat(-(-ctx.size // max(gradient.numel(), 1)))[: ctx.size], None, None, None


def _define() -> None:
    define(SCHEMA, _fused)
    torch.library.register_autograd("neuralpower::fused", _backward, setup_context=_keep_size)


once_imported(_define)


def _traits(layer: FusedPointwise) -> Traits:
    reduced = np.asarray(layer.row) > 0
    return Traits({}, only(reduced, steps("row", layer.row, WIDTHS)))


def _features(layer: FusedPointwise, _: Hardware) -> Described:
    """Whether rows are reduced, and how long they are."""
    return {"row": either(layer.row, 1), "itemsize": layer.itemsize}


def _reversed(layer: FusedPointwise) -> tuple[Layer, ...]:
    """One kernel that reads the inputs and the results' gradients, and writes the inputs' gradients."""
    read, written = layer.bytes_read, layer.bytes_written
    turned: dict[str, Any] = {
        "bytes_read": read + written,
        "bytes_written": read,
        "operations": 2 * layer.operations,
    }
    return (replace(layer, phase="forward", **turned),)


@layer_kind("fused", "neuralpower.fused")
@dataclass(frozen=True, kw_only=True)
class FusedPointwise(Layer):
    """One pass over memory that does what several calls did."""

    bytes_read: int
    bytes_written: int
    operations: int  # FLOP of all parts
    row: int = 0  # numbers that are reduced together, as a norm's width; 0: none are

    dimensions = ("bytes_read", "bytes_written")
    by_default = False
    sweep_share = 0.5
    views = Views(cpu=View(features=_features))
    law = KindLaw(traits=_traits)
    training = Training(backward=_reversed)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower::fused(x, written, operations, row)`."""
        x, written, operations, row = args
        size = x.element_size()
        return cls(bytes_read=x.numel() * size, bytes_written=written * size, operations=operations, row=row)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Norms with what is added before them, gated activations, chains of arithmetic."""
        row = draw.choice((0, 0, 64, 128, 768, 1024, 2048, 4096, 8192))
        numbers = row * draw.octaves(1, 1024) if row else draw.size(16, 2**22)
        size = 4
        return cls(
            bytes_read=size * numbers * draw.choice((1, 2, 2, 3)),
            bytes_written=size * numbers,
            operations=numbers * draw.choice((2, 4, 8)),
            row=row,
        )

    def build(self, device: torch.device) -> Call:
        size = int(self.itemsize)
        x = self.tensor(self.bytes_read // size, device=device)
        function = torch.ops.neuralpower.fused.default
        return Call(function, (x, self.bytes_written // size, self.operations, self.row), warm=(x,))

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return (int(self.bytes_written // self.itemsize),)

    def flops(self) -> int:
        return self.operations

    def bytes(self) -> Bytes:
        return Bytes(self.bytes_read, 0, self.bytes_written)
