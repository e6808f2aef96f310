"""A training step that runs for real."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError
from neuralpower.layers.base import BACKWARD, FORWARD, Call
from neuralpower.trace.operators.undisturbed import forget
from neuralpower.trace.recipe import OPTIMIZER, STEPS, Recipe, checkpointed, default_loss


def run_training_step(
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    began: Callable[[str], None],
    accumulation: int = 1,
) -> None:
    """One step: micro-batches forward, to their loss, and backward, then the optimizer.

    `began` gets the name (in STEPS) of each part as it begins, and "" at the end.
    """
    with torch.inference_mode(False), torch.enable_grad():
        for _ in range(accumulation):
            began(FORWARD)
            value = loss()
            began(BACKWARD)
            value.backward()  # type: ignore[no-untyped-call]
        began(OPTIMIZER)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        began("")


class TrainingStep:
    """One step of training a real network, and how long each part of it took at every call."""

    def __init__(
        self, call: Call, recipe: Recipe, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.call, self.recipe, self.clock_ns = call, recipe, clock_ns
        model = call.function  # a source's call is its network's
        if not isinstance(model, nn.Module):
            raise ModelError(f"a {type(model).__name__} is not a network: nothing to train")
        self.model = model.train()
        if recipe.checkpointing:
            checkpointed(model)
        self.optimizer = recipe.optimizer_of(self.model.parameters())
        self.laps: list[dict[str, float]] = []

    def __call__(self) -> None:
        lap = dict.fromkeys(STEPS, 0.0)
        running, since_ns = "", 0
        if not self.laps:
            forget(self.model)

        def began(part: str) -> None:
            nonlocal running, since_ns
            now_ns = self.clock_ns()
            if running:
                lap[running] += (now_ns - since_ns) / 1e9
            running, since_ns = part, now_ns

        call, times = self.call, self.recipe.accumulation
        run_training_step(
            lambda: default_loss(self.model(*call.args, **call.kwargs)), self.optimizer, began, times
        )
        self.laps.append(lap)

    def parts_s(self, last: int) -> dict[str, float]:
        """The 10th percentile of each part over the `last` steps (s)."""
        return {step: float(np.percentile([lap[step] for lap in self.laps[-last:]], 10)) for step in STEPS}
