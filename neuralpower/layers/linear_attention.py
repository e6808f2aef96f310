"""Linear attention with a gated delta rule: each head's state is decayed, corrected by a token, and read.

Sources: Gated DeltaNet (arXiv 2412.06464), with one decay for a head, and Kimi Delta Attention (arXiv
2510.26692), with one for each number of a key. The convolution over queries, keys and values that stands
before it is part of the call; the projections are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from neuralpower.late import Tensor, torch
from neuralpower.layers import Call, Draw, layer_kind
from neuralpower.layers.fused import fused_operator
from neuralpower.layers.recurrences import Recurrence, convolved
from neuralpower.layers.terms import chosen, floor_div

GATED_DELTA, KIMI_DELTA = "gated_delta", "kimi_delta"


@layer_kind("linear_attention", "neuralpower.linear_attention")
@dataclass(frozen=True, kw_only=True)
class LinearAttention(Recurrence):
    """Queries and keys of `key_heads`, values and states [key_size, value_size] of `value_heads`."""

    function: str
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    dimensions = ("batch", "length", "value_heads", "key_size", "value_size")
    words = {"function": (GATED_DELTA, KIMI_DELTA)}
    rule = "key_heads must divide value_heads"

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.linear_attention(x, weights, decay, strength, state, key_heads, chunk)`."""
        x, weights, decay, _, state, key_heads, chunk = args
        batch, value_heads, key_size, value_size = state.shape
        return cls(
            function=KIMI_DELTA if decay.dim() == 4 else GATED_DELTA,
            batch=batch,
            length=x.shape[1],
            conv=0 if weights is None else weights.shape[1],
            chunk=chunk,
            key_heads=key_heads,
            value_heads=value_heads,
            key_size=key_size,
            value_size=value_size,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Steps of many sequences, and prompts."""
        step, key_heads = draw.chance(0.5), draw.choice((1, 2, 4, 8, 16))
        return cls(
            function=draw.choice((GATED_DELTA, KIMI_DELTA)),
            batch=draw.octaves(1, 64) if step else draw.octaves(1, 4),
            length=1 if step else draw.octaves(2, 512),
            chunk=0 if step else 64,
            conv=draw.choice((0, 4, 4)),
            key_heads=key_heads,
            value_heads=key_heads * draw.choice((1, 2, 4)),
            key_size=draw.choice((64, 128)),
            value_size=draw.choice((64, 128)),
        )

    def possible(self) -> Any:
        return self.value_heads % self.key_heads == 0

    def build(self, device: torch.device) -> Call:
        heads = self.batch, self.length, self.value_heads
        x = self.tensor(self.batch, self.length, self.channels, device=device)
        weights = self.tensor(self.channels, self.conv, device=device) if self.conv else None
        each = (self.key_size,) if self.function == KIMI_DELTA else ()
        decay = -self.tensor(*heads, *each, device=device).abs().float()
        strength = self.tensor(*heads, device=device).sigmoid()
        sizes = self.batch, self.value_heads, self.key_size, self.value_size
        state = torch.zeros(sizes, device=device)
        args = (x, weights, decay, strength, state, self.key_heads, self.chunk)
        return Call(torch.ops.neuralpower.linear_attention, args, warm=(x,))

    @property
    def heads_in_all(self) -> Any:
        return self.value_heads

    @property
    def state_numbers(self) -> Any:
        return self.key_size * self.value_size

    @property
    def channels(self) -> Any:
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    @property
    def token_numbers(self) -> tuple[Any, Any]:
        """The same, decays and strengths in, values out."""
        decays = self.value_heads * chosen(self.function == KIMI_DELTA, self.key_size, 1)
        return self.channels + decays + self.value_heads, self.value_heads * self.value_size

    def chunk_flops(self) -> Any:
        """FLOP of a token in a chunk of C, by head: products of the WY form (arXiv 2412.06464, section 3.3).

        2 C (3 K + 2 V) within the chunk (keys by keys, queries by keys, the inverse by keys and by values,
        scores by values), 2/3 C^2 for the inverse of a triangle, 6 K V with the state (read twice, changed).
        """
        c, k, v = self.chunk_tokens, self.key_size, self.value_size
        return self.value_heads * (2 * c * (3 * k + 2 * v) + floor_div(2 * c * c, 3) + 6 * k * v)

    def step_flops(self) -> Any:
        """7 K V by head: decay the state, read it by the key, add a product of two vectors, read it again."""
        return 7 * self.value_heads * self.key_size * self.value_size

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.batch, self.length, self.value_heads, self.value_size


@fused_operator(
    "linear_attention(Tensor x, Tensor? weights, Tensor decay, Tensor strength, Tensor state, int key_heads, "
    "int chunk) -> Tensor"
)
def _linear_attention(
    x: Tensor,
    weights: Tensor | None,
    decay: Tensor,
    strength: Tensor,
    state: Tensor,
    key_heads: int,
    chunk: int,
) -> Tensor:
    """Queries, keys and values side by side in x [batch, length, channels]: [batch, length, heads, size].

    Token after token, which torch can do in any type; decays are logarithms.
    """
    batch, heads, key_size, value_size = state.shape
    length = x.shape[1]
    if x.is_meta:
        return x.new_empty((batch, length, heads, value_size))
    x = x if weights is None else convolved(x, weights)
    keys = key_heads * key_size
    query, key, value = torch.split(x.float(), [keys, keys, heads * value_size], dim=2)
    query, key = (
        torch.nn.functional.normalize(t.reshape(batch, length, key_heads, key_size), dim=3).repeat_interleave(
            heads // key_heads, dim=2
        )
        for t in (query, key)
    )
    value = value.reshape(batch, length, heads, value_size)
    decay = decay.exp().reshape(batch, length, heads, -1, 1)
    results = []
    for t in range(length):
        state = state * decay[:, t]
        known = torch.einsum("bhk,bhkv->bhv", key[:, t], state)
        change = (value[:, t] - known) * strength[:, t, :, None]
        state = state + key[:, t, :, :, None] * change[:, :, None, :]
        results.append(torch.einsum("bhk,bhkv->bhv", query[:, t], state))
    return torch.stack(results, dim=1).to(x.dtype)
