"""The config.json of a folder, how its weights are quantised, and in which type; no torch is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.dtypes import NETWORK_DTYPES, full_name
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


# ---- The type in which a checkpoint was published, by its configuration. It imports no torch ----


WORDS = ("dtype", "torch_dtype")  # transformers reads the second where the first is missing
PART = "_config"  # how the fields end that hold the configuration of a part
FIRST = ("text_config", "llm_config", "language_config", "thinker_config")  # parts with most of the weights
QUANTISED = "quantization_config"
IN_HALF = ("awq", "gptq")  # their kernels multiply in float16 (transformers/quantizers)


def dtype_in(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> str | None:
    """The type that a config.json states for itself or for a part; `overrides` as in MODEL?field=value.

    A quantised checkpoint that states none is multiplied in 16 bits. None: nothing usable is stated.
    """
    given = overrides or {}
    for key, value in given.items():
        if key.rpartition(".")[2] in WORDS and (asked := _known(value)) is not None:
            return asked
    stated = next(_stated(values), None)
    method = given.get(QUANTISED, values.get(QUANTISED))
    if stated is not None or not isinstance(method, Mapping):
        return stated
    return "float16" if str(method.get("quant_method")).lower() in IN_HALF else "bfloat16"


def _stated(values: Mapping[str, Any]) -> Iterator[str]:
    """The types of a configuration and of its parts, the outermost first."""
    for word in WORDS:
        value = values.get(word)
        named = value.values() if isinstance(value, Mapping) else (value,)  # one type for each part
        yield from filter(None, map(_known, named))
    parts = [name for name, part in values.items() if name.endswith(PART) and isinstance(part, Mapping)]
    for name in sorted(parts, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name != QUANTISED:
            yield from _stated(values[name])


def _known(value: object) -> str | None:
    """The full name of a type that a module can have; None for any other value."""
    name = full_name(str(value).removeprefix("torch.").lower())
    return name if name in NETWORK_DTYPES else None
