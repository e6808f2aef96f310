"""The MODEL argument -> a model and its inputs. Weights are never loaded or downloaded.

MODEL is one of
    path/model.gguf, path/model.safetensors          headers alone are read; a GGUF file describes its model
    a folder with a config.json, or that file        transformers; `architectures` names the class
    transformers:bert, transformers:BertForMaskedLM  the default configuration of a model type or class
    torchvision:resnet50, timm:NAME                  where these are installed
    llama-3.1-8b, Qwen/Qwen3-30B-A3B                 models of the catalogue (`neuralpower models`)
    hf:ORG/NAME, hf:ORG/NAME@REVISION                config.json of the Hugging Face hub
    zoo:alexnet                                      the networks of neuralpower itself
    package.module:function, path/file.py:function   returns an nn.Module, or (module, inputs); a module's
                                                     `example_input_array` are its inputs, too
    path/network.onnx                                an ONNX file; its overrides are sizes of its inputs
    path/network.pt2                                 written by torch.export.save
and all but the last can end in overrides: transformers:bert?num_hidden_layers=2&hidden_size=512. An
nn.Module and a transformers configuration object are accepted as they are.

A file in this folder that decorates a function with `model_source` is found by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.networks.sources.base import (
    SOURCES,
    Given,
    ModelSource,
    grammar,
    model_source,
    published_dtype,
    recognised,
)

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

    from neuralpower.networks.inputs.inputs import Inputs
    from neuralpower.networks.inputs.size_limits import InputRequest
    from neuralpower.networks.source import Source

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def resolve(model: str | Path | nn.Module | PretrainedConfig | Source) -> Source:
    """The source of `model`, or `model` itself where it is one; raises ModelError where it is not found.

    A function's file or package is imported: a model that data name goes through `trust.check_model` before.
    """
    from neuralpower.networks import source as sources
    from neuralpower.networks.inputs.size_limits import check_counts
    from neuralpower.networks.users_code import users_code

    if isinstance(model, sources.Source):
        return model
    given = Given(model)
    with users_code(f"{given.text or type(model).__name__!s:.300} cannot be read"):
        if given.is_text:
            if not given.text.strip():
                # an empty path would be the working folder
                raise ModelError(f"no model is given; {grammar()}")
            check_counts(given.text, given.overrides)
        source = recognised(given)
        if source is not None:
            return source.make(given)
        if given.is_text:
            raise _unnamed(given)
        raise ModelError(f"{model!r:.40} is not a MODEL; {grammar()}, an nn.Module or a configuration object")


def check_known(model: str) -> None:
    """Raise ModelError for a text that cannot be a model; without torch, so that it takes no time."""
    given = Given(model)
    if not given.text.strip():
        raise ModelError(f"no model is given; {grammar()}")
    _ = given.overrides  # which must be readable
    source = recognised(given)
    if source is None:
        raise _unnamed(given)
    source.check(given)


def _unnamed(given: Given) -> ModelError:
    """The error for a text that no source recognises: a suggestion, else all forms of a MODEL."""
    from neuralpower.networks.names.slips import meant

    return ModelError(
        f"{given.text!r} is not a folder and names no source; {meant(given.location) or grammar()}"
    )


def __getattr__(name: str) -> Any:
    """Lazy names for callers of `resolve`: they import torch, which the list of sources does not need."""
    if name == "InputRequest":
        return importlib.import_module("neuralpower.networks.inputs.size_limits").InputRequest
    if name == "Inputs":
        return importlib.import_module("neuralpower.networks.inputs.inputs").Inputs
    if name == "Source":
        return importlib.import_module("neuralpower.networks.source").Source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "SOURCES",
    "Given",
    "InputRequest",
    "Inputs",
    "ModelSource",
    "Source",
    "check_known",
    "grammar",
    "model_source",
    "published_dtype",
    "resolve",
]
