"""Functions and classes of Python that build a network, as torchvision.models.resnet18."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source
from neuralpower.networks.sources.built_in import dtype_of_built

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.inputs.input_request import InputRequest
    from neuralpower.networks.inputs.inputs import Inputs
    from neuralpower.networks.source import Source


def is_building(given: Given) -> bool:
    """Whether it is a function, or a class of modules, that is called without arguments."""
    if given.is_text or not callable(given.model):
        return False
    from neuralpower.networks.libraries.callables import is_builder

    return is_builder(given.model)


@model_source("", place=2, recognises=is_building, dtype=dtype_of_built)
def builder(given: Given) -> Source:
    """A network that a function returns."""
    from neuralpower.networks.libraries.functions import call_function, derived_inputs
    from neuralpower.networks.source import IN_PYTHON, Source, checked_module

    name = getattr(given.model, "__name__", type(given.model).__name__)

    def construct(dtype: torch.dtype | None) -> nn.Module:
        return checked_module(call_function(given.model, {}, name), name, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        return derived_inputs(name, model, request, way_out=IN_PYTHON)

    return Source(name, construct, examples, untyped=lambda: construct(None))
