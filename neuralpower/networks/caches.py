"""Caches of language models: which tensors they hold, how they grow, and how a pass is run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from neuralpower.networks.inputs.promised_values import tensors_within

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
