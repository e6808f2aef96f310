"""Numbers that a trace without values still knows, and tensors that know where to get theirs.

Among fake tensors, inputs are real ones, up to a bound. What follows from real tensors alone is computed, so
that a forward pass that asks for a length, or for the rows of one token, gets the right answer; no weight
takes memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from neuralpower.errors import NeuralPowerError
from neuralpower.layers import BY_OPERATOR
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.users_code import users_code

# Tensors without values that know where to get them: they take no memory until a run on the CPU asks.
#
# Shapes are all that a prediction reads, except where a forward pass decides by what its tensors hold.

DRAW = "neuralpower_draw"  # attribute of a meta tensor: a function that returns its like with values
MADE_UP = "neuralpower_made_up"  # attribute of a tensor: why its values are made up, as text
HELD_BYTES = 64 * 2**20  # most that inputs keep: 100 images of 3x224x224, 8 million token ids
WHOLE_BYTES = 2**30  # most that is made for real for such inputs: takes some seconds
RANDOM = "random numbers"  # why values are made up, where nobody has given any
SMALL = 0.02  # standard deviation of random weights: what most language models start from


def promise(tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """`tensor` on the meta device, which promises what `draw` returns: its like with values on any device."""
    setattr(tensor, DRAW, draw)
    return tensor


def promised(tensor: Tensor) -> Callable[[], Tensor] | None:
    """The function that draws a tensor's values, or None where nothing is known about them."""
    draw: Callable[[], Tensor] | None = getattr(tensor, DRAW, None)
    return draw


def made_up(tensor: Tensor) -> str:
    """Why a tensor's values are made up, as text; "" where they are given or computed."""
    return str(getattr(tensor, MADE_UP, ""))


def say_made_up(tensor: Tensor, why: str) -> Tensor:
    """`tensor`, which says from now on why its values are made up."""
    setattr(tensor, MADE_UP, why)
    return tensor


def alike(new: Tensor, old: Tensor) -> Tensor:
    """`new`, a copy of `old`: where those values are made up, these are, too."""
    return say_made_up(new, why) if (why := made_up(old)) and new is not old else new


def with_values(tensor: Tensor) -> Tensor:
    """A copy on the CPU; a meta tensor's has the promised values, else small random floats, or ones."""
    draw = promised(tensor)
    if draw is not None:
        drawn = draw()
        return alike(_laid_as(tensor, drawn.detach().to("cpu", tensor.dtype, copy=True)), drawn)
    if not tensor.is_meta:
        return alike(tensor.detach().cpu().clone(), tensor)
    if tensor.is_floating_point():
        values = torch.randn(tensor.shape).mul_(SMALL).to(tensor.dtype)
        return say_made_up(_laid_as(tensor, values), RANDOM)
    values = torch.ones(tensor.shape, dtype=tensor.dtype)
    return say_made_up(_laid_as(tensor, values), "ones, as values are not known")


def without_data(tensor: Tensor) -> Tensor:
    """The tensor on meta, laid out as it is."""
    return tensor if tensor.is_meta else alike(tensor.detach().to("meta"), tensor)


def _laid_as(tensor: Tensor, values: Tensor) -> Tensor:
    """Values in the memory format of a tensor without values."""
    if tensor.is_contiguous() or tensor.shape != values.shape:
        return values
    return torch.empty_like(tensor, device=values.device).copy_(values)


def without_values(make: Callable[[str], Any]) -> Any:
    """`make("meta")`, whose tensors promise the values of `make("cpu")`; this itself if it needs values."""
    try:
        with users_code("inputs on meta cannot be made"), torch.device("meta"):
            shapes = make("meta")
    except NeuralPowerError:
        return make("cpu")
    real = functools.cache(lambda: tensors_of(make("cpu")))
    places = itertools.count()

    def bound(tensor: Tensor) -> Tensor:
        place = next(places)
        return promise(tensor.detach(), lambda: real()[place])

    return map_tensors(shapes, bound)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in its tuples, lists and mappings changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in `value`, in order."""
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, keep)
    return tensors


def tensors_within(value: Any) -> Iterator[Tensor]:
    """All tensors in containers and objects, such as a cache of keys and values, but not those in modules."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "__dict__") and not isinstance(one, (type, nn.Module)):
            waiting.extend(vars(one).values())


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
