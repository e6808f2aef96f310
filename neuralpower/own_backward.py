"""Backward passes that a model writes itself: `torch.autograd.Function`, run with a context that needs no autograd.

    forward    runs as it does in training: its context says which inputs need a gradient, and keeps what it is given
    backward   runs once it is known which outputs have a gradient, on tensors of these shapes; what it calls is recorded
    recompute  what it runs under `torch.enable_grad` is followed, and `torch.autograd.grad` or `backward` of it answered
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.errors import NeuralPowerError

Engine = Callable[[Sequence[Tensor], Sequence[Tensor], bool], tuple[Any, ...]]  # (of, with respect to, whether these keep them)
Kind = type[Function]


class OwnBackwardError(Exception):
    """A backward pass of a model's own that cannot be run without values."""

    def __init__(self, kind: Any, error: Exception) -> None:
        super().__init__(f"{kind.__name__}.backward raises {type(error).__name__}: {error}")
        self.kind = kind


class Context(FunctionCtx):
    """What a function's forward and backward pass share."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Tensor | None, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` was given."""
        return self.to_save


@dataclass(frozen=True)
class OwnCall:
    """One call of a function, whose forward pass has run."""

    kind: Kind
    context: Context
    inputs: tuple[Any, ...]
    output: Any  # as the model gets it
    outputs: tuple[Any, ...]  # one by one

    @property
    def differentiable(self) -> list[Tensor]:
        """The outputs that can have a gradient."""
        return [t for t in self.outputs if self._can(t)]

    def _can(self, value: Any) -> bool:
        apart = {id(tensor) for tensor in self.context.non_differentiable}
        return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and id(value) not in apart

    def backward(self, with_gradient: Sequence[bool]) -> list[bool]:
        """Run it, given which of `differentiable` have a gradient; which of the inputs get one.

        Raises:
            OwnBackwardError: it raises.
        """
        has, gradients = iter(with_gradient), []
        for output in self.outputs:
            gradients.append(self._gradient(output, next(has) if self._can(output) else False))
        written = self.kind.backward is not Function.backward
        try:
            with torch.no_grad():
                given = (self.kind.backward if written else self.kind.vjp)(self.context, *gradients)
                return self._accepted(given if isinstance(given, tuple) else (given,))
        except NeuralPowerError:
            raise
        except Exception as error:
            raise OwnBackwardError(self.kind, error) from error

    def _gradient(self, output: Any, has: bool) -> Tensor | None:
        """A gradient of an output: zeros where none came, unless the function wants None."""
        if not isinstance(output, Tensor):
            return None
        if has:
            return gradient_of(output)
        return torch.zeros_like(output) if self.context.materialize_grads else None

    def _accepted(self, given: Sequence[Any]) -> list[bool]:
        """Which inputs get a gradient; one of another shape or type is made the input's, as autograd does it."""
        got = [*given, *(None for _ in self.inputs)]
        accepted = []
        for one, need, gradient in zip(self.inputs, self.context.needs_input_grad, got, strict=False):
            gets = need and isinstance(gradient, Tensor)
            if gets and gradient.shape != one.shape:
                gradient = gradient.sum_to_size(one.shape)
            if gets and gradient.dtype != one.dtype:
                gradient.to(one.dtype)
            accepted.append(gets)
        return accepted


def called(kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any], asks: Callable[[Tensor], bool]) -> OwnCall:
    """Run a function's forward pass; `asks` says which tensors ask for a gradient."""
    apart = kind.setup_context is not Function.setup_context
    if apart:
        bound = inspect.signature(kind.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    context = Context(tuple(isinstance(arg, Tensor) and _floats(arg) and asks(arg) for arg in args))
    asking = [arg for arg, needs in zip(args, context.needs_input_grad, strict=True) if needs]
    with requiring(asking), torch.no_grad():
        if apart:
            output = kind.forward(*args, **kwargs)
            kind.setup_context(context, args, output)
        else:
            output = kind.forward(context, *args, **kwargs)
    same = {id(arg) for arg in args} - {id(tensor) for tensor in context.dirty_tensors}
    single = not isinstance(output, tuple)
    found = tuple(one.detach() if id(one) in same and isinstance(one, Tensor) else one for one in ((output,) if single else output))
    return OwnCall(kind, context, args, found[0] if single else found, found)


def gradient_of(tensor: Tensor) -> Tensor:
    """One that somebody else has computed: no operator call of the model's."""
    with _disable_current_modes():
        return torch.ones_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


@contextlib.contextmanager
def requiring(tensors: Sequence[Tensor]) -> Iterator[None]:
    """These say that they require a gradient, as they do in training."""
    silent = [tensor for tensor in tensors if not tensor.requires_grad]
    for tensor in silent:
        tensor.requires_grad_(True)
    try:
        yield
    finally:
        for tensor in silent:
            tensor.requires_grad_(False)


@contextlib.contextmanager
def engine_answered(engine: Engine) -> Iterator[None]:
    """Have `torch.autograd.grad` and `backward` ask `engine` for gradients, which a trace has no graph for."""
    own, make = torch.autograd._engine_run_backward, torch.autograd._make_grads

    def run(outputs: Sequence[Tensor], _: Any, __: Any, ___: Any, inputs: Sequence[Tensor], *____: Any, **settings: Any) -> Any:
        return engine(outputs, inputs, bool(settings.get("accumulate_grad")))

    torch.autograd._engine_run_backward = run
    torch.autograd._make_grads = lambda outputs, grads, *_, **__: tuple(grads)
    try:
        yield
    finally:
        torch.autograd._engine_run_backward, torch.autograd._make_grads = own, make
