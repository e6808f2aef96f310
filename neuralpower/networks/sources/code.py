"""Functions of a user, and programs that torch.export.save has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def is_exported(given: Given) -> bool:
    """Whether a text is an exported program's."""
    return given.may_be_path and given.path.suffix == ".pt2"


def is_function(given: Given) -> bool:
    """Whether a text is a function's, which no other source has taken."""
    return given.may_be_path and ":" in given.location and not is_exported(given)


@model_source("package.module:function, path/file.py:function", place=80, recognises=is_function)
def function(given: Given) -> Source:
    """What a function returns: an nn.Module, or (module, inputs)."""
    from neuralpower.networks.functions import function_source

    place, _, name = given.location.rpartition(":")
    return function_source(given.text, place, name, given.overrides)


@model_source("a .pt2 file", place=90, recognises=is_exported)
def exported(given: Given) -> Source:
    """A graph with fixed shapes, except where these were dynamic."""
    from neuralpower.networks.exported import exported_source

    return exported_source(given.text, given.path, given.overrides)
