"""Sequence parallelism: tokens are split between pairs of products, where tensor ranks would repeat work.

Blocks begin with a slice and end with an all-gather; in between, products gather tokens before and
reduce-scatter after them (Korthikanti et al., 2022). A step of fewer tokens than ranks keeps them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.sharding import exchanges, styles
from neuralpower.networks.sharding.exchanges import BETWEEN
from neuralpower.networks.sharding.rank import SEQUENCE, Rank


def between(module: nn.Module, entries: Mapping[str, styles.Style]) -> dict[str, styles.Style]:
    """A plan where tokens are split between pairs of products.

    They are gathered before the module that holds the first products of a pair, since attention asks for the
    sizes of its input before its products run; before the products where these stand in a block itself.
    """
    blocks = {f"{path}.{place}" for path, stack in _stacks(module, entries) for place in range(len(stack))}
    changed = dict(entries)
    for path, entry in entries.items():
        if not any(path.startswith(f"{block}.") for block in blocks):
            continue
        parent = path.rpartition(".")[0]
        if styles.is_rows(entry):
            changed[path] = replace(entry, returns=BETWEEN)
        elif styles.is_columns(entry) and parent in blocks:
            changed[path] = replace(entry, given=BETWEEN)
        elif styles.is_columns(entry) and isinstance(module.get_submodule(parent), nn.Module):
            changed[path] = replace(entry, sums=False)
            changed.setdefault(parent, styles.GATHERING)
    return changed


def split_tokens(module: nn.Module, rank: Rank, entries: Mapping[str, styles.Style]) -> None:
    """Split tokens from the first block of each stack to the last one, or to the norm after it."""
    for path, blocks in _stacks(module, entries):
        parent = module.get_submodule(path.rpartition(".")[0])
        norm = _norm_after(parent, blocks)
        blocks[0].register_forward_pre_hook(_begins(rank), with_kwargs=True)
        (norm or blocks[-1]).register_forward_hook(_ends(rank))
    for path, one in entries.items():
        part = module.get_submodule(path) if one.reads_tokens else None
        if isinstance(part, nn.Linear):
            keep_slices(part, rank)


def keep_slices(part: nn.Module, rank: Rank) -> None:
    """Have a product keep a slice of the tokens that it reads; its backward pass gathers them again."""
    before = torch._C._autograd._push_saved_tensors_default_hooks
    after = torch._C._autograd._pop_saved_tensors_default_hooks
    pushed: list[bool] = []

    def pack(kept: Tensor) -> Any:
        own = rank.slice_of(kept)
        return kept if own is None else (own.detach(), kept.shape)

    def unpack(kept: Any) -> Tensor:
        if type(kept) is not tuple:
            return kept  # type: ignore[no-any-return]
        own, shape = kept
        return rank.tensor.run("all_gather", own, own.dim() + SEQUENCE).reshape(shape)

    def enter(part: nn.Module, args: Any) -> None:
        trains = rank.sequence and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        pushed.append(trains)
        if trains:
            before(pack, unpack)

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        if pushed.pop():
            after()

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(leave, always_call=True)


def _stacks(module: nn.Module, entries: Mapping[str, styles.Style]) -> list[tuple[str, nn.ModuleList]]:
    """Outermost lists of blocks that a plan names parts of."""
    stacks: list[tuple[str, nn.ModuleList]] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer, _ in stacks)
        named = any(name.startswith(f"{path}.") for name in entries)
        if isinstance(part, nn.ModuleList) and len(part) and named and not inside:
            stacks.append((path, part))
    return stacks


def _norm_after(parent: nn.Module, blocks: nn.ModuleList) -> nn.Module | None:
    """The norm that stands after the blocks of a stack, by its place among their neighbours."""
    neighbours = [*parent.children()]
    after = neighbours[neighbours.index(blocks) + 1 :]
    return next((part for part in after if "norm" in type(part).__name__.lower()), None)


def _begins(rank: Rank) -> Any:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def split(x: Tensor) -> Tensor:
            tokens, ranks = x.shape[SEQUENCE], rank.tensor.ranks
            rank.sequence = tokens >= ranks
            if not rank.sequence:
                return x
            if tokens % ranks:
                raise InputError(
                    f"sequence: {ranks} tensor ranks do not divide {tokens} tokens; "
                    f"choose a multiple of {ranks}"
                )
            return exchanges.sliced(x, rank.tensor, SEQUENCE)

        return rank.first(args, kwargs, split)

    return before


def _ends(rank: Rank) -> Any:
    def after(module: nn.Module, args: Any, output: Any) -> Any:
        if not rank.sequence:
            return output
        rank.sequence = False
        return rank.outputs(output, lambda x: exchanges.gathered(x, rank.tensor, SEQUENCE))

    return after
