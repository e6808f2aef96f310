"""The config.json of a folder, with how its weights are quantised. It imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralpower.errors import ModelError
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file, is_folder, shown
from neuralpower.networks.sources.base import grammar

BESIDE = "hf_quant_config.json"  # in which NVIDIA's Model Optimizer says how weights are quantised


def folder_values(path: Path) -> tuple[Any, Path]:
    """(value, file) of a folder's config.json, or of that file; raises ModelError."""
    file = path / "config.json" if is_folder(path) else path
    if not is_file(file):
        raise ModelError(
            f"{shown(path)} holds no config.json or model_index.json; give a folder of transformers or "
            "diffusers, "
            f"or {grammar().partition(', ')[2]}"
        )
    values = _read(file)
    beside = file.with_name(BESIDE)
    if isinstance(values, dict) and "quantization_config" not in values and is_file(beside):
        values = {**values, "quantization_config": _read(beside)}
    return values, file


def _read(file: Path) -> Any:
    """The value in a JSON file; raises ModelError."""
    try:
        return read_json(file)
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} is not JSON ({error}); write the configuration again") from error
