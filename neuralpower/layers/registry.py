"""The table of layer kinds; a kind enters it by its decorator, and a name or operator can be taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from neuralpower.layers.base import Layer

KINDS: dict[str, type[Layer]] = {}
BY_OPERATOR: dict[str, type[Layer]] = {}

L = TypeVar("L", bound=Layer)


def form(*operators: str) -> Callable[[type[L]], type[L]]:
    """Have a class read operators as layers of the kind that it is derived from; raises ValueError for one that is taken."""

    def register(kind: type[L]) -> type[L]:
        _take(kind, operators)
        return kind

    return register


def layer_kind(name: str, *operators: str) -> Callable[[type[L]], type[L]]:
    """Register a kind under `name`, to be asked about the operators named ("aten.softmax"); raises ValueError twice."""

    def register(kind: type[L]) -> type[L]:
        if name in KINDS:
            raise ValueError(f"layer kind {name!r} is already defined by {KINDS[name].__module__}")
        _take(kind, operators)
        kind.kind, kind.operators = name, operators
        KINDS[name] = kind
        return kind

    return register


def _take(kind: type[Layer], operators: Sequence[str]) -> None:
    for operator in operators:
        if operator in BY_OPERATOR:
            raise ValueError(f"operator {operator!r} already belongs to kind {BY_OPERATOR[operator].kind!r}")
    BY_OPERATOR.update(dict.fromkeys(operators, kind))
