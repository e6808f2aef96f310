"""`neuralpower.gate`: predict models, and compare them with a baseline in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from neuralpower.api.loaded import LoadedPredictor, chosen
from neuralpower.ask.keywords import limits_in
from neuralpower.ask.options import Predicting, given_in
from neuralpower.ask.spread import device_in
from neuralpower.errors import InputError
from neuralpower.files.atomic import check_place, replace_file
from neuralpower.files.json_files import json_text
from neuralpower.files.paths import is_there
from neuralpower.files.stages import stage
from neuralpower.prediction.explore.gate import (
    Baseline,
    Entry,
    Gate,
    baseline_text,
    checked,
    entry_of,
    read_baseline,
)
from neuralpower.version import __version__, version_of

DEFINING = ("torch", "transformers", "torchvision", "timm", "diffusers")  # they define networks
TARGETS = ("device", "predictor")


def asked_gate(models: Any, baseline: str | Path, options: Mapping[str, Any], *, update: bool) -> Gate:
    """Predict each model, and compare it with the baseline, or write that; raises InputError.

    `options`: of `Gating`, and the device and the predictor. One that is not given is as in the baseline.
    """
    file, limits = Path(baseline), limits_in(options)
    check_place(file, "baseline.json")
    kept = None if update and not is_there(str(file)) else read_baseline(file)
    entries, answers = [], []
    named = _named(models, kept)
    for number, (name, model) in enumerate(named.items()):
        stage(f"predicting {name}", number, len(named))
        before = None if kept is None else kept.entry(name)
        if before is None and not update:
            raise InputError(f"{name}: is not in the baseline {file}; add it with --update, or leave it out")
        now, loaded = _entry(name, model, _question(name, options, None if update else before))
        entries.append(now)
        if kept is not None and before is not None and not update:
            strict = bool(options.get("strict_versions"))
            both = (kept.versions, _versions())
            answers.append(checked(before, now, loaded.predictor, limits, both, strict=strict))
    if update:
        written = {entry.model for entry in entries}
        others = [] if kept is None else [entry for entry in kept.models if entry.model not in written]
        replace_file(file, baseline_text([*others, *entries], _versions()))
    return Gate(tuple(answers), _versions(), tuple(entry.model for entry in entries) if update else ())


def _named(models: Any, kept: Baseline | None) -> dict[str, Any]:
    """The models by the name that the baseline calls them; all of the baseline's where none is given."""
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        alone = isinstance(models, (str, Path, nn.Module)) or callable(models)
        each: Sequence[Any] = [models] if alone else list(models or ())
        named = {_called(model): model for model in each}
    if named or kept is None:
        if not named:
            raise InputError("gate: no model; name one, such as zoo:resnet50, or net.py:Net")
        return named
    return {entry.model: entry.model for entry in kept.models}


def _called(model: Any) -> str:
    return str(model) if isinstance(model, (str, Path)) else getattr(model, "__name__", type(model).__name__)


def _question(name: str, options: Mapping[str, Any], before: Entry | None) -> dict[str, Any]:
    """The options that differ from their defaults, with those of the baseline where none is given.

    Raises InputError where the two differ.
    """
    given = {**given_in(Predicting, options), **{t: options.get(t) for t in TARGETS if options.get(t)}}
    given = {option: _plain(value) for option, value in given.items()}
    if before is None:
        return given
    for option, value in given.items():
        if before.asked.get(option, value) != value or option not in before.asked:
            was = before.asked.get(option, "its default")
            raise InputError(
                f"{name}: the baseline was asked with {option} {was}, this is {value}; leave it out, or "
                "accept it with --update"
            )
    return {**before.asked, **given}


def _plain(value: Any) -> Any:
    """A value as a file holds it."""
    try:
        return json.loads(json_text(value))
    except TypeError:
        return str(value)


def _entry(name: str, model: Any, question: Mapping[str, Any]) -> tuple[Entry, LoadedPredictor]:
    options = {option: value for option, value in question.items() if option not in TARGETS}
    loaded = chosen(device_in({**options, "device": question.get("device")}), question.get("predictor"))
    prediction = loaded.predict(model, **options)
    return entry_of(name, question, prediction, loaded.predictor), loaded


def _versions() -> dict[str, str]:
    """Versions of neuralpower, and of the libraries that are in use."""
    used = [name for name in DEFINING if name in sys.modules]
    return {"neuralpower": __version__, **{name: version_of(name) for name in used}}
