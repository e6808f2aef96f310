"""Predictor files by their exact names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from neuralpower.errors import PredictorError, one_line
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file
from neuralpower.files.predictor_folders import predictor_folders
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_format import from_json


def known_predictors() -> dict[str, Path]:
    """Files by name; a nearer folder hides a farther one."""
    found: dict[str, Path] = {}
    for folder in predictor_folders():
        for file in sorted(folder.glob("*.json")):
            found.setdefault(file.stem, file)
    return found


def file_of(name: str | Path) -> Path | None:
    """The file of that path or exact name; None where there is none."""
    path = Path(name)
    if is_file(path):
        return path
    return known_predictors().get(str(name)) or (path if os.path.lexists(path) else None)


def read_predictor(path: Path) -> Predictor:
    """The predictor in a file; raises PredictorError where it is cut off, not JSON, or of another schema."""
    try:
        data = read_json(path)
    except (ValueError, OSError) as error:
        raise PredictorError(
            f"{path}: is not a predictor file, or is cut off ({one_line(error)}); train it again with "
            "train-predictor"
        ) from None
    return from_json(data, path.stem, str(path))


def readable(names: Iterable[str]) -> tuple[dict[str, Predictor], list[PredictorError]]:
    """The predictors of these exact names, and why the others cannot be read."""
    found, refused, known = {}, [], known_predictors()
    for name in names:
        try:
            found[name] = read_predictor(known[name])
        except PredictorError as error:
            refused.append(error)
    return found, refused
