"""Families of networks that are built alike, by their names and overrides."""

from __future__ import annotations

from collections.abc import Mapping

from neuralpower.networks.zoo import ZOO
from neuralpower.networks.zoo.base import Sweep


def variant_of(model: str) -> str:
    """The name that jittered copies of a network share; each network of a family's sweep has its own."""
    name = model.partition("?")[0]
    return name if index_ranges(name) is None else model


def family_of(model: str) -> str:
    """The family of a network: a name and, in the zoo, a kind of blocks or loops."""
    name, overrides = _parted(model)
    sort, values = next(iter((index_ranges(name) or {"": ()}).items()))
    return f"{name}?{sort}={overrides[sort]}" if sort in overrides and isinstance(values[0], str) else name


def index_ranges(model: str) -> Sweep | None:
    """The sweep of a family of the zoo, by its bare name; None for other networks."""
    prefix, _, name = model.partition(":")
    return ZOO[name].sweep if prefix == "zoo" and name in ZOO else None


def with_overrides(model: str, changes: Mapping[str, int | str]) -> str:
    """`model` with `changes` in place of its own overrides of the same fields."""
    name, overrides = _parted(model)
    return name + "?" + "&".join(f"{key}={value}" for key, value in {**overrides, **changes}.items())


def _parted(model: str) -> tuple[str, dict[str, str]]:
    """A model's name and its overrides, as they are written."""
    name, _, query = model.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    return name, {key: value for key, _, value in parts}
