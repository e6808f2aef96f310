"""Predictors written as JSON. No pickle: a file from a stranger runs no code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from neuralpower.errors import DatasetError, InputError, writing
from neuralpower.files.atomic import check_place, replace_file
from neuralpower.files.json_files import json_text, nullable
from neuralpower.files.packed import packed, width
from neuralpower.learn.file_struct import Part
from neuralpower.learn.keys import Key
from neuralpower.learn.launch_overhead import Dispatch
from neuralpower.learn.predictor import LAW, Predictor
from neuralpower.learn.predictor_parts import (
    KEY,
    LEAF_BITS,
    LEAST_EXPONENT,
    POWER,
    RUNTIME,
    SCHEMA,
    UNITS,
    CostPart,
    DispatchPart,
    LawPart,
    PredictorPart,
    RegressorPart,
    TreesPart,
)
from neuralpower.learn.problem import Array
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.trees import Trees
from neuralpower.platforms import hardware_to_json
from neuralpower.version import __version__

DIGITS = 7  # significant ones of the numbers in the file


def check_places(path: Path) -> None:
    """Make the folder; raise InputError early where a predictor's file or card cannot be written."""
    with writing(path, "--out"):
        path.parent.mkdir(parents=True, exist_ok=True)
    check_place(path, "predictor.json")
    card = path.with_suffix(".md")
    if card == path:
        name = f"{path.stem}.json"
        raise InputError(f"{path}: is the name of the predictor's card; choose another name, such as {name}")
    if path.suffix != ".json":
        raise InputError(f"{path}: a predictor's file ends in .json; choose {path.with_suffix('.json')}")
    check_place(card, "predictor.json")


def save(predictor: Predictor, path: Path) -> None:
    """Write the JSON file; raises DatasetError where it cannot be written."""
    with writing(path, "place", DatasetError):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text(_rounded(to_json(predictor)), compact=True) + "\n")


def _rounded(value: Any) -> Any:
    """Floats to DIGITS significant digits, so that the file stays small."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(predictor: Predictor) -> dict[str, Any]:
    """The whole predictor as plain values."""
    p = predictor
    targets = ((RUNTIME, p.regressors), (POWER, p.power or {}))
    plain = _plain(
        PredictorPart,
        p,
        schema=SCHEMA,
        neuralpower=__version__,
        units=UNITS,
        portable=bool(p.view.pooled),
        hardware=p.hardware and hardware_to_json(p.hardware),
        dispatch=p.dispatch and _dispatch_to_json(p.dispatch),
        regressors=[
            _regressor_to_json(key, target, r) for target, some in targets for key, r in some.items()
        ],
        law=_plain(LawPart, p.law)
        if p.law and p.learner == LAW
        else None,  # that of the package stays in the package
    )
    if plain["law"] is None:
        del plain["law"]  # so that earlier versions read the file
    return plain


def _plain(part: type[Part], value: Any, **others: Any) -> dict[str, Any]:
    """The fields of a part by their names in the file, from `others`, else from attributes of the value."""
    fields = msgspec.structs.fields(part)
    given = {f.encode_name: others[f.name] if f.name in others else getattr(value, f.name) for f in fields}
    plain: dict[str, Any] = msgspec.to_builtins(given, enc_hook=lambda array: array.tolist())
    return plain


def _dispatch_to_json(dispatch: Dispatch) -> dict[str, Any]:
    costs = [
        _plain(CostPart, cost, kind=kind, phase=phase, function=function)
        for (kind, phase, function), cost in dispatch.costs.items()
    ]
    return _plain(DispatchPart, dispatch, costs=costs)


def _regressor_to_json(key: Key, target: str, r: Regressor) -> dict[str, Any]:
    terms = [
        {**({"special": term.special} if term.special else {"powers": dict(term.powers)}), "weight": weight}
        for term, weight in zip(r.terms, r.weights.tolist(), strict=True)
    ]
    return _plain(
        RegressorPart,
        r,
        **dict(zip(KEY, key, strict=True)),
        target=target,
        terms=terms,
        scores=nullable(dataclasses.asdict(r.scores)),
        reach=nullable(r.reach),
        trees=r.trees and _trees_to_json(r.trees),
        measured=_measured_to_json(np.zeros(0, np.uint32) if r.measured is None else r.measured),
    )


def _trees_to_json(trees: Trees) -> dict[str, Any]:
    """Thresholds stand once each; leaves are rounded to whole steps of a power of two, one for each tree."""
    inner = trees.feature >= 0
    cuts, cut, first = [], np.zeros(len(inner), dtype=np.int64), 0
    for feature in range(len(trees.features)):
        here = trees.feature == feature
        thresholds, place = np.unique(trees.number[here], return_inverse=True)
        cuts.append(thresholds)
        cut[here] = first + place
        first += len(thresholds)
    most, values = 2 ** (LEAF_BITS - 1), np.where(inner, 0.0, trees.number)
    exponents = np.frexp(np.maximum.reduceat(np.abs(values), trees.roots) / (most - 1))[1]
    exponents = np.maximum(exponents, LEAST_EXPONENT)
    scaled = np.round(np.ldexp(values, -np.repeat(exponents, np.diff(trees.roots, append=len(inner)))))
    return _plain(
        TreesPart,
        trees,
        cuts=cuts,
        nodes=len(inner),
        splits=packed(inner, 1),
        cut=packed(cut[inner], width(first - 1)),
        exponents=exponents,
        leaves=packed(scaled[~inner] + most, LEAF_BITS),
    )


def _measured_to_json(measured: Array) -> dict[str, Any]:
    steps = np.diff(measured.astype(np.int64), prepend=0)
    bits = width(steps.max(initial=0))
    return {"count": len(steps), "bits": bits, "steps": packed(steps, bits)}
