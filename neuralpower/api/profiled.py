"""Questions answered apart from what the caller has set in torch, and a network's profile."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from neuralpower.api.inputs import first_accepted
from neuralpower.ask.keywords import check_names
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.inputs.inputs import Inputs, one_shape, with_tensors
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.libraries.callables import as_network
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.request import dtype_for
from neuralpower.processes.alone import alone
from neuralpower.profiling import Keywords, NetworkProfile, profile
from neuralpower.trace.recipe import TRAINING

# An answer depends on the question alone: not on what the caller has set in torch, nor on other threads.

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def apart(asked: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Make a function independent of the caller's default device, modes and casts, and of other threads.

    A mode that sees each operator, such as one that counts FLOP, does not see those of following a network.
    """

    @functools.wraps(asked)
    def answered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        with alone(), _as_torch_begins():
            return asked(*args, **kwargs)

    return answered


@contextlib.contextmanager
def _as_torch_begins() -> Iterator[None]:
    """No modes of dispatch, no automatic casts, and the CPU as default device, all of this thread."""
    with contextlib.ExitStack() as stack:
        if _get_current_dispatch_mode() is not None:
            stack.enter_context(_disable_current_modes())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.get_default_device().type != "cpu":  # setting a device slows every call down
            stack.enter_context(torch.device("cpu"))
        yield


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
