"""An nn.Module, and a configuration object of transformers, as they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.inputs import InputRequest, Inputs
    from neuralpower.networks.source import Source


def is_a(library: str, name: str, given: Given) -> bool:
    """Whether an object is of a class of a library, which is not imported for those who do not use it."""
    loaded = sys.modules.get(library)
    return not given.is_text and loaded is not None and isinstance(given.model, getattr(loaded, name))


@model_source("", place=1, recognises=lambda given: is_a("transformers", "PretrainedConfig", given))
def configuration(given: Given) -> Source:
    """A network of transformers."""
    from neuralpower.networks.transformers import configuration_source

    return configuration_source(type(given.model).__name__, given.model)


@model_source("", place=0, recognises=lambda given: is_a("torch.nn", "Module", given))
def module(given: Given) -> Source:
    """The user's module, which is never changed: another device or dtype gets a copy."""
    import torch

    from neuralpower.networks.copies import copied
    from neuralpower.networks.functions import EXAMPLE
    from neuralpower.networks.inputs import called_with, transformers_inputs
    from neuralpower.networks.refusals import check_followable
    from neuralpower.networks.source import IN_PYTHON, Source, by_shape, of_its_own
    from neuralpower.networks.transformers import is_transformers

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
            return of_its_own(name, own, request)
        if is_transformers(model):
            return transformers_inputs(model, request)
        return by_shape(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, False, brings)  # copies promise the originals' values
