"""The experts of a mixture on one device: both grouped products, the activation between, the weighted sum.

The router's product and a shared expert are layers of their own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.late import F, Tensor, torch
from neuralpower.layers import Bytes, Call, Described, Draw, Hardware, View, Views, layer_kind
from neuralpower.layers.expert_load import equal_load, power_law_load
from neuralpower.layers.fused import Fused, fused_operator
from neuralpower.layers.grouped import Grouped, grouped_product, load_ends, possible_load
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.layers.operands import OWN
from neuralpower.layers.terms import LAUNCHES_US, beyond_launch, either
from neuralpower.layers.training import keeps_inputs


def _kernel_terms(layer: Experts, hardware: Hardware) -> Described:
    """Terms of both products, and of the rows between: all pairs written, activated, weighted, summed."""
    up, down = (product.views.kernels.terms(product, hardware) for product in layer.products)
    terms = {name: up[name] + down[name] for name in up}
    between = layer.operand_types.output.itemsize * layer.pairs
    between = between * (2 * layer.hidden + layer.intermediate * (3 + layer.gated))
    seconds = between / hardware.memory_bytes_per_s
    busy = terms["flops"] + terms["bytes"] + seconds
    return {**terms, "between_bytes": seconds, "calls": 1.0, **beyond_launch(busy, LAUNCHES_US)}


def _own_terms(layer: Experts, hardware: Hardware) -> Described:
    up, down = (product.views.kernels.own_terms(product, hardware) for product in layer.products)
    return {name: up[name] + down[name] for name in up}


def _kernel_features(layer: Experts, hardware: Hardware) -> Described:
    """Features of the first product, the shares of experts and of pairs that are here, the gates."""
    up, _ = layer.products
    return {
        **up.views.kernels.features(up, hardware),
        "tokens": np.log2(layer.tokens),
        "top_k": layer.top_k,
        "hit_share": layer.hit / layer.experts,
        "here_share": layer.pairs / (layer.tokens * layer.top_k),
        "gated": layer.gated,
    }


@layer_kind("experts", "neuralpower.experts")
@dataclass(frozen=True, kw_only=True)
class Experts(Fused, MatrixProduct):
    """x [tokens, hidden] -> [tokens, hidden], through the chosen ones of `experts` experts.

    `weights_dtype` and the groups are those of both weights; `dtype` is what the products multiply in; tokens
    come and go in the output's type. Without expert parallelism, `pairs` is tokens x top_k.
    """

    tokens: int  # offered to the layer
    hidden: int
    intermediate: int  # on this device
    experts: int  # on this device
    top_k: int  # experts of each token, among all there are
    pairs: int  # of a token and an expert that is here
    hit: int  # experts here that get a token
    fullest: int  # tokens of the expert here that gets most
    gated: bool = True  # the first product makes a gate for each number
    routed: int = 0  # experts that the router chooses from, on all devices; 0: those that are here

    dimensions = ("pairs", "hit", "hidden", "intermediate")
    rule = (
        "hit experts share the pairs, each with one at least and none with more than the fullest, which has "
    )
    rule += (
        "at most the tokens; pairs are at most tokens x top_k, hit at most experts, experts at most routed"
    )

    views = Views(
        kernels=View(terms=_kernel_terms, own_terms=_own_terms, features=_kernel_features),
        of=MatrixProduct.views,
    )
    training = replace(Fused.training, keeps=keeps_inputs)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.experts(x, up, down, rows, ends, shares, top_k, fullest, routed)`."""
        x, up, down, rows, ends, _, top_k, fullest, routed = args
        return cls(
            tokens=x.shape[0],
            hidden=x.shape[1],
            intermediate=down.shape[2],
            experts=down.shape[0],
            top_k=top_k,
            pairs=rows.shape[0],
            hit=ends.shape[0],
            fullest=fullest,
            gated=up.shape[1] != down.shape[2],
            routed=routed if routed != down.shape[0] else 0,
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Few large experts and many small ones, equal loads and power laws, alone or one rank of several."""
        routed, ranks = draw.choice((8, 16, 32, 64, 128)), draw.choice((1, 1, 1, 2, 4))
        top_k, tokens = min(draw.choice((1, 2, 4, 6, 8)), routed), draw.octaves(1, 2048)
        if draw.chance(0.5):
            load = equal_load(tokens, top_k, routed, ranks)
        else:
            load = power_law_load(tokens, top_k, routed, draw.choice((1.01, 1.2)), ranks)
        return cls(
            tokens=tokens,
            hidden=16 * draw.octaves(4, 256),
            intermediate=16 * draw.octaves(2, 256),
            experts=routed // ranks,
            top_k=top_k,
            **load._asdict(),
            gated=draw.chance(0.8),
            routed=routed if ranks > 1 else 0,
        )

    def possible(self) -> Any:
        fits = (self.hit <= self.experts) & (self.experts <= either(self.routed, self.experts))
        most = (self.fullest <= self.tokens) & (self.pairs <= self.tokens * self.top_k)
        return possible_load(self.pairs, self.hit, self.fullest) & fits & most

    def build(self, device: torch.device) -> Call:
        """The call, with rows of tokens expert by expert; raises InputError where operands have own types."""
        self.check_buildable()
        x = self.tensor(self.tokens, self.hidden, device=device)
        up = self.tensor(self.experts, self.intermediate * (1 + self.gated), self.hidden, device=device)
        down = self.tensor(self.experts, self.hidden, self.intermediate, device=device)
        rows = torch.arange(self.pairs, device=device) % self.tokens
        ends = load_ends(self.pairs, self.hit, self.fullest, device)
        shares = self.tensor(self.pairs, 1, device=device)
        chosen = (self.top_k, self.fullest, self.routed or self.experts)
        return Call(torch.ops.neuralpower.experts, (x, up, down, rows, ends, shares, *chosen), warm=(x,))

    def shape(self) -> Self:
        """The model, as far as ranks do not share it out: loads and ranks are neighbours of each other."""
        one = 1 if isinstance(self.dtype, str) else np.ones(len(self.dtype))
        load: dict[str, Any] = dict.fromkeys(("tokens", "pairs", "hit", "fullest"), one)
        return replace(self, **load, intermediate=one, experts=one)

    @functools.cached_property
    def products(self) -> tuple[Grouped, Grouped]:
        """Both grouped products: to the gates and up, and down."""
        own: dict[str, Any] = {name: getattr(self, name) for name in (*OWN, "dtype")}
        load: dict[str, Any] = {"rows": self.pairs, "groups": self.hit, "fullest": self.fullest}
        up = Grouped(**own, **load, inner=self.hidden, columns=self.intermediate * (1 + self.gated))
        return up, Grouped(**own, **load, inner=self.intermediate, columns=self.hidden)

    def sides(self) -> tuple[Any, Any, Any, Any]:
        return self.products[0].sides()

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.tokens, self.hidden

    def flops(self) -> int:
        up, down = self.products
        return up.flops() + down.flops()

    def bytes(self) -> Bytes:
        """Tokens in and out, and the weights of the experts that get a token."""
        up, down = self.products
        tokens = self.operand_types.output.bytes(self.tokens, self.hidden)
        return Bytes(tokens, up.bytes().weights + down.bytes().weights, tokens)

    def parameters(self) -> int:
        return self.experts * self.hidden * self.intermediate * (2 + self.gated)


@fused_operator(
    "experts(Tensor x, Tensor up, Tensor down, Tensor rows, Tensor ends, Tensor shares, int top_k, "
    "int fullest, int routed) -> Tensor"
)
def _experts(
    x: Tensor, up: Tensor, down: Tensor, rows: Tensor, ends: Tensor, shares: Tensor, *_: int
) -> Tensor:
    """Tokens `rows` [pairs], expert by expert up to `ends` [hit]; `shares` [pairs, 1] weigh the results."""
    if x.is_meta:
        return torch.empty_like(x)
    middle = grouped_product(x[rows], up, ends)
    gated = up.shape[1] != down.shape[2]
    if gated:
        gate, middle = middle.chunk(2, dim=1)
        middle = F.silu(gate) * middle
    else:
        middle = F.relu(middle).square()
    made = grouped_product(middle.contiguous(), down, ends) * shares
    return torch.zeros_like(x).index_add_(0, rows, made)
