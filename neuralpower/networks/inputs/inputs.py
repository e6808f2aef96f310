"""Inputs of a forward pass: requests and shapes for them, and their changes of batch, device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, is_count
from neuralpower.networks.copies import in_dtype
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.networks.inputs.known_values import (
    RANDOM,
    alike,
    map_tensors,
    say_made_up,
    tensors_of,
    with_values,
)
from neuralpower.networks.inputs.size_limits import InputRequest


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
        return tensors_of((self.args, self.kwargs))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
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


# ---- Shapes instead of inputs: (1, 3, 224, 224), as torchinfo takes them, also several, or by name ----


Shape = tuple[int, ...]
# how names of inputs end whose numbers are whole
WHOLE = ("ids", "mask", "index", "indices", "tokens", "labels", "positions")


def is_shape(value: object) -> bool:
    """Whether it is a tuple or list of whole numbers; a torch.Size is, too."""
    counts = isinstance(value, (tuple, list)) and all(type(size) is int for size in value)
    return bool(counts and value)


def one_shape(inputs: object) -> Shape | None:
    """The shape, batch first, that stands for the only input; None where there is none.

    Raises InputError for a size below 1.
    """
    return _checked(inputs) if is_shape(inputs) else None


def with_tensors(inputs: Any, dtype: torch.dtype) -> Any:
    """Inputs with tensors of ones for shapes: of all positions, or of any keyword.

    Tensors of names such as input_ids and attention_mask hold whole numbers. Raises InputError.
    """
    if isinstance(inputs, Mapping):
        return {
            name: _tensor(_checked(value), str(name), dtype) if is_shape(value) else value
            for name, value in inputs.items()
        }
    if isinstance(inputs, (tuple, list)) and inputs and all(map(is_shape, inputs)):
        return tuple(_tensor(_checked(shape), "", dtype) for shape in inputs)
    return inputs


def _checked(shape: Any) -> Shape:
    if not all(map(is_count, shape)):
        raise InputError(
            f"shape {tuple(shape)}: every size must be 1 or more, the batch first, as in (1, 3, 224, 224)"
        )
    return tuple(shape)


def _tensor(shape: Shape, name: str, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=torch.long if name.endswith(WHOLE) else dtype)
