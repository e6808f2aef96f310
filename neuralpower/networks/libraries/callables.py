"""Functions as networks: what they compute from their inputs, and the modules and tensors that they use.

A function is a builder where it can be called without arguments, as torchvision.models.resnet18: it returns a
network. Any other function is a forward pass.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

OF_MODULES = frozenset(dir(nn.Module()))


class Forward(nn.Module):
    """A function's call as a module's, with what the function uses as its parts.

    A copy of it calls a function that uses the copied parts (`neuralpower.networks.copies`).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        inner, self.bound, keywords = _unbound(function)
        self.called, self.keywords = inner, keywords
        for name, value in dict(_used_by(inner, self.bound, keywords)).items():
            own = f"{name}_" if name in OF_MODULES or name in vars(self) else name
            if isinstance(value, nn.Module):
                self.add_module(own, value)
            elif isinstance(value, nn.Parameter):
                self.register_parameter(own, value)
            else:
                self.register_buffer(own, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*self.bound, *args, **{**self.keywords, **kwargs})


def is_builder(function: object) -> bool:
    """Whether an object can be called without arguments, modules aside."""
    if isinstance(function, type):
        return issubclass(function, nn.Module)
    try:
        inspect.signature(function).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return callable(function)


def as_network(model: Any) -> Any:
    """A function as a module; modules, builders, names and all else as they are."""
    if isinstance(model, nn.Module) or not callable(model) or is_builder(model):
        return model
    name = getattr(_unbound(model)[0], "__name__", type(model).__name__).strip("<>")
    return type(name, (Forward,), {})(model)


def _unbound(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(a function, positions, keywords) that a partial function stands for."""
    if not isinstance(function, functools.partial):
        return function, (), {}
    return function.func, function.args, dict(function.keywords)


def _used_by(
    function: Any, bound: tuple[Any, ...], keywords: dict[str, Any]
) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """(name, module or tensor) that a function reads: its arguments', object's, closure's and globals'."""
    named = {f"argument_{n}": value for n, value in enumerate(bound)} | keywords
    if isinstance(function, nn.Module):
        named[type(function).__name__.lower()] = function
    elif isinstance(function, MethodType):
        named[type(function.__self__).__name__.lower()] = function.__self__
    elif isinstance(function, FunctionType):
        found = inspect.getclosurevars(function)
        named |= {**found.globals, **found.nonlocals}
    for name, value in named.items():
        if isinstance(value, (nn.Module, Tensor)):
            yield name, value
