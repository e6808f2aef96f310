"""Models by the names that people use: `llama-3.1-8b`, `Llama 3.1 8B`, `meta-llama/Llama-3.1-8B-Instruct`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuralpower.networks.catalogue import find_entry, named, near
from neuralpower.networks.config_files import dtype_in
from neuralpower.networks.sources.base import Given, model_source, recognised

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def is_listed(given: Given) -> bool:
    """Whether a text means one or more models of the catalogue, or is a slip in the name of one."""
    name = given.location
    return given.is_text and bool(name.strip()) and (bool(named(name)) or near(name))


def dtype_of(given: Given) -> str:
    """The type in which the model was published."""
    entry = find_entry(given.location)
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
    check=lambda given: find_entry(given.location),
)
def listed(given: Given) -> Source:
    """A network of transformers, by the fields of its published configuration."""
    from neuralpower.networks.transformers import described_source

    entry = find_entry(given.location)
    return described_source(given.text, dict(entry.config), given.overrides, entry.name)
