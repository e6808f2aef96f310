"""Training of the networks: optimizers with the settings of ParaDnn and others, and falling learning rates.

ParaDnn trains with TensorFlow's RMSProp(learning rate .1, decay .9, momentum .9, epsilon 1). PyTorch adds
epsilon to the root of the mean square. TensorFlow adds it under the root, and starts mean squares at one, not
zero (`apply_rms_prop` in tensorflow/core/kernels/training_ops.cc): `tensorflow` among COMPAT is that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from neuralpower.errors import unknown
from neuralpower.suites.steps import make_optimizer

PARADNN = {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "eps": 1.0, "weight_decay": 0.0}
COMPAT: Mapping[str, Mapping[str, float]] = {
    "paradnn": PARADNN,
    "ifarm": {**PARADNN, "alpha": 0.99, "weight_decay": 0.9},  # a decay in the wrong place
    "pytorch": {"lr": 0.01, "alpha": 0.99, "momentum": 0.0, "eps": 1e-8, "weight_decay": 0.0},
    "keras": {"lr": 0.001, "alpha": 0.9, "momentum": 0.0, "eps": 1e-7, "weight_decay": 0.0},
    "tensorflow": {"lr": 0.1, "alpha": 0.9, "momentum": 0.9, "eps": 1.0},
}
ADAM_EPS = 1e-8
HALF_ADAM_EPS = 1e-4  # 1e-8 is 0 in float16, whose smallest number is 6e-8
# the optimizer's function in layer kind `optimizer`, and the numbers that it keeps per parameter
LAYER_FUNCTIONS = {"rms": "rmsprop", "sgd": "sgd", "momentum": "sgd", "adam": "adam"}
STATES = {"rms": 2, "sgd": 0, "momentum": 1, "adam": 2}
DECAY: Mapping[str, tuple[float, float] | None] = {"fc": None, "cnn": (0.97, 25_000), "rnn": (0.9, 10_000)}


class TensorFlowRMSprop(torch.optim.Optimizer):
    """Mean square s, momentum m: s = alpha s + (1 - alpha) g^2, m = momentum m + lr g / sqrt(s + eps)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, alpha: float, momentum: float, eps: float
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "momentum": momentum, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if not self.state[w]:
                    self.state[w].update(square=torch.ones_like(w), momentum=torch.zeros_like(w))
            if not weights:
                continue
            gradients = [w.grad for w in weights]
            squares = [self.state[w]["square"] for w in weights]
            momenta = [self.state[w]["momentum"] for w in weights]
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
            roots = torch._foreach_sqrt(torch._foreach_add(squares, group["eps"]))
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_addcdiv_(momenta, gradients, roots, group["lr"])
            torch._foreach_sub_(weights, momenta)
        return loss


def optimizer_settings(name: str, dtype: torch.dtype, compat: str = "paradnn") -> dict[str, float]:
    """The arguments of an optimizer of weights of a dtype; raises InputError for an unknown name."""
    if name not in LAYER_FUNCTIONS:
        raise unknown("optimizer", name, LAYER_FUNCTIONS)
    if compat not in COMPAT:
        raise unknown("RMSprop", compat, COMPAT)
    if name == "rms":
        return dict(COMPAT[compat])
    if name == "adam":
        return {"lr": 1e-3, "eps": HALF_ADAM_EPS if dtype == torch.float16 else ADAM_EPS}
    return {"lr": 0.1, **({"momentum": 0.9} if name == "momentum" else {})}


def optimizer_of(
    name: str, weights: Iterable[Tensor], dtype: torch.dtype, compat: str = "paradnn"
) -> torch.optim.Optimizer:
    """The optimizer of some weights; raises InputError for an unknown name."""
    settings: dict[str, Any] = optimizer_settings(name, dtype, compat)
    if name == "rms" and compat == "tensorflow":
        return TensorFlowRMSprop(weights, **settings)
    return make_optimizer(LAYER_FUNCTIONS[name], weights, **settings)


def learning_rate(family: str, step: int, start: float = 0.1) -> float:
    """The rate of a step from 0 on: start x 0.97^(step / 25000) for cnn, x 0.9^(step / 10000) for rnn."""
    decay = DECAY[family]
    return start if decay is None else start * decay[0] ** (step / decay[1])


def scheduled(optimizer: torch.optim.Optimizer, family: str) -> torch.optim.Optimizer:
    """The same optimizer, whose learning rate falls after every step like the family's."""
    if DECAY[family] is not None:
        schedule = LambdaLR(optimizer, lambda step: learning_rate(family, step, start=1.0))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer
