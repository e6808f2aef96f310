"""Trace -> the tasks of a training step: forward, backward and optimizer, layer by layer.

micro-batch   forward calls, then the backward passes of those that a gradient goes through, the last one first,
              with the additions that gradients of tensors used more than once take
accumulation  the same for every micro-batch, and from the second on an addition per trained tensor
checkpointing a repeated block keeps nothing but its input: its forward pass runs once more before its backward pass; so does
              what the model itself gives to `torch.utils.checkpoint`
optimizer     one step over all trained tensors
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from neuralpower.errors import InputError, ModelError, is_count, unknown
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.optimizer import CLASSES, IMPLEMENTATIONS, Optimizer, possible
from neuralpower.platforms import Platform
from neuralpower.trace.gradients import addition
from neuralpower.trace.paths import pattern, prefixes
from neuralpower.trace.records import LayerCall, Trace, backward_calls, run_again
from neuralpower.trace.sparse_gradients import check_sparse, joined, step_of_rows, stored

TRAINING, OPTIMIZER = "training", "optimizer"
MOST_MICRO_BATCHES = 4096  # each is followed layer by layer
STEPS = (FORWARD, BACKWARD, OPTIMIZER)
Loss = Callable[[Any], Tensor]
Learnt = Callable[[str, str], bool]  # (kind, phase) -> whether it is known how long it takes


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    optimizer: str = "adamw"
    implementation: str = ""  # of the optimizer: loop, foreach or fused; "": as torch chooses for the device
    accumulation: int = 1  # micro-batches per step
    checkpointing: bool = False  # repeated blocks run forward again instead of keeping what they computed

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be."""
        if self.optimizer not in CLASSES:
            raise unknown("optimizer", self.optimizer, CLASSES)
        if self.implementation not in ("", *IMPLEMENTATIONS):
            raise unknown("implementation of an optimizer", self.implementation, IMPLEMENTATIONS)
        if not possible(self.optimizer, self.implementation):
            ways = " or ".join(way for way in IMPLEMENTATIONS if possible(self.optimizer, way))
            raise InputError(f"{self.optimizer}: torch has no {self.implementation} one; choose {ways}")
        if not is_count(self.accumulation):
            raise InputError(f"accumulation {self.accumulation!r}: a step takes 1 micro-batch or more; choose 1")
        if self.accumulation > MOST_MICRO_BATCHES:
            raise InputError(
                f"accumulation {self.accumulation}: a step takes at most {MOST_MICRO_BATCHES} micro-batches; choose fewer"
            )

    def on(self, platform: Platform) -> Recipe:
        """The same, with the implementation that torch chooses on the platform where none is said."""
        return replace(self, implementation=self.implementation or platform.optimizer_way(self.optimizer))

    def __str__(self) -> str:
        """In words, what is usual left out."""
        usual = self.implementation in ("", "loop")
        parts = [self.optimizer if usual else f"{self.optimizer} ({self.implementation})"]
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} micro-batches")
        if self.checkpointing:
            parts.append("activation checkpointing")
        return ", ".join(parts)

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer, with momentum where it is plain gradient descent: no other setting changes its cost."""
        said = ("foreach", "fused") if self.implementation else ()
        ways = {way: way == self.implementation for way in said if possible(self.optimizer, way)}
        momentum = {"momentum": 0.9} if self.optimizer == "sgd" else {}
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        return CLASSES[self.optimizer](trained, lr=1e-5, **momentum, **ways)


RECIPE = Recipe()
"""What is usual."""


def checkpointed(model: nn.Module) -> None:
    """Switch the model's own activation checkpointing on; raises ModelError where it has none."""
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):  # of newer and older transformers
        if hasattr(model, name):
            getattr(model, name)()
            return
    raise ModelError(f"{type(model).__name__} has no activation checkpointing of its own to switch on")


def default_loss(output: Any) -> Tensor:
    """`output.loss` where the model computes one, else the mean square of its first output that has a gradient."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    known = not is_dataclass(output) or isinstance(output, Mapping)  # transformers' own classes are both
    for value in tree_iter(output if known else [getattr(output, one.name) for one in fields(output)]):
        floating = isinstance(value, Tensor) and value.is_floating_point()
        if floating and (value.requires_grad or torch.is_inference_mode_enabled()):  # a mere trace has no gradients
            loss: Tensor = value.float().square().mean()
            return loss
    raise InputError(
        f"a {type(output).__name__} without a floating tensor that has a gradient: nothing to train on; "
        "wrap the network in a module that returns its loss"
    )


@dataclass(frozen=True)
class Task:
    """One layer's work in a step of training or in a pass; `share`: the part of it that is done."""

    path: str
    layer: Layer
    step: str = FORWARD
    share: float = 1.0
    again: bool = False  # has been done before in this step: no part of the model's own FLOP
    operator: str = field(default="", compare=False)  # of the call that it is, or whose gradient it works on
    at: int = field(default=0, compare=False)  # of a forward call: as LayerCall.at
    asked: frozenset[str] | None = None  # of a backward pass that is predicted as a whole: as LayerCall.asked

    @classmethod
    def forward(cls, call: LayerCall) -> Task:
        """A call of a forward pass."""
        return cls(call.path, call.layer, operator=call.operator, at=call.at)

    def flops_and_bytes(self) -> tuple[float, float]:
        """Work and traffic of what is done: of a backward pass the gradients that are asked for."""
        layer, share = self.layer, self.share if self.asked is None else 1.0
        parts = layer.backward_of(self.asked) if layer.phase == BACKWARD else (layer,)
        flops, size = sum(int(part.flops()) for part in parts), sum(int(sum(part.bytes())) for part in parts)
        return share * flops, share * size


def training_tasks(trace: Trace, recipe: Recipe, learnt: Learnt) -> list[Task]:
    """What one step does, in order, given the trace of a forward pass in training mode with its loss.

    `recipe` says the optimizer's implementation (`Recipe.on`).

    Raises:
        InputError: no parameter of the model is trained.
    """
    if not trace.trained and not trace.sparse:
        raise InputError("no parameter of the model requires a gradient: nothing to train; choose phase forward")
    check_sparse(recipe.optimizer, recipe.implementation, [name for name, _ in trace.sparse], trace.trained_names)
    forward = [Task.forward(call) for call in trace.calls]
    tasks = []
    for number in range(recipe.accumulation):
        tasks += forward
        tasks += backward_tasks(trace, learnt, recipe.checkpointing)
        tasks += _accumulated(trace, number)
    return tasks + _optimizer_tasks(trace, recipe)


def _accumulated(trace: Trace, number: int) -> Iterator[Task]:
    """What puts a micro-batch's gradients, by its number from 0, to those before it."""
    if number:
        yield from (Task("", addition(dtype, numbers), BACKWARD) for dtype, numbers in trace.trained)
    for name, rows in trace.sparse:
        layers = joined(rows.times(number + 1)) if number else stored(rows)
        yield from (Task(_module_of(name), layer, BACKWARD) for layer in layers)


def _optimizer_tasks(trace: Trace, recipe: Recipe) -> list[Task]:
    """One step over all parameters with dense gradients, and over the rows of the others."""
    tasks = []
    function, implementation = recipe.optimizer, recipe.implementation
    for dtype in dict.fromkeys(dtype for dtype, _ in trace.trained):
        sizes = [numbers for other, numbers in trace.trained if other == dtype]
        step = Optimizer(
            dtype=dtype, function=function, implementation=implementation, tensors=len(sizes), elements=sum(sizes)
        )
        tasks.append(Task("", step, OPTIMIZER))
    for name, rows in trace.sparse:
        parts = step_of_rows(function, rows.times(recipe.accumulation))
        tasks += [Task(_module_of(name), layer, OPTIMIZER) for layer in parts]
    return tasks


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def backward_tasks(trace: Trace, learnt: Learnt, checkpointing: bool = False) -> list[Task]:
    """The backward pass alone: of the calls that a gradient goes through, and what gathers the gradients.

    A kind whose backward pass was not measured does what its formulas say, as forward passes.
    """
    blocks = groupby(trace.calls, key=_block) if checkpointing else ()
    again = {call.at for _, block in blocks for call in run_again([*block])}
    tasks = [
        Task(c.path, c.layer, BACKWARD, again=True, operator=c.operator)
        for c in trace.calls
        if c.again or (_block(c) and c.at in again)
    ]
    for call in backward_calls(trace.calls, trace.own_backward):
        tasks += _reversed(call, learnt) if call.gradient else [_own(call)]
    return tasks + [Task(call.path, call.layer, BACKWARD) for call in reversed(trace.gradients)]


def _own(call: LayerCall) -> Task:
    """A call that a backward pass of its own makes."""
    return Task(call.path, call.layer, BACKWARD, again=call.again, operator=call.operator)


def _block(call: LayerCall) -> str:
    """Path of the repeated block that the call is made in; "" where it is made in none."""
    return next((above for above in (*prefixes(call.path), call.path) if pattern(above) != above), "")


def _reversed(call: LayerCall, learnt: Learnt) -> Iterator[Task]:
    """A share of the pass that was measured as a whole; else what makes the gradients that are asked for, each whole.

    A bias alone asks for none of the products that a measured pass is mostly made of.
    """
    layer, parts, share = call.layer, call.layer.backward_of(call.asked), call.gradient
    of_products = not layer.multiplies or call.asked is None or any(part.kind == layer.kind for part in parts)
    if learnt(layer.kind, BACKWARD) and of_products:
        whole = replace(layer, phase=BACKWARD)
        yield Task(call.path, whole, BACKWARD, share, operator=call.operator, asked=call.asked)
        return
    for part in parts:
        forward = replace(part, phase=FORWARD)
        yield Task(call.path, forward, BACKWARD, share if call.asked is None else 1.0, operator=call.operator)
