"""What is split along tokens between products, and along a vocabulary in tables and heads.

Blocks begin with a slice and end with an all-gather; in between, products gather tokens before and
reduce-scatter after them (Korthikanti et al., 2022). A step of fewer tokens than ranks keeps them whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.sharding import exchanges, styles
from neuralpower.networks.sharding.exchanges import BETWEEN, SEQUENCE, Rank
from neuralpower.networks.sharding.plan import ENGINE, INFERENCE


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


# Tables of vocabularies, split over tensor ranks and padded, as engines and Megatron do.

PADDED = 64  # rows that vLLM pads a vocabulary to a multiple of (DEFAULT_VOCAB_PADDING_SIZE)
PADDED_PER_RANK = 128  # and Megatron's training that of each rank (make-vocab-size-divisible-by)
SUMS = 3  # exchanges of a loss over a split vocabulary: largest logit, its token's logit, sum of exponentials


@dataclass(frozen=True)
class Vocabulary:
    """Styles and rows of the tables of a language model; none where its plan is to say it."""

    how: Mapping[str, styles.Style] = field(default_factory=dict)  # by path
    rows: Mapping[str, int] = field(default_factory=dict)  # of a rank, by path

    @classmethod
    def of(cls, module: nn.Module, ranks: int, use: str) -> Vocabulary:
        """What an engine, or a training step over tensor ranks, makes of the tables; `use` as `Sharding`."""
        if ranks == 1 or use == INFERENCE:
            return cls()
        head, table = _part(module, "get_output_embeddings"), _part(module, "get_input_embeddings")
        entries: dict[str, styles.Style] = {}
        rows: dict[str, int] = {}
        paths = {id(part): path for path, part in module.named_modules()}
        for part, kind, one in (
            (table, nn.Embedding, styles.VOCABULARY),
            (head, nn.Linear, styles.GATHERED if use == ENGINE else LOSS),
        ):
            if isinstance(part, kind) and type(part).forward is kind.forward and id(part) in paths:
                path = paths[id(part)]
                entries[path] = one
                rows[path] = _rows(int(part.weight.shape[0]), ranks, use)
        return cls(entries, rows)

    def split_loss(self, module: nn.Module) -> None:
        """Let the network's own loss read as many logits of each token as a rank has."""
        loss: Any = getattr(module, "loss_function", None)  # of transformers
        if loss is None or LOSS not in self.how.values():
            return

        def of_rank(logits: Tensor, labels: Tensor, vocab_size: int, **settings: Any) -> Any:
            return loss(logits, labels, vocab_size=logits.shape[-1], **settings)

        module.loss_function = of_rank  # type: ignore[assignment]


def _part(module: nn.Module, name: str) -> Any:
    """A table that a model of transformers says; None where it has none."""
    try:
        return getattr(module, name)()
    except (AttributeError, NotImplementedError):
        return None


def _rows(size: int, ranks: int, use: str) -> int:
    if use == ENGINE:
        return exchanges.share(-(-size // PADDED) * PADDED, ranks)
    return exchanges.share(size, PADDED_PER_RANK * ranks) * PADDED_PER_RANK


def _attach_loss(module: nn.Module, rank: Rank) -> None:
    """Logits stay split: a loss exchanges a few numbers of each token (Megatron's vocab-parallel loss)."""
    style = styles.COLUMNS

    def after(module: nn.Module, args: Any, output: Any) -> Any:
        def summed(x: Any) -> Any:
            for _ in range(SUMS):
                exchanges.reduced(x[..., :1].float(), rank.tensor)
            return x

        return rank.outputs(output, summed)

    styles.attach_placements(module, style, rank)
    module.register_forward_hook(after)


LOSS = styles.Style(
    "vocabulary of a loss", axis=styles.COLUMNS.axis, makes=-1, returns=-1, attach=_attach_loss
)
