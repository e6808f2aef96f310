"""Caches of language models, which a pass grows, and of operator calls on tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.inputs.known_values import tensors_within

# names of arguments and outputs; `cache` since transformers 5.24
CACHES = ("past_key_values", "cache", "cache_params", "state", "mems", "past_buckets_states")
# layers of transformers' caches that grow in a known way: keys and values along their last axis but one
GROWING = {
    ("transformers.cache_utils", name)
    for name in """
        DynamicLayer DynamicSlidingWindowLayer LinearAttentionLayer LinearAttentionAndFullAttentionLayer
        LinearAttentionAndSlidingWindowAttentionLayer DummyLayer
    """.split()
}


def keep(cache: Any) -> Callable[[], None]:
    """A function that restores a cache as it is now: a step appends to it, or writes into it."""
    if isinstance(cache, list):
        kept = list(cache)
        return lambda: cache.__setitem__(slice(None), kept)
    held = getattr(cache, "__dict__", None)
    parts = [] if held is None else [cache, *(part for part in held.values() if hasattr(part, "layers"))]
    parts += [layer for part in list(parts) for layer in getattr(part, "layers", ())]
    before = [(part, {name: _shallow(value) for name, value in vars(part).items()}) for part in parts]

    def restore() -> None:
        for part, attributes in before:
            vars(part).update((name, _shallow(value)) for name, value in attributes.items())

    return restore


def _shallow(value: Any) -> Any:
    return dict(value) if type(value) is dict else list(value) if type(value) is list else value


def cache_of(output: Any) -> Any:
    """The cache that a model's output hands on; None: it hands on none."""
    return next((held for name in CACHES if (held := getattr(output, name, None)) is not None), None)


def cache_bytes(cache: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_within(cache))


def layers_of(cache: Any) -> Sequence[Any]:
    """Layers of a cache, in a pair's cache those for its decoder's own tokens; maybe none."""
    layers: Sequence[Any] = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return layers


def shapes_of(cache: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors of a cache."""
    return [tuple(tensor.shape) for tensor in tensors_within(cache)]


def grow(layer: Any, context: int) -> None:
    """Give a cache layer its length after `context` tokens; a window of w keeps w - 1 for its next query."""
    window = getattr(layer, "sliding_window", None)
    kept = context if window is None else min(context, int(window) - 1)
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, Tensor) and tensor.dim() >= 3:
            setattr(layer, name, tensor.new_empty((*tensor.shape[:-2], kept, tensor.shape[-1])))
    if isinstance(getattr(layer, "cumulative_length", None), int):
        layer.cumulative_length = context


class Again:
    """A pass of `module` that can be repeated: it first restores its cache, which takes microseconds."""

    def __init__(self, module: nn.Module, kwargs: Mapping[str, Any]) -> None:
        self.module = module
        self.restore = [keep(value) for name, value in kwargs.items() if name in CACHES]

    def __call__(self, **kwargs: Any) -> Any:
        """Restore the cache, then call the module."""
        self.rewind()
        return self.module(**kwargs)

    def rewind(self) -> None:
        for restore in self.restore:
            restore()


# Cache of operator calls on tensors without values: equal calls give equal results.
#
# Networks repeat their blocks, and torch takes half a millisecond of Python to compute the output shape of a
# call. Calls are alike where the operator, the numbers among its arguments, and its tensors' types, shapes,
# strides and shared memory are. Nothing else decides on a shape: all traces of a process share what is
# known.

PLAIN = frozenset(
    (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
)
MOST_CALLS = 20_000  # that are remembered, some 20 MB; a large network has a thousand that differ


class _Shape(NamedTuple):
    """Shape and type of a tensor that owns its memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class Repeats:
    """Makes operator calls; a call that it has seen before needs no code of torch."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[_Shape, ...] | _Shape | None] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of `func(*args, **kwargs)`, or its like where that is new memory without values."""
        key = key_of(args, kwargs)
        if key is None:
            return func(*args, **kwargs)
        key = (func, torch.get_default_dtype(), key)
        known = self._seen.get(key)
        if known is not None:
            return known.tensor() if isinstance(known, _Shape) else tuple(shape.tensor() for shape in known)
        output = func(*args, **kwargs)
        if key not in self._seen:
            if len(self._seen) >= MOST_CALLS:
                self._seen.clear()
            self._seen[key] = _shapes(output, tensors_in((args, kwargs)))
        return output


REPEATS = Repeats()
"""What this process has seen."""


def key_of(*values: Any) -> Hashable | None:
    """A key that the arguments of like calls share; None where a value could matter."""
    parts: list[Hashable] = []
    return tuple(parts) if _noted(values, parts, {}) else None


def _noted(values: Iterable[Any], parts: list[Hashable], memory: dict[int, int]) -> bool:
    """Add keys of values to `parts`; False if a value has none. `memory` numbers storages as they come."""
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            if not value.is_meta or value.layout is not torch.strided:
                return False
            place = memory.setdefault(value.untyped_storage()._cdata, len(memory))
            parts.append((value.dtype, value.shape, value.stride(), value.storage_offset(), place))
        elif kind in PLAIN:
            parts.append((kind, value))
        elif kind is dict:
            parts.append((dict, *value))
            if not _noted(value.values(), parts, memory):
                return False
        elif isinstance(value, (list, tuple)):
            parts.append((tuple, len(value)))
            if not _noted(value, parts, memory):
                return False
        else:
            return False
    return True


def _shapes(output: Any, inputs: list[Tensor]) -> tuple[_Shape, ...] | _Shape | None:
    """How to make an output again; None where it is not a new tensor, nor a tuple of these."""
    tensors = [output] if isinstance(output, Tensor) else list(output) if type(output) is tuple else []
    known = {t.untyped_storage()._cdata for t in inputs}
    shapes = []
    for tensor in tensors:
        if type(tensor) is not Tensor or not tensor.is_meta or tensor.layout is not torch.strided:
            return None
        shape = _Shape(tuple(tensor.shape), tensor.stride(), tensor.dtype)
        storage = tensor.untyped_storage()
        if storage._cdata in known or storage.nbytes() != shape.tensor().untyped_storage().nbytes():
            return None  # a view, or a part of something larger
        known.add(storage._cdata)
        shapes.append(shape)
    return (shapes[0] if isinstance(output, Tensor) else tuple(shapes)) if shapes else None
