"""Candidates given as lists of layers: the distinct layers, and how often each list calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from numbers import Number
from types import NoneType
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from neuralpower.errors import InputError, PredictorError, is_count, unknown
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.rows import field_names, from_row
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.explore.outcomes import Outcomes, outcomes_of

NAMES = {kind: frozenset(("kind", "count", *field_names(layer))) for kind, layer in KINDS.items()}


class Lists:
    """Lists of layers in the order in which they were added; equal rows are read once."""

    def __init__(self) -> None:
        self._read: dict[tuple[Any, ...], tuple[int, int]] = {}  # a row's items -> place of its layer, count
        self._places: dict[Layer, int] = {}
        self._columns: list[int] = []
        self._counts: list[int] = []
        self._ends = [0]

    def add(self, rows: Any) -> None:
        """One more list: objects with a kind, its fields and a count; raises InputError or DatasetError."""
        if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
            raise InputError("layers must be a list of one object or more, each with a kind and its fields")
        read = [self._row(row) for row in rows]
        self._columns += [place for place, _ in read]
        self._counts += [count for _, count in read]
        self._ends.append(len(self._columns))

    def _row(self, row: Any) -> tuple[int, int]:
        if not isinstance(row, Mapping):
            raise InputError(f"a layer is {row!r:.40}, but must be an object with a kind and its fields")
        items = (*row.items(), type(row.get("count")))  # True and 1.0 are equal to 1, and no counts
        try:
            known = self._read.get(items)
        except TypeError:
            name, value = next((n, v) for n, v in row.items() if not isinstance(v, (str, Number, NoneType)))
            said = f"{name} of a layer is {value!r:.40}, but must be a number, a text, true or false"
            raise InputError(said) from None
        if known is None:
            layer = _layer(row)
            known = self._read[items] = self._places.setdefault(layer, len(self._places)), _count(row)
        return known

    def untrained(self, predictor: Predictor) -> dict[int, PredictorError]:
        """Errors of lists with a product in an untrained dtype or phase, by the list's place."""

        @cache
        def refused(dtype: str, phase: str) -> PredictorError | None:
            try:
                predictor.check(dtype, phase)
            except PredictorError as error:
                return error
            return None

        products = [(layer, place) for layer, place in self._places.items() if layer.multiplies]
        bad = {place: error for layer, place in products if (error := refused(layer.dtype, layer.phase))}
        lists = [self._columns[start:end] for start, end in pairwise(self._ends)] if bad else []
        return {i: bad[min(wrong)] for i, places in enumerate(lists) if (wrong := bad.keys() & set(places))}

    def outcomes(self, predictor: Predictor) -> tuple[Outcomes, list[int]]:
        """(outcomes, numbers of parameters) of all lists."""
        parts = np.array(self._counts, dtype=float), np.array(self._columns, dtype=int), np.array(self._ends)
        counts = csr_array(parts, shape=(len(self._ends) - 1, len(self._places)))
        layers = list(self._places)
        parameters = counts @ np.array([layer.parameters() for layer in layers], dtype=float)
        counts.sum_duplicates()
        return outcomes_of(layers, counts, predictor), parameters.astype(int).tolist()


def _layer(row: Mapping[str, Any]) -> Layer:
    kind = row.get("kind")
    if kind not in KINDS:
        raise unknown("layer kind", kind, KINDS)
    if not row.keys() <= NAMES[kind]:
        raise unknown(f"field of {kind}", min(row.keys() - NAMES[kind]), field_names(KINDS[kind]))
    layer = from_row(KINDS[kind], row)
    try:
        moved = layer.bytes()  # a view moves nothing
        sizes = [getattr(layer, name) for name in layer.dimensions]
        empty = min(int(moved.output) if sum(moved) else 1, *sizes) <= 0
    except ZeroDivisionError:
        empty = True
    if empty:
        said = "its output is empty; write every size as 1 or more"
        raise InputError(f"{kind}: {said}")
    return layer


def _count(row: Mapping[str, Any]) -> int:
    count = row.get("count", 1)
    if not is_count(count):
        raise InputError(f"count is {count!r}, but must be a whole number, 1 or more")
    return int(count)
