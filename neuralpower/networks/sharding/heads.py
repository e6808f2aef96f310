"""Heads of attention: what a rank has of them, and key and value heads that are fewer than ranks."""

from __future__ import annotations

from typing import Any

from torch import nn

from neuralpower.errors import InputError

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
