"""The zoo as a list: each network is built on the meta device when it is asked for, which takes no memory."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.networks.zoo import ZOO, zoo_entry
from neuralpower.profiling.conventions import product_flops
from neuralpower.trace.tracer import trace


@dataclass(frozen=True)
class Listed:
    """One network; `flops` are those of matrix products and convolutions for one sample, 1 multiply-add = 2 FLOP."""

    id: str
    title: str
    input_shape: tuple[int, ...]
    classes: int
    parameters: int
    flops: int


def matching(patterns: Sequence[str]) -> list[str]:
    """Ids that match one of the patterns, or all; raises ModelError for a pattern that none does."""
    for pattern in patterns:
        if not fnmatch.filter(ZOO, pattern):
            raise unknown("zoo network", pattern, ZOO, ModelError)
    return sorted(id for id in ZOO if not patterns or any(fnmatch.fnmatch(id, p) for p in patterns))


def listed(id: str) -> Listed:
    """What the network of that id is; raises ModelError."""
    entry = zoo_entry(id)
    source = resolve(f"zoo:{id}")
    model = source.build("meta")
    inputs = source.inputs(model, InputRequest(1), "meta")
    traced = trace(model, inputs.args, dict(inputs.kwargs))
    flops = sum(product_flops(layer) for layer in traced.layers)
    return Listed(id, entry.title, entry.input_shape, entry.classes, traced.parameters, flops)
