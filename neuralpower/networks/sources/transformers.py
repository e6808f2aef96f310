"""`transformers:NAME` and folders with a config.json; `architectures` of one names the class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def is_configuration(given: Given) -> bool:
    """Whether a text is a folder's or a JSON file's."""
    if not given.may_be_path or given.path.suffix == ".pt2":
        return False
    return given.path.suffix == ".json" or given.path.is_dir()


@model_source("a folder with a config.json", place=10, recognises=is_configuration, runs_code=False)
def folder(given: Given) -> Source:
    """The configuration in a folder or file, which is read as JSON."""
    from neuralpower.networks.transformers import folder_source

    return folder_source(given.text, given.path, given.overrides)


@model_source("transformers:NAME", place=20, prefix="transformers", runs_code=False)
def transformers(given: Given) -> Source:
    """The default configuration of a model type (bert) or a class (BertForMaskedLM)."""
    from neuralpower.networks.transformers import transformers_source

    return transformers_source(given.text, given.name, given.overrides)
