"""The table of layer kinds; a kind enters it by its decorator, and a name or operator can be taken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from neuralpower.layers.base import Layer

KINDS: dict[str, type[Layer]] = {}
BY_OPERATOR: dict[str, type[Layer]] = {}

L = TypeVar("L", bound=Layer)


def layer_kind(name: str, *operators: str) -> Callable[[type[L]], type[L]]:
    """Register a kind under `name`, to be asked about the operators named ("aten.softmax"); raises ValueError twice."""

    def register(kind: type[L]) -> type[L]:
        if name in KINDS:
            raise ValueError(f"layer kind {name!r} is already defined by {KINDS[name].__module__}")
        for operator in operators:
            if operator in BY_OPERATOR:
                raise ValueError(f"operator {operator!r} already belongs to kind {BY_OPERATOR[operator].kind!r}")
        kind.kind, kind.operators = name, operators
        KINDS[name] = kind
        BY_OPERATOR.update(dict.fromkeys(operators, kind))
        return kind

    return register
