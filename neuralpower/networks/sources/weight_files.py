"""A file of weights: GGUF, whose metadata describe the model, or safetensors, whose folder does.

Headers alone are read.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.files.paths import is_file
from neuralpower.networks.libraries.config_files import dtype_in
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

INDEX = ".safetensors.index.json"
CONFIG = "config.json"
# how tensors of diffusion checkpoints in one file begin
PARTS_OF_PIPELINES = (
    *("model.diffusion_model.", "first_stage_model.", "double_blocks.", "joint_blocks.", "blocks."),
    *("transformer_blocks.", "patch_embedding", "single_blocks.", "x_embedder", "cond_stage_model."),
)
FALLBACK = "v1"  # what diffusers takes a checkpoint for that it does not know: Stable Diffusion 1.5


def is_gguf(given: Given) -> bool:
    """Whether a text names a GGUF file."""
    return given.may_be_path and given.path.suffix.lower() == ".gguf"


def is_safetensors(given: Given) -> bool:
    """Whether a text names a file of safetensors, or the index of several."""
    return given.may_be_path and (given.path.suffix == ".safetensors" or given.path.name.endswith(INDEX))


def dtype_of_gguf(given: Given) -> str | None:
    """The type that products have: that of the file where it is plain, else 16 bits."""
    from neuralpower.networks.libraries.gguf_models import gguf_values

    return dtype_in(gguf_values(given.path)[0], given.overrides)


def dtype_of_folder(given: Given) -> str | None:
    """The type that config.json in the folder states."""
    from neuralpower.networks.libraries.config_files import folder_values

    values, _ = folder_values(_described(given.path))
    return dtype_in(values, given.overrides) if isinstance(values, dict) else None


@model_source("FILE.gguf", place=86, recognises=is_gguf, runs_code=False, dtype=dtype_of_gguf)
def gguf(given: Given) -> Source:
    """The language model that the metadata describe, with the file's quantisation."""
    from neuralpower.networks.libraries.gguf_models import gguf_values
    from neuralpower.networks.libraries.transformers import described_source

    values, _ = gguf_values(given.path)
    return described_source(given.text, values, given.overrides, f"the metadata of {given.location}")


@model_source("FILE.safetensors", place=87, recognises=is_safetensors, runs_code=False, dtype=dtype_of_folder)
def safetensors(given: Given) -> Source:
    """The model that config.json in the folder describes."""
    from neuralpower.networks.libraries.transformers import folder_source

    return folder_source(given.text, _described(given.path), given.overrides)


def looks_like(tensors: Mapping[str, tuple[int, ...]]) -> str:
    """The published pipeline whose checkpoint in one file has such tensors; "" where none is known."""
    if importlib.util.find_spec("diffusers") is None or not any(
        name.startswith(PARTS_OF_PIPELINES) for name in tensors
    ):
        return ""
    import torch

    known: Any = importlib.import_module("diffusers.loaders.single_file_utils")
    shaped = {name: torch.empty(shape, device="meta") for name, shape in tensors.items()}
    try:
        kind = known.infer_diffusers_model_type(shaped)
        if kind == FALLBACK and known.CHECKPOINT_KEY_NAMES[kind] not in tensors:
            return ""
        return str(known.DIFFUSERS_DEFAULT_PIPELINE_PATHS[kind]["pretrained_model_name_or_path"])
    except (KeyError, IndexError, AttributeError):  # no table of that version fits
        return ""


def _described(path: Path) -> Path:
    """The config.json in the file's folder.

    Raises ModelError for a damaged file, and without config.json, where it says what the file holds.
    """
    from neuralpower.networks.headers import read_index, read_safetensors

    found = (read_index if path.name.endswith(INDEX) else read_safetensors)(path)
    if is_file(path.with_name(CONFIG)):
        return path.with_name(CONFIG)
    if pipeline := looks_like(found.tensors):
        raise ModelError(
            f"{path}: holds {found.in_words()}, and looks like {pipeline}; write its name instead"
        )
    raise ModelError(
        f"{path}: holds {found.in_words()}, and names no architecture; put its config.json into that folder"
    )


# `path/network.onnx`: a graph that another framework, or torch.onnx, has exported.


def is_onnx(given: Given) -> bool:
    """Whether a text names an ONNX file."""
    return given.may_be_path and given.path.suffix == ".onnx"


def main_dtype(given: Given) -> str | None:
    """The type of most of its weights; raises ModelError."""
    from neuralpower.networks.onnx_files.reading import read_graph

    return read_graph(given.path).main


@model_source("FILE.onnx", place=85, recognises=is_onnx, runs_code=False, dtype=main_dtype)
def onnx_file(given: Given) -> Source:
    """Its overrides are sizes by name: network.onnx?batch=8."""
    from neuralpower.networks.onnx_files.module import onnx_source

    return onnx_source(given.text, given.path, given.overrides)
