"""Candidates, one JSON object a line -> scores, ranked: changed configurations and lists of layers.

    {"model": "transformers:llama", "changes": {"hidden_size": 512}, "batch_size": 1, "seq_len": 128}
    {"layers": [{"kind": "linear", "rows": 128, "in_features": 64, "out_features": 64, "bias": true, "count":
    3}]}

Either may have a `name`, a model also an `input_shape` of one sample. A line that cannot be used gets an
error; all other lines are scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from numbers import Number
from types import NoneType
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from neuralpower.errors import (
    LARGEST_SIZE,
    InputError,
    NeuralPowerError,
    PredictorError,
    is_count,
    one_line,
    unknown,
)
from neuralpower.files.json_files import parse_json
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import FORWARD
from neuralpower.layers.rows import field_names, from_row
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.sources.base import check_model
from neuralpower.prediction.explore.doubts import doubts
from neuralpower.prediction.explore.outcomes import Outcomes, finite, outcomes_of
from neuralpower.prediction.explore.space import Point, explore
from neuralpower.prediction.request import dtype_for

# ---- Candidates given as lists of layers: the distinct layers, and how often each list calls them ----


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


# ---- Scores ----


BY = {"latency": "runtime_s", "energy": "energy_j", "memory": "memory_bytes"}  # name -> field of a score
LISTED = "layers"  # basis of a candidate that came as its layers
FIELDS = ("name", "model", "changes", "batch_size", "seq_len", "input_shape", "dtype")  # of a model


@dataclass(frozen=True)
class Score:
    """One candidate; None where not known, all of them where it has an error."""

    line: int  # counted from 1
    name: str
    runtime_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    energy_j: float | None = None
    memory_bytes: float | None = None
    parameters: int | None = None
    basis: str | None = None  # formula, traced or layers: how its layers are known
    coverage: float | None = None  # share of the layers' time by regressors that were trained on such calls
    trained_here: float | None = None  # the same, on this device
    rank: int | None = None  # 1 for the best
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **{name: v for name, v in vars(self).items() if name != "error" or v}}


def score(
    candidates: Iterable[str | Mapping[str, Any]],
    predictor: Predictor,
    by: str = "latency",
    *,
    trust_code: bool = False,
) -> list[Score]:
    """Scores in the candidates' order, each with its rank; text is a line of JSON, blank lines are skipped.

    A candidate whose model runs code is refused, unless `trust_code` says that it may.

    Raises:
        InputError: `by` is not known, or there is no candidate.
        PredictorError: the predictor serves several devices and none is chosen.
    """
    if by not in BY:
        raise unknown("score", by, BY)
    lists = Lists()
    read = [
        _read(number, candidate, lists, trust_code)
        for number, candidate in enumerate(candidates, 1)
        if not isinstance(candidate, str) or candidate.strip()
    ]
    if not read:
        how = "give one JSON object a line, with a model and its changes, or with layers"
        raise InputError(f"no candidate: {how}")
    scores = {score.line: score for score, _ in read}
    points = {score.line: point for score, point in read if point is not None}
    listed = [score.line for score, point in read if point is None and not score.error]
    _score_points(points, predictor, scores)
    if listed:
        _score_lists(lists, listed, predictor, scores)
    known = [score for score in scores.values() if getattr(score, BY[by]) is not None]
    order = sorted(known, key=lambda score: (getattr(score, BY[by]), score.line))
    rank = {score.line: place for place, score in enumerate(order, 1)}
    return [replace(score, rank=rank.get(line)) for line, score in scores.items()]


def warnings_of(scores: Sequence[Score], predictor: Predictor) -> list[str]:
    """Warnings: why the scores are less certain than their bounds."""
    coverages, trained = [one.coverage for one in scores], [one.trained_here for one in scores]
    return [*doubts([predictor], coverages, trained, [predictor.device] * len(scores), "candidates")]


def _score_points(points: Mapping[int, Point], predictor: Predictor, scores: dict[int, Score]) -> None:
    known = {}
    usual: dict[str, str] = {}  # dtypes of models without one
    for line, point in points.items():
        try:
            model = str(point.model)
            if not point.dtype and model not in usual:
                usual[model] = dtype_for(model, None, predictor)[0]
            known[line] = replace(point, dtype=point.dtype or usual[model])
            predictor.check(known[line].dtype, FORWARD)
        except NeuralPowerError as error:
            if isinstance(error, PredictorError) and predictor.hardware is None:  # it serves several devices
                raise
            known.pop(line, None)
            scores[line] = replace(scores[line], error=one_line(error))
    if not known:
        return
    explored = explore(list(known.values()), predictor)
    for i, line in enumerate(known):
        if i in explored.errors:
            scores[line] = replace(scores[line], error=explored.errors[i])
            continue
        scores[line] = replace(
            _scored(scores[line], explored.outcomes, i),
            memory_bytes=finite(explored.memory_bytes[i]),
            parameters=int(explored.parameters[i]),
            basis=explored.basis[i],
        )


def _score_lists(lists: Lists, lines: Sequence[int], predictor: Predictor, scores: dict[int, Score]) -> None:
    """Score lists of layers, by their lines."""
    untrained = lists.untrained(predictor)
    if predictor.hardware is None and untrained:  # it serves several devices
        raise untrained[min(untrained)]
    outcomes, parameters = lists.outcomes(predictor)
    for i, line in enumerate(lines):
        if i in untrained:
            scores[line] = replace(scores[line], error=str(untrained[i]))
        else:
            scores[line] = replace(_scored(scores[line], outcomes, i), parameters=parameters[i], basis=LISTED)


def _scored(score: Score, outcomes: Outcomes, i: int) -> Score:
    runtime_s, low_s, high_s = (
        float(one[i]) for one in (outcomes.runtime_s, outcomes.low_s, outcomes.high_s)
    )
    known: dict[str, Any] = {
        "energy_j": finite(outcomes.energy_j[i]),
        "coverage": finite(outcomes.coverage[i]),
        "trained_here": finite(outcomes.trained[i]),
    }
    return replace(score, runtime_s=runtime_s, low_s=low_s, high_s=high_s, **known)


def _read(
    number: int, candidate: str | Mapping[str, Any], lists: Lists, trust_code: bool
) -> tuple[Score, Point | None]:
    """(its score so far, its point); the point is None for a list of layers, and for an unusable line."""
    score = Score(number, f"line {number}")
    try:
        data = parse_json(candidate, endless=True) if isinstance(candidate, str) else candidate
    except ValueError as error:
        return replace(score, error=f"is not JSON ({error})"), None
    if not isinstance(data, Mapping):
        return replace(score, error=f"is {data!r:.40}, but must be an object"), None
    if data.get("name") is not None:
        score = replace(score, name=str(data["name"]))
    try:
        if LISTED in data:
            _check(data, "a list of layers", ("name", LISTED))
            lists.add(data[LISTED])
            return score, None
        point = _point(data)
        check_model(str(point.model), trust_code=trust_code)
        return score, point
    except (NeuralPowerError, KeyError, TypeError, ValueError) as error:
        return replace(score, error=one_line(error)), None


def _check(data: Mapping[str, Any], what: str, fields: Sequence[str]) -> None:
    for name in data:
        if name not in fields:
            raise unknown(f"field of {what}", name, fields)


def _point(data: Mapping[str, Any]) -> Point:
    model, changes = data.get("model"), data.get("changes", {})
    if not isinstance(model, str):
        raise InputError("has neither a model nor layers; give one of them")
    _check(data, "a model", FIELDS)
    if not isinstance(changes, Mapping):
        raise InputError(f"changes is {changes!r:.40}, but must be an object of fields and values")
    for name, value in changes.items():
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST_SIZE:
            raise InputError(f"{name} is {value!r:.40}, but must be a number up to {LARGEST_SIZE}")
    sizes = {"batch_size": data.get("batch_size", 1), "seq_len": data.get("seq_len")}
    for name, value in sizes.items():
        if value is not None and not is_count(value):
            raise InputError(f"{name} is {value!r}, but must be a whole number, 1 or more")
    shape = data.get("input_shape")
    good = isinstance(shape, list | tuple) and shape and all(map(is_count, shape))
    if shape is not None and not good:
        must = "but must be a list of whole numbers, 1 or more, the shape of one sample"
        raise InputError(f"input_shape is {shape!r}, {must}")
    dtype, batch_size = str(data.get("dtype") or ""), sizes["batch_size"] or 1  # "": the model's own
    return Point(model, batch_size, sizes["seq_len"], dtype, dict(changes), tuple(shape) if shape else None)
