"""Models by the names that people use: `llama-3.1-8b`, `Llama 3.1 8B`, `meta-llama/Llama-3.1-8B-Instruct`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuralpower.networks.diffusion.classes import CLASS, check_installed
from neuralpower.networks.diffusion.pipelines import described, pipeline_or_part
from neuralpower.networks.libraries.config_files import dtype_in
from neuralpower.networks.names.catalogue import Entry, catalogue, find_entry, named, near
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
