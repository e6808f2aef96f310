"""Layers as rows of a table: a column for each field."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

from neuralpower.dtypes import DTYPES
from neuralpower.errors import DatasetError, unknown
from neuralpower.layers.base import BACKWARD, FORWARD, GRADIENT, L, Layer

LARGEST = 2**53  # whole number that a table's column holds exactly


@functools.cache
def _declared(kind: type[Layer]) -> Mapping[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(kind)}


def field_names(kind: type[Layer]) -> tuple[str, ...]:
    """Column names of a kind, `dtype`, `phase` and `recurs` first."""
    return tuple(_declared(kind))


def plain_dimensions(kind: type[Layer]) -> tuple[str, ...]:
    """The fields that are sizes, which the numbers that share a scale are not."""
    sizes = (name for name, f in _declared(kind).items() if f.type == "int")
    return tuple(name for name in sizes if not name.endswith("_group"))


def defaults(kind: type[Layer]) -> dict[str, Any]:
    """Columns that a table may leave out, with the value they then have."""
    return {name: f.default for name, f in _declared(kind).items() if f.default is not dataclasses.MISSING}


def later_fields(kind: type[Layer]) -> frozenset[str]:
    """Fields that older datasets have no column for."""
    return kind.later | {"recurs"}


def to_row(layer: Layer) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in _declared(type(layer))}


def identity(layer: Layer) -> dict[str, Any]:
    """The key of its configuration's name: kind and fields, without later ones that are 0."""
    later = later_fields(type(layer))
    return {"kind": layer.kind, **{n: v for n, v in to_row(layer).items() if v or n not in later}}


def from_row(kind: type[L], row: Mapping[str, Any]) -> L:
    """The layer of a row; raises DatasetError where a field is missing or invalid."""
    values: dict[str, Any] = {}
    for name, f in _declared(kind).items():
        value = row.get(name)
        if value is None or value != value:
            if f.default is dataclasses.MISSING:
                needed = ", ".join(field_names(kind))
                raise DatasetError(f"{kind.kind}: no value for {name!r}; it needs {needed}")
            value = f.default
        values[name] = _as_field(kind.kind, name, f.type, value)
    for name, known in _words(kind).items():
        if values[name] not in known:
            raise unknown(f"{name} of {kind.kind}", values[name], known, DatasetError)
    layer = kind(**values)
    with contextlib.suppress(ZeroDivisionError):
        if layer.possible():
            return layer
    raise DatasetError(f"{kind.kind}: its fields contradict each other; {kind.rule}")


@functools.cache
def _words(kind: type[Layer]) -> Mapping[str, Collection[str]]:
    phase = str(_declared(kind)["phase"].default)
    phases = (FORWARD, BACKWARD, GRADIENT) if phase == FORWARD else (phase,)
    return {**dtype_words(kind), "phase": phases, **kind.words}


@functools.cache
def dtype_words(kind: type[Layer]) -> Mapping[str, Collection[str]]:
    """Allowed values of a kind's type fields; "" stands for that of `dtype`."""
    own = {name: frozenset(("", *DTYPES)) for name in _declared(kind) if name.endswith("_dtype")}
    return {"dtype": DTYPES, **own}


def _as_field(kind: str, name: str, declared: Any, value: Any) -> Any:
    """`value` as the field's declared type ("str", "bool" or "int"); raises DatasetError."""
    if declared == "str":
        return str(value).removeprefix("torch.")  # a dtype as torch prints it
    if type(value).__name__ == declared and (declared != "int" or 0 <= value <= LARGEST):
        return value
    if isinstance(value, str):
        plain: Any = value.strip().lower().replace("true", "1").replace("false", "0")
    else:
        plain = value
    try:
        number = float(plain)
    except (TypeError, ValueError, OverflowError):
        raise DatasetError(f"{kind}: {name} is {value!r}, but must be a number") from None
    if declared == "bool":
        if number not in (0, 1):
            raise DatasetError(f"{kind}: {name} is {value!r}, but must be true or false")
        return bool(number)
    if not number.is_integer() or not 0 <= number <= LARGEST:
        raise DatasetError(f"{kind}: {name} is {value!r}, but must be a whole number from 0 to {LARGEST}")
    return int(number)
