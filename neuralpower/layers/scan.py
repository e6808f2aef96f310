"""Scans of state-space models: states that decay with each token, take it up, and are read.

Sources: Mamba (arXiv 2312.00752), with a decay for each number of a state, and Mamba-2 (arXiv 2405.21060),
with one for a head. The convolution before it is part of the call; the projections are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import Tensor, torch
from neuralpower.layers import Call, Draw, layer_kind
from neuralpower.layers.fused import fused_operator
from neuralpower.layers.recurrences import Recurrence, convolved
from neuralpower.layers.terms import chosen

MAMBA, MAMBA2 = "mamba", "mamba2"


@layer_kind("scan", "neuralpower.scan")
@dataclass(frozen=True, kw_only=True)
class Scan(Recurrence):
    """`heads` of `head_size` numbers, a state of `state_size` for each; `groups` of heads share B and C.

    `mamba` has a head for each channel, of size 1, one group, and no chunks of products.
    """

    function: str
    heads: int
    head_size: int
    state_size: int
    groups: int = 1

    dimensions = ("batch", "length", "heads", "head_size", "state_size")
    words = {"function": (MAMBA, MAMBA2)}
    rule = "groups must divide heads; mamba has heads of size 1"

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.scan(x, weights, delta, decay, state, groups, chunk)`."""
        _, weights, delta, decay, state, groups, chunk = args
        batch, heads, head_size, state_size = state.shape
        return cls(
            function=MAMBA if decay.dim() == 2 else MAMBA2,
            batch=batch,
            length=delta.shape[1],
            conv=0 if weights is None else weights.shape[1],
            chunk=chunk,
            heads=heads,
            head_size=head_size,
            state_size=state_size,
            groups=groups,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Steps of many sequences, and prompts."""
        step, second = draw.chance(0.5), draw.chance(0.75)
        return cls(
            function=MAMBA2 if second else MAMBA,
            batch=draw.octaves(1, 64) if step else draw.octaves(1, 4),
            length=1 if step else draw.octaves(2, 512),
            chunk=0 if step else draw.choice((64, 128, 256)),
            conv=draw.choice((0, 4, 4)),
            heads=8 * draw.octaves(1, 16) if second else 64 * draw.octaves(1, 64),
            head_size=64 if second else 1,
            state_size=draw.choice((64, 128)) if second else 16,
            groups=draw.choice((1, 4, 8)) if second else 1,
        )

    def possible(self) -> Any:
        second = np.asarray(self.function) == MAMBA2
        return (self.heads % self.groups == 0) & (second | (self.head_size == 1) & (self.groups == 1))

    def build(self, device: torch.device) -> Call:
        x = self.tensor(self.batch, self.length, self.channels, device=device)
        weights = self.tensor(self.channels, self.conv, device=device) if self.conv else None
        delta = self.tensor(self.batch, self.length, self.heads, device=device).sigmoid()
        each = (self.state_size,) if self.function == MAMBA else ()
        decay = -torch.ones(self.heads, *each, device=device)
        sizes = self.batch, self.heads, self.head_size, self.state_size
        args = (x, weights, delta, decay, torch.zeros(sizes, device=device), self.groups, self.chunk)
        return Call(torch.ops.neuralpower.scan, args, warm=(x,))

    @property
    def heads_in_all(self) -> Any:
        return self.heads

    @property
    def state_numbers(self) -> Any:
        return self.head_size * self.state_size

    @property
    def channels(self) -> Any:
        """The inputs; in mamba2 B and C, too, which mamba makes afterwards."""
        return self.heads * self.head_size + 2 * self._shared * (self.function == MAMBA2)

    @property
    def _shared(self) -> Any:
        return self.groups * self.state_size

    @property
    def token_numbers(self) -> tuple[Any, Any]:
        """Inputs, B, C and the steps in, as many numbers out as inputs."""
        inputs = self.heads * self.head_size
        return inputs + 2 * self._shared + self.heads, inputs

    def chunk_flops(self) -> Any:
        """FLOP of a token in a chunk of C (arXiv 2405.21060, section 6): C B^T, scores by inputs, states.

        2 C N for a group, 2 C P + 4 P N for a head of P numbers with a state of N. mamba has no such form.
        """
        c, p, n = self.chunk_tokens, self.head_size, self.state_size
        second = 2 * c * self._shared + self.heads * (2 * c * p + 4 * p * n)
        return chosen(self.function == MAMBA2, second, self.step_flops())

    def step_flops(self) -> Any:
        """5 P N by head: decay, add an outer product, read by a product; decays of mamba are 2 more."""
        return chosen(self.function == MAMBA2, 5, 7) * self.heads * self.state_numbers

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.batch, self.length, self.heads, self.head_size


@fused_operator(
    "scan(Tensor x, Tensor? weights, Tensor delta, Tensor decay, Tensor state, int groups, int chunk) "
    "-> Tensor"
)
def _scan(
    x: Tensor,
    weights: Tensor | None,
    delta: Tensor,
    decay: Tensor,
    state: Tensor,
    groups: int,
    chunk: int,
) -> Tensor:
    """Inputs and, in mamba2, B and C side by side in x [batch, length, channels] -> [..., heads, head_size].

    Token after token, which torch can do in any type. mamba's B and C are its first inputs here.
    """
    batch, heads, head_size, state_size = state.shape
    length, inputs = x.shape[1], heads * head_size
    if x.is_meta:
        return x.new_empty((batch, length, heads, head_size))
    x = x if weights is None else convolved(x, weights)
    x = x.float()
    shared = x[..., inputs:] if decay.dim() == 1 else x[..., : 2 * groups * state_size]
    b, c = (
        part.reshape(batch, length, groups, state_size).repeat_interleave(heads // groups, dim=2)
        for part in torch.split(shared, groups * state_size, dim=2)
    )
    taken = x[..., :inputs].reshape(batch, length, heads, head_size) * delta[..., None]
    results = []
    for t in range(length):
        decayed = (delta[:, t].reshape(batch, heads, *[1] * (decay.dim() - 1)) * decay).exp()
        decayed = decayed.reshape(batch, heads, 1, -1)
        state = state * decayed + taken[:, t, :, :, None] * b[:, t, :, None, :]
        results.append((state * c[:, t, :, None, :]).sum(3))
    return torch.stack(results, dim=1).to(weights.dtype if weights is not None else delta.dtype)
