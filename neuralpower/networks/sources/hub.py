"""`hf:ORG/NAME[@REVISION]`: a model of the Hugging Face hub, by its config.json alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.networks.diffusion.families import Pipeline
from neuralpower.networks.diffusion.pipelines import INDEX, indexed, pipeline_or_part
from neuralpower.networks.libraries.config_files import dtype_in
from neuralpower.networks.names.hub import NoSuchFileError, configuration, file_of
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

TYPE = "model_type"


def dtype_of(given: Given) -> str | None:
    """The type in which its weights were published; None where config.json does not say a usual one."""
    if pipeline_of(given) is not None:
        return "bfloat16"
    return dtype_in(configuration(given.name), given.overrides)


@model_source("hf:ORG/NAME", place=12, prefix="hf", runs_code=False, dtype=dtype_of)
def hub(given: Given) -> Source:
    """A pipeline of diffusers or a part of it, else a network of transformers.

    `?model_type=NAME` takes a configuration for one of another type.
    """
    from neuralpower.networks.libraries.transformers import described_source

    if (pipeline := pipeline_of(given)) is not None:
        return pipeline_or_part(given, pipeline, given.name.split("/")[2:])
    overrides = dict(given.overrides)
    values = dict(configuration(given.name))
    if TYPE in overrides:
        values[TYPE] = overrides.pop(TYPE)
    check_native(given.location, values)
    return described_source(given.text, values, overrides, f"{given.location}'s config.json")


def pipeline_of(given: Given) -> Pipeline | None:
    """The pipeline of a repository that has a model_index.json and no config.json; raises ModelError."""
    words, at, revision = given.name.partition("@")
    name = "/".join(words.split("/")[:2]) + at + revision
    if name == given.name:
        with contextlib.suppress(NoSuchFileError):
            configuration(name)
            return None
    index = file_of(name, INDEX, optional=name == given.name)  # only pipelines have parts
    return None if index is None else indexed(f"hf:{name}", index, partial(file_of, name))


def check_native(name: str, values: Mapping[str, Any]) -> None:
    """Raise ModelError for an architecture that transformers does not have: its own code is never run."""
    import transformers
    from transformers.models.auto import configuration_auto

    known: Mapping[str, Any] = vars(configuration_auto)["CONFIG_MAPPING_NAMES"]
    kind, named = values.get(TYPE), values.get("architectures") or ["of no name"]
    if not isinstance(kind, str) or kind in known:
        return
    architecture = str(named[0] if isinstance(named, list) else named)
    own = "; its own code (auto_map) is never run" if "auto_map" in values else ""
    native = getattr(getattr(transformers, architecture, None), "config_class", None)
    if native is not None:
        way = f"{architecture} is: {name}?{TYPE}={native.model_type} uses its fields for one"
    else:
        way = "use a newer transformers, or another model"
    text = f"model type {kind!r} ({architecture}) is not in transformers {transformers.__version__}{own}"
    raise ModelError(f"{name}: {text}; {way}")
