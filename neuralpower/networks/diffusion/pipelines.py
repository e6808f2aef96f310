"""Pipelines: which networks make one up, by their configurations, and what it runs by default."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.networks.diffusion.classes import CLASS, FLAX, model_class, network_source
from neuralpower.networks.diffusion.families import Pipeline

if TYPE_CHECKING:
    from neuralpower.networks.source import Source
    from neuralpower.networks.sources.base import Given

INDEX, CONFIG = "model_index.json", "config.json"
NO_NETWORK = re.compile(
    r"(low_res_)?scheduler|tokenizer(_\d)?|feature_extractor|image_processor|processor|safety_checker"
    r"|video_processor|watermarker"
)
LIBRARIES = ("diffusers", "transformers")
Read = Callable[[str], Any]  # a path within a repository -> the value of its JSON


def described(name: str, config: Mapping[str, Any]) -> Pipeline:
    """The pipeline of an entry of the catalogue."""
    parts = {
        role: value for role, value in config.items() if isinstance(value, Mapping) and role != "defaults"
    }
    return Pipeline(name, str(config[CLASS]), parts, config.get("defaults", {}))


def indexed(name: str, index: Any, read: Read) -> Pipeline:
    """The pipeline of a model_index.json, whose parts `read` gives.

    Raises ModelError for a part of a class that diffusers and transformers do not have: others' code is
    never run.
    """
    if not isinstance(index, dict) or not isinstance(index.get(CLASS), str):
        raise ModelError(
            f"{name}: its {INDEX} names no class of pipelines ({CLASS}); give a folder of diffusers"
        )
    parts: dict[str, Mapping[str, Any]] = {}
    for role, value in index.items():
        if not isinstance(value, list) or len(value) != 2 or None in value or NO_NETWORK.fullmatch(role):
            continue
        library, kind = map(str, value)
        if library not in LIBRARIES and library != "kolors":
            raise ModelError(
                f"{name}: its part {role} is a {kind} of its own code ({library}), which is never run; "
                "ask for another part alone, or for a pipeline of diffusers"
            )
        if library == "diffusers":
            model_class(kind)
        values = read(f"{role}/{CONFIG}")
        if not isinstance(values, dict):
            raise ModelError(f"{name}: {role}/{CONFIG} is not a JSON object; write the configuration again")
        named = {CLASS: kind.removeprefix(FLAX)} if library == "diffusers" else {"architectures": [kind]}
        parts[role] = {**values, **named}
    more = {name: index[name] for name in ("boundary_ratio",) if index.get(name) is not None}
    return Pipeline(name, index[CLASS].removeprefix(FLAX), parts, more)


def pipeline_or_part(given: Given, pipeline: Pipeline, parts: Sequence[str]) -> Source:
    """All of a pipeline, or one part of it; raises ModelError for overrides of all parts at once."""
    if parts:
        return part_source(given.text, pipeline, "/".join(parts), given.overrides)
    if given.overrides:
        example = f"{given.location}/{pipeline.denoisers[0]}?{given.query}"
        raise ModelError(f"{given.text}: overrides belong to a part of a pipeline; write {example}")
    return pipeline_source(given.text, pipeline)


def part_source(text: str, pipeline: Pipeline, role: str, overrides: Mapping[str, Any]) -> Source:
    """One part of a pipeline alone, with the inputs that the pipeline gives it; raises ModelError."""
    from neuralpower.networks.diffusion.composed import VAE, Decoder, part_inputs

    found = network_source(text, pipeline.part(role), overrides)
    if role.startswith("text_encoder"):
        return found
    inputs = partial(part_inputs, pipeline, role)
    if role != VAE:
        return replace(found, examples=inputs, pictures=True)
    construct = found.construct
    return replace(found, construct=lambda dtype: Decoder(construct(dtype)), examples=inputs, pictures=True)


def pipeline_source(text: str, pipeline: Pipeline) -> Source:
    """All parts of a pipeline as one network; raises ModelError."""
    from neuralpower.networks.diffusion.classes import steered
    from neuralpower.networks.diffusion.composed import composed, composed_inputs
    from neuralpower.networks.source import Source

    _ = pipeline.family  # which must be known

    def with_networks(controlnet: Source | None, usual: bool, adapter: bool) -> Source:
        return pipeline_source(text, steered(pipeline, controlnet, usual=usual, adapter=adapter))

    return Source(
        text,
        partial(composed, pipeline),
        partial(composed_inputs, pipeline),
        has_values=False,
        pictures=True,
        steered=with_networks,
    )
