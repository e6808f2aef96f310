"""The sources that neuralpower brings: objects, folders, libraries, its own zoo, functions and programs."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING

from neuralpower.errors import ModelError, is_count, unknown
from neuralpower.files.paths import is_file
from neuralpower.networks.libraries.config_files import dtype_in, folder_values
from neuralpower.networks.names.slips import transformers_names, zoo_names
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.inputs.inputs import Inputs
    from neuralpower.networks.inputs.size_limits import InputRequest
    from neuralpower.networks.source import Source


def is_a(library: str, name: str, given: Given) -> bool:
    """Whether an object is of a class of a library, which is not imported for those who do not use it."""
    loaded = sys.modules.get(library)
    return not given.is_text and loaded is not None and isinstance(given.model, getattr(loaded, name))


def is_exported(given: Given) -> bool:
    """Whether a text names an exported program."""
    return given.may_be_path and given.path.suffix == ".pt2"


def is_configuration(given: Given) -> bool:
    """Whether a text names a folder or a JSON file."""
    return given.may_be_path and (
        (given.path.suffix == ".json" and not given.path.name.endswith(".safetensors.index.json"))
        or (given.path.suffix != ".pt2" and given.path.is_dir())
    )


REMOVED = "transfo"  # a family that transformers dropped; a later error explains it


def check_transformers(given: Given) -> None:
    """Raise ModelError for a name that is in no table of transformers; a class may be in none."""
    types, words = transformers_names()
    name = given.name
    if types and name not in words and name == name.lower() and not name.startswith(REMOVED):
        raise unknown("transformers model type or class", name, words, ModelError)


def check_zoo(given: Given) -> None:
    """Raise ModelError for an id that the zoo does not have."""
    if given.name not in zoo_names():
        raise unknown("zoo network", given.name, zoo_names(), ModelError)


def check_installed(given: Given) -> None:
    """Raise ModelError where a library of image networks is not installed."""
    package = given.location.partition(":")[0]
    if importlib.util.find_spec(package) is None:
        raise ModelError(f"{package} is not installed; pip install timm torchvision")


def check_file(given: Given) -> None:
    """Raise ModelError where there is no such Python file, or where it does not define the name."""
    from neuralpower.networks.names.slips import check_defined

    location, _, name = given.location.rpartition(":")
    if not location.strip(" .:") or not name.strip():
        raise ModelError(f"{given.text!r:.200}: write package.module:function or path/file.py:function")
    file = given.path.with_name(location.rpartition("/")[2])
    if location.endswith(".py") and not is_file(file):
        raise ModelError(f"there is no file {location}; give an existing path/file.py:function")
    if location.endswith(".py"):
        check_defined(file, location, name)


def is_function(given: Given) -> bool:
    """Whether a text names a function, and no other source has taken it."""
    return given.may_be_path and ":" in given.location and not is_exported(given)


def dtype_of_module(given: Given) -> str | None:
    """The type of most of a module's weights."""
    from neuralpower.networks.copies import main_dtype

    return _named(main_dtype(given.model))


def dtype_of_built(given: Given) -> str | None:
    """The type of most weights of the module that a function or a file gives; raises ModelError."""
    from neuralpower.networks.sources import resolve

    return _named(resolve(given.model).own_dtype())


def _named(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def dtype_of_configuration(given: Given) -> str | None:
    """The type that a configuration object states."""
    return dtype_in(given.model.to_dict())


def dtype_of_folder(given: Given) -> str | None:
    """The type that the config.json states; raises ModelError."""
    values, _ = folder_values(given.path)
    return dtype_in(values, given.overrides) if isinstance(values, dict) else None


@model_source("", place=0, recognises=lambda given: is_a("torch.nn", "Module", given), dtype=dtype_of_module)
def module(given: Given) -> Source:
    """The user's module, which is never changed: another device or dtype gets a copy."""
    import torch

    from neuralpower.networks.copies import copied
    from neuralpower.networks.inputs.inputs import called_with
    from neuralpower.networks.libraries.callables import EXAMPLE, derived_inputs
    from neuralpower.networks.refusals import check_followable
    from neuralpower.networks.source import IN_PYTHON, Source, brought_inputs

    module, name = given.model, type(given.model).__name__

    def construct(dtype: torch.dtype) -> nn.Module:
        check_followable(module, ())
        return copied(module, torch.get_default_device(), dtype)

    def brings(model: nn.Module) -> Inputs | None:
        example = getattr(module, EXAMPLE, None)
        return None if example is None else called_with(example)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        own = brings(model)
        if own is not None and request.input_shape is None:
            return brought_inputs(name, own, request)
        return derived_inputs(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, False, brings)  # copies promise the originals' values


@model_source(
    "",
    place=1,
    recognises=lambda given: is_a("transformers", "PretrainedConfig", given),
    dtype=dtype_of_configuration,
)
def configuration(given: Given) -> Source:
    """A network of transformers."""
    from neuralpower.networks.libraries.transformers import configuration_source

    return configuration_source(type(given.model).__name__, given.model)


@model_source(
    "a folder with a config.json",
    place=10,
    recognises=is_configuration,
    runs_code=False,
    dtype=dtype_of_folder,
)
def folder(given: Given) -> Source:
    """The configuration in a folder or file, which is read as JSON."""
    from neuralpower.networks.libraries.transformers import folder_source

    return folder_source(given.text, given.path, given.overrides)


@model_source(
    "transformers:NAME",
    place=20,
    prefix="transformers",
    runs_code=False,
    dtype=lambda given: dtype_in({}, given.overrides),
    check=check_transformers,
)
def transformers(given: Given) -> Source:
    """The default configuration of a model type (bert) or a class (BertForMaskedLM)."""
    from neuralpower.networks.libraries.transformers import transformers_source

    return transformers_source(given.text, given.name, given.overrides)


@model_source("torchvision:NAME", place=21, prefix="torchvision", runs_code=False, check=check_installed)
def torchvision(given: Given) -> Source:
    """Images of 3x224x224, for Inception 3x299x299."""
    from neuralpower.networks.libraries.vision import torchvision_source

    return torchvision_source(given.text, given.name, given.overrides)


@model_source("timm:NAME", place=22, prefix="timm", runs_code=False, check=check_installed)
def timm(given: Given) -> Source:
    """Images of the size that timm lists for the model."""
    from neuralpower.networks.libraries.vision import timm_source

    return timm_source(given.text, given.name, given.overrides)


@model_source("zoo:NAME", place=23, prefix="zoo", runs_code=False, check=check_zoo)
def zoo(given: Given) -> Source:
    """A network of the zoo; overrides are keywords of its build function."""
    from neuralpower.networks.inputs.inputs import called_with
    from neuralpower.networks.libraries.callables import ask, call_function
    from neuralpower.networks.source import Source, by_shape, checked_module
    from neuralpower.networks.zoo import zoo_entry

    entry, text, overrides = zoo_entry(given.name), given.text, given.overrides
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


@model_source(
    "package.module:function, path/file.py:function",
    place=80,
    recognises=is_function,
    dtype=dtype_of_built,
    check=check_file,
)
def function(given: Given) -> Source:
    """An nn.Module, or (module, inputs), that a function returns."""
    from neuralpower.networks.libraries.callables import function_source

    place, _, name = given.location.rpartition(":")
    return function_source(given.text, place, name, given.overrides)


@model_source("a .pt2 file", place=90, recognises=is_exported, dtype=dtype_of_built)
def exported(given: Given) -> Source:
    """A graph with fixed shapes, except where these were dynamic."""
    from neuralpower.networks.libraries.exported import exported_source

    return exported_source(given.text, given.path, given.overrides)


# Functions and classes of Python that build a network, as torchvision.models.resnet18.


def is_building(given: Given) -> bool:
    """Whether it is a function, or a class of modules, that is called without arguments."""
    if given.is_text or not callable(given.model):
        return False
    from neuralpower.networks.libraries.callables import is_builder

    return is_builder(given.model)


@model_source("", place=2, recognises=is_building, dtype=dtype_of_built)
def builder(given: Given) -> Source:
    """A network that a function returns."""
    from neuralpower.networks.libraries.callables import call_function, derived_inputs
    from neuralpower.networks.source import IN_PYTHON, Source, checked_module

    name = getattr(given.model, "__name__", type(given.model).__name__)

    def construct(dtype: torch.dtype | None) -> nn.Module:
        return checked_module(call_function(given.model, {}, name), name, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        return derived_inputs(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, untyped=lambda: construct(None))
