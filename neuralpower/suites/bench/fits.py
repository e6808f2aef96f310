"""How large a batch may be: what a step holds in memory, counted on meta tensors, beside what memory there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from neuralpower.errors import NeuralPowerError, OutOfMemory
from neuralpower.networks.inputs import InputRequest, Inputs
from neuralpower.networks.promised_values import tensors_of
from neuralpower.profiling.steps import Step, accounted
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.suites.bench.network import Network, Scores, optimizer_of
from neuralpower.suites.precision import Precision

SPARE = 0.25  # of the available memory: work space of kernels (a squeezenet took 29 % more), the loader, everybody else


class TooLarge(OutOfMemory):
    """A batch that does not fit, and the largest that does; 0 for none."""

    def __init__(self, text: str, largest_batch: int) -> None:
        way_out = f"the largest that fits is {largest_batch}; choose --batch_size {largest_batch}"
        if not largest_batch:
            way_out = "not even a batch of 1 fits; choose a smaller network or a device with more memory"
        super().__init__(f"{text}; {way_out}")
        self.largest_batch = largest_batch


def peak_bytes(network: Network, request: InputRequest, precision: Precision, training: bool) -> int | None:
    """The most bytes that tensors of one step take at once: weights, gradients, optimizer and activations.

    Work space inside kernels is not counted. None for a network that needs values and cannot run on meta.
    """
    meta = torch.device("meta")
    try:
        model = network.built(meta, precision, training)
        inputs = widened(network.inputs(model, replace(request, batch_size=2)), request.batch_size)
        optimizer = optimizer_of(model, precision) if training else None
        scores = Scores(network.classes)
        step = Step(
            model,
            inputs.args,
            inputs.kwargs,
            "training" if training else "forward",
            lambda output: scores(output, None),
            optimizer,
        )
        held = [p for group in (optimizer.param_groups if optimizer else ()) for p in group["params"]]
        return accounted(step, HostClock(), None, held)[0].peak
    except (NeuralPowerError, RuntimeError):  # torch's: a value is asked for, or there is no code for meta
        return None


def widened(inputs: Inputs, batch_size: int) -> Inputs:
    """Inputs of another batch on meta, whatever its size: nothing is allocated."""
    sized = [tensor for tensor in tensors_of((inputs.args, inputs.kwargs)) if tensor.dim()]
    first = sized[0].shape[0] if sized else None

    def widen(tensor: Tensor) -> Tensor:
        shape = (batch_size, *tensor.shape[1:]) if tensor.dim() and tensor.shape[0] == first else tensor.shape
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return inputs.mapped(widen)


def check_host_memory(
    peak: Callable[[int], int | None], batch_size: int, name: str, available: int | None
) -> int | None:
    """What a step of that batch takes (bytes), if known.

    Raises:
        TooLarge: more than is available; it says which batch fits, by two points of `peak`, which grows linearly.
    """
    needed = peak(batch_size)
    if needed is None or available is None or needed <= available * (1 - SPARE):
        return needed
    low = min(2, batch_size - 1)
    less = peak(low) if low else None
    each = (needed - less) / (batch_size - low) if less is not None else 0.0
    fits = largest(lambda size: needed - (batch_size - size) * each <= available * (1 - SPARE), batch_size)
    text = f"takes about {needed / 1e9:.3g} GB, {available / 1e9:.3g} GB of memory are free"
    raise TooLarge(f"batch size {batch_size} of {name}: {text}", fits)


def largest(fits: Callable[[int], bool], failed: int, coarse: int = 0) -> int:
    """The largest batch below `failed` that fits, or 0: halved until one does, then bisected.

    With `coarse`, the last steps are left out: what is found is short of the largest by less than that fraction, 1/coarse.
    """
    low, high = 0, failed
    size = failed // 2
    while size and not low:
        if fits(size):
            low = size
        else:
            high, size = size, size // 2
    while high - low > max(1, low // coarse if coarse else 1):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
