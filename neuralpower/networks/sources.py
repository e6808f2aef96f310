"""The MODEL argument -> a model and its inputs. Weights are never loaded or downloaded.

MODEL is one of
    a folder with a config.json, or that file        transformers; `architectures` names the class
    transformers:bert, transformers:BertForMaskedLM  the default configuration of a model type or class
    torchvision:resnet50, timm:NAME                  where these are installed
    zoo:alexnet                                      the networks of neuralpower itself
    package.module:function, path/file.py:function   returns an nn.Module, or (module, inputs); `example_input_array` of
                                                     a module are its inputs, too
    path/network.pt2                                 written by torch.export.save
and all but the last can end in overrides: transformers:bert?num_hidden_layers=2&hidden_size=512. An nn.Module
and a transformers configuration object are accepted as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neuralpower.errors import ModelError, is_count, unknown
from neuralpower.networks.copies import copied
from neuralpower.networks.exported import exported_source
from neuralpower.networks.functions import EXAMPLE, ask, call_function, function_source, path_of
from neuralpower.networks.inputs import (
    InputRequest,
    Inputs,
    called_with,
    transformers_inputs,
)
from neuralpower.networks.refusals import check_followable
from neuralpower.networks.size_limits import check_counts
from neuralpower.networks.source import GRAMMAR, IN_PYTHON, Source, by_shape, checked_module, of_its_own, read_overrides
from neuralpower.networks.transformers import (
    configuration_source,
    folder_source,
    is_configuration,
    is_transformers,
    transformers_source,
)
from neuralpower.networks.trust import CONFIGURATION, EXPORTED, FUNCTION, NAME, sort_of
from neuralpower.networks.users_code import users_code
from neuralpower.networks.vision import timm_source, torchvision_source

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["InputRequest", "Inputs", "Source", "resolve"]


def resolve(model: str | Path | nn.Module | PretrainedConfig) -> Source:
    """The source of `model`; raises ModelError where it is not found.

    A function's file or package is imported: a model that data name goes through `trust.check_model` before.
    """
    with users_code(f"{model if isinstance(model, (str, Path)) else type(model).__name__!s:.300} cannot be read"):
        return _resolved(model)


def _resolved(model: str | Path | nn.Module | PretrainedConfig) -> Source:
    if isinstance(model, nn.Module):
        return _module_source(model)
    if is_configuration(model):
        return configuration_source(type(model).__name__, model)
    if not isinstance(model, (str, Path)):
        raise ModelError(f"{model!r:.40} is no MODEL; {GRAMMAR}, an nn.Module or a configuration object")
    text = str(model)
    if not text.strip():
        raise ModelError(f"no model is named; {GRAMMAR}")  # an empty path would be the working folder
    location, mark, query = text.partition("?")
    overrides = read_overrides(text, query) if mark else {}
    check_counts(text, overrides)
    sort = sort_of(location)
    if sort == NAME:
        prefix, _, rest = location.partition(":")
        return _PREFIXES[prefix](text, rest, overrides)
    if sort == EXPORTED:
        return exported_source(text, path_of(location), overrides)
    if sort == CONFIGURATION:
        return folder_source(text, path_of(location), overrides)
    if sort == FUNCTION:
        place_of, _, name = location.rpartition(":")
        return function_source(text, place_of, name, overrides)
    raise ModelError(f"{text!r} is no folder and names no source; {GRAMMAR}")


# ---- a module or a configuration in hand ----


def _module_source(module: nn.Module) -> Source:
    """The user's module, which is never changed: another device or dtype gets a copy."""

    def construct(dtype: torch.dtype) -> nn.Module:
        check_followable(module, ())
        return copied(module, torch.get_default_device(), dtype)

    name = type(module).__name__

    def brings(model: nn.Module) -> Inputs | None:
        example = getattr(module, EXAMPLE, None)
        return None if example is None else called_with(example)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        own = brings(model)
        if own is not None and request.input_shape is None:
            return of_its_own(name, own, request)
        if is_transformers(model):
            return transformers_inputs(model, request)
        return by_shape(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, False, brings)  # copies promise the originals' values


# ---- transformers ----


# ---- torchvision, timm and the zoo ----


def _zoo_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`zoo:NAME`; overrides are keywords of its build function."""
    zoo: Mapping[str, Any] = importlib.import_module("neuralpower.networks.zoo").ZOO
    if name not in zoo:
        raise unknown("zoo network", name, zoo, ModelError)
    entry = zoo[name]
    keywords = inspect.signature(entry.build).parameters
    for key, value in overrides.items():
        sizes = value if isinstance(value, list) else [value]
        if key in keywords and is_count(keywords[key].default) and not all(map(is_count, sizes)):
            raise ModelError(f"{key} {value!r:.40} of {text!r:.100}: must be a whole number, 1 or more")

    def construct(dtype: torch.dtype) -> nn.Module:
        return checked_module(call_function(entry.build, overrides, text), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        make = entry.example_inputs
        if make is not None and request.input_shape is None:
            shared = overrides.keys() & inspect.signature(make).parameters.keys()
            return called_with(ask(partial(make, **{key: overrides[key] for key in shared}), request, text))
        return by_shape(text, model, request, tuple(entry.input_shape))

    return Source(text, construct, examples)


# ---- functions ----


# ---- exported programs ----


_PREFIXES: Mapping[str, Callable[[str, str, dict[str, Any]], Source]] = {
    "transformers": transformers_source,
    "torchvision": torchvision_source,
    "timm": timm_source,
    "zoo": _zoo_source,
}
