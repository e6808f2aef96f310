"""Calls of kernels that serving engines bring, of which torch has none: whole blocks of language models.

To be measured, and seen by a trace, each has an operator of its own, `neuralpower::NAME`, which is made of
torch's calls. Its time on a device is that of these; the engines' own kernels are trained on tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from neuralpower.layers import Layer, Training

F = TypeVar("F", bound=Callable[..., Any])
_LIBRARY: Any = torch.library.Library("neuralpower", "DEF")  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _backward(layer: Fused) -> tuple[Layer, ...]:
    """Two products for each of the forward pass: as two passes."""
    again = replace(layer, phase="forward")
    return again, again


@dataclass(frozen=True, kw_only=True)
class Fused(Layer):
    """One call of such a kernel, in inference."""

    by_default = False
    multiplies = True
    training = Training(differentiable=lambda layer: False, backward=_backward)  # engines only infer


def fused_operator(schema: str) -> Callable[[F], F]:
    """Define `neuralpower::NAME` by its schema, as torch writes them, and the function that computes it."""

    def register(function: F) -> F:
        _LIBRARY.define(schema)
        _LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register
