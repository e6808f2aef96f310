"""From a layer to the call that is timed: its phase, its arithmetic, and copies of it that share no memory.

A phase or an arithmetic that `Layer.build` does not know is a function around the built one, so that the call
means the same wherever it is made. A timer asks `step_of` for the step to be timed, and runs it under
`settings_of`.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter, tree_map

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.errors import ModelError, Unmodelled
from neuralpower.layers.base import BACKWARD, FORWARD, Call, Layer
from neuralpower.trace.operators.undisturbed import forget
from neuralpower.trace.recipe import OPTIMIZER, STEPS, Recipe, checkpointed, default_loss

Step = Callable[[], Any]


@dataclass(frozen=True)
class Gradient:
    """A backward pass whose forward pass has run; each call computes the gradients of all `leaves`."""

    targets: Sequence[Tensor]
    leaves: Sequence[Tensor]
    warm: tuple[Tensor, ...]  # gradients of the targets: a network has just computed them

    def __call__(self) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(self.targets, self.leaves, self.warm, retain_graph=True, allow_unused=True)

    def seeded_by_host(self) -> bool:
        """Whether an operator reads its random seed from the host's memory: attention with dropout on GPUs.

        Its forward pass leaves the seed there unless a CUDA graph holds both passes. In a graph of the
        backward pass alone, the device would read the host's address.
        """
        return any(_seed_beside(node, self.targets[0].device) for node in _nodes(self.targets))


@dataclass(frozen=True)
class Backward:
    """A function's backward pass: from random gradients of its outputs to those of all floating inputs."""

    function: Callable[..., Any]

    @torch.inference_mode(False)
    @torch.enable_grad()
    def step(self, *args: Any, **kwargs: Any) -> Gradient:
        """Run the forward pass now; the result runs the backward pass alone, as often as it is called.

        Raises:
            Unmodelled: no gradient passes through the function.
        """
        module = self.function if isinstance(self.function, nn.Module) else None
        if module is not None:
            module.train()  # only then does cuDNN keep what a recurrent layer's backward pass needs
        leaves = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
        for leaf in leaves:
            leaf.requires_grad_()
        try:
            outputs = self.function(*args, **kwargs)
        except RuntimeError as error:
            if "in-place" in str(error):
                # a leaf must not be written to, its copy may; the gradient passes the copy without a kernel
                args, kwargs = tree_map(_copied, (args, kwargs))
            elif "not differentiable" in str(error):
                leaves = [leaf for leaf in leaves if self._differentiable(leaf, leaves, args, kwargs)]
                for leaf in leaves:
                    leaf.requires_grad_()
            else:
                raise
            outputs = self.function(*args, **kwargs)
        targets = [t for t in tree_iter(outputs) if isinstance(t, Tensor) and t.requires_grad]
        if not targets:
            raise Unmodelled("no gradient passes through this call: it has no backward pass")
        inputs = [*leaves, *(module.parameters() if module is not None else ())]
        return Gradient(targets, inputs, tuple(torch.randn_like(target) for target in targets))

    def _differentiable(
        self, leaf: Tensor, leaves: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether the function has a gradient for it: for a batch norm's running statistics it has none."""
        for other in leaves:
            other.requires_grad_(other is leaf)
        try:
            self.function(*args, **kwargs)
        except RuntimeError:
            return False
        finally:
            leaf.requires_grad_(False)
        return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.step(*args, **kwargs)()


@dataclass(frozen=True)
class TensorFloat32:
    """A function whose products of float32 may be taken in TF32."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call, with the process's settings restored afterwards."""
        with products(tf32=True):
            return self.function(*args, **kwargs)


def _nodes(targets: Sequence[Tensor]) -> Iterator[Any]:
    """All nodes of the autograd graph behind the targets, each once."""
    waiting, seen = [target.grad_fn for target in targets], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            yield node


def _seed_beside(node: Any, device: torch.device) -> bool:
    """Whether a node drops numbers by a seed that lies on another device."""
    seed = getattr(node, "_saved_philox_seed", None)
    return seed is not None and getattr(node, "_saved_dropout_p", 0) > 0 and seed.device != device


def call_of(layer: Layer, device: torch.device) -> Call:
    """The call to time, in the layer's phase and arithmetic."""
    call = _unbound(layer.build(device))
    if layer.phase == "backward":
        call = replace(call, function=Backward(call.function), warm=())
    if layer.dtype == TENSORFLOAT32:
        call = replace(call, function=TensorFloat32(call.function))
    return replace(call, recurs=True) if layer.recurs else call


def step_of(call: Call) -> Step:
    """The part of a call to time; other parts, such as the forward pass before a backward one, run now."""
    function = _bare(call)
    if isinstance(function, Backward):
        return function.step(*call.args, **call.kwargs)
    return replace(call, function=function)


def warm_of(call: Call, step: Step) -> tuple[Tensor, ...]:
    """Tensors that a network has just computed when it runs the step."""
    return step.warm if isinstance(step, Gradient) else call.warm


def seconds_of(step: Step, clock_ns: Callable[[], int]) -> float:
    """Seconds of one call on the host."""
    start = clock_ns()
    step()
    return (clock_ns() - start) / 1e9


@contextlib.contextmanager
def settings_of(call: Call) -> Iterator[None]:
    """The settings to time a call's steps under: TF32 on only where it asks for it, no autograd forward."""
    forward = not isinstance(_bare(call), Backward)
    with products(tf32=isinstance(call.function, TensorFloat32)), torch.inference_mode(forward):
        yield


def _bare(call: Call) -> Callable[..., Any]:
    return call.function.function if isinstance(call.function, TensorFloat32) else call.function


@contextlib.contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Whether products of float32 may be taken in TF32, in matrices, convolutions and recurrent layers alike.

    PyTorch's own default is neither: off in matrices, on in the others. From 2.9 on it has newer switches,
    but it refuses to read these old ones once the new ones are set, and both kinds follow the old ones.
    """
    matrices, others = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matrices.allow_tf32, others.allow_tf32
    matrices.allow_tf32 = others.allow_tf32 = tf32
    try:
        yield
    finally:
        matrices.allow_tf32, others.allow_tf32 = before


@torch.inference_mode(False)
def copy_call(call: Call) -> Call:
    """The same call on tensors of its own, with equal layouts and values, and no memory in common."""
    call = _unbound(call)
    memo: dict[int, Any] = {}
    copied: Call = copy.deepcopy(call, memo)
    owner, module = _owner(call), _owner(copied)
    if isinstance(owner, torch.optim.Optimizer):  # copy.deepcopy takes parameters without their gradients
        for parameter in _parameters(owner):
            memo[id(parameter)].grad = copy.deepcopy(parameter.grad, memo)
    if isinstance(module, nn.Module):  # and takes apart what cuDNN needs side by side
        for part in module.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()
    return copied


def call_bytes(call: Call) -> int:
    """Bytes of all memory that a call's tensors hold, with those of its module or optimizer."""
    call = _unbound(call)
    owner = _owner(call)
    held: list[Any] = [call.args, dict(call.kwargs)]
    if isinstance(owner, nn.Module):
        held += [list(owner.parameters()), list(owner.buffers())]
    elif isinstance(owner, torch.optim.Optimizer):
        parameters = _parameters(owner)
        held += [parameters, [parameter.grad for parameter in parameters], list(owner.state.values())]
    storages: dict[Any, int] = {}
    for tensor in tree_iter(held):
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr() or id(tensor)] = storage.nbytes()  # on the meta device all lie at 0
    return sum(storages.values())


def _owner(call: Call) -> object:
    """The module that a call's function is, or the object whose method it is."""
    function = call.function
    while isinstance(function, Backward | TensorFloat32):
        function = function.function
    return getattr(function, "__self__", function)


def _unbound(call: Call) -> Call:
    """A call of a tensor's own method as one of the class's, the tensor among its arguments."""
    owner = getattr(call.function, "__self__", None)
    if not isinstance(owner, Tensor):
        return call
    return replace(call, function=getattr(Tensor, call.function.__name__), args=(owner, *call.args))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.requires_grad else value


# ---- A training step that runs for real ----


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


def by_part(marks: Sequence[tuple[str, Any]], seconds: Callable[[Any, Any], float]) -> dict[str, float]:
    """Seconds of each part, from (part that begins, mark) in order, the end last; `seconds` of two marks."""
    parts: dict[str, float] = {}
    for (part, start), (_, end) in pairwise(marks):
        parts[part] = parts.get(part, 0.0) + seconds(start, end)
    return parts


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
        if not self.laps:
            forget(self.model)
        call, marks = self.call, list[tuple[str, int]]()
        run_training_step(
            lambda: default_loss(self.model(*call.args, **call.kwargs)),
            self.optimizer,
            lambda part: marks.append((part, self.clock_ns())),
            self.recipe.accumulation,
        )
        self.laps.append(by_part(marks, lambda start, end: (end - start) / 1e9))

    def parts_s(self, last: int) -> dict[str, float]:
        """The 10th percentile of each part over the `last` steps (s)."""
        return {step: float(np.percentile([lap[step] for lap in self.laps[-last:]], 10)) for step in STEPS}
