"""Mixtures whose own code has every expert compute all tokens (Llama 4's), rewritten to compute choices.

Engines run them so, and so do expert ranks: rows of what nobody chose are not sent.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

NAMES = ("router", "experts", "shared_expert", "top_k", "hidden_dim")  # of such a mixture


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
