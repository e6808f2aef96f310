"""Scaled dot-product attention: softmax(Q K^T / sqrt(D) + mask) V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.layers.base import Bytes, Call, Draw, Hardware, Layer, ceil_to, memory_terms
from neuralpower.layers.registry import layer_kind

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@layer_kind("attention", "aten.scaled_dot_product_attention")
@dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """query [batch, query_heads, query_length, head_size], key and value [batch, key_heads, key_length, head_size]."""

    batch: int
    query_heads: int
    key_heads: int
    query_length: int
    key_length: int
    head_size: int
    causal: bool
    masked: bool

    dimensions = ("batch", "query_heads", "query_length", "key_length", "head_size")
    sweep_share = 2.0

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal)`."""
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        if query.dim() == 3:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        if query.dim() != 4 or value.shape[-1] != query.shape[-1]:
            raise Unmodelled(f"attention of query {tuple(query.shape)} with values {tuple(value.shape)}")
        return cls(
            batch=query.shape[0],
            query_heads=query.shape[1],
            key_heads=key.shape[1],
            query_length=query.shape[2],
            key_length=key.shape[2],
            head_size=query.shape[3],
            causal=bool(given.get("is_causal", False)),
            masked=given.get("attn_mask") is not None,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Encoders, causal decoders, windows (many short sequences), cross attention, one-row decoding; grouped keys."""
        heads = draw.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 20, 25, 32))
        grouped = [h for h in range(1, heads) if heads % h == 0]
        key_heads = draw.choice(grouped) if grouped and draw.chance(0.25) else heads
        head_size = draw.choice((16, 24, 32, 40, 48, 64, 64, 64, 80, 96, 112, 128, 128, 256))
        length = draw.octaves(4, 2048)
        style, batch = draw.random.random(), draw.choice((1, 1, 2, 4, 8))
        masked = draw.chance(0.4)
        if style < 0.15:
            return cls(
                batch=batch,
                query_heads=heads,
                key_heads=key_heads,
                query_length=1,
                key_length=length,
                head_size=head_size,
                causal=False,
                masked=masked,
            )
        if style < 0.3:
            window = draw.choice((16, 49, 64, 144, 197, 256))
            return cls(
                batch=draw.octaves(1, 64),
                query_heads=heads,
                key_heads=heads,
                query_length=window,
                key_length=window,
                head_size=min(head_size, 64),
                causal=False,
                masked=masked,
            )
        if style < 0.37:  # keys of a reduced map
            return cls(
                batch=batch,
                query_heads=heads,
                key_heads=heads,
                query_length=draw.octaves(64, 4096),
                key_length=draw.octaves(4, 256),
                head_size=min(head_size, 64),
                causal=False,
                masked=False,
            )
        if style < 0.45:
            return cls(
                batch=batch,
                query_heads=heads,
                key_heads=heads,
                query_length=draw.octaves(1, 512),
                key_length=length,
                head_size=head_size,
                causal=False,
                masked=masked,
            )
        return cls(
            batch=batch,
            query_heads=heads,
            key_heads=key_heads,
            query_length=length,
            key_length=length,
            head_size=head_size,
            causal=not masked and draw.chance(0.6),
            masked=masked,
        )

    def build(self, device: torch.device) -> Call:
        """Operands as the projections leave them: [batch, length, heads, head_size], seen transposed."""
        query, key, value = (
            self.tensor(self.batch, length, heads, self.head_size, device=device).transpose(1, 2)
            for length, heads in (
                (self.query_length, self.query_heads),
                (self.key_length, self.key_heads),
                (self.key_length, self.key_heads),
            )
        )
        mask = self.tensor(self.batch, 1, self.query_length, self.key_length, device=device) if self.masked else None
        options = {"attn_mask": mask, "is_causal": self.causal, "enable_gqa": self.key_heads != self.query_heads}
        return Call(F.scaled_dot_product_attention, (query, key, value), options, warm=(value, key, query))

    def flops(self) -> int:
        """Two products of 2 B H S L D each; a causal mask does not halve them, as is the convention."""
        return 4 * self.batch * self.query_heads * self.query_length * self.key_length * self.head_size

    def bytes(self) -> Bytes:
        """Query, keys, values and mask in, the context out; scores stay in the cache."""
        query = self.batch * self.query_heads * self.query_length * self.head_size
        keys = self.batch * self.key_heads * self.key_length * self.head_size
        mask = self.batch * self.query_length * self.key_length * self.masked
        return Bytes(self.itemsize * (query + 2 * keys + mask), 0, self.itemsize * query)

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Products, scores and what they read, for full, causal and masked attention; heads in whole waves over the cores."""
        b, h, s, t, d = self.batch, self.query_heads, self.query_length, self.key_length, self.head_size
        scores = b * h * s * t
        waves = ceil_to(b * h * ceil_to(s, 32) // 32, hardware.cores)
        return {
            "macs": scores * d,
            "macs_causal": scores * d * (1 - 0.5 * self.causal),
            "macs_grouped": scores * d * (self.key_heads != self.query_heads),
            "macs_one_row": scores * d * (s == 1),
            "macs_tile": b * h * ceil_to(s, 32) * ceil_to(t, 64) * ceil_to(d, 16),
            "macs_wave": waves * 32 * t * d,
            "scores": scores,
            "scores_masked": scores * self.masked,
            "mask": b * s * t * self.masked,
            "query": b * h * s * d,
            "keys": b * h * t * d,
            "heads": b * h,
            "head_rows": b * h * s,
            **memory_terms(self, hardware),
        }

    def features(self) -> dict[str, Any]:
        """Variants of the kernel."""
        return {
            "causal": self.causal,
            "masked": self.masked,
            "sharing": self.query_heads / self.key_heads,
            "length_mod_16": self.key_length % 16,
            "head_mod_16": self.head_size % 16,
            "tasks": np.log2(self.batch * self.query_heads),
        }
