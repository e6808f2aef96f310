"""Shapes instead of inputs: (1, 3, 224, 224), as torchinfo takes them, also several, or by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from neuralpower.errors import InputError, is_count

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
