"""`zoo:NAME`: the networks of neuralpower itself."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING

from neuralpower.errors import ModelError, is_count
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.inputs import InputRequest, Inputs
    from neuralpower.networks.source import Source


@model_source("zoo:NAME", place=23, prefix="zoo", runs_code=False)
def zoo(given: Given) -> Source:
    """A network of the zoo; overrides are keywords of its build function."""
    from neuralpower.networks.functions import ask, call_function
    from neuralpower.networks.inputs import called_with
    from neuralpower.networks.source import Source, by_shape, checked_module
    from neuralpower.networks.zoo import zoo_entry

    entry, text, overrides = zoo_entry(given.name), given.text, given.overrides
    keywords = inspect.signature(entry.build).parameters
    for key, value in overrides.items():
        sizes = value if isinstance(value, list) else [value]
        if key in keywords and is_count(keywords[key].default) and not all(map(is_count, sizes)):
            raise ModelError(f"{key} {value!r:.40} of {text!r:.100}: must be a whole number, 1 or more")

    def construct(dtype: torch.dtype) -> nn.Module:
        return checked_module(call_function(entry.build, overrides, text), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        make = entry.example_inputs
        if make is not None and request.input_shape is None:
            shared = overrides.keys() & inspect.signature(make).parameters.keys()
            return called_with(ask(partial(make, **{key: overrides[key] for key in shared}), request, text))
        return by_shape(text, model, request, tuple(entry.input_shape))

    return Source(text, construct, examples)
