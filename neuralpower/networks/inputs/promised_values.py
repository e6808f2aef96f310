"""Tensors without values that know where to get them: they take no memory until a run on the CPU asks.

Shapes are all that a prediction reads, except where a forward pass decides by what its tensors hold.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import NeuralPowerError
from neuralpower.networks.users_code import users_code

DRAW = "neuralpower_draw"  # attribute of a meta tensor: a function that returns its like with values
MADE_UP = "neuralpower_made_up"  # attribute of a tensor: why its values are made up, as text
HELD_BYTES = 64 * 2**20  # most that inputs keep: 100 images of 3x224x224, 8 million token ids
WHOLE_BYTES = 2**30  # most that is made for real for such inputs: takes some seconds
RANDOM = "random numbers"  # why values are made up, where nobody has given any
SMALL = 0.02  # standard deviation of random weights: what most language models start from


def promise(tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """`tensor` on the meta device, which promises what `draw` returns: its like with values on any device."""
    setattr(tensor, DRAW, draw)
    return tensor


def promised(tensor: Tensor) -> Callable[[], Tensor] | None:
    """The function that draws a tensor's values, or None where nothing is known about them."""
    draw: Callable[[], Tensor] | None = getattr(tensor, DRAW, None)
    return draw


def made_up(tensor: Tensor) -> str:
    """Why a tensor's values are made up, as text; "" where they are given or computed."""
    return str(getattr(tensor, MADE_UP, ""))


def say_made_up(tensor: Tensor, why: str) -> Tensor:
    """`tensor`, which says from now on why its values are made up."""
    setattr(tensor, MADE_UP, why)
    return tensor


def alike(new: Tensor, old: Tensor) -> Tensor:
    """`new`, a copy of `old`: where those values are made up, these are, too."""
    return say_made_up(new, why) if (why := made_up(old)) and new is not old else new


def with_values(tensor: Tensor) -> Tensor:
    """A copy on the CPU; a meta tensor's has the promised values, else small random floats, or ones."""
    draw = promised(tensor)
    if draw is not None:
        drawn = draw()
        return alike(_laid_as(tensor, drawn.detach().to("cpu", tensor.dtype, copy=True)), drawn)
    if not tensor.is_meta:
        return alike(tensor.detach().cpu().clone(), tensor)
    if tensor.is_floating_point():
        values = torch.randn(tensor.shape).mul_(SMALL).to(tensor.dtype)
        return say_made_up(_laid_as(tensor, values), RANDOM)
    values = torch.ones(tensor.shape, dtype=tensor.dtype)
    return say_made_up(_laid_as(tensor, values), "ones, as values are not known")


def without_data(tensor: Tensor) -> Tensor:
    """The tensor on meta, laid out as it is."""
    return tensor if tensor.is_meta else alike(tensor.detach().to("meta"), tensor)


def _laid_as(tensor: Tensor, values: Tensor) -> Tensor:
    """Values in the memory format of a tensor without values."""
    if tensor.is_contiguous() or tensor.shape != values.shape:
        return values
    return torch.empty_like(tensor, device=values.device).copy_(values)


def without_values(make: Callable[[str], Any]) -> Any:
    """`make("meta")`, whose tensors promise the values of `make("cpu")`; this itself if it needs values."""
    try:
        with users_code("inputs on meta cannot be made"), torch.device("meta"):
            shapes = make("meta")
    except NeuralPowerError:
        return make("cpu")
    real = functools.cache(lambda: tensors_of(make("cpu")))
    places = itertools.count()

    def bound(tensor: Tensor) -> Tensor:
        place = next(places)
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
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, keep)
    return tensors


def tensors_within(value: Any) -> Iterator[Tensor]:
    """All tensors in containers and objects, such as a cache of keys and values, but not those in modules."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "__dict__") and not isinstance(one, (type, nn.Module)):
            waiting.extend(vars(one).values())
