"""A kept pass as a function of its batch and its length: a few are followed, all others are worked out.

The passes are trees of plain values (`prediction.plain_passes`). Where they differ, they must differ in
numbers alone, and each number must be a form of the sizes (`prediction.sums`). The last pass is held out: it
must come out as it was followed, value by value. Between the passes, and nowhere else, any other follows.
How many experts of a mixture a batch reaches, by the assumed routing, is a size besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neuralpower.prediction.kept.plain_passes import plain, recorded_in
from neuralpower.prediction.kept.sums import Form, Solver
from neuralpower.trace.followed import Recorded
from neuralpower.trace.lifetimes import Storage, on_library
from neuralpower.trace.parts.routing import ROUTING, Routing, noted

Size = tuple[int, int | None]  # batch, and tokens of each sample: of a context in a decode step
BATCHES, MORE_BATCHES = (2, 509), (19, 131)  # the fewest and the most samples that are followed, and between
LENGTHS = (131_003, 32_003, 8_003, 4_051, 2_029, 1_013, 509)  # longest ones, of which a network takes some
SHORTEST = 17
DIGITS = re.compile(r"(\d+)")


def sizes_to_follow(asked: Size, kinks: Sequence[int], longest: int | None) -> list[list[Size]]:
    """Sizes to follow besides an asked one: of one sample, then of several; the last of each is held out.

    `kinks`: lengths at which a window or a cache begins to slide; `longest`: the most tokens.
    """
    batch, length = asked
    if length is None or longest is None:
        return [[(b, None) for b in (2, 3, 509, 131, 19) if b != batch]]
    low = max((kink for kink in kinks if kink <= length), default=min(SHORTEST, length))
    high = min((kink - 1 for kink in kinks if kink > length), default=max(longest, length))
    between, held_out = round(low ** (1 / 3) * high ** (2 / 3)) | 1, round((low * high) ** 0.5) | 1
    line = [(1, n) for n in dict.fromkeys((low, high, between, held_out)) if asked != (1, n)]
    corners: list[Size] = [(b, n) for b in BATCHES for n in (low, high)]
    several = [*corners, (MORE_BATCHES[0], between), (MORE_BATCHES[1], held_out)]
    groups = line, [size for size in several if size != asked]
    return [sizes for sizes in groups if sizes]


def solved(
    passes: Mapping[Size, Recorded], library: str, routing: Routing = ROUTING
) -> dict[str, Any] | None:
    """The function of the passes, the last held out, as JSON values; None where there is none.

    `library`: whose kernels run; work space of another one does not count. `routing`: of mixtures.
    """
    wholes = [whole for one in passes.values() if (whole := plain(_without(one, library))) is not None]
    if len(wholes) < max(len(passes), 3):
        return None
    *leaves, held_out = (list(_leaves(whole)) for whole in wholes)
    sizes = list(passes)
    if any(len(some) != len(held_out) for some in leaves):
        return None
    mixtures = _mixtures(sizes[:-1], leaves)
    if mixtures is None:
        return None
    routed = {"mixtures": mixtures, "routing": [routing.name, routing.tokens_per_expert]}
    solver = Solver(np.array([_values(size, routed) for size in sizes[:-1]]))
    forms: dict[tuple[float, ...], int] = {}
    changes: list[tuple[int, Any]] = []
    for place, values in enumerate(zip(*leaves, held_out, strict=True)):
        if values.count(values[0]) == len(values):
            continue
        parts = _parts(values)
        if parts is None:
            return None
        written: list[Any] = []
        for numbers in parts:
            form = solver.form(tuple(numbers[:-1])) if isinstance(numbers[0], int) else None
            if form is None and len(set(numbers)) > 1:
                return None
            written.append(numbers[0] if form is None else [forms.setdefault(form.coefficients, len(forms))])
        changes.append((place, written if isinstance(values[0], str) else written[0][0]))
    batches, lengths = zip(*sizes, strict=True)
    known = [n for n in lengths if n is not None]
    function = {
        "whole": wholes[0],
        "forms": [*forms],
        "changes": changes,
        "batches": [min(batches), max(batches)],
        "lengths": [min(known), max(known)] if known else None,
        **routed,
    }
    return function if _at(function, sizes[-1]) == held_out else None


def at(function: Mapping[str, Any], size: Size) -> Recorded | None:
    """The pass of a size; None for one that does not lie between those that were followed."""
    try:
        (low, high), lengths = function["batches"], function["lengths"]
        inside = low <= size[0] <= high and (lengths is None) == (size[1] is None)
        if size[1] is not None:
            inside = inside and lengths[0] <= size[1] <= lengths[1]
        if not inside:
            return None
        return recorded_in(_filled(function["whole"], iter(_at(function, size))))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _values(size: Size, routed: Mapping[str, Any]) -> tuple[float, ...]:
    """The values that forms are made of; `routed`: the mixtures and the routing of a function."""
    plain_values, routing = _plain_values(size), Routing(*routed["routing"])
    more: list[float] = []
    for per_token, experts, tokens in routed["mixtures"]:
        count = int(Form(tuple(tokens))(np.array([plain_values]))[0])
        more += routing.grouped(count * per_token, per_token, experts)
    return *plain_values, *more


def _plain_values(size: Size) -> tuple[float, ...]:
    batch, length = size
    return (1, batch) if length is None else tuple(m * n for n in (1, length, length**2) for m in (1, batch))


def _mixtures(sizes: Sequence[Size], leaves: Sequence[Sequence[Any]]) -> list[tuple[int, int, Any]] | None:
    """(experts of a token, experts, the form of the tokens) of each mixture; None where there is no form."""
    said = [[m for one in some if isinstance(one, str) and (m := noted(one))] for some in leaves]
    if len({len(some) for some in said}) > 1:
        return None
    solver = Solver(np.array([_plain_values(size) for size in sizes]))
    found: dict[tuple[int, int, Any], None] = {}
    for same in zip(*said, strict=True):
        form = solver.form(tuple(tokens for tokens, *_ in same))
        if form is None or len({one[1:] for one in same}) > 1:
            return None
        found[(*same[0][1:], form.coefficients)] = None
    return [*found]


def _without(recorded: Recorded, library: str) -> Recorded:
    """What was recorded, with nothing for the work space of other libraries."""

    def kept(storages: Sequence[Storage]) -> tuple[Storage, ...]:
        counted = {id(one) for one in on_library(storages, library)}
        return tuple(one if id(one) in counted else one._replace(bytes=0, blocks=()) for one in storages)

    trace, lifetimes = recorded.trace, recorded.lifetimes
    return replace(
        recorded,
        trace=replace(trace, storages=kept(trace.storages)),
        lifetimes=None if lifetimes is None else lifetimes._replace(storages=kept(lifetimes.storages)),
    )


def _leaves(value: Any) -> Iterator[Any]:
    """The values in a tree, and how many each list has, in order."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        yield f"of {len(value)}"
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _filled(value: Any, leaves: Iterator[Any]) -> Any:
    """A tree of the same form with other leaves."""
    if isinstance(value, Mapping):
        next(leaves)
        return {name: _filled(one, leaves) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        next(leaves)
        return [_filled(one, leaves) for one in value]
    return next(leaves)


def _parts(values: Sequence[Any]) -> list[tuple[Any, ...]] | None:
    """Numbers of the passes, by part of a text; None where they differ in more than numbers."""
    if all(type(value) is int for value in values):
        return [tuple(values)]
    if not all(isinstance(value, str) for value in values):
        return None
    texts = [DIGITS.split(value) for value in values]
    if len({len(text) for text in texts}) > 1:
        return None
    parts = list(zip(*texts, strict=True))
    if any(len(set(part)) > 1 for part in parts[::2]):
        return None
    return [tuple(map(int, part)) if i % 2 else part for i, part in enumerate(parts)]


def _at(function: Mapping[str, Any], size: Size) -> list[Any]:
    """The leaves of the pass of a size."""
    leaves = list(_leaves(function["whole"]))
    values = np.array([_values(size, function)], dtype=float)
    numbers = [int(Form(tuple(one))(values)[0]) for one in function["forms"]]
    for place, parts in function["changes"]:
        if isinstance(parts, int):
            leaves[place] = numbers[parts]
        else:
            leaves[place] = "".join(str(numbers[p[0]]) if isinstance(p, list) else str(p) for p in parts)
    return leaves
