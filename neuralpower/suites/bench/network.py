"""The network of a benchmark: find it, build it, set its mode and optimizer, and find its largest batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, NeuralPowerError, OutOfMemory
from neuralpower.networks.inputs.inputs import Inputs, place
from neuralpower.networks.inputs.known_values import tensors_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.networks.users_code import users_code
from neuralpower.networks.zoo import ZOO
from neuralpower.prediction.fits.largest import largest
from neuralpower.profiling.steps import accounted, clock_of, told
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.suites.steps import (
    Autocasting,
    Batch,
    Precision,
    StepTimer,
    Work,
    largest_within,
    make_optimizer,
    tensor_room,
)
from neuralpower.trace.recipe import default_loss

LEARNING = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
COARSE = 1 / 16  # tolerance of the largest batch that fits, if each trial runs the network


class TooLarge(OutOfMemory):
    """A batch that does not fit, and the largest batch that does; 0 for none."""

    def __init__(self, text: str, largest_batch: int) -> None:
        way_out = f"the largest that fits is {largest_batch}; choose --batch-size {largest_batch}"
        if not largest_batch:
            way_out = "not even a batch of 1 fits; choose a smaller network or a device with more memory"
        super().__init__(f"{text}; {way_out}")
        self.largest_batch = largest_batch


class Network:
    """A network, not built, by an id of the zoo or any MODEL; raises ModelError."""

    def __init__(self, model: str) -> None:
        name = model.removeprefix("zoo:")
        self.entry = ZOO.get(name)
        self.name = name if self.entry else model
        self.title = self.entry.title if self.entry else model
        self.source = resolve(f"zoo:{name}" if self.entry else model)

    @cached_property
    def on_meta(self) -> tuple[torch.Size, torch.Size] | None:
        """Shapes of the first input and of the output for a batch of two; None if that needs values."""
        try:
            with users_code(self.name), torch.no_grad():
                model = self.source.build("meta")
                inputs = self.source.inputs(model, InputRequest(2), "meta")
                output = model(*inputs.args, **inputs.kwargs)
                return tensors_of((inputs.args, inputs.kwargs))[0].shape, tensors_of(output)[0].shape
        except NeuralPowerError:  # a forward can do anything that meta tensors do not support
            return None

    def image_size(self, shape: tuple[int, ...] | None) -> tuple[int, int]:
        """(channels, pixels of a side) of the network's images; raises InputError for other inputs."""
        shape = shape or (self.entry.input_shape if self.entry else None)
        if shape is None and self.on_meta is not None:
            shape = tuple(self.on_meta[0][1:])
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            rule = "a data_dir is for inputs such as 3x224x224"
            raise InputError(f"{self.name} sees {shape or 'no'} images: {rule}")
        return shape[0], shape[-1]

    @property
    def classes(self) -> int | None:
        """The network's number of classes; None if unknown."""
        if self.entry is not None:
            return self.entry.classes
        return self.on_meta[1][1] if self.on_meta is not None and len(self.on_meta[1]) == 2 else None


@dataclass(frozen=True)
class Case:
    """A network that is used, or trained, in batches on a device."""

    network: Network
    request: InputRequest
    precision: Precision
    device: torch.device
    training: bool
    processes: int = 1  # that share the memory of a machine, each with this step

    def model(self) -> nn.Module:
        """The network with random weights on the device; raises ModelError."""
        model = self.network.source.build(str(self.device), self.precision.stored)
        return self.precision.cast(model).train(self.training)

    def inputs(self, model: nn.Module) -> Inputs:
        own = model.model if isinstance(model, Autocasting) else model
        return self.network.source.inputs(own, self.request)

    def work(self, model: nn.Module, draw: Callable[[], Batch], seed: int = 0) -> Work:
        """The repeated step. Training is stochastic gradient descent with momentum and weight decay."""
        optimizer = None
        if self.training:
            optimizer = self.precision.optimizer(model, lambda w: make_optimizer("momentum", w, **LEARNING))
        return Work(model, draw, Scores(self.network.classes, seed), optimizer)

    def fits(self, batch_size: int) -> bool:
        """Whether one step of that batch fits the device's memory."""
        case = replace(self, request=replace(self.request, batch_size=batch_size))
        try:
            model = case.model()
            with told(self.network.title):
                batch = Batch(place(case.inputs(model), str(self.device), self.request.dtype))
            StepTimer(case.work(model, lambda: batch), clock_of(self.device)).run(warmup=0, steps=1)
        except OutOfMemory:
            return False
        return True

    def largest_batch(self) -> int:
        """The largest batch below the requested one that fits, found by trying."""
        asked = self.request.batch_size
        # with a memory of 1, a batch that fits needs 0
        return largest(lambda n: 0 if n < asked and self.fits(n) else 2, 1, start=asked, close=COARSE)

    def peak_bytes(self, batch_size: int) -> int | None:
        """Peak bytes of a step's tensors, without kernels' work space; None if it needs values."""
        case = replace(
            self, request=replace(self.request, batch_size=2), device=torch.device("meta")
        )  # counts, and does not allocate
        try:
            model = case.model()
            batch = Batch(widened(case.inputs(model), batch_size))
            step = case.work(model, lambda: batch).step(batch)
            groups = step.optimizer.param_groups if step.optimizer else ()
            held = [parameter for group in groups for parameter in group["params"]]
            return accounted(step, HostClock(), None, held)[0].peak * self.processes
        except (NeuralPowerError, RuntimeError):  # torch's error: it needs a value, or does not support meta
            return None


def widened(inputs: Inputs, batch_size: int) -> Inputs:
    """Inputs of another batch size on meta, where nothing is allocated."""
    sized = [tensor for tensor in tensors_of((inputs.args, inputs.kwargs)) if tensor.dim()]
    first = sized[0].shape[0] if sized else None

    def widen(tensor: Tensor) -> Tensor:
        shape = (batch_size, *tensor.shape[1:]) if tensor.dim() and tensor.shape[0] == first else tensor.shape
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return inputs.mapped(widen)


def check_host_memory(
    peak: Callable[[int], int | None], batch_size: int, name: str, available: int | None
) -> int | None:
    """Bytes of a step, if known; raises TooLarge for too many, by two points of the linear `peak`."""
    needed = peak(batch_size)
    if needed is None or available is None or needed <= (room := tensor_room(available)):
        return needed
    low = min(2, batch_size - 1)
    less = peak(low) if low else None
    fits = 0 if less is None else largest_within(room, needed, batch_size, less, low)
    text = f"takes about {needed / 1e9:.3g} GB, {available / 1e9:.3g} GB of memory are free"
    raise TooLarge(f"batch size {batch_size} of {name}: {text}", fits)


class Scores:
    """Cross entropy of a network's scores; without labels, random ones are drawn once.

    If an output is not a row of scores per sample: the network's own loss, or the mean square of its output.
    """

    def __init__(self, classes: int | None, seed: int = 0) -> None:
        self.classes = classes
        self.generator = torch.Generator().manual_seed(seed)
        self._drawn: Tensor | None = None

    def __call__(self, output: Any, target: Tensor | None) -> Tensor:
        scores = self._by_class(output)
        if scores is None:
            return default_loss(output)
        shape = (scores.shape[0], *scores.shape[2:])
        if target is None:
            if self._drawn is None or self._drawn.shape != shape:
                if scores.is_meta:  # drawing would allocate
                    self._drawn = torch.empty(shape, dtype=torch.int64, device="meta")
                else:
                    labels = torch.randint(0, scores.shape[1], shape, generator=self.generator)
                    self._drawn = labels.to(scores.device)
            target = self._drawn
        return nn.functional.cross_entropy(scores, target)

    def _by_class(self, output: Any) -> Tensor | None:
        """The scores [batch, classes, ...]; None if the output is something else."""
        if not isinstance(output, Tensor) or output.dim() < 2 or not output.is_floating_point():
            return None
        if output.dim() == 2 or output.shape[1] == self.classes:
            return output
        return output.movedim(-1, 1) if output.shape[-1] == self.classes else None
