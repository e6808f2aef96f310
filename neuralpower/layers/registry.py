"""The kinds of layers by name and by operator."""

from __future__ import annotations

from collections.abc import Callable

from neuralpower.layers.base import L, Layer

KINDS: dict[str, type[Layer]] = {}
BY_OPERATOR: dict[str, type[Layer]] = {}


def form(*operators: str) -> Callable[[type[L]], type[L]]:
    """Have a class read operators as layers of the kind that it derives from; raises ValueError if taken."""

    def register(kind: type[L]) -> type[L]:
        for operator in operators:
            if operator in BY_OPERATOR:
                raise ValueError(
                    f"operator {operator!r} already belongs to kind {BY_OPERATOR[operator].kind!r}"
                )
        BY_OPERATOR.update(dict.fromkeys(operators, kind))
        return kind

    return register


def layer_kind(name: str, *operators: str) -> Callable[[type[L]], type[L]]:
    """Register a kind for operators ("aten.softmax"); raises ValueError where a name is taken."""

    def register(kind: type[L]) -> type[L]:
        if name in KINDS:
            raise ValueError(f"layer kind {name!r} is already defined by {KINDS[name].__module__}")
        form(*operators)(kind)
        kind.kind, kind.operators = name, operators
        KINDS[name] = kind
        return kind

    return register
