"""Tables of vocabularies, split over tensor ranks and padded, as engines and Megatron do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from neuralpower.networks.sharding import exchanges, styles
from neuralpower.networks.sharding.plan import ENGINE, INFERENCE
from neuralpower.networks.sharding.rank import Rank

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
