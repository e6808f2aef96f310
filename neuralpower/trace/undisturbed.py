"""A module is left as it was found, whatever its forward does."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn

from neuralpower.networks.running import META as META
from neuralpower.networks.running import (
    own_randomness,
)

CACHED = type(functools.cache(abs))  # a function that remembers


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside DataParallel, DistributedDataParallel and torch.compile's wrapper."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif "_orig_mod" in model._modules and isinstance(model._modules["_orig_mod"], nn.Module):
            model = model._modules["_orig_mod"]
        else:
            return model


@contextlib.contextmanager
def undisturbed(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set the mode, and put back every attribute of every module afterwards, whatever the forward did to them.

    Lists and dictionaries get back what they held, as those of parameters, of hooks, or in which a model keeps activations.
    What the forward prints goes to stderr: it is no result of whoever traces it.
    """
    before = [
        (m, dict(vars(m)), [(v, v.copy()) for v in vars(m).values() if type(v) in (dict, OrderedDict, list)])
        for m in model.modules()
    ]
    try:
        with own_randomness(), contextlib.redirect_stdout(sys.stderr):
            for module, _, _ in before:
                module.training = module.training if training is None else training
            yield
    finally:
        for module, attributes, held in before:
            vars(module).clear()
            vars(module).update(attributes)
            for container, content in held:
                container.clear()
                (container.extend if type(container) is list else container.update)(content)


@contextlib.contextmanager
def own_caches(model: nn.Module) -> Iterator[None]:
    """What functions cache for the model's classes, such as relative positions, is empty at first and emptied again.

    A tensor without values that stayed would be what the next real pass finds, of this network or another of the class.
    """
    caches = forget(model)
    try:
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def forget(model: nn.Module) -> list[Any]:
    """Empty what methods of the model's classes have cached, and functions beside them in transformers, in the whole process.

    What was cached in inference mode is of no use to a backward pass. The functions are returned.
    """
    kinds = {type(module) for module in model.modules()}
    caches = [cache for kind in kinds for cache in _caches(kind)]  # type: ignore[arg-type]  # classes are hashable
    for cache in caches:
        cache.cache_clear()
    return caches


@functools.cache
def _caches(kind: type[nn.Module]) -> tuple[Any, ...]:
    spaces: list[tuple[str, Mapping[str, Any]]] = [(c.__module__, vars(c)) for c in kind.__mro__]
    if kind.__module__.startswith("transformers."):
        spaces.append((kind.__module__, vars(sys.modules[kind.__module__])))
    found = []
    for module, space in spaces:
        for value in space.values():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
            inside = [cell.cell_contents for cell in cells if cell != CellType()]  # an empty one raises
            found += [c for c in (function, *inside) if isinstance(c, CACHED) and c.__module__ == module]
    return tuple(found)


@contextlib.contextmanager
def slow_attention() -> Iterator[None]:
    """The modules' own forward instead of PyTorch's fused fast path, which hides what it is made of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
