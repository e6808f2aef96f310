"""Tensors without values that know where to get them: they take no memory until a run on the CPU asks.

Shapes are all that a prediction reads, except where a forward pass decides by what its tensors hold.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neuralpower.errors import NeuralPowerError
from neuralpower.users_code import users_code

DRAW = "neuralpower_draw"  # attribute of a tensor on the meta device: what returns one of its shape with values


def promise(tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """`tensor`, which is on the meta device; `draw` returns the same with values, on any device."""
    setattr(tensor, DRAW, draw)
    return tensor


def promised(tensor: Tensor) -> Callable[[], Tensor] | None:
    """What draws a tensor's values, or None where nothing is known of them."""
    draw: Callable[[], Tensor] | None = getattr(tensor, DRAW, None)
    return draw


def without_values(make: Callable[[str], Any]) -> Any:
    """`make("meta")`, each of its tensors with the promise of its like in `make("cpu")`; that itself, where it needs values."""
    try:
        with users_code("inputs on meta cannot be made"), torch.device("meta"):
            shapes = make("meta")
    except NeuralPowerError:
        return make("cpu")
    real = functools.cache(lambda: tensors_of(make("cpu")))
    order = itertools.count()

    def bound(tensor: Tensor) -> Tensor:
        place = next(order)
        return promise(tensor.detach(), lambda: real()[place])

    return map_tensors(shapes, bound)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in its tuples, lists and mappings changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in `value`, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found
