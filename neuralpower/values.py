"""Tensors without values that know where to get them: they take no memory until a run on the CPU asks.

Shapes are all that a prediction reads, except where a forward pass decides by what its tensors hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

DRAW = "neuralpower_draw"  # attribute of a tensor on the meta device: what returns one of its shape with values


def promise(tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """`tensor`, which is on the meta device; `draw` returns the same with values, on any device."""
    setattr(tensor, DRAW, draw)
    return tensor


def promised(tensor: Tensor) -> Callable[[], Tensor] | None:
    """What draws a tensor's values, or None where nothing is known of them."""
    draw: Callable[[], Tensor] | None = getattr(tensor, DRAW, None)
    return draw


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
