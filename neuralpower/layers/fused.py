"""Calls of kernels that serving engines bring, of which torch has none: whole blocks of language models.

To be measured, and seen by a trace, each has an operator of its own, `neuralpower::NAME`, which is made of
torch's calls. Its time on a device is that of these; the engines' own kernels are trained on tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from neuralpower.late import once_imported, torch
from neuralpower.layers import Layer, Training

F = TypeVar("F", bound=Callable[..., Any])
LIBRARIES: list[Any] = []  # torch's, which forgets operators whose library is gone


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
        once_imported(partial(define, schema, function))
        return function

    return register


def define(schema: str, function: Callable[..., Any]) -> None:
    """Give torch an operator of its schema."""
    library: Any = torch.library.Library("neuralpower", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(schema)
    library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    LIBRARIES.append(library)
