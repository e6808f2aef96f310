"""Models by the names that people use, and by their place on the hub: `llama-3.1-8b`, `hf:ORG/NAME`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.networks.diffusion.classes import CLASS, check_installed
from neuralpower.networks.diffusion.families import Pipeline
from neuralpower.networks.diffusion.pipelines import INDEX, described, indexed, pipeline_or_part
from neuralpower.networks.libraries.config_files import dtype_in
from neuralpower.networks.names.catalogue import Entry, catalogue, find_entry, named, near
from neuralpower.networks.names.hub import NoSuchFileError, configuration, file_of
from neuralpower.networks.sources.base import Given, model_source, recognised

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def is_listed(given: Given) -> bool:
    """Whether a text means one or more models of the catalogue, or is a slip in the name of one."""
    name = given.location
    return given.is_text and bool(name.strip()) and (bool(named(name)) or near(name) or bool(_split(name)[1]))


def _split(name: str) -> tuple[str, str]:
    """(Pipeline, part) of `flux.1-dev/transformer`; the part is "" for all else."""
    whole, _, part = name.rpartition("/")
    meant = named(whole) if whole and not named(name) else []
    pipelines = [one for one in meant if CLASS in catalogue()[one].config]
    return (whole, part) if pipelines else (name, "")


def found(given: Given) -> tuple[Entry, str]:
    """The entry, and the part of its pipeline that is requested alone, if any; raises ModelError."""
    whole, part = _split(given.location)
    entry = find_entry(whole)
    if part:
        described(entry.name, entry.config).part(part)
    return entry, part


def _check(given: Given) -> None:
    entry, _ = found(given)
    if CLASS in entry.config:
        check_installed()


def dtype_of(given: Given) -> str:
    """The type in which the model was published."""
    entry, _ = found(given)
    return dtype_in({"dtype": entry.dtype}, given.overrides) or entry.dtype


def known_type(model: Any) -> str | None:
    """The word of transformers for the architecture of a model of the catalogue; None for others."""
    given = Given(model)
    source = recognised(given) if given.is_text and given.text.strip() else None
    if source is None or source.make is not listed:
        return None
    found = given.overrides.get("model_type", find_entry(given.location).config.get("model_type"))
    return found if isinstance(found, str) else None


@model_source(
    "a name of `neuralpower models`",
    place=11,
    recognises=is_listed,
    runs_code=False,
    dtype=dtype_of,
    check=_check,
)
def listed(given: Given) -> Source:
    """A network of transformers, by the fields of its published configuration."""
    from neuralpower.networks.libraries.transformers import described_source

    entry, part = found(given)
    if CLASS in entry.config:
        return pipeline_or_part(given, described(entry.name, entry.config), [part] if part else [])
    return described_source(given.text, dict(entry.config), given.overrides, entry.name)


# `hf:ORG/NAME[@REVISION]`: a model of the Hugging Face hub, by its config.json alone.

TYPE = "model_type"


def dtype_of_hub(given: Given) -> str | None:
    """The type in which its weights were published; None where config.json does not say a usual one."""
    if pipeline_of(given) is not None:
        return "bfloat16"
    return dtype_in(configuration(given.name), given.overrides)


@model_source("hf:ORG/NAME", place=12, prefix="hf", runs_code=False, dtype=dtype_of_hub)
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
