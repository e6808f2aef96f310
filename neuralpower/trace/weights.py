"""The weights of a module: names, sorts, shapes and bytes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, OTHER, Weight

TURNED = "Conv1D"  # of transformers: a fully connected layer whose matrix lies as [inputs, outputs]


def weights_of(model: nn.Module) -> tuple[Weight, ...]:
    """All parameters, then all buffers; a shared one has its first name."""
    head, embedding = _ends(model)
    owners = dict(model.named_modules(remove_duplicate=False))
    seen: set[int] = set()
    found = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        place = tensor.untyped_storage()._cdata
        if place in seen or not tensor.numel():
            continue
        seen.add(place)
        owner = owners.get(name.rpartition(".")[0])
        tied = head is not None and embedding is not None and tensor is head is embedding
        sort = EMBEDDING if tied else HEAD if tensor is head else _sort(name, tensor, owner)
        found.append(
            Weight(
                name=name,
                sort=sort,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                bytes=tensor.untyped_storage().nbytes(),
                tied=tied,
                turned=type(owner).__name__ == TURNED,
            )
        )
    return tuple(found)


def _ends(model: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """(weight of the head that gives logits, of the embedding of tokens), as a model of transformers says."""
    return _asked(model, "get_output_embeddings"), _asked(model, "get_input_embeddings")


def _asked(model: nn.Module, name: str) -> Tensor | None:
    ask: Any = getattr(model, name, None)
    try:
        return getattr(ask(), "weight", None) if callable(ask) else None
    except Exception:  # models that have none raise what they like
        return None


def _sort(name: str, tensor: Tensor, owner: nn.Module | None) -> str:
    if not isinstance(tensor, nn.Parameter) or owner is None:
        return OTHER
    if isinstance(owner, nn.Embedding):
        return EMBEDDING
    if name.endswith(".weight") and tensor.dim() == 2:
        return LINEAR if isinstance(owner, nn.Linear) or type(owner).__name__ == TURNED else OTHER
    experts = "expert" in name.lower() or "expert" in type(owner).__name__.lower()
    return EXPERTS if tensor.dim() == 3 and experts else OTHER
