"""Predictor files by their exact names."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from neuralpower.errors import PredictorError, one_line
from neuralpower.files.json_files import parse_json, read_text
from neuralpower.files.paths import is_file, predictor_folders
from neuralpower.learn.files.predictor_json import from_json
from neuralpower.learn.predictor import Predictor

KEPT = 32  # predictors that were read stay in memory: about 8 MB each


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
        return _of_text(read_text(path), path)
    except (ValueError, OSError) as error:
        raise PredictorError(
            f"{path}: is not a predictor file, or is cut off ({one_line(error)}); train it again with "
            "train-predictor"
        ) from None


@functools.lru_cache(maxsize=KEPT)
def _of_text(text: str, path: Path) -> Predictor:
    """The predictor in a text, built once; raises as `from_json`, and ValueError: no JSON."""
    return from_json(parse_json(text), path.stem, str(path))


class _Hardware(msgspec.Struct):
    accelerator: bool | None = None


class _Outline(msgspec.Struct):
    """The part of a predictor file that says whether its device is a CPU."""

    hardware: _Hardware | None = None


def may_be_of_a_cpu(path: Path) -> bool:
    """False where the file names no device, or an accelerator, or cannot be read; builds nothing."""
    try:
        hardware = msgspec.json.decode(path.read_bytes(), type=_Outline).hardware
    except (OSError, msgspec.DecodeError):
        return False
    return hardware is not None and not hardware.accelerator


def readable(names: Iterable[str]) -> tuple[dict[str, Predictor], list[PredictorError]]:
    """The predictors of these exact names, and why the others cannot be read."""
    found, refused, known = {}, [], known_predictors()
    for name in names:
        try:
            found[name] = read_predictor(known[name])
        except PredictorError as error:
            refused.append(error)
    return found, refused
