"""Predictors written as JSON. No pickle: a file from a stranger runs no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralpower.errors import DatasetError, InputError, writing
from neuralpower.files.atomic import check_place, replace_file
from neuralpower.files.json_files import json_text
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_format import to_json

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
