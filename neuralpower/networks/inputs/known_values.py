"""Numbers that a trace without values still knows: those of its inputs, and what follows from them.

Among fake tensors, inputs are real ones, up to a bound. What follows from real tensors alone is computed, so
that a forward pass that asks for a length, or for the rows of one token, gets the right answer; no weight
takes memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from neuralpower.layers import BY_OPERATOR
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.promised_values import HELD_BYTES, WHOLE_BYTES, with_values

LARGEST = 2**22  # numbers of a tensor that is computed during the trace: milliseconds
SHAPED = ("expand_as", "reshape_as", "view_as", "type_as")  # read no values of their second tensor
FACTORIES = frozenset("arange zeros ones full scalar_tensor eye tril_indices triu_indices".split())
INDEXING = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_")


def values_of(tensors: list[Tensor]) -> dict[int, Tensor]:
    """Identity of a tensor -> its like with values on the CPU, for the smallest up to HELD_BYTES together."""
    if sum(tensor.nbytes for tensor in tensors) > WHOLE_BYTES:
        return {}
    values, left = {}, HELD_BYTES
    for tensor in sorted(tensors, key=lambda one: one.nbytes):
        left -= tensor.nbytes
        if left < 0:
            break
        values[id(tensor)] = with_values(tensor)
    return values


class Known:
    """Runs calls on real tensors below a fake mode, and on fake ones whose shape known values determine."""

    def __init__(self) -> None:
        # by storage: real tensors that something without values was written to
        self._spoilt: dict[int, Tensor] = {}

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor's numbers are there, and right."""
        real = not isinstance(tensor, FakeTensor) and not tensor.is_meta
        return real and tensor.untyped_storage()._cdata not in self._spoilt

    def __call__(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result, with values if they are known; NotImplemented where torch's fake code can do it."""
        tensors = tensors_in((args, kwargs))
        if not tensors:
            return self._made(name, func, args, kwargs)
        known = [self.knows(tensor) for tensor in tensors]
        if name in SHAPED and known == [True, False]:
            with unset_fake_temporarily():  # a real tensor of that shape and type takes no memory
                alike = torch.empty((), dtype=args[1].dtype).expand(args[1].shape)
            args = (args[0], alike, *args[2:])
        elif not all(known):
            return self._partly(name, func, args, kwargs) if any(known) else NotImplemented
        kind = BY_OPERATOR.get(str(getattr(func, "overloadpacket", func)).removeprefix("torch.ops."))
        if _size(tensors) > LARGEST or (kind is not None and kind.multiplies):
            return self._spoil(func, args)
        return _real(func, args, kwargs)

    def _made(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A tensor of whole numbers that follows from none."""
        if name not in FACTORIES:
            return NotImplemented
        fake = func(*args, **kwargs)
        whole = not fake.is_floating_point() and not fake.is_complex()
        fits = fake.numel() <= LARGEST and fake.device.type == "cpu"
        return _real(func, args, kwargs) if whole and fits else fake

    def _partly(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A call on known and unknown tensors."""
        if name == "repeat_interleave" and isinstance(args[1], Tensor) and self.knows(args[1]):
            return _repeated(*args, **kwargs)
        if name == "masked_select" and self.knows(args[1]):
            return args[0].new_empty(_count(args[1], _broadcast(args[:2])))
        if name in INDEXING:
            return self._indexed(name, func, args, kwargs)
        return self._spoil(func, args)

    def packing(self, name: str, args: Any) -> Any:
        """Pack sequences of known lengths without values, or the way back; else NotImplemented."""
        if isinstance(args[0], FakeTensor) and self.knows(args[1]):
            return _packed(*args) if name == "_pack_padded_sequence" else _padded(*args)
        return NotImplemented

    def _indexed(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """An indexing call, with places in place of known masks, whose number nothing else says."""
        source, indices, *more = args
        masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
        if not masks or not all(self.knows(mask) for mask in masks):
            return NotImplemented
        if name in ("index", "_unsafe_index") and len(masks) == len(indices) == 1:
            return source.new_empty((_count(masks[0]), *source.shape[masks[0].dim() :]))
        if sum(mask.numel() for mask in masks) > LARGEST:
            return NotImplemented
        places: list[Any] = []
        with unset_fake_temporarily():
            for index in indices:
                places += index.nonzero().unbind(1) if any(index is mask for mask in masks) else [index]
        return func(source, places, *more, **kwargs)

    def _spoil(self, func: Any, args: Any) -> Any:
        """Forget the values of tensors that a call without values writes to."""
        schema = getattr(func, "_schema", None)
        for argument, value in zip(schema.arguments if schema is not None else (), args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                real = (t for t in tensors_in(value) if not isinstance(t, FakeTensor))
                self._spoilt.update({t.untyped_storage()._cdata: t for t in real})
        return NotImplemented


def _real(func: Any, args: Any, kwargs: Any) -> Any:
    """The call with numbers; NotImplemented where that fails, as for a device that is not there."""
    try:
        with unset_fake_temporarily():
            return func(*args, **kwargs)
    except Exception:
        return NotImplemented


def _size(tensors: list[Tensor]) -> int:
    """Numbers in a result, at most, of what works number by number; of the largest tensor otherwise."""
    try:
        return math.prod(_broadcast(tensors))
    except RuntimeError:
        return max(tensor.numel() for tensor in tensors)


def _broadcast(tensors: Iterable[Tensor]) -> torch.Size:
    """The shape that they have together."""
    return torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call, no-any-return]


def _count(mask: Tensor, shape: torch.Size | None = None) -> int:
    """True ones in a mask, of another shape if one is given."""
    with unset_fake_temporarily():
        times = math.prod(shape) // mask.numel() if shape is not None and mask.numel() else 1
        return int(mask.count_nonzero()) * times


def _repeated(x: Tensor, repeats: Tensor, dim: int | None = None, **_: Any) -> Tensor:
    """Each row of `x` along an axis as often as known numbers say; without an axis each number of it."""
    with unset_fake_temporarily():
        count = int(repeats.sum())
    shape, axis = ([x.numel()], 0) if dim is None else (list(x.shape), dim)
    shape[axis] = count * (shape[axis] if repeats.numel() == 1 else 1)
    return x.new_empty(shape)


def _packed(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Sequences [steps, batch, ...], or batch first -> (all steps [sum, ...], samples in each step)."""
    with unset_fake_temporarily():
        data, sizes = torch._VF._pack_padded_sequence(torch.empty((*x.shape[:2], 1)), lengths, batch_first)
    return x.new_empty((data.shape[0], *x.shape[2:])), sizes


def _padded(data: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """The way back: (steps [steps, batch, ...], or batch first, lengths)."""
    with unset_fake_temporarily():
        x, lengths = torch._VF._pad_packed_sequence(torch.empty((data.shape[0], 1)), *settings)
    return data.new_empty((*x.shape[:2], *data.shape[1:])), lengths
