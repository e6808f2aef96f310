"""The largest batch of a training step that fits a device, in the precision of another library's loop.

Lightning: `Trainer(precision="bf16-mixed")` (its documentation, "N-Bit Precision"). Accelerate:
`Accelerator(mixed_precision="bf16")`, or what `accelerate launch` passes in an environment variable.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map_only

from neuralpower.devices.host import own_memory
from neuralpower.devices.names import bytes_of
from neuralpower.devices.spec import known_spec, spec_of
from neuralpower.errors import InputError, NeuralPowerError, is_count, unknown
from neuralpower.measure import target
from neuralpower.platforms import CPU, PLATFORMS, Platform, platform_of
from neuralpower.prediction.fits.fit import assumed
from neuralpower.prediction.fits.largest import largest
from neuralpower.prediction.memory.peak import training_memory
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.steps.step_lifetimes import training_lifetimes

LAUNCHED = "ACCELERATE_MIXED_PRECISION"  # which `accelerate launch` sets
# name -> settings of `training_lifetimes`; "16" and "bf16" are older names of mixed precision
PRECISIONS: Mapping[str, Mapping[str, torch.dtype]] = {
    **dict.fromkeys(("no", "32", "32-true"), {}),
    **dict.fromkeys(("16", "fp16", "16-mixed"), {"autocast": torch.float16}),
    **dict.fromkeys(("bf16", "bf16-mixed"), {"autocast": torch.bfloat16}),
    "16-true": {"dtype": torch.float16},
    "bf16-true": {"dtype": torch.bfloat16},
    **dict.fromkeys(("64", "64-true"), {"dtype": torch.float64}),
}


def settings_of(precision: str | int | None) -> dict[str, torch.dtype]:
    """The settings of a step in that precision; None changes nothing. Raises InputError for others."""
    if precision is None:
        return {}
    if str(precision) not in PRECISIONS:
        raise unknown("precision", str(precision), PRECISIONS)
    return dict(PRECISIONS[str(precision)])


def with_precision(settings: Mapping[str, Any], found: str | int | None) -> dict[str, Any]:
    """The user's settings, with a library's precision where they name none."""
    named = found is None or "precision" in settings or "autocast" in settings
    return dict(settings) if named else {"precision": found, **settings}


def of_accelerate() -> str | None:
    """The mixed precision of Accelerate, where a loop uses it."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if state is not None and getattr(state, "_shared_state", None):
        return str(state().mixed_precision)
    return os.environ.get(LAUNCHED)


# ---- The largest batch of a training step that fits into a device, from one sample batch ----


def largest_batch(
    model: nn.Module,
    sample: Any,
    *,
    device: str | None = None,
    memory: str | float | None = None,
    at_most: int | None = None,
    precision: str | int | None = None,
    **settings: Any,
) -> int:
    """The largest batch size of a training step that fits; 0 where none does. Nothing is run.

    Args:
        model: the network.
        sample: what it is called with: a tensor, a tuple of arguments, or a mapping of keywords. Tensors with
            the first size of the first tensor grow with the batch.
        device: "h100", "cpu", ...; by default the GPU that torch uses, else this machine's memory.
        memory: instead of the device's: "24GB", or bytes.
        at_most: the largest size to try.
        precision: as Lightning or Accelerate names it: "bf16-mixed", "bf16-true", "fp16", "no", ...
        **settings: `loss` of the output, by default its `loss`, or the mean square of its first tensor;
            `optimizer`, `accumulation`, `checkpointing`, as of `training_lifetimes`.

    Raises:
        InputError: no tensor in the sample, an unknown device or precision, or a step that cannot be
            followed.
    """
    if at_most is not None and not is_count(at_most):
        raise InputError(f"at_most {at_most!r}: must be a whole number, 1 or more; leave it out for no limit")
    args, kwargs = _called_with(sample)
    size_here = batch_of(sample)
    left_bytes, platform = _room(device, memory)
    settings = {"platform": platform, **settings_of(precision), **settings}

    def bytes_at(size: int) -> float:
        if at_most is not None and size > at_most:
            return float("inf")
        resized = tree_map_only(Tensor, partial(_resized, own=size_here, size=size), (args, kwargs))
        try:
            step = training_lifetimes(model, *resized, **settings)
        except NeuralPowerError:
            if size == start:
                raise
            return float("inf")  # a size that the network does not take
        return training_memory(step, platform=platform).high_bytes

    start = min(size_here, at_most or size_here)
    return largest(bytes_at, left_bytes, start)


class FittingBatchSize:
    """A context manager that gives a batch size, and a decorator that passes it as the first argument.

    What cannot be predicted leaves the user's own size, with a warning in one line.
    """

    def __init__(
        self, model: nn.Module | None, sample: Any, own: int | None, settings: Mapping[str, Any]
    ) -> None:
        self._model, self._sample, self._own, self._settings = model, sample, own, settings

    def __enter__(self) -> int:
        """The batch size; raises InputError where there is no size to fall back on."""
        return self._size(self._model)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Nothing is left to do."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the batch size before its own arguments."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return function(self._size(self._model), *args, **kwargs)

        return called

    def _size(self, model: nn.Module | None) -> int:
        own = self._own
        if own is None and self._sample is not None:
            own = batch_of(self._sample)
        if own is None:
            raise InputError("no sample and no starting_batch_size: give one of them")
        settings = with_precision(self._settings, of_accelerate())
        return size_or_own(model, self._sample, own, **settings)


def fitting_batch_size(
    model: nn.Module | None = None,
    sample: Any = None,
    *,
    starting_batch_size: int | None = None,
    **settings: Any,
) -> FittingBatchSize:
    """The largest batch size that fits, for `with` or as a decorator; arguments as in `largest_batch`.

    The precision is by default Accelerate's `mixed_precision`, where the loop uses it.
    `starting_batch_size` is the size that stays where none can be predicted; by default the sample's.

    Example:
        >>> import torch
        >>> from neuralpower.integrations import fitting_batch_size
        >>> model = torch.nn.Linear(1000, 1000)
        >>> with fitting_batch_size(model, torch.ones(8, 1000), device="h100", at_most=64) as batch_size:
        ...     batch_size
        64
    """
    return FittingBatchSize(model, sample, starting_batch_size, settings)


def size_or_own(model: nn.Module | None, sample: Any, own: int, **settings: Any) -> int:
    """The largest batch that fits; the own size with a warning where there is none, or it is not known."""
    try:
        if model is None or sample is None:
            raise InputError(f"no {'model' if model is None else 'sample batch'} was given")
        found = largest_batch(model, sample, **settings)
    except Exception as error:  # whatever a user's network raises must not stop the training
        return kept(own, str(error))
    return found or kept(own, "not even one sample is predicted to fit")


def kept(own: int, reason: str) -> int:
    """The user's own batch size, with a warning in one line."""
    short = " ".join(reason.split())[:300]
    warnings.warn(f"neuralpower: batch size {own} stays: {short}", stacklevel=4)
    return own


def batch_of(sample: Any) -> int:
    """The first size of the first tensor; raises InputError where there is none."""
    for value in tree_iter(sample):
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
    raise InputError(
        "the sample has no tensor whose first size is a batch; give what the model is called with"
    )


def _called_with(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(arguments, keywords) of a sample."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample), {}) if isinstance(sample, (tuple, list)) else ((sample,), {})


def _resized(tensor: Tensor, own: int, size: int) -> Tensor:
    """A tensor without values of another batch size."""
    if not tensor.dim() or tensor.shape[0] != own:
        return tensor
    found = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
    return found.requires_grad_(tensor.requires_grad)


def _room(device: str | None, memory: str | float | None) -> tuple[float, Platform]:
    """(bytes for a training step, platform); raises InputError."""
    given = None if memory is None else bytes_of(memory)
    if device is None and memory is not None:
        platform, own = assumed(memory)[0], None
    elif device is None and torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        spec = known_spec(about.name)
        platform = PLATFORMS["nvidia"] if spec is None else platform_of(spec.hardware())
        own = float(about.total_memory)
    elif (named := target(device)) is None:
        platform, own = CPU, own_memory() if given is None else None
    else:
        sheet = spec_of(str(named))
        platform, own = platform_of(sheet.hardware()), sheet.get("memory_bytes")
    room = own if given is None else given
    if room is None:
        raise InputError(f"{device}: its memory is not known; give memory, such as '24GB'")
    return platform.left_bytes(room, TRAINING), platform
