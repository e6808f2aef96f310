"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): a cache holds one latent and one rotary key.

Two forms give the same numbers. Expanded, keys and values of each head are made from the latents before the
kernel. Absorbed, the matrices that make them are multiplied into the queries and the results, by products
outside the kernel, and all heads attend to the latents themselves: they are keys and values at once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import InputError
from neuralpower.late import F, Tensor, torch
from neuralpower.layers import Bytes, Call, Described, Draw, Hardware, KindLaw, View, Views, layer_kind
from neuralpower.layers.columns import between_powers
from neuralpower.layers.fused import Fused, fused_operator
from neuralpower.layers.operands import Operand, Operands, own_operand
from neuralpower.layers.terms import causal_share, ceil_to, chosen, past
from neuralpower.layers.views import peak_flops

WALKS = ((64, 64), (128, 64), (128, 128))  # queries and keys of a tile
SPLITS = (64, 128)  # keys that a step of a decoder's kernel reads
PACKED = 64  # heads of a query that one tile takes: they share the latents


def _key_size(layer: LatentAttention) -> Any:
    """Numbers of a query, and of what it is multiplied by."""
    return layer.rope + chosen(layer.absorbed, layer.latent, layer.head_size)


def _value_size(layer: LatentAttention) -> Any:
    return chosen(layer.absorbed, layer.latent, layer.value_size)


def _needed_flops(layer: LatentAttention) -> Any:
    return layer.flops() * causal_share(layer.causal, layer.query_length, layer.key_length)


def _kernel_terms(layer: LatentAttention, hardware: Hardware) -> Described:
    """Tiles of queries in waves over the cores walk their keys; a decoder's few queries split them.

    Absorbed, the heads of a query fill a tile, since they share the latents (FlashMLA, DeepSeek 2025).
    """
    peak, memory, cores = peak_flops(layer, hardware), hardware.memory_bytes_per_s, hardware.cores
    moved, sizes = layer.bytes(), _key_size(layer) + _value_size(layer)
    total, key_size = moved.input + moved.output, layer.operand_types.weights.itemsize
    short = key_size < layer.itemsize
    work = layer.flops() / peak
    terms = {
        "flops": work,
        "flops_causal": work * (1 - 0.5 * layer.causal),
        "flops_short_keys": work * short,
        "flops_at_power_limit": hardware.flops_at_power_limit(layer.flops()),
        "bytes": total / memory,
        "output_bytes": moved.output / memory,
        "bytes_past_l2": past(total, hardware.l2_bytes) / memory,
    }
    for q, k in WALKS:
        tasks, walked = _tasks(layer, q), _walked(layer, q, k)
        waves, step = np.ceil(tasks / cores) * cores, 2 * q * sizes / peak
        terms[f"tiles_{q}x{k}"] = tasks * walked * step
        terms[f"waves_{q}x{k}"] = waves * walked * step
        terms[f"loads_{q}x{k}"] = tasks * walked * _key_bytes(layer) / memory
    for k in SPLITS:
        splits, steps = _splits(layer, hardware, k)
        tasks = _tasks(layer, PACKED)
        waves = np.ceil(tasks * splits / cores) * cores
        terms[f"split_loads_{k}"] = waves * steps * k * _key_bytes(layer) / memory
        terms[f"split_flops_{k}"] = waves * steps * k * PACKED * 2 * sizes / peak
        results = layer.batch * layer.query_heads * layer.query_length * _value_size(layer)
        terms[f"combined_{k}"] = (splits > 1) * splits * results * 4 / memory  # partial sums in float32
        terms[f"combines_{k}"] = (splits > 1) * 1.0
    return terms


def _key_bytes(layer: LatentAttention) -> Any:
    """B of what a tile reads for one key."""
    own_values = chosen(layer.absorbed, 0, layer.value_size)
    return layer.operand_types.weights.itemsize * (_key_size(layer) + own_values)


def _tasks(layer: LatentAttention, q: int) -> Any:
    """Tiles of q queries; absorbed, all heads of a query may lie in one."""
    packed = layer.batch * np.ceil(layer.query_length * layer.query_heads / q)
    apart = layer.batch * layer.query_heads * np.ceil(layer.query_length / q)
    return chosen(layer.absorbed, packed, apart)


def _walked(layer: LatentAttention, q: int, k: int) -> Any:
    """Keys that a tile visits in the mean: causal, about half, and the tile on the diagonal whole."""
    last = ceil_to(layer.key_length, k)
    rows = chosen(layer.absorbed, np.maximum(q / layer.query_heads, 1), q)
    new = np.minimum(layer.query_length, layer.key_length)
    hidden = np.maximum(new - rows, 0) / 2
    return chosen(layer.causal, last - hidden, last)


def _splits(layer: LatentAttention, hardware: Hardware, k: int) -> tuple[Any, Any]:
    """(parts of the keys, where tiles are fewer than cores, steps of k keys in each)."""
    steps = np.ceil(layer.key_length / k)
    splits = np.clip(hardware.cores // _tasks(layer, PACKED), 1, steps)
    return splits, np.ceil(steps / splits)


def _between(layer: LatentAttention, asked: Any) -> tuple[Any, Any, LatentAttention, LatentAttention] | None:
    """A step's time runs straight along its cache: tables have powers of 2 alone."""
    return between_powers(layer, "key_length", asked & (layer.query_length == 1))


def _kernel_features(layer: LatentAttention, hardware: Hardware) -> Described:
    """Variants of the kernel, and how its tiles fill the cores."""
    moved = layer.bytes()
    splits, steps = _splits(layer, hardware, 64)
    tasks = _tasks(layer, PACKED)
    waves = np.ceil(tasks / hardware.cores)
    return {
        "causal": layer.causal,
        "absorbed": layer.absorbed,
        "key_size": np.log2(_key_size(layer)),
        "key_itemsize": layer.operand_types.weights.itemsize / layer.itemsize,
        "intensity": np.log2(layer.flops() / (moved.input + moved.output)),
        "in_l2": np.log2((moved.input + moved.output) / hardware.l2_bytes),
        "splits": np.log2(splits),
        "steps": np.log2(steps),
        "fill": tasks / (waves * hardware.cores),
        "waves": np.minimum(np.log2(waves), 6),
        "packed_fill": layer.query_heads / ceil_to(layer.query_heads, PACKED),
    }


def _group(layer: LatentAttention) -> Any:
    """A decoder's query reads the cache; expanded heads are usual attention with two sizes."""
    absorbed = np.where(np.asarray(layer.query_length) == 1, "decode", "prefill")
    return np.where(np.asarray(layer.absorbed, dtype=bool), absorbed, "expanded")


@layer_kind("latent_attention", "neuralpower.latent_attention")
@dataclass(frozen=True, kw_only=True)
class LatentAttention(Fused):
    """Queries of `query_heads` heads see `key_length` latents; the projections around it are other layers."""

    batch: int
    query_heads: int
    query_length: int
    key_length: int
    absorbed: bool
    causal: bool = True
    latent: int = 512  # numbers of a latent
    rope: int = 64  # numbers of the rotary key, which all heads share
    head_size: int = 128  # of a head's keys without the rotary part; expanded only
    value_size: int = 128  # of a head's values; expanded only
    key_dtype: str = ""  # of what the cache holds; "": `dtype`

    dimensions = ("batch", "query_heads", "query_length", "key_length")
    group_names = ("decode", "prefill", "expanded")
    savings = 2.2  # a causal kernel passes by the half that its mask hides
    later = frozenset({"key_dtype"})
    views = Views(
        cpu=View(group=_group),
        kernels=View(terms=_kernel_terms, features=_kernel_features, degrees=(0, 1, 2, 3)),
    )
    law = KindLaw(needed_flops=_needed_flops, between=_between)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.latent_attention(query, key, value, latent, rope, causal)`; absorbed: no values."""
        query, key, value, latent, rope, causal = args
        absorbed = value is None
        return cls(
            batch=query.shape[0],
            query_heads=query.shape[1],
            query_length=query.shape[2],
            key_length=key.shape[-2],
            absorbed=absorbed,
            causal=causal,
            latent=latent,
            rope=rope,
            head_size=query.shape[3] - rope if not absorbed else 128,
            value_size=value.shape[3] if not absorbed else 128,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Steps of decoders, absorbed, and prompts, mostly expanded."""
        absorbed = draw.chance(0.7)
        length = draw.octaves(16, 4096)
        step = absorbed and draw.chance(0.8)
        return cls(
            batch=draw.choice((1, 2, 4, 8, 16)),
            query_heads=draw.choice((1, 2, 4, 8, 16, 32, 64, 128)),
            query_length=1 if step else length,
            key_length=length,
            absorbed=absorbed,
            causal=not step,
        )

    def build(self, device: torch.device) -> Call:
        """The call on random operands; raises InputError where the cache is of another type."""
        if self.key_dtype:
            raise InputError(
                f"latent_attention with key_dtype {self.key_dtype} cannot be built: torch wants keys of the "
                "query's type; leave it out, or bring such measurements in as a table"
            )
        heads = self.batch, self.query_heads
        query = self.tensor(*heads, self.query_length, _key_size(self), device=device)
        value = None
        if self.absorbed:
            key = self.tensor(self.batch, self.key_length, _key_size(self), device=device)
        else:
            key = self.tensor(*heads, self.key_length, _key_size(self), device=device)
            value = self.tensor(*heads, self.key_length, self.value_size, device=device)
        args = (query, key, value, self.latent, self.rope, self.causal)
        return Call(torch.ops.neuralpower.latent_attention, args, warm=(query,))

    def shape(self) -> Self:
        """Heads: prompts and caches of neighbouring lengths take one kernel."""
        one = 1 if isinstance(self.dtype, str) else np.ones(len(self.dtype))
        return replace(self, batch=one, query_length=one, key_length=one)

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.batch, self.query_heads, self.query_length, _value_size(self)

    def flops(self) -> int:
        """2 B H S L for each number of a key and of a value; by convention masks do not halve them."""
        scores = self.batch * self.query_heads * self.query_length * self.key_length
        return 2 * scores * (_key_size(self) + _value_size(self))

    def bytes(self) -> Bytes:
        """Queries and the cache in, results out; expanded, keys and values of each head instead."""
        usual, key = self.operand_types.input, self.operand_types.weights
        queries, keys = self.batch * self.query_heads * self.query_length, self.batch * self.key_length
        heads = chosen(self.absorbed, 1, self.query_heads)
        own_values = chosen(self.absorbed, 0, self.value_size)  # else they are the keys
        read = usual.bytes(queries, _key_size(self)) + key.bytes(keys * heads, _key_size(self) + own_values)
        return Bytes(read, 0, usual.bytes(queries, _value_size(self)))

    @functools.cached_property
    def operand_types(self) -> Operands:
        """Types of the operands: the factor of queries may have its own."""
        usual = Operand(self.dtype)
        cached = own_operand(self.dtype, self.key_dtype, 0, usual)
        return Operands(usual, cached, usual, self.dtype, self._marks)

    def _marks(self) -> tuple[Any, Any]:
        return self.operand_types.weights.itemsize != self.itemsize, self.key_dtype


@fused_operator(
    "latent_attention(Tensor query, Tensor key, Tensor? value, int latent, int rope, bool causal) -> Tensor"
)
def _latent_attention(
    query: Tensor, key: Tensor, value: Tensor | None, latent: int, rope: int, causal: bool
) -> Tensor:
    """Query [b, h, s, d]; expanded key and value [b, h, t, d]; absorbed key [b, t, latent + rope] alone."""
    size = latent if value is None else value.shape[-1]
    if query.is_meta:
        return query.new_empty((*query.shape[:3], size))
    if value is None:
        key = key.unsqueeze(1).expand(-1, query.shape[1], -1, -1)
        value = key[..., :latent]
    mask = None
    if causal:  # the last query sees all keys
        ones = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = ones.tril(key.shape[2] - query.shape[2])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
