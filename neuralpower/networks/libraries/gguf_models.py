"""The configuration of a language model that a GGUF file's metadata describe, as transformers names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuralpower.errors import unknown
from neuralpower.networks.headers import MIXTURES, Header, HeaderError, read_gguf
from neuralpower.quantisation.gguf import MIXTURES as PRICED

PLAIN = ("float32", "float16", "bfloat16")
SPELLED = {  # architectures that llama.cpp calls otherwise than transformers
    **{"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "gemma3": "gemma3_text"},
    **{"minimax-m2": "minimax_m2"},
}
TABLES = {"gemma3_text": "gemma3"}  # types whose fields stand under another name


def gguf_values(path: Path) -> tuple[dict[str, Any], Header]:
    """(fields as of a config.json, the header); raises HeaderError and ModelError."""
    found = read_gguf(path)
    kind = _architecture(path, found.metadata)
    values: dict[str, Any] = {"model_type": kind, "architectures": [_causal(path, kind)]}
    fields, prefix = _fields(kind), f"{found.metadata['general.architecture']}."
    for name, value in found.metadata.items():
        field = fields.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if field is not None:
            values[field] = _one_of(path, name, value)
    values.setdefault("vocab_size", _vocabulary(found))
    values["tie_word_embeddings"] = "output.weight" not in found.tensors
    mixture = _mixture(found)
    if mixture in PLAIN:
        return {**values, "dtype": mixture}, found
    types = {name.removesuffix(".weight"): kind for name, kind in found.types.items()}
    stored = {"quant_method": "gguf", "mixture": mixture, "types": types}
    return {**values, "quantization_config": stored}, found


def _architecture(path: Path, metadata: Mapping[str, Any]) -> str:
    """The model type of transformers; raises HeaderError and ModelError."""
    named = metadata.get("general.architecture")
    if not isinstance(named, str):
        raise HeaderError(f"{path}: names no architecture; give a folder with its config.json")
    kind = SPELLED.get(named, named)
    known = _known()
    if TABLES.get(kind, kind) not in known:
        raise unknown("architecture of a GGUF file", named, known)
    return kind


def _known() -> Mapping[str, Mapping[str, str | None]]:
    """Architecture -> names of metadata -> fields of a configuration, as transformers has them."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    return {kind: fields for kind, fields in GGUF_CONFIG_MAPPING.items() if "block_count" in fields}


def _fields(kind: str) -> Mapping[str, str | None]:
    return _known()[TABLES.get(kind, kind)]


def _causal(path: Path, kind: str) -> str:
    """The class that makes text; raises HeaderError."""
    from transformers.models.auto import modeling_auto

    classes: Mapping[str, str] = vars(modeling_auto)["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"]
    if kind not in classes:
        raise HeaderError(f"{path}: {kind} is not a model that continues a text; give its config.json")
    return classes[kind]


def _one_of(path: Path, name: str, value: Any) -> Any:
    """A value, or that which a list holds for each layer; raises HeaderError where layers differ."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise HeaderError(f"{path}: {name} differs from layer to layer; give a folder with its config.json")
    return value[0]


def _vocabulary(found: Header) -> int:
    """Rows of the table of tokens."""
    return found.tensors.get("token_embd.weight", (0,))[0]


def _mixture(found: Header) -> str:
    """The mixture that the file states, where its types are priced; else the type of most bytes."""
    stated = MIXTURES.get(found.metadata.get("general.file_type", -1), "")
    most = next(iter(found.bytes_by_type), "float32")
    return stated if stated in (*PLAIN, *PRICED) else most
