"""How a network is trained: its recipe, its loss, its own activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from neuralpower.errors import InputError, ModelError, is_count, unknown
from neuralpower.late import Tensor, nn, torch
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.base import TRAINING as TRAINING
from neuralpower.optimizers.registry import (
    FOREACH,
    FUSED,
    IMPLEMENTATIONS,
    KNOWN,
    LOOP,
    States,
    canonical,
    possible,
    runnable,
    unknown_optimizer,
)
from neuralpower.platforms import Platform

OPTIMIZER = "optimizer"
MOST_MICRO_BATCHES = 4096  # each is followed layer by layer
STEPS = (FORWARD, BACKWARD, OPTIMIZER)
HALVES = ("float16", "bfloat16")
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    optimizer: str = "adamw"
    implementation: str = ""  # of the optimizer: loop, foreach or fused; "": as torch chooses for the device
    accumulation: int = 1  # micro-batches per step
    checkpointing: bool = False  # repeated blocks run forward again instead of keeping what they computed
    selective: bool = False  # of these, the scores of attention alone run again
    # weights of 16 bits have masters, gradients and an optimizer in float32, as in Megatron-LM
    masters: bool = False
    states: States | float | None = None  # what an unknown optimizer keeps: numbers per parameter

    def __post_init__(self) -> None:
        name, _, way = str(self.optimizer).partition(":")  # "adamw:fused" is said in one word, too
        object.__setattr__(self, "optimizer", canonical(name))
        object.__setattr__(self, "implementation", way or self.implementation)
        if self.states is not None and not isinstance(self.states, States):
            object.__setattr__(self, "states", States.parsed(self.states))
        if self.states is None and self.optimizer not in KNOWN:
            raise unknown_optimizer(self.optimizer)
        if self.implementation not in ("", *IMPLEMENTATIONS):
            raise unknown("implementation of an optimizer", self.implementation, IMPLEMENTATIONS)
        if not possible(self.known, self.implementation):
            ways = " or ".join(way for way in IMPLEMENTATIONS if possible(self.known, way))
            raise InputError(f"{self.optimizer}: torch has no {self.implementation} one; choose {ways}")
        if self.selective and not self.checkpointing:
            raise InputError("selective: which parts checkpointing runs again; choose checkpointing, too")
        if not is_count(self.accumulation):
            raise InputError(f"accumulation {self.accumulation!r}: must be 1 micro-batch or more; choose 1")
        if self.accumulation > MOST_MICRO_BATCHES:
            raise InputError(
                f"accumulation {self.accumulation}: must be at most {MOST_MICRO_BATCHES} micro-batches; "
                "choose fewer"
            )

    def on(self, platform: Platform) -> Recipe:
        """The same, with the implementation that torch chooses on the platform where none is said."""
        return replace(self, implementation=self.implementation or platform.optimizer_way(self.known))

    def __str__(self) -> str:
        """As text, without default values."""
        usual = self.implementation in ("", "loop")
        parts = [self.optimizer if usual else f"{self.optimizer} ({self.implementation})"]
        if self.states is not None:
            parts[0] += f", {self.states} states per parameter"
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} micro-batches")
        if self.checkpointing:
            parts.append(
                "activation checkpointing of attention" if self.selective else "activation checkpointing"
            )
        if self.masters:
            parts.append("float32 masters")
        return ", ".join(parts)

    @property
    def word(self) -> str:
        """The optimizer with its implementation, as `optimizer` takes them: "adamw:fused"."""
        return f"{self.optimizer}:{self.implementation}" if self.implementation else self.optimizer

    @property
    def known(self) -> str:
        """The name in the registry of optimizers; "" for one of which the states alone are known."""
        return "" if self.states is not None else self.optimizer

    def gradient_dtype(self, dtype: str) -> str:
        """The type in which the gradient of a weight is kept, given the weight's."""
        return "float32" if self.masters and dtype in HALVES else dtype

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer; no setting besides these changes the cost.

        Raises InputError where no class of torch steps all parameters.
        """
        make = runnable().get(self.known)
        if make is None:
            raise InputError(f"optimizer {self.optimizer}: its steps are predicted, not run; choose adamw")
        known = KNOWN[self.known].ways
        said = () if not self.implementation or known == (LOOP,) else (FOREACH, FUSED)
        ways = {way: way == self.implementation for way in said if way in known}
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        return make(trained, lr=1e-5, **ways)


RECIPE = Recipe()
"""The default."""


def checkpointed(model: nn.Module) -> None:
    """Switch the model's own activation checkpointing on; raises ModelError where it has none."""
    for name in (
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
    ):  # newer, older transformers
        if hasattr(model, name):
            getattr(model, name)()
            return
    raise ModelError(f"{type(model).__name__} has no activation checkpointing to switch on")


def default_loss(output: Any) -> Tensor:
    """`output.loss` where there is one, else the mean square of the first output with a gradient."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    known = not is_dataclass(output) or isinstance(output, Mapping)  # transformers' own classes are both
    for value in torch.utils._pytree.tree_iter(
        output if known else [getattr(output, one.name) for one in fields(output)]
    ):
        traced = torch.is_inference_mode_enabled()  # without gradients
        if isinstance(value, Tensor) and value.is_floating_point() and (value.requires_grad or traced):
            return value.float().square().mean()
    raise InputError(
        f"a {type(output).__name__} without a floating tensor that has a gradient: nothing to train on; "
        "wrap the network in a module that returns its loss"
    )


def check_masters(masters: bool, dtype: str, *, autocast: object = None, lora: object = None) -> None:
    """Raise InputError for masters of weights that have none: of float32, under autocast or frozen."""
    if not masters:
        return
    way_out = "leave master weights out"
    if dtype not in HALVES:
        raise InputError(
            f"master weights of {dtype} weights: 16-bit weights alone have them; choose dtype bfloat16, or "
            f"{way_out}"
        )
    if autocast is not None:
        raise InputError(
            "master weights and autocast: under autocast, weights are float32 already; choose dtype float32, "
            f"or {way_out}"
        )
    if lora is not None:
        raise InputError(
            f"master weights and lora {lora}: adapters of 16-bit weights are float32 already; {way_out}"
        )
