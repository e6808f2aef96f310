"""The network of a benchmark: found, built on its device, in its mode, with what it learns by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, NeuralPowerError
from neuralpower.networks.inputs import InputRequest, Inputs
from neuralpower.networks.promised_values import tensors_of
from neuralpower.networks.sources import Source, resolve
from neuralpower.networks.users_code import users_code
from neuralpower.networks.zoo import ZOO, ZooEntry
from neuralpower.suites.bench.options import Options
from neuralpower.suites.precision import Autocasting, Precision
from neuralpower.suites.steps import make_optimizer
from neuralpower.trace.training import default_loss

LEARNING = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}


@dataclass(frozen=True)
class Network:
    """A network by name, not built."""

    name: str
    source: Source
    entry: ZooEntry | None

    @property
    def title(self) -> str:
        """As a table shows it."""
        return self.entry.title if self.entry else self.name

    def built(self, device: torch.device, precision: Precision, training: bool) -> nn.Module:
        """The network with random weights on the device; raises ModelError."""
        model = precision.cast(self.source.build(str(device), precision.stored))
        return model.train(training)

    def inputs(self, model: nn.Module, request: InputRequest) -> Inputs:
        """Random inputs of one batch in host memory."""
        return self.source.inputs(model.model if isinstance(model, Autocasting) else model, request)

    @cached_property
    def on_meta(self) -> tuple[torch.Size, torch.Size] | None:
        """Shapes of the first input and of the output for a batch of two; None where that needs values."""
        try:
            with users_code(self.name), torch.no_grad():
                model = self.source.build("meta")
                inputs = self.source.inputs(model, InputRequest(2), "meta")
                output = model(*inputs.args, **inputs.kwargs)
                return tensors_of((inputs.args, inputs.kwargs))[0].shape, tensors_of(output)[0].shape
        except NeuralPowerError:  # whatever a forward does that meta tensors cannot
            return None

    def image_size(self, shape: tuple[int, ...] | None) -> tuple[int, int]:
        """(channels, pixels of a side) of the images that it sees; raises InputError where it sees none."""
        if shape is None and self.entry is not None:
            shape = self.entry.input_shape
        if shape is None and self.on_meta is not None:
            shape = tuple(self.on_meta[0][1:])
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            raise InputError(f"{self.name} sees {shape or 'no'} images: a data_dir is for inputs such as 3x224x224")
        return shape[0], shape[-1]

    @property
    def classes(self) -> int | None:
        """How many classes it tells apart; None where that is not known."""
        if self.entry is not None:
            return self.entry.classes
        return self.on_meta[1][1] if self.on_meta is not None and len(self.on_meta[1]) == 2 else None


def find(options: Options) -> Network:
    """The network that the options name: an id of the zoo, or any MODEL; raises ModelError."""
    name = options.model.removeprefix("zoo:")
    if name in ZOO:
        return Network(name, resolve(f"zoo:{name}"), ZOO[name])
    return Network(options.model, resolve(options.model), None)


def optimizer_of(model: nn.Module, precision: Precision) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum and weight decay, on float32 masters of half weights."""
    return precision.optimizer(model, lambda weights: make_optimizer("momentum", weights, **LEARNING))


class Scores:
    """Cross entropy of a network's scores; without labels, random ones are drawn once.

    Where an output is no row of scores per sample, the loss is the network's own, or the mean square of its output.
    """

    def __init__(self, classes: int | None, seed: int = 0) -> None:
        self.classes = classes
        self.generator = torch.Generator().manual_seed(seed)
        self._drawn: Tensor | None = None

    def __call__(self, output: Any, target: Tensor | None) -> Tensor:
        """The mean loss."""
        scores = self._by_class(output)
        if scores is None:
            return default_loss(output)
        if target is None:
            shape = (scores.shape[0], *scores.shape[2:])
            if self._drawn is None or self._drawn.shape != shape:
                self._drawn = self._labels(scores, shape)
            target = self._drawn
        return nn.functional.cross_entropy(scores, target)

    def _labels(self, scores: Tensor, shape: tuple[int, ...]) -> Tensor:
        if scores.is_meta:
            return torch.empty(shape, dtype=torch.int64, device="meta")
        return torch.randint(0, scores.shape[1], shape, generator=self.generator).to(scores.device)

    def _by_class(self, output: Any) -> Tensor | None:
        """The scores [batch, classes, ...]; None where the output is none."""
        if not isinstance(output, Tensor) or output.dim() < 2 or not output.is_floating_point():
            return None
        if output.dim() == 2 or output.shape[1] == self.classes:
            return output
        return output.movedim(-1, 1) if output.shape[-1] == self.classes else None
