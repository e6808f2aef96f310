"""Inputs of a forward pass, requests for them, and their changes of batch, device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.networks.copies import in_dtype
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.networks.input_request import InputRequest
from neuralpower.networks.promised_values import (
    RANDOM,
    alike,
    map_tensors,
    say_made_up,
    tensors_of,
    with_values,
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of one forward call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""  # how given inputs were changed, as text
    labelled: bool = False  # whether there are made-up labels among them
    picture: Picture | None = None  # what a pipeline of diffusion makes of them

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in order."""
        return tensors_of((self.args, self.kwargs))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The inputs with every tensor changed."""
        return Inputs(
            map_tensors(self.args, change),
            map_tensors(self.kwargs, change),
            self.note,
            self.labelled,
            self.picture,
        )


def place(inputs: Inputs, device: str, dtype: torch.dtype) -> Inputs:
    """`inputs` on `device`, floating ones in `dtype`."""

    def move(tensor: Tensor) -> Tensor:
        held = with_values(tensor) if tensor.is_meta and torch.device(device).type != "meta" else tensor
        return alike(in_dtype(held, dtype, torch.device(device)), held)

    return inputs.mapped(move)


def called_with(value: Any) -> Inputs:
    """The call that given inputs stand for: a mapping holds keywords, a tuple or list positions."""
    if isinstance(value, Inputs):
        return value
    if isinstance(value, Mapping):
        return Inputs(kwargs=value)
    return Inputs(args=tuple(value) if isinstance(value, (tuple, list)) else (value,))


def batch_of(inputs: Inputs) -> int | None:
    """The first size of the first tensor that has one."""
    return next((t.size(0) for t in inputs.tensors if t.dim()), None)


def in_batches(inputs: Inputs, batch_size: int) -> Inputs:
    """`inputs` with another batch: tensors with the first one's number of rows repeat or drop rows."""
    first = batch_of(inputs)
    if first in (None, 0, batch_size):
        return inputs

    def repeat(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != first:
            return tensor
        rows = torch.arange(batch_size, device=tensor.device) % tensor.shape[0]
        return alike(tensor.detach()[rows], tensor)

    note = f"the first side of the given inputs, {first} long, counts as the batch and becomes {batch_size}"
    return replace(inputs.mapped(repeat), note=f"{note}; batch size {first} keeps them unchanged")


def shaped_inputs(model: nn.Module, request: InputRequest, shape: Sequence[int]) -> Inputs:
    """One tensor [batch, *shape]: token ids where the first weights are an embedding, else normal floats."""
    generator, full = torch.Generator().manual_seed(0), (request.batch_size, *shape)
    first = next((m for m in model.modules() if next(m.parameters(recurse=False), None) is not None), None)
    if isinstance(first, (nn.Embedding, nn.EmbeddingBag)):
        drawn = torch.randint(0, first.num_embeddings, full, generator=generator)
    else:
        drawn = torch.randn(full, generator=generator).to(request.dtype)
    return Inputs((say_made_up(drawn, RANDOM),))
