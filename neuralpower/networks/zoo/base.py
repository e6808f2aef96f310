"""Entries of the zoo, and the decorator that registers a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError

Builder = Callable[..., nn.Module]
ExampleInputs = Callable[..., tuple[Tensor, ...]]
Sweep = Mapping[str, tuple[int | str, ...]]

REGISTRY: dict[str, ZooEntry] = {}


@dataclass(frozen=True)
class ZooEntry:
    """One network: `build(**keywords)` makes it with random weights on the current default device."""

    id: str
    title: str
    input_shape: tuple[int, ...]
    """Shape of one example, without the batch dimension."""
    classes: int
    build: Builder
    example_inputs: ExampleInputs | None = None
    """Batch size -> the arguments of `forward`; None where these are one float tensor [batch, *input_shape].

    Keywords that it shares with `build` get the values that the network is built with."""
    sweep: Sweep | None = None
    """Ranges of keywords of `build`, and of batch_size, where the network stands for a whole family."""

    def inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """The arguments of `forward` for a batch on the default device: random values or token ids."""
        if self.example_inputs is not None:
            return self.example_inputs(batch_size)
        return (torch.randn(batch_size, *self.input_shape),)


def zoo_model(
    id: str,
    *,
    title: str,
    input_shape: tuple[int, ...],
    classes: int = 1000,
    example_inputs: ExampleInputs | None = None,
    sweep: Sweep | None = None,
) -> Callable[[Builder], Builder]:
    """A decorator that registers a builder under `id` and hands it back unchanged.

    Raises:
        ModelError: the id is taken.
    """

    def register(build: Builder) -> Builder:
        if id in REGISTRY:
            raise ModelError(
                f"zoo id {id!r} is taken by {REGISTRY[id].title}: every id stands once, choose another"
            )
        REGISTRY[id] = ZooEntry(id, title, tuple(input_shape), classes, build, example_inputs, sweep)
        return build

    return register
