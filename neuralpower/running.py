"""Three ways to run a forward pass where there is no device: meta tensors, fake tensors, random numbers on the CPU.

Each leaves the model and its inputs as they are: weights are exchanged for the call, and of tensors in inputs, also those
inside a cache of keys and values, copies are made, since a forward pass writes into its cache.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

META = torch.device("meta")
SMALL = 0.02  # standard deviation of random weights: what most language models start from

Change = Callable[[Tensor], Tensor]
Run = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], contextlib.AbstractContextManager[Any]], Any]


def on_meta(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: contextlib.AbstractContextManager[Any]
) -> Any:
    """Shapes alone; fails where the forward pass asks for a value."""
    state = {name: t.detach().to(META) for name, t in _state(model) if not t.is_meta}
    args, kwargs = converted((args, kwargs), lambda t: t.to(META))
    with torch.inference_mode(), inside:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=True)


def on_fake(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: contextlib.AbstractContextManager[Any]
) -> Any:
    """Shapes that say they are on the CPU; some models want to hear that."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.setLevel(logging.CRITICAL)  # a failure here is only a fall-back's
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(tensor: Tensor) -> Tensor:
        with fake:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")

    state = {name: convert(t) for name, t in _state(model)}
    args, kwargs = converted((args, kwargs), convert)
    with torch.inference_mode(), fake, inside:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=True)


def on_cpu(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: contextlib.AbstractContextManager[Any]
) -> Any:
    """Random numbers for what has none: the whole of the work is done."""
    state = {name: with_values(t) for name, t in _state(model)}
    args, kwargs = converted((args, kwargs), with_values)
    with torch.inference_mode(), inside:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=True)


WAYS: tuple[tuple[str, Run], ...] = (("meta", on_meta), ("fake", on_fake), ("cpu", on_cpu))
"""From the fastest to the one that always works, with their names in a trace."""


def with_values(tensor: Tensor) -> Tensor:
    """A copy on the CPU; a meta tensor's is small random numbers, or ones where these are no floats."""
    if not tensor.is_meta:
        return tensor.detach().cpu().clone()
    if tensor.is_floating_point():
        return torch.randn(tensor.shape).mul_(SMALL).to(tensor.dtype)
    return torch.ones(tensor.shape, dtype=tensor.dtype)


def converted(values: Any, change: Change) -> Any:
    """`values` with every tensor in it changed; objects that hold tensors, as a cache does, are copied."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else _copied(leaf, change), values)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in tuples, lists, mappings and objects' attributes, each once."""
    return list(_found(value, {}).values())


def _copied(value: Any, change: Change) -> Any:
    tensors = tensors_in(value)
    return copy.deepcopy(value, {id(tensor): change(tensor) for tensor in tensors}) if tensors else value


def _found(value: Any, seen: dict[int, Any]) -> dict[int, Tensor]:
    """Tensors by their id; `seen` keeps the walk from going in circles."""
    if isinstance(value, Tensor):
        return {id(value): value}
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, nn.Module)) or value is None:
        return {}
    seen[id(value)] = value
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    found: dict[int, Tensor] = {}
    for part in parts:
        found |= _found(part, seen)
    return found


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
