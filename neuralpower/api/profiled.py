"""Profile a network that is given in any way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralpower.api.inputs import first_accepted
from neuralpower.ask.keywords import check_names
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.inputs.input_request import InputRequest
from neuralpower.networks.inputs.inputs import Inputs, one_shape, with_tensors
from neuralpower.networks.libraries.callables import as_network
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.request import dtype_for
from neuralpower.profiling import Keywords, NetworkProfile, profile
from neuralpower.trace.recipe import TRAINING


def profiled(model: Any, args: Any, kwargs: Mapping[str, Any] | None, settings: Keywords) -> NetworkProfile:
    """Profile a network here; the network can be a name, its inputs a shape.

    Raises what `neuralpower.profiling.profile` raises.
    """
    check_names("setting of a profile", settings, Keywords.__annotations__)
    model, whole = as_network(model), one_shape(args)
    if isinstance(model, (str, Path)) or (callable(model) and not isinstance(model, nn.Module)):
        return _profiled_source(
            resolve(model), torch_dtype(dtype_for(model, None)[0]), whole, (args, kwargs), settings
        )
    if isinstance(model, nn.Module):
        dtype = torch_dtype(dtype_for(model, None)[0])
        args = torch.ones(whole, dtype=dtype) if whole is not None else with_tensors(args, dtype)
        kwargs = with_tensors(kwargs, dtype)
    return profile(model, args, kwargs, **settings)


def _profiled_source(
    source: Source,
    dtype: torch.dtype,
    whole: tuple[int, ...] | None,
    given: tuple[Any, Any],
    settings: Keywords,
) -> NetworkProfile:
    """Profile a network of a source, with inputs of a shape, given inputs, or its own."""
    place = str(settings.get("device") or "cpu") if settings.get("runtime", True) else "meta"
    module = source.build(place, dtype)
    if settings.get("phase") == TRAINING:
        module.train()
    args, kwargs = given
    if whole is not None or (not kwargs and isinstance(args, tuple) and not args):
        shape = whole or (source.batch_size(None),)
        labels = settings.get("phase") == TRAINING

        def inputs(request: InputRequest) -> Inputs:
            return source.inputs(module, replace(request, labels=labels), device=place)

        made = first_accepted(shape, dtype, inputs)
        args, kwargs = made.args, made.kwargs
    named: Keywords = {"name": source.name, **settings}
    return profile(module, with_tensors(args, dtype), with_tensors(kwargs, dtype), **named)
