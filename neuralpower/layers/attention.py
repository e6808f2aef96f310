"""Scaled dot-product attention: softmax(Q K^T / sqrt(D) + mask) V."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import InputError, Unmodelled
from neuralpower.late import F, Tensor, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.base import TRAINING
from neuralpower.layers.columns import TILE, between_powers
from neuralpower.layers.operands import Operand, Operands, own_operand
from neuralpower.layers.terms import causal_share, ceil_to, chosen, either, past
from neuralpower.layers.traits import Traits, by_code, sides_of, steps
from neuralpower.layers.views import bytes_terms, peak_flops

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
# Queries and keys of a tile, and whether the query heads that share keys lie in one tile.
WALKS = ((64, 64, True), (128, 128, True), (64, 64, False), (128, 128, False))
LARGE_HEAD = 256  # what the fused kernels are made for; above, others step in
DROPPED = 0.1  # of the weights, in what is measured: it costs nothing more to drop other shares
SHORT = "float8_e4m3fn"  # what a cache of one byte a number holds
SPLITS = (64, 128)  # keys that one step of a decoder's query reads

LENGTHS = (0, 4, 6, 8, 10, 12)  # exponents of steps of lengths: traits
HEADS = (4, 5, 6, 7, 8)  # and of head sizes


TORCH = "torch"
GROUPS = ("decode", "prefill", "dropout")
TORCHS = tuple(f"{group} {TORCH}" for group in GROUPS)
FLEX = "flex_attention"  # with a rule that adds to scores, and one that skips pairs
ROWS_ASKED = 64  # of queries, of which its rule is asked which keys they see


def _sample_training(kind: type[Attention], draw: Draw) -> Attention:
    """Texts and windows drop scores, one token does not."""
    layer = kind.sample(draw)
    return replace(layer, query_length=max(layer.query_length, 4), dropout=True)


def _needed_flops(layer: Attention) -> Any:
    return layer.flops() * causal_share(layer.causal, layer.query_length, _seen(layer, layer.window))


def _seen(layer: Attention, window: Any, more: Any = 0) -> Any:
    """Keys within `window` (0: all) and `more`, of all there are."""
    if isinstance(window, int):
        return min(window + more, layer.key_length) if window else layer.key_length
    return np.where(window > 0, np.minimum(window + more, layer.key_length), layer.key_length)


def _key_itemsize(layer: Attention) -> Any:
    """Bytes per element of keys and values."""
    return either(layer.key_itemsize, layer.operand_types.weights.itemsize)


def _terms(layer: Attention, hardware: Hardware) -> Described:
    """Products, scores and what they read, full, causal and masked; heads in whole waves."""
    b, h, s, d = layer.batch, layer.query_heads, layer.query_length, layer.head_size
    t = _seen(layer, layer.window)
    scores = b * h * s * t
    waves = ceil_to(b * h * ceil_to(s, 32) // 32, hardware.cores)
    return {
        "macs": scores * d,
        "macs_causal": scores * d * (1 - 0.5 * layer.causal),
        "macs_grouped": scores * d * (layer.key_heads != layer.query_heads),
        "macs_one_row": scores * d * (s == 1),
        "macs_tile": b * h * ceil_to(s, 32) * ceil_to(t, 64) * ceil_to(d, 16),
        "macs_wave": waves * 32 * t * d,
        "scores": scores,
        "scores_masked": scores * layer.masked,
        "mask": b * s * layer.key_length * layer.masked,
        "query": b * h * s * d,
        "keys": b * h * t * d,
        "heads": b * h,
        "head_rows": b * h * s,
        **bytes_terms(layer, hardware),
    }


def _kernel_terms(layer: Attention, hardware: Hardware) -> Described:
    """Fused attention: tiles of queries in waves over the cores walk their keys; few queries split them.

    Sources: FlashAttention-2 and -3 (Dao, arXiv:2307.08691; Shah et al., arXiv:2407.08608) for tiles,
    causal halves and packed groups of heads, Flash-Decoding (Dao et al., 2023) for splits.
    """
    peak, memory, cores = peak_flops(layer, hardware), hardware.memory_bytes_per_s, hardware.cores
    size, key_size, d = layer.itemsize, _key_itemsize(layer), layer.head_size
    moved = layer.bytes()
    total, short = moved.input + moved.output, key_size < size
    work = 4 * _tasks(layer, 128) * _walked(layer, 128, 64) * 128 * d / peak
    terms = {
        "bytes": total / memory,
        "output_bytes": moved.output / memory,
        # an engine also writes new keys and values into pages of its cache, and reads them from there
        "key_bytes": _key_bytes(layer) / memory,
        "bytes_ungrouped": total / memory * (layer.key_heads == layer.query_heads),
        "flops_ungrouped": work * (layer.key_heads == layer.query_heads),
        "bytes_past_l2": past(total, hardware.l2_bytes) / memory,
        "mask_bytes": layer.batch * layer.query_length * layer.key_length * layer.masked * size / memory,
        "flops_at_power_limit": hardware.flops_at_power_limit(layer.flops()),
        "flops_short_keys": work * short,
        "flops_full": work * (1 - layer.causal),
        "flops_windowed": work * (np.asarray(layer.window) > 0),
        "flops_large_head": work * (d > LARGE_HEAD),
        "bytes_large_head": total / memory * (d > LARGE_HEAD),
    }
    for q, k, packed in WALKS:
        tasks, walked = _tasks(layer, q, packed), _walked(layer, q, k, packed)
        waves, step = np.ceil(tasks / cores) * cores, 4 * q * d / peak
        name = f"{q}x{k}" + "_packed" * packed
        terms[f"tiles_{name}"] = tasks * walked * step
        terms[f"waves_{name}"] = waves * walked * step
        terms[f"longest_{name}"] = cores * _seen(layer, layer.window, q) * step
        terms[f"loads_{name}"] = tasks * walked * 2 * d * key_size / memory
        terms[f"stores_{name}"] = waves * q * d * size / memory
        terms[f"starts_{name}"] = waves * q * 128 * size / memory
    for k in SPLITS:
        splits, steps = _splits(layer, hardware, k)
        waves = np.ceil(_tasks(layer, 64, True) * splits / cores) * cores
        terms[f"split_loads_{k}"] = waves * steps * k * 2 * d * key_size / memory
        terms[f"split_steps_{k}"] = waves * steps * k * 2 * 64 * size / memory
        terms[f"split_flops_{k}"] = waves * steps * k * 64 * 4 * d / peak
        terms[f"split_short_keys_{k}"] = waves * steps * k * 64 * 4 * d / peak * short
        terms[f"split_large_head_{k}"] = terms[f"split_loads_{k}"] * (d > LARGE_HEAD)
        terms[f"combined_{k}"] = (splits > 1) * splits * layer.batch * layer.query_heads * d * 4 / memory
        terms[f"combines_{k}"] = (splits > 1) * 1.0
    return terms


def _key_bytes(layer: Attention) -> Any:
    """Bytes of all keys and values, in reach or not."""
    return 2 * _key_itemsize(layer) * layer.batch * layer.key_heads * layer.key_length * layer.head_size


def _tasks(layer: Attention, q: int, packed: bool = False) -> Any:
    """Tiles of q queries; `packed`: the query heads of one key head lie in one tile."""
    if packed:
        return layer.batch * layer.key_heads * np.ceil(layer.query_length * _sharing(layer) / q)
    return layer.batch * layer.query_heads * np.ceil(layer.query_length / q)


def _walked(layer: Attention, q: int, k: int, packed: bool = False) -> Any:
    """Keys that a tile of q queries visits, k at a time: the mean over the tiles of a head."""
    span = np.maximum(q / _sharing(layer), 1) if packed else q
    tiles = np.ceil(layer.query_length / span)
    last = ceil_to(_seen(layer, layer.window, np.minimum(span, layer.query_length)), k)
    first = np.where(layer.causal, np.minimum(ceil_to(np.minimum(span, layer.key_length), k), last), last)
    # tiles that each see `span` more keys than the one before
    rising = np.minimum(tiles, np.ceil(last / span))
    return last - (last - first) / 2 * rising / tiles


def _splits(layer: Attention, hardware: Hardware, k: int) -> tuple[Any, Any]:
    """(parts that the keys are split into where tiles are fewer than cores, steps of k keys in each).

    Queries of one tile are split alike: else a longer prompt could take less time.
    """
    steps, queries = np.ceil(_seen(layer, layer.window) / k), layer.query_length
    whole: Any = np.where(queries > TILE, ceil_to(queries, TILE), queries)
    alike = replace(layer, query_length=whole)
    splits = np.clip(hardware.cores // _tasks(alike, 64, True), 1, steps)
    return splits, np.ceil(steps / splits)


def _sharing(layer: Attention) -> Any:
    return layer.query_heads / layer.key_heads


def _features(layer: Attention, _: Hardware) -> Described:
    return {
        "causal": layer.causal,
        "masked": layer.masked,
        "sharing": _sharing(layer),
        "length_mod_16": layer.key_length % 16,
        "head_mod_16": layer.head_size % 16,
        "tasks": np.log2(layer.batch * layer.query_heads),
    }


def _kernel_features(layer: Attention, hardware: Hardware) -> Described:
    """Variants of the kernel, and how its tiles fill the cores."""
    moved = layer.bytes()
    splits, steps = _splits(layer, hardware, 128)
    tiles = _tasks(layer, 128, True) * _walked(layer, 128, 128, True)  # keys that all tiles walk
    features = {
        **_features(layer, hardware),
        "window": np.log2(1 + np.asarray(layer.window)),
        "seen": np.log2(_seen(layer, layer.window)),
        "key_heads": np.log2(layer.key_heads),
        "key_itemsize": _key_itemsize(layer) / layer.itemsize,
        "intensity": np.log2(layer.flops() / (moved.input + moved.output)),
        "in_l2": np.log2((moved.input + moved.output) / hardware.l2_bytes),
        "splits": np.log2(splits),
        "steps": np.log2(steps),
        "tokens": np.log2(layer.batch * layer.query_length),
        "tiles": np.log2(tiles * layer.head_size),
        "tiles_per_byte": np.log2(tiles * layer.head_size / (moved.input + moved.output)),
        "longest": np.log2(_seen(layer, layer.window, 128) * hardware.cores / tiles),
        "keys_per_query": np.log2(_key_bytes(layer) / moved.output),
    }
    for q, packed in ((64, True), (128, True), (128, False)):
        tasks = _tasks(layer, q, packed)
        waves = np.ceil(tasks / hardware.cores)
        name = str(q) + "_packed" * packed
        features[f"fill_{name}"] = tasks / (waves * hardware.cores)
        features[f"waves_{name}"] = np.minimum(np.log2(waves), 6)
    return features


def _between(layer: Attention, asked: Any) -> tuple[Any, Any, Attention, Attention] | None:
    """A step's time runs straight along its cache: tables have powers of 2 alone."""
    return between_powers(layer, "key_length", asked & (layer.query_length == 1))


def _traits(layer: Attention) -> Traits:
    """Lengths and head sizes, of which tiles are made; what is skipped or read besides."""
    masked, causal = (np.asarray(one, dtype=float) for one in (layer.masked, layer.causal))
    one = 1.0 * (np.asarray(layer.query_length) == 1)
    shared = {"masked": masked, "decode": one}
    lengths = steps("queries", layer.query_length, LENGTHS) | steps("keys", layer.key_length, LENGTHS)
    heads = steps("head", layer.head_size, HEADS) | sides_of(layer.itemsize, layer.head_size)
    return Traits({**shared, "causal": causal, **lengths, **heads}, {**shared, **lengths})


def _backward(layer: Attention) -> tuple[Layer, ...]:
    """Four products, for values, weights, queries and keys: as two passes without dropout."""
    again = replace(layer, phase="forward", dropout=False)
    return again, again


def _group(layer: Attention) -> Any:
    """A decoder's one query reads keys and hardly computes: it runs code of its own, as dropout does.

    Torch's code is not that of engines.
    """
    usual = np.where(np.asarray(layer.query_length) == 1, "decode", "prefill")
    code = np.where(np.asarray(layer.dropout, dtype=bool), "dropout", usual)
    return np.char.add(code, np.where(np.asarray(layer.library) == TORCH, f" {TORCH}", ""))


@layer_kind("attention", "aten.scaled_dot_product_attention", FLEX)
@dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """query [batch, query_heads, query_length, head_size]; keys and values with key_heads and key_length."""

    batch: int
    query_heads: int
    key_heads: int
    query_length: int
    key_length: int
    head_size: int
    causal: bool
    masked: bool
    window: int = 0  # keys that a query sees at most, itself and those before it; 0: all
    key_itemsize: int = 0  # bytes per element of keys and values in a cache of a shorter type; 0: dtype's
    dropout: bool = False  # of the weights, in training: a CPU then draws a number per score, unfused
    key_dtype: str = ""  # of keys and values: what `key_itemsize` says, by name
    library: str = ""  # "torch": what its scaled_dot_product_attention runs on an accelerator; "": an engine

    dimensions = ("batch", "query_heads", "query_length", "key_length", "head_size")
    multiplies = True
    paged = frozenset({"key_length"})
    group_names = (*GROUPS, *TORCHS)
    alone = frozenset(TORCHS)  # on an H100, engines' kernels take 0.6 times as long as torch's
    words = {"library": ("", TORCH)}
    sweep_share = 2.0
    training_share = 0.2
    samples = {TRAINING: _sample_training}
    later = frozenset({"dropout", "key_dtype", "library"})
    rule = "key_heads must divide query_heads, and key_itemsize is 0 where key_dtype is named"
    savings = 2.2  # a causal kernel passes by the half that its mask hides
    views = Views(
        cpu=View(group=_group, terms=_terms, features=_features),
        kernels=View(terms=_kernel_terms, features=_kernel_features, degrees=(0, 1)),
    )
    law = KindLaw(
        needed_flops=_needed_flops, traits=_traits, between=_between, on_cpu=by_code(16.0, {"dropout": 36.0})
    )
    training = Training(backward=_backward, only=lambda layer: layer.dropout)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)`.

        `flex_attention(query, key, value, score_mod, block_mask, ...)` counts whole, but for a window.
        """
        window = None
        if operator == FLEX:
            window, args = window_of(args[4][-1], args[0].shape[-2], args[1].shape[-2]), args[:3]
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        if query.dim() == 3:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
        if query.dim() != 4 or value.shape[-1] != query.shape[-1]:
            raise Unmodelled(f"attention of query {tuple(query.shape)} with values {tuple(value.shape)}")
        return cls(
            batch=query.shape[0],
            query_heads=query.shape[1],
            key_heads=key.shape[1],
            query_length=query.shape[2],
            key_length=key.shape[2],
            head_size=query.shape[3],
            causal=bool(given.get("is_causal", window is not None)),
            masked=given.get("attn_mask") is not None,
            dropout=given.get("dropout_p", 0.0) > 0,
            window=window or 0,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Encoders, causal decoders, windows, cross attention, one-row decoding, some with grouped keys."""
        heads = draw.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 20, 25, 32))
        grouped = [h for h in range(1, heads) if heads % h == 0]
        key_heads = draw.choice(grouped) if grouped and draw.chance(0.25) else heads
        head_size = draw.choice((16, 24, 32, 40, 48, 64, 64, 64, 80, 96, 112, 128, 128, 256))
        length = draw.octaves(4, 2048)
        style, batch = draw.random.random(), draw.choice((1, 1, 2, 4, 8))
        masked = draw.chance(0.4)
        shape: dict[str, Any] = dict.fromkeys(("query_length", "key_length"), length)
        shape |= {"batch": batch, "head_size": head_size, "causal": False, "masked": masked}
        shape |= {"query_heads": heads, "key_heads": heads}
        if style < 0.2:
            shape |= {"key_heads": key_heads, "query_length": 1, "key_length": draw.octaves(8, 8192)}
        elif style < 0.33:
            shape |= dict.fromkeys(("query_length", "key_length"), draw.choice((16, 49, 64, 144, 197, 256)))
            shape |= {"batch": draw.octaves(1, 64), "head_size": min(head_size, 64)}
        elif style < 0.39:  # keys of a reduced map
            shape |= {"query_length": draw.octaves(64, 4096), "key_length": draw.octaves(4, 256)}
            shape |= {"head_size": min(head_size, 64), "masked": False}
        elif style < 0.47:
            shape |= {"query_length": draw.octaves(1, 512)}
        else:
            shape |= {"key_heads": key_heads, "causal": not masked and draw.chance(0.6)}
        return cls(**shape)

    def possible(self) -> Any:
        twice = np.asarray(self.key_itemsize > 0) & np.asarray(np.asarray(self.key_dtype) != "")
        return (self.query_heads % self.key_heads == 0) & ~twice

    def shape(self) -> Self:
        """Heads and window: prompts and caches of neighbouring lengths take one kernel."""
        one = 1 if isinstance(self.dtype, str) else np.ones(len(self.dtype))
        return replace(self, batch=one, query_length=one, key_length=one)

    def build(self, device: torch.device) -> Call:
        """Operands as projections leave them: [batch, length, heads, size] transposed; a window is a mask.

        Raises InputError where keys and values have another type than the query: torch takes one type.
        """
        for name, usual in (("key_itemsize", "leave it 0"), ("key_dtype", "leave it out")):
            value = getattr(self, name)
            if value:
                raise InputError(
                    f"attention with {name} {value} cannot be built: torch wants keys of the query's type; "
                    f"{usual}, or bring such measurements in as a table"
                )
        asked, known = (self.query_length, self.query_heads), (self.key_length, self.key_heads)
        query, key, value = (
            self.tensor(self.batch, *sides, self.head_size, device=device).transpose(1, 2)
            for sides in (asked, known, known)
        )
        scores = (self.query_length, self.key_length)
        mask = self.tensor(self.batch, 1, *scores, device=device) if self.masked else None
        if self.window:
            ones = torch.ones(*scores, dtype=torch.bool, device=device)
            last = self.key_length - self.query_length  # key that the first query stands on
            band = ones.triu(last - self.window + 1).tril(last)
            mask = band if mask is None else mask.masked_fill(~band, float("-inf"))
        options = {
            "attn_mask": mask,
            "is_causal": self.causal and not self.window,
            "enable_gqa": self.key_heads != self.query_heads,
            "dropout_p": DROPPED * self.dropout,
        }
        return Call(F.scaled_dot_product_attention, (query, key, value), options, warm=(value, key, query))

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.batch, self.query_heads, self.query_length, self.head_size

    def flops(self) -> int:
        """Two products of 2 B H S L D, L at most the window; by convention causal masks do not halve them."""
        queries = self.batch * self.query_heads * self.query_length
        return 4 * queries * _seen(self, self.window) * self.head_size

    def bytes(self) -> Bytes:
        """Query, mask and the keys and values in reach in, the context out; scores stay in the cache."""
        query = self.batch * self.query_heads * self.query_length * self.head_size
        keys = self.batch * self.key_heads * _seen(self, self.window, self.query_length - 1)
        usual = self.operand_types.weights.bytes(keys, self.head_size)
        key_bytes = either(self.key_itemsize * keys * self.head_size, usual)  # of one; values take as many
        mask = self.batch * self.query_length * self.key_length * self.masked
        return Bytes(self.itemsize * (query + mask) + 2 * key_bytes, 0, self.itemsize * query)

    @functools.cached_property
    def operand_types(self) -> Operands:
        """Keys and values are what the query is multiplied by; `key_itemsize` says their bytes alone."""
        usual = Operand(self.dtype)
        known = own_operand(self.dtype, self.key_dtype, 0, usual)
        return Operands(usual, known, usual, self.dtype, self._marks)

    def _marks(self) -> tuple[Any, Any]:
        itemsize = _key_itemsize(self)
        # one byte is a float of 8 bits where nothing else is said
        byte = chosen(np.asarray(self.key_dtype) == "", SHORT, self.key_dtype)
        return itemsize != self.itemsize, chosen(itemsize == 1, byte, self.key_dtype)


def by_torch(layer: Layer) -> Layer:
    """The layer as torch runs it on an accelerator: attention is then its own."""
    return replace(layer, library=TORCH) if isinstance(layer, Attention) else layer


def window_of(rule: Callable[..., Tensor], queries: int, keys: int) -> int | None:
    """Keys that a causal rule lets a query see (0: all before it); None for other rules.

    `rule(batch, head, query, key)` says by index tensors which pairs count, as `mask_mod` does.
    """
    if queries != keys:
        return None
    with torch.utils._python_dispatch._disable_current_modes():
        places = torch.linspace(0, queries - 1, min(ROWS_ASKED, queries)).long()[:, None]
        zero, known = torch.zeros((), dtype=torch.long), torch.arange(keys)
        try:
            seen = rule(zero, zero, places, known).expand(len(places), keys)
            window = int(seen[-1].sum())
            before = places - known
            if not torch.equal(seen, (before >= 0) & (before < window)):
                return None
        except Exception:  # the rule is the user's, and may read what has no values here
            return None
    return 0 if window == keys else window
