"""How a training step is made: its settings, and its optimizer by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from neuralpower.optimizers.registry import KNOWN, States, canonical, optimizers_of, unknown_optimizer
from neuralpower.platforms import CPU, Platform
from neuralpower.trace.recipe import Loss, Recipe

Optimizers = Callable[[Sequence[nn.Parameter], Sequence[bool]], list[torch.optim.Optimizer]]


def optimizer_named(text: str, platform: Platform = CPU, states: States | None = None) -> Optimizers:
    """The maker of "adamw" or "adamw:fused"; without a way, the platform's default; raises InputError.

    It takes parameters, and which are hidden matrices (`optimizers_of`). An optimizer with `states` may have
    any name.
    """
    name = canonical(str(text).partition(":")[0])
    if states is None and name not in KNOWN:
        raise unknown_optimizer(name)
    way = recipe_of(text, platform, states).implementation
    return partial(optimizers_of, name, implementation=way, states=states)


def recipe_of(text: str, platform: Platform = CPU, states: States | None = None) -> Recipe:
    """The recipe with the optimizer "momentum" or "adamw:fused"; raises InputError where there is none."""
    name, _, way = str(text).partition(":")
    return Recipe(name, way, states=states).on(platform)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The keywords of `training_lifetimes` for a recipe."""
    name = recipe.optimizer
    optimizer = f"{name}:{recipe.implementation}" if recipe.implementation else name
    how: dict[str, Any] = {"accumulation": recipe.accumulation, "checkpointing": recipe.checkpointing}
    how |= {name: True for name in ("selective", "masters") if getattr(recipe, name)}
    how |= {} if recipe.states is None else {"states": recipe.states}
    return {"optimizer": optimizer, **how}


@dataclass(frozen=True)
class StepSettings:
    """How a step is made.

    It is `accumulation` times forward in training mode, loss and backward, then the optimizer, if any.
    Gradients are freed after its step (`zero_grad`), before the next forward pass.
    """

    # "adamw:foreach" takes temporaries as large as all parameters, "adamw:fused" none; None: no step
    optimizer: str | None = "adamw"
    holds_output: bool = False  # whether the loop holds the network's output until the backward pass ends
    loss: Loss | None = None  # None: the model's own, or the mean square of the first output
    platform: Platform = CPU
    accumulation: int = 1
    checkpointing: bool = False  # the model's own is switched on
    selective: bool = False  # instead, the scores of attention alone are made once more
    masters: bool = False  # weights of 16 bits have others, gradients and states in float32
    states: States | None = None  # what an unknown optimizer keeps
    # type that products are cast to; the copies of weights that this makes last for a forward pass
    autocast: torch.dtype | None = None
    compiled: bool = False  # as torch.compile runs the network, the loss and the optimizer aside
    dtype: torch.dtype | None = None  # of floating weights, buffers and inputs; None: their own

    @property
    def make(self) -> Optimizers | None:
        """The maker of the optimizers; raises InputError for an unknown one."""
        return optimizer_named(self.optimizer, self.platform, self.states) if self.optimizer else None
