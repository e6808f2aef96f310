"""Classes of diffusers and the fields of a config.json -> modules; no weights, and no code of others."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError, unknown

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.source import Source

INSTALL = "diffusers is not installed; pip install diffusers"
CLASS = "_class_name"  # the field of a config.json of diffusers that names its class
FLAX = "Flax"  # the same networks in JAX: their configurations are read as torch's
FORMER = {"HunyuanDiT2DModel": {"conditioning_dim": None}}  # fields that a class no longer has


def check_installed() -> None:
    """Raise ModelError where diffusers is not installed; imports nothing."""
    if importlib.util.find_spec("diffusers") is None:
        raise ModelError(INSTALL)


def library() -> Any:
    """The library; raises ModelError with the command that installs it."""
    check_installed()
    return importlib.import_module("diffusers")


def class_names() -> list[str]:
    """Names of all model classes of the installed diffusers."""
    return sorted(library()._import_structure["models"])


def model_class(name: str) -> type[nn.Module]:
    """The model class of that name; raises ModelError where diffusers has none."""
    from torch import nn

    diffusers = library()
    name = name.removeprefix(FLAX)
    found = getattr(diffusers, name, None) if name in diffusers._import_structure["models"] else None
    if not (isinstance(found, type) and issubclass(found, nn.Module) and hasattr(found, "from_config")):
        raise unknown(f"model class of diffusers {diffusers.__version__}", name, class_names(), ModelError)
    return found


def fields_of(cls: type[nn.Module]) -> dict[str, Any]:
    """The fields of a class's configuration with their defaults."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return {one.name: None if one.default is one.empty else one.default for one in named}


def configured(
    text: str, name: str, values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a class: those of a config.json, as far as the class has them, then the overrides.

    Raises ModelError for an override of no field, and for values that no class takes.
    """
    cls = model_class(name)
    known = fields_of(cls)
    fields = {key: value for key, value in values.items() if key in known}
    for key, value in overrides.items():
        if key not in known:
            raise unknown(f"field of {cls.__name__} in the overrides of {text}", key, known, ModelError)
        fields[key] = value
    return fields


def component_source(
    text: str, name: str, values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Source:
    """A network of diffusers by its class and the fields of its config.json; raises ModelError."""
    from neuralpower.networks.diffusion.arguments import example_inputs
    from neuralpower.networks.inputs.size_limits import check_counts
    from neuralpower.networks.source import Source

    cls = model_class(name)
    fields = configured(text, name, values, overrides or {})
    check_counts(text, fields)
    return Source(text, partial(built, cls, fields), example_inputs)


def built(cls: type[nn.Module], fields: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """The module with its floating weights in a dtype."""
    from torch import nn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the library about itself
        return nn.Module.to(cls(**fields), dtype)  # the own `to` of diffusers only warns


def network_source(
    text: str, config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Source:
    """A network by its configuration, of diffusers or of transformers; raises ModelError."""
    from neuralpower.networks.libraries.transformers import described_source

    if CLASS in config:
        return component_source(text, config[CLASS], config, overrides)
    return described_source(text, dict(config), dict(overrides or {}), text)
