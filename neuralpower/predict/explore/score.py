"""Candidates, one JSON object a line -> scores, ranked: changed configurations and lists of layers.

    {"model": "transformers:llama", "changes": {"hidden_size": 512, "num_hidden_layers": 6}, "batch_size": 1, "seq_len": 128}
    {"layers": [{"kind": "linear", "rows": 128, "in_features": 64, "out_features": 64, "bias": true, "count": 3}, ...]}

Either may have a `name`, a model also an `input_shape` of one sample; a line that cannot be used is told, and the rest is
scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.trust import check_model
from neuralpower.predict.explore.lists import Lists
from neuralpower.predict.explore.outcomes import Outcomes, finite
from neuralpower.predict.explore.space import Point, explore

BY = ("latency", "energy", "memory")
LISTED = "layers"  # basis of a candidate that came as its layers
FIELDS = ("name", "model", "changes", "batch_size", "seq_len", "input_shape", "dtype")  # of a model
FIELDS_LISTED = ("name", LISTED)


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
    rank: int | None = None  # 1 for the best
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        known = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "error" or self.error
        }
        return {"schema": 1, **known}


def score(
    candidates: Iterable[str | Mapping[str, Any]],
    predictor: Predictor,
    by: str = "latency",
    *,
    trust_code: bool = False,
) -> list[Score]:
    """Scores in the candidates' order, each with its rank; text is read as a line of JSON, blank lines are left out.

    A candidate whose model runs code is refused, unless `trust_code` says that it may.

    Raises:
        InputError: `by` is not known, or there is no candidate.
        PredictorError: a predictor of several devices that is not told which.
    """
    if by not in BY:
        raise unknown("score", by, BY)
    read: list[tuple[int, str, Point | str | None]] = []
    lists = Lists()
    for number, candidate in enumerate(candidates, 1):
        if isinstance(candidate, str) and not candidate.strip():
            continue
        read.append(_read(number, candidate, lists, trust_code))
    if not read:
        raise InputError(
            "no candidate: give one JSON object a line, with a model and its changes, or with layers"
        )
    found: dict[int, Score] = {
        n: Score(n, name, error=what) for n, name, what in read if isinstance(what, str)
    }
    points = [(n, name, what) for n, name, what in read if isinstance(what, Point)]
    known = []
    for n, name, p in points:
        try:
            predictor.check(p.dtype, FORWARD)
            known.append((n, name, p))
        except PredictorError as error:
            if predictor.hardware is None:  # of one that serves several devices
                raise
            found[n] = Score(n, name, error=str(error))
    if known:
        explored = explore([p for _, _, p in known], predictor)
        for i, (n, name, _) in enumerate(known):
            if i in explored.errors:
                found[n] = Score(n, name, error=explored.errors[i])
                continue
            found[n] = replace(
                _scored(n, name, explored.outcomes, i),
                memory_bytes=finite(explored.memory_bytes[i]),
                parameters=int(explored.parameters[i]),
                basis=explored.basis[i],
            )
    listed = [(n, name) for n, name, what in read if what is None]
    if listed:
        unlearnt = lists.unlearnt(predictor)
        if predictor.hardware is None and unlearnt:  # of one that serves several devices
            raise unlearnt[min(unlearnt)]
        outcomes, learnt = lists.outcomes(predictor)
        for i, (n, name) in enumerate(listed):
            if i in unlearnt:
                found[n] = Score(n, name, error=str(unlearnt[i]))
                continue
            found[n] = replace(_scored(n, name, outcomes, i), parameters=learnt[i], basis=LISTED)
    return _ranked([found[n] for n, _, _ in read], by)


def _scored(line: int, name: str, outcomes: Outcomes, i: int) -> Score:
    return Score(
        line,
        name,
        runtime_s=float(outcomes.runtime_s[i]),
        low_s=float(outcomes.low_s[i]),
        high_s=float(outcomes.high_s[i]),
        energy_j=finite(outcomes.energy_j[i]),
    )


def _ranked(scores: Sequence[Score], by: str) -> list[Score]:
    field = {"latency": "runtime_s", "energy": "energy_j", "memory": "memory_bytes"}[by]
    known = [i for i, s in enumerate(scores) if getattr(s, field) is not None]
    order = sorted(known, key=lambda i: (getattr(scores[i], field), scores[i].line))
    rank = {i: place for place, i in enumerate(order, 1)}
    return [replace(s, rank=rank.get(i)) for i, s in enumerate(scores)]


def _read(
    number: int, candidate: str | Mapping[str, Any], lists: Lists, trust_code: bool
) -> tuple[int, str, Point | str | None]:
    """(line, name, a point, what is wrong with it, or None where it is the next of the lists)."""
    try:
        data = parse_json(candidate, endless=True) if isinstance(candidate, str) else candidate
    except ValueError as error:
        return number, f"line {number}", f"is no JSON ({error})"
    if not isinstance(data, Mapping):
        return number, f"line {number}", f"is {data!r:.40}, must be an object"
    name = str(f"line {number}" if data.get("name") is None else data["name"])
    try:
        if LISTED in data:
            _check(data, "a list of layers", FIELDS_LISTED)
            lists.add(data[LISTED])
            return number, name, None
        point = _point(data)
        check_model(str(point.model), trust_code=trust_code)
        return number, name, point
    except (NeuralPowerError, KeyError, TypeError, ValueError) as error:
        return number, name, one_line(error)


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
        raise InputError(f"changes is {changes!r:.40}, must be an object of fields and values")
    for name, value in changes.items():
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST_SIZE:
            raise InputError(f"{name} is {value!r:.40}, must be a number up to {LARGEST_SIZE}")
    sizes = {"batch_size": data.get("batch_size", 1), "seq_len": data.get("seq_len")}
    for name, value in sizes.items():
        if value is not None and not is_count(value):
            raise InputError(f"{name} is {value!r}, must be a whole number, 1 or more")
    shape = data.get("input_shape")
    if shape is not None and (
        not isinstance(shape, list | tuple) or not shape or not all(map(is_count, shape))
    ):
        raise InputError(
            f"input_shape is {shape!r}, must be a list of whole numbers, 1 or more: those of one sample"
        )
    dtype = str(data.get("dtype", "float32"))
    batch_size = sizes["batch_size"] or 1
    return Point(model, batch_size, sizes["seq_len"], dtype, dict(changes), tuple(shape) if shape else None)
