"""Deployments that are kept on the disk: a surface with its forms, and what the engine's pool holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from neuralpower.files.cache import cache_folder, keep, key_of, recall
from neuralpower.files.json_files import json_text
from neuralpower.layers import KINDS, Layer
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.sameness import is_current, loaded, question_of
from neuralpower.prediction.sums import Form
from neuralpower.serving.surface import Family, SharedLayer, StepSurface
from neuralpower.trace.by_request import RequestLayer

PLAIN = (
    "model",
    "dtype",
    "traces",
    "weights_bytes",
    "captured",
)  # fields of a surface that are kept as they are


@dataclass(frozen=True)
class Facts:
    """What an engine's pool holds, and how it serves the model."""

    dtype: str
    blocks: int
    block: int  # tokens
    block_bytes: int
    most_tokens: int | None  # of a step
    most_requests: int | None
    notes: tuple[str, ...] = ()


Made = tuple[StepSurface, Facts]


def kept(model: str, predictor: Predictor, asked: Mapping[str, Any], make: Callable[[], Made]) -> Made:
    """The surface and the facts of a deployment: those that are kept, else made and kept.

    Args:
        model: a name.
        predictor: of the device; what it knows is a part of the question.
        asked: everything else that they depend on, in plain values.
        make: makes them.
    """
    folder = cache_folder()
    question = None if folder is None else question_of(model, {"predictor": predictor.name, **asked})
    if folder is None or question is None:
        return make()
    known = sorted(map(str, predictor.regressors))
    key = key_of({**question, "deployment": True, "device": predictor.device, "known": known})
    found = recall(folder, key)
    if found is not None and is_current(found):
        try:
            return _surface(found["surface"], predictor), _facts(found["facts"])
        except (KeyError, TypeError, ValueError):  # written by another version
            pass
    surface, facts = make()
    answer = {"surface": _written(surface), "facts": vars(facts), "loaded": loaded()}
    keep(folder, key, json.loads(json_text(answer)))
    return surface, facts


def _facts(row: Mapping[str, Any]) -> Facts:
    return Facts(**{**row, "notes": tuple(row["notes"])})


def _written(surface: StepSurface) -> dict[str, Any]:
    """A surface in plain values, without its predictor, its layout and its module."""
    families = {name: _family_written(getattr(surface, name)) for name in ("prompts", "decodes")}
    return {**{name: getattr(surface, name) for name in PLAIN}, **families}


def _family_written(family: Family) -> dict[str, Any]:
    return {
        "shared": [
            [_layer_written(one.example), {n: form.coefficients for n, form in one.forms.items()}, one.count]
            for one in family.shared
        ],
        "requests": [[_layer_written(one.example), one.window, one.count] for one in family.requests],
        "unmodelled": [form.coefficients for form in family.unmodelled],
        "decodes": family.decodes,
    }


def _layer_written(layer: Layer) -> list[Any]:
    return [layer.kind, {each.name: getattr(layer, each.name) for each in fields(layer)}]


def _surface(row: Mapping[str, Any], predictor: Predictor) -> StepSurface:
    """A surface of plain values; raises KeyError, TypeError and ValueError."""
    return StepSurface(
        predictor=predictor,
        prompts=_family(row["prompts"]),
        decodes=_family(row["decodes"]),
        **{name: row[name] for name in PLAIN},
    )


def _family(row: Mapping[str, Any]) -> Family:
    return Family(
        shared=tuple(
            SharedLayer(_layer(layer), {n: Form(tuple(c)) for n, c in forms.items()}, count)
            for layer, forms, count in row["shared"]
        ),
        requests=tuple(
            RequestLayer(_layer(layer), window, count) for layer, window, count in row["requests"]
        ),
        unmodelled=tuple(Form(tuple(coefficients)) for coefficients in row["unmodelled"]),
        decodes=row["decodes"],
    )


def _layer(row: Any) -> Layer:
    kind, numbers = row
    return KINDS[kind](**numbers)
