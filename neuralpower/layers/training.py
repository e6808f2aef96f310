"""Training: layers that do the work of a backward pass, and what training makes of a forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.dtypes import FLOATING

KEEPS_NOTHING, KEEPS_INPUTS, KEEPS_OUTPUTS = "nothing", "inputs", "outputs"

Args = Sequence[Any]  # of a call, by position
Named = Mapping[str, Any]  # by name
Layers = tuple[Any, ...]  # of any kinds


def is_floating(layer: Any) -> bool:
    return bool(layer.dtype in FLOATING)


def by_gradients(layer: Any) -> Layers:
    """All layers of `gradients`, or another forward pass."""
    return tuple(itertools.chain(*layer.training.gradients(layer).values())) or (layer,)


def share_by_work(layer: Any, asked: Collection[str]) -> float:
    """The share of the products, of which the whole has twice the forward pass's, else of the bytes."""
    parts = backward_of(layer, asked)
    products = [int(part.flops()) for part in parts if part.kind == layer.kind]
    if layer.multiplies and any(products):
        return float(sum(products) / (2 * layer.flops()))
    size = sum(sum(part.bytes()) for part in backward_of(layer))
    return float(sum(sum(part.bytes()) for part in parts) / size) if size else 0.0


@dataclass(frozen=True, kw_only=True)
class Training:
    # Whether a gradient passes through it, so that it has a backward pass.
    differentiable: Callable[[Any], bool] = is_floating
    # Layers whose forward passes do the work of its backward pass, where none was measured.
    backward: Callable[[Any], Layers] = by_gradients
    # The same by the operand, as `operands_of` names it, whose gradient it makes; "" is for any of them.
    # Empty where one pass makes all gradients.
    gradients: Callable[[Any], Mapping[str, Layers]] = lambda layer: {}
    # Tensors of a call, given (operator, output, args, kwargs), by the names that `gradients` gives to them.
    operands_of: Callable[[str, Any, Args, Named], Named] = lambda operator, output, args, kwargs: {}
    # The share of a whole backward pass that makes the gradients of these operands.
    share_of: Callable[[Any, Collection[str]], float] = share_by_work
    # Tensors of the forward pass that its backward pass reads: none, inputs alone, or outputs, too.
    keeps: Callable[[Any], str] = lambda layer: KEEPS_OUTPUTS
    # Whether no sweep measures its backward pass as a whole.
    in_parts: Callable[[Any], bool] = lambda layer: False
    # The layer in training: a batch norm then uses the batch's own statistics.
    turned: Callable[[Any], Any] = lambda layer: layer
    # Whether evaluation has no such call: its forward pass is then measured with its backward pass.
    only: Callable[[Any], bool] = lambda layer: False


def keeps_inputs(layer: Any) -> str:
    """Factors, whose gradients are products with the other one."""
    return KEEPS_INPUTS


def no_layers(layer: Any) -> Layers:
    """No backward pass of its own."""
    return ()


def backward_of(layer: Any, asked: Collection[str] | None = None) -> Layers:
    """The part of a backward pass that makes the gradients of these operands; all of it for None."""
    if asked is None:
        whole: Layers = layer.training.backward(layer)
        return whole
    made = (layers for name, layers in layer.training.gradients(layer).items() if name in ("", *asked))
    return tuple(itertools.chain(*made))
