"""Experts of a mixture, and heads of attention, that lie on different ranks.

A rank's experts get a row for each choice that falls on them; choices are taken to spread evenly.

    tokens repeated on all expert ranks   each picks the rows of its own experts; the outputs are summed
    tokens of its own on each             one all-to-all brings rows to their experts, a second one brings
                                          them back; tensor ranks, which repeat tokens, send a part each
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.sharding import exchanges
from neuralpower.networks.sharding.exchanges import Rank

ROW_PER_CHOICE = "_neuralpower_row_per_choice"  # attribute of experts whose rows are choices, not tokens


def placed_experts(module: nn.Module) -> frozenset[str]:
    """Paths of experts that get a row for each choice."""
    return frozenset(path for path, part in module.named_modules() if hasattr(part, ROW_PER_CHOICE))


class Dispatch:
    """What happens before and after the experts of one rank, in one call of them."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.across = rank.layout.expert > rank.layout.tensor  # ranks with tokens of their own
        self._tokens, self._places, self._weights = 0, torch.empty(0), torch.empty(0)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """(tokens [T, hidden], choice [T, k], its weights [T, k]) -> the same of the rank's rows, k = 1."""
        hidden, index, weights, *more = args
        experts = int(module.num_experts)  # type: ignore[arg-type]
        bring = self._sent if self.across else self._picked
        rows, count, weight = bring(hidden, index, weights)
        ids = index.reshape(-1)[:count].remainder(experts).unsqueeze(-1)
        return (rows, ids, weight, *more)

    def _picked(self, hidden: Tensor, index: Tensor, weights: Tensor) -> tuple[Tensor, int, Tensor]:
        """The rows that the rank's experts have to do of tokens that all tensor ranks have."""
        rank = self.rank
        hidden = rank.whole(hidden, partial=True)
        weights = rank.whole(weights, partial=True)
        self._tokens, chosen = hidden.shape[0], weights.shape[-1]
        count = exchanges.share(self._tokens * chosen, rank.tensor.ranks)
        self._places = _places(count, chosen, hidden)
        return hidden[self._places], count, weights.reshape(-1)[:count].unsqueeze(-1)

    def _sent(self, hidden: Tensor, index: Tensor, weights: Tensor) -> tuple[Tensor, int, Tensor]:
        """The rows that come from all ranks."""
        rank = self.rank
        self._tokens = hidden.shape[0]
        if rank.tensor.ranks > 1 and not rank.sequence:
            hidden, weights = (exchanges.sliced(x, rank.tensor, 0) for x in (hidden, weights))
        self._weights, chosen = weights, weights.shape[-1]
        count = hidden.shape[0] * chosen
        rows = exchanges.exchanged(hidden[_places(count, chosen, hidden)], rank.expert)
        return rows, count, weights.new_ones((count, 1))

    def after(self, output: Tensor) -> Tensor:
        """The rows' outputs -> those of the tokens."""
        rank = self.rank
        if not self.across:
            shape = self._tokens, output.shape[-1]
            zeros = torch.zeros(shape, dtype=output.dtype, device=output.device)
            return rank.from_partial(zeros.index_add(0, self._places, output))
        back = exchanges.exchanged(output, rank.expert).reshape(*self._weights.shape, -1)
        found = (back * self._weights.unsqueeze(-1)).sum(1).to(output.dtype)
        self._weights = torch.empty(0)
        if rank.tensor.ranks > 1 and not rank.sequence:
            found = exchanges.gathered(found, rank.tensor, 0)[: self._tokens]
        return found


def _places(count: int, chosen: int, like: Tensor) -> Tensor:
    """The token of each row."""
    return torch.arange(count, device=like.device) // chosen


# ---- Mixtures whose own code has every expert compute all tokens (Llama 4's), rewritten ----
# Engines run them so, and so do expert ranks: rows of what nobody chose are not sent.


NAMES = ("router", "experts", "shared_expert", "top_k", "hidden_dim")  # of a mixture


def compute_choices(module: nn.Module) -> None:
    """Have each such mixture within a module, which changes, give its experts tokens and their choice."""
    for mixture in _mixtures(module):
        vars(mixture)["forward"] = MethodType(_mixed, mixture)
        vars(mixture.experts)["forward"] = MethodType(_chosen, mixture.experts)


def _mixtures(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        if all(hasattr(part, name) for name in NAMES):
            experts: Any = part.experts
            asks = inspect.signature(experts.forward).parameters
            if len(asks) == 1 and {"gate_up_proj", "down_proj"} <= {*experts._parameters}:
                yield part


def _mixed(mixture: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [.., hidden] -> (their outputs [tokens, hidden], logits of the router [tokens, experts])."""
    hidden = hidden_states.reshape(-1, mixture.hidden_dim)
    scores, logits = mixture.router(hidden)
    weights, index = scores.topk(mixture.top_k, dim=1)
    output = mixture.shared_expert(hidden)
    return output + mixture.experts(hidden, index, weights), logits


def _chosen(experts: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """(tokens [T, hidden], choice [T, k], its weights [T, k]) -> [T, hidden]; weights scale the input."""
    count = experts.gate_up_proj.shape[0]
    ids, order = index.reshape(-1).sort()
    tokens = order // index.shape[-1]
    rows = hidden[tokens] * weights.reshape(-1)[order].unsqueeze(-1)
    ends = torch.histc(ids.float(), bins=count, min=0, max=count - 1).cumsum(0, dtype=torch.int32)
    gate, up = torch._grouped_mm(rows, experts.gate_up_proj, offs=ends).chunk(2, dim=-1)
    down = torch._grouped_mm(up * experts.act_fn(gate), experts.down_proj, offs=ends)
    return torch.zeros_like(hidden).index_add(0, tokens, down)


# Heads of attention: what a rank has of them, and key and value heads that are fewer than ranks.

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead")
KEY_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
SIZES = ("head_dim", "head_size", "attention_head_size", "d_kv", "key_value_proj_dim", "dim_head")


def number(module: Any, names: tuple[str, ...]) -> int | None:
    """The first whole number among attributes of a module."""
    found = (getattr(module, name, None) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), None)


def is_attention(module: nn.Module) -> bool:
    """Whether a module says that it has heads."""
    of_its_own = (*COUNTS, "num_key_value_groups")
    return "ttention" in type(module).__name__ or any(name in vars(module) for name in of_its_own)


def query_heads(module: nn.Module) -> int | None:
    """Heads of the queries, by the module or its configuration."""
    return number(module, COUNTS) or number(getattr(module, "config", None), COUNTS)


def heads_in(module: nn.Module, size: int) -> int | None:
    """How many heads `size` features of an attention module are; None where that is not known."""
    if not is_attention(module):
        return None
    one = number(module, SIZES)
    if one is not None and size % one == 0:
        return size // one
    heads = query_heads(module)
    return heads if heads is not None and size % heads == 0 else None


def local_heads(path: str, module: nn.Module, size: int, ranks: int) -> int | None:
    """Features of a rank, of `size` that are heads of `module`; None where they are no heads.

    Key and value heads that are fewer than ranks stand on several ranks each, as in Megatron and vLLM.

    Raises:
        InputError: ranks that do not divide the heads.
    """
    heads = heads_in(module, size)
    if heads is None:
        return None
    queries, keys = query_heads(module) or heads, keys_beside(module, heads)
    if heads % ranks == 0 and keys % ranks == 0:
        return size // ranks
    if heads < queries and ranks % heads == 0 and queries % ranks == 0:
        return size // heads
    if keys and ranks % keys == 0 and queries % ranks == 0:  # one product makes queries, keys and values
        return size // heads * (queries // ranks + 2)
    raise InputError(
        f"tensor {ranks}: {path} has {heads} heads, which {ranks} ranks do not divide; "
        f"choose a divisor of {heads}"
    )


def keys_beside(module: nn.Module, heads: int) -> int:
    """Key heads, as many as value heads, among `heads` of a product that makes the queries, too; 0: none."""
    return max(heads - (query_heads(module) or heads), 0) // 2


def group_heads(module: nn.Module, ranks: int, key_heads: int) -> None:
    """Set how many query heads of the rank read one key head."""
    queries = query_heads(module)
    if queries is not None and hasattr(module, "num_key_value_groups"):
        vars(module)["num_key_value_groups"] = max(queries // ranks // key_heads, 1)
