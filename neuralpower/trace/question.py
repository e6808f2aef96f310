"""What is asked about a pass of a network, beside the network and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from neuralpower.layers.base import FORWARD
from neuralpower.platforms import CPU, Platform
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.recipe import RECIPE, Recipe
from neuralpower.trace.routing import ROUTING, Routing

Learnt = Callable[[str, str], bool]  # (kind, phase) -> whether it is known how long it takes


def everything(kind: str, phase: str) -> bool:
    """Say of each kind that it is known how long it takes."""
    return True


@dataclass(frozen=True)
class Question:
    """Which phase is asked for, in which types, and by which recipe."""

    phase: str = FORWARD  # forward, backward, or training: a whole step
    dtype: str = "float32"
    recipe: Recipe = RECIPE  # of training; its implementation is said (`Recipe.on`)
    autocast: torch.dtype | None = None  # the low precision that products are cast to
    routing: Routing = ROUTING  # of tokens over a mixture's experts
    platform: Platform = CPU  # of the device: it says how optimizers step
    learnt: Learnt = everything
    weights: Scheme | None = None  # how they are quantised, as the device runs it; None: they are not
