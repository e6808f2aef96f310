"""Tensors of calls: the first that an operator returns, its shape, and how they lie in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import Unmodelled
from neuralpower.late import Tensor, torch
from neuralpower.layers.base import Layer

QUANTISED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "uint4", "quint2x4": "uint2"}


def first(output: Any) -> Any:
    """An operator's first output, or its only one."""
    return output[0] if isinstance(output, (tuple, list)) and output else output


def tensors_in(values: Any) -> list[Tensor]:
    """Tensors among an operator's arguments or results, in order."""
    found: list[Tensor] = []
    _gather((values,), found)
    return found


def _gather(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _gather(value, found)
        elif isinstance(value, dict):
            _gather(value.values(), found)


def check_output(layer: Layer, operator: str, output: Any) -> None:
    """Raise Unmodelled where the fields say another shape than that of the operator's first output."""
    said, real = layer.output_shape(operator), first(output)
    if said is None or not isinstance(real, Tensor):
        return
    known = all(isinstance(size, int) for size in (*said, *real.shape))  # those of nested tensors are symbols
    if known and real.numel() and not _same_sizes(said, real.shape):
        raise Unmodelled(
            f"{operator} returns {tuple(real.shape)}, its fields as {layer.kind} give {tuple(said)}"
        )


def _same_sizes(said: Sequence[int], real: Sequence[int]) -> bool:
    """Whether `said` are the axes of `real` in any order, or joined in its order, except those of size 1."""
    wanted, left = [s for s in said if s != 1], [s for s in real if s != 1]
    if sorted(wanted) == sorted(left):
        return True
    for size in wanted:
        joined = 1
        while joined < size and left:
            joined *= left.pop(0)
        if joined != size:
            return False
    return not left


def torchs_dtype_name(tensor: Tensor) -> str:
    """The name of a tensor's element type in torch: "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_name(tensor: Tensor) -> str:
    """The name of a tensor's element type, for quantised ones that of their numbers; "" for unknown ones."""
    name = torchs_dtype_name(tensor)
    name = QUANTISED.get(name, name)
    return name if name in DTYPES else ""


def common_dtype(*values: Any) -> str:
    """The type that stands for a call with these operands and results: the first float, else the first."""
    names = [
        name
        for t in torch.utils._pytree.tree_iter(values)
        if isinstance(t, Tensor) and (name := dtype_name(t))
    ]
    return next((name for name in names if name in FLOATING), names[0] if names else "float32")


def distinct_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape without repeats: 1 for each axis along which the tensor was expanded."""
    if tensor.layout != torch.strided:
        return tuple(tensor.shape)
    return tuple(
        size if stride or not size else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def memory_order(tensor: Tensor) -> list[int]:
    """The axes in the order of memory, the last one side by side."""
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride()[axis], axis))


def contiguous_run(tensor: Tensor, like: Tensor) -> int:
    """Length of contiguous stretches of `tensor`, walked in the order of `like`'s memory; 0 for all of it.

    Both have the same shape.
    """
    order = sorted(range(tensor.dim()), key=lambda d: (like.stride(d), tensor.stride(d), -d))
    run = 1
    for dim in order:
        if tensor.shape[dim] == 1:
            continue
        if tensor.stride(dim) != run:
            return run
        run *= tensor.shape[dim]
    return 0


def strided(layer: Layer, elements: int, run: int, device: torch.device, *, dense: bool = True) -> Tensor:
    """`elements` numbers in stretches of `run` (0: contiguous): a transpose, or a slice if not `dense`."""
    if run == 0:
        return layer.tensor(elements, device=device)
    stretches = elements // run
    rows = next((d for d in range(math.isqrt(stretches), 1, -1) if stretches % d == 0), 1)
    if rows == 1 or not dense:
        return layer.tensor(stretches, 2 * run, device=device)[:, :run]
    return layer.tensor(stretches // rows, rows, run, device=device).transpose(0, 1)


def is_channels_last(x: Tensor) -> bool:
    """Whether x [batch, channels, *sizes] lies in memory with its channels side by side."""
    many = x.shape[1] > 1 and x.numel() > x.shape[0] * x.shape[1]
    return many and x.stride(1) == 1 and not x.is_contiguous()
