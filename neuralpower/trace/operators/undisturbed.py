"""A module is left as it was found, whatever its forward does."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

from torch import nn

from neuralpower.errors import ModelError
from neuralpower.networks.running import own_randomness
from neuralpower.processes.alone import alone

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
    """Set the mode, and put back every attribute of every module afterwards.

    Lists and dictionaries get back their content: parameters, hooks, or activations that a model keeps.
    What the forward prints goes to stderr, since it is not a result of the caller's.
    """
    with alone():
        yield from _undisturbed(model, training)


def _undisturbed(model: nn.Module, training: bool | None) -> Iterator[None]:
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
    """Empty the caches of the model's classes, such as relative positions, before and after.

    The next real pass would find a tensor without values that stayed there.
    """
    caches = forget(model)
    try:
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def forget(model: nn.Module) -> list[Any]:
    """Empty the caches of methods of the model's classes, and of functions next to them in transformers.

    A backward pass cannot use what was cached in inference mode. Returns the cached functions.
    """
    kinds: set[Any] = {type(module) for module in model.modules()}
    caches = [cache for kind in kinds for cache in _caches(kind)]
    for cache in caches:
        cache.cache_clear()
    return caches


@contextlib.contextmanager
def swapped(owner: Any, **others: Any) -> Iterator[None]:
    """Exchange attributes of a module, a class or an object; meanwhile no other thread exchanges any."""
    with alone():
        before = {name: inspect.getattr_static(owner, name) for name in others}
        for name, other in others.items():
            setattr(owner, name, other)
        try:
            yield
        finally:
            for name, own in before.items():
                setattr(owner, name, own)


@functools.cache
def _caches(kind: type[nn.Module]) -> tuple[Any, ...]:
    spaces: list[tuple[str, Mapping[str, Any]]] = [(c.__module__, vars(c)) for c in kind.__mro__]
    if kind.__module__.startswith("transformers."):
        spaces.append((kind.__module__, vars(sys.modules[kind.__module__])))
    caches = []
    for module, space in spaces:
        for value in space.values():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
            inside = [cell.cell_contents for cell in cells if cell != CellType()]  # an empty one raises
            caches += [c for c in (function, *inside) if isinstance(c, CACHED) and c.__module__ == module]
    return tuple(caches)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Raise ModelError after a run that needs the weights to stay, where another thread has written them.

    Buffers do not count: a pass in training writes them itself, such as the statistics of a batch norm.
    """
    given = [t for t in model.parameters() if not t.is_inference()]
    before = [(t, t._version) for t in given]
    yield
    if any(t._version != version for t, version in before):
        raise ModelError(
            f"{type(model).__name__} was written to while it was followed: another thread trains it; "
            "give a copy of it (copy.deepcopy), made between two steps"
        )
