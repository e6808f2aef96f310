"""A training step that runs for real."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from neuralpower.errors import ModelError
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.call import Call
from neuralpower.trace.training import OPTIMIZER, STEPS, Recipe, checkpointed, default_loss
from neuralpower.trace.undisturbed import forget


class TrainingStep:
    """One step of training a real network, and how long each part of it took at every call."""

    def __init__(self, call: Call, recipe: Recipe, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.call, self.recipe, self.clock_ns = call, recipe, clock_ns
        model = call.function  # a source's call is its network's
        if not isinstance(model, nn.Module):
            raise ModelError(f"a {type(model).__name__} is no network: nothing to train")
        self.model = model.train()
        if recipe.checkpointing:
            checkpointed(model)
        self.optimizer = recipe.optimizer_of(self.model.parameters())
        self.laps: list[dict[str, float]] = []

    def __call__(self) -> None:
        """Run it."""
        lap = dict.fromkeys(STEPS, 0.0)
        if not self.laps:
            forget(self.model)
        with torch.inference_mode(False), torch.enable_grad():
            last = self.clock_ns()

            def ended(step: str) -> None:
                nonlocal last
                now = self.clock_ns()
                lap[step] += (now - last) / 1e9
                last = now

            for _ in range(self.recipe.accumulation):
                loss = default_loss(self.model(*self.call.args, **self.call.kwargs))
                ended(FORWARD)
                loss.backward()  # type: ignore[no-untyped-call]
                ended(BACKWARD)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            ended(OPTIMIZER)
        self.laps.append(lap)

    def parts_s(self, last: int) -> dict[str, float]:
        """The 10th percentile of each part over the last so many steps (s)."""
        return {step: float(np.percentile([lap[step] for lap in self.laps[-last:]], 10)) for step in STEPS}
