"""A folder of diffusers: a pipeline with its model_index.json, or one part of it with its config.json.

Configurations alone are read; a part of a class that neither diffusers nor transformers has is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file, is_folder
from neuralpower.networks.diffusion.classes import CLASS, check_installed, component_source
from neuralpower.networks.diffusion.pipelines import INDEX, indexed, pipeline_or_part
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def index_of(given: Given) -> Path | None:
    """The model_index.json that a text names, or whose folder it names."""
    if not given.may_be_path:
        return None
    file = given.path / INDEX if is_folder(given.path) else given.path
    return file if file.name == INDEX and is_file(file) else None


def is_of_diffusers(given: Given) -> bool:
    """Whether a text names a pipeline, or a configuration with a class of diffusers."""
    if index_of(given) is not None:
        return True
    if not given.may_be_path or given.path.name == INDEX:
        return False
    file = given.path / "config.json" if is_folder(given.path) else given.path
    if file.suffix != ".json" or not is_file(file):
        return False
    try:
        values = read_json(file)
    except (ValueError, OSError):
        return False
    return isinstance(values, dict) and isinstance(values.get(CLASS), str)


def dtype_of(given: Given) -> str | None:
    """The type that most pipelines run in; a part's configuration states none."""
    return "bfloat16" if index_of(given) is not None else None


def check(given: Given) -> None:
    """Raise ModelError without diffusers."""
    check_installed()


@model_source(
    "a folder with a model_index.json",
    place=9,
    recognises=is_of_diffusers,
    runs_code=False,
    dtype=dtype_of,
    check=check,
)
def folder(given: Given) -> Source:
    """The pipeline of a folder, or one network of diffusers."""
    from neuralpower.networks.libraries.config_files import (
        folder_values,  # which reads this package's grammar
    )

    index = index_of(given)
    if index is None:
        values, _ = folder_values(given.path)
        return component_source(given.text, values[CLASS], values, given.overrides)

    def read(name: str) -> Any:
        return folder_values(index.parent / name)[0]

    return pipeline_or_part(given, indexed(given.location, _json(index), read), ())


def _json(file: Path) -> Any:
    try:
        return read_json(file)
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} is not JSON ({error}); write it again") from error


# `diffusers:CLASS`: a network of diffusers by the defaults of its configuration, with overrides.


@model_source(
    "diffusers:CLASS",
    place=15,
    prefix="diffusers",
    runs_code=False,
    check=lambda given: check_installed(),
)
def diffusers(given: Given) -> Source:
    """A transformer, a UNet, an autoencoder or a ControlNet, alone."""
    return component_source(given.text, given.name, {}, given.overrides)
