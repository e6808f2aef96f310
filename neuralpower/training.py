"""Trace -> the tasks of a training step: forward, backward and optimizer, layer by layer.

micro-batch   forward calls, then the backward passes of those that a gradient goes through, the last one first,
              with the additions that gradients of tensors used more than once take
accumulation  the same for every micro-batch, and from the second on an addition per trained tensor
checkpointing a repeated block keeps nothing but its input: its forward pass runs once more before its backward pass
optimizer     one step over all trained tensors
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from neuralpower.errors import InputError, unknown
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FLOATING, FORWARD
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.optimizer import CLASSES, IMPLEMENTATIONS, Optimizer, possible
from neuralpower.trace import LayerCall, Trace, pattern

TRAINING, OPTIMIZER = "training", "optimizer"
STEPS = (FORWARD, BACKWARD, OPTIMIZER)
Learnt = Callable[[str, str], bool]  # (kind, phase) -> whether it is known how long it takes


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    optimizer: str = "sgd"
    implementation: str = "loop"  # of the optimizer: loop, foreach or fused
    accumulation: int = 1  # micro-batches per step
    checkpointing: bool = False  # repeated blocks run forward again instead of keeping what they computed

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be."""
        if self.optimizer not in CLASSES:
            raise unknown("optimizer", self.optimizer, CLASSES)
        if self.implementation not in IMPLEMENTATIONS:
            raise unknown("implementation of an optimizer", self.implementation, IMPLEMENTATIONS)
        if not possible(self.optimizer, self.implementation):
            raise InputError(f"{self.optimizer}: torch has no {self.implementation} one; choose loop or foreach")
        if self.accumulation < 1:
            raise InputError(f"accumulation {self.accumulation}: a step takes 1 micro-batch or more; choose 1")

    def __str__(self) -> str:
        """In words, what is usual left out."""
        parts = [self.optimizer if self.implementation == "loop" else f"{self.optimizer} ({self.implementation})"]
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} micro-batches")
        if self.checkpointing:
            parts.append("activation checkpointing")
        return ", ".join(parts)


@dataclass(frozen=True)
class Task:
    """One layer's work in a step of training or in a pass; `share`: the part of it that is done."""

    path: str
    layer: Layer
    step: str = FORWARD
    share: float = 1.0
    again: bool = False  # has been done before in this step: no part of the model's own FLOP


def training_tasks(trace: Trace, recipe: Recipe, learnt: Learnt) -> list[Task]:
    """What one step does, in order, given the trace of a forward pass in training mode with its loss.

    Raises:
        InputError: no parameter of the model is trained.
    """
    if not trace.trained:
        raise InputError("no parameter of the model requires a gradient: nothing to train; choose phase forward")
    forward = [Task(call.path, call.layer) for call in trace.calls]
    tasks = []
    for number in range(recipe.accumulation):
        tasks += forward
        tasks += backward_tasks(trace, learnt, recipe.checkpointing)
        if number:
            tasks += [Task("", _addition(size), BACKWARD) for size in trace.trained]
    step = Optimizer(
        function=recipe.optimizer,
        implementation=recipe.implementation,
        tensors=len(trace.trained),
        elements=sum(trace.trained),
    )
    return [*tasks, Task("", step, OPTIMIZER)]


def backward_tasks(trace: Trace, learnt: Learnt, checkpointing: bool = False) -> list[Task]:
    """The backward pass alone: of the calls that a gradient goes through, and what gathers the gradients.

    A kind whose backward pass was not measured does what its formulas say, as forward passes.
    """
    tasks: list[Task] = []
    if checkpointing:
        tasks += [Task(c.path, c.layer, BACKWARD, again=True) for c in trace.calls if pattern(c.path) != c.path]
    for call in reversed(trace.calls):
        if call.gradient and call.layer.dtype in FLOATING:
            tasks += _reversed(call, learnt)
    return tasks + [Task(call.path, call.layer, BACKWARD) for call in reversed(trace.gradients)]


def _reversed(call: LayerCall, learnt: Learnt) -> Iterator[Task]:
    layer = replace(call.layer, phase=BACKWARD)
    parts = (layer,) if learnt(layer.kind, BACKWARD) else call.layer.backward()
    return (
        Task(call.path, replace(part, phase=layer.phase if part is layer else FORWARD), BACKWARD, call.gradient)
        for part in parts
    )


def _addition(elements: int) -> Layer:
    return Elementwise(function="add", elements=elements, operands=2, broadcast=False, inplace=True)
