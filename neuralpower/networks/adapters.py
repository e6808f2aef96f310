"""Low-rank adapters (Hu et al., "LoRA", 2021): a frozen network whose products have trained additions.

An adapted product returns W x + B (A x) * scale. A is [rank, inputs] and B [outputs, rank]. Nothing else is
trained. As in peft, adapters of a network of 16 bits have float32 weights, and their inputs are cast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.devices.cluster import ONE, Layout
from neuralpower.errors import InputError, ModelError, is_count, unknown
from neuralpower.layers.base import TRAINING
from neuralpower.networks.source import Source

MOST_RANK = 4096
ALL = "all-linear"  # all products but the one that gives the output
# Names of the products that are adapted by default, the first set of which a network has one: query and
# value, or one product for both (peft, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING).
USUAL = (
    ("q_proj", "v_proj"),
    ("q", "v"),
    ("query", "value"),
    ("query_key_value",),
    ("qkv_proj",),
    ("Wqkv",),
    ("c_attn",),
    ("q_lin", "v_lin"),
    ("in_proj",),
)
PRODUCTS = ("Linear", "Conv1D")


@dataclass(frozen=True)
class Lora:
    """The rank of the adapters, and the last names of the modules that have one; raises InputError."""

    rank: int
    targets: tuple[str, ...] = ()  # (): those of `USUAL` that the network has

    def __post_init__(self) -> None:
        if not is_count(self.rank) or self.rank > MOST_RANK:
            raise InputError(
                f"lora rank {self.rank}: must be a whole number from 1 to {MOST_RANK}; choose 16"
            )

    @classmethod
    def parsed(cls, text: str | int) -> Lora:
        """From "16" or "16:q_proj,v_proj"; raises InputError."""
        rank, colon, names = str(text).partition(":")
        targets = tuple(filter(None, (name.strip() for name in names.split(","))))
        if not re.fullmatch(r"[0-9]{1,9}", rank.strip()) or (colon and not targets):
            raise InputError(
                f"lora {str(text)!r}: must be a rank, with names of modules or without; write 16 or "
                "16:q_proj,v_proj"
            )
        return cls(int(rank), targets)

    def __str__(self) -> str:
        return f"{self.rank}{':' if self.targets else ''}{','.join(self.targets)}"


def with_lora(source: Source, text: str | int | None, phase: str, layout: Layout = ONE) -> Source:
    """The network with adapters, such as "16" or "16:q_proj,v_proj"; the same network for None.

    Raises InputError for another phase than training, and for a layout that shares out the products.
    """
    if text is None:
        return source
    lora = Lora.parsed(text)
    if phase != TRAINING:
        raise InputError(f"lora {lora} belongs to phase training, not to {phase}; leave it out")
    if max(layout.tensor, layout.expert) > 1:
        raise InputError(
            f"lora {lora}: adapters of tensor or expert ranks are not supported; choose data ranks or stages"
        )
    return adapted(source, lora)


def adapted(source: Source, lora: Lora) -> Source:
    """The network with adapters, all else frozen.

    Building it raises InputError where it has no module of the names, ModelError where it has no product.
    """

    def construct(dtype: torch.dtype) -> nn.Module:
        return with_adapters(source.construct(dtype), lora)

    return replace(source, construct=construct)


def with_adapters(model: nn.Module, lora: Lora) -> nn.Module:
    """Freeze the model and add the adapters, in place; raises as `adapted`."""
    found = [*_chosen(model, lora)]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in found:
        _adapt(module, lora.rank)
    return model


def _chosen(model: nn.Module, lora: Lora) -> Iterator[nn.Module]:
    products = {path: one for path, one in model.named_modules() if _product(one)}
    if not products:
        raise ModelError(f"lora {lora}: {type(model).__name__} has no Linear module to adapt; leave lora out")
    names = {path.rpartition(".")[2] for path in products}
    targets = lora.targets or next((some for some in USUAL if names & {*some}), (ALL,))
    if ALL in targets:
        last = _output(model, [*products.values()][-1])
        yield from (one for one in products.values() if one is not last or len(products) == 1)
        return
    for name in targets:
        if name not in names:
            raise unknown(f"module of {type(model).__name__} in lora {lora}:", name, (*names, ALL))
    yield from (one for path, one in products.items() if path.rpartition(".")[2] in targets)


def _product(module: nn.Module) -> bool:
    """Whether a module is one product with a matrix of its own."""
    return any(kind.__name__ in PRODUCTS for kind in type(module).__mro__)


def _output(model: nn.Module, last: nn.Module) -> nn.Module | None:
    """The module that gives a language model's logits, None where it has none; `last` of other networks."""
    ask: Callable[[], Any] | None = getattr(model, "get_output_embeddings", None)
    if not callable(ask):
        return last
    try:
        found = ask()
    except Exception:  # models that have none raise what they like
        return None
    return found if isinstance(found, nn.Module) else None


def _adapt(module: nn.Module, rank: int) -> None:
    """Make a module its own class with an adapter."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    outputs, inputs = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]
    wide = torch.promote_types(weight.dtype, torch.float32) if weight.is_floating_point() else torch.float32
    module.__class__ = _kind(type(module))  # type: ignore[arg-type]  # a class can be hashed
    module.lora_a = nn.Parameter(torch.empty(rank, inputs, dtype=wide, device=weight.device).normal_(0, 0.02))
    module.lora_b = nn.Parameter(torch.zeros(outputs, rank, dtype=wide, device=weight.device))


@functools.cache
def _kind(own: type[nn.Module]) -> type[nn.Module]:
    """The class of a product with an adapter."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """The product and its addition, in the product's type."""
        result: Tensor = own.forward(self, x)
        narrow = nn.functional.linear(x.to(self.lora_a.dtype), self.lora_a)
        return (result + nn.functional.linear(narrow, self.lora_b) * 2.0).to(result.dtype)

    return type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})
