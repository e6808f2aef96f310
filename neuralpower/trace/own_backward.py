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
from torch._library.custom_ops import OPDEFS
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.errors import NeuralPowerError
from neuralpower.trace.gradients import differentiable

# (of, with respect to, whether these keep them) -> gradients
Engine = Callable[[Sequence[Tensor], Sequence[Tensor], bool], tuple[Any, ...]]
Kind = type[Function]
Asks = Callable[[Tensor], bool]  # whether a tensor asks for a gradient


class OwnBackwardError(Exception):
    """A backward pass of a model's own that cannot be run without values; `key` tells it from others."""

    def __init__(self, key: Any, name: str, error: Exception) -> None:
        super().__init__(f"{name} raises {type(error).__name__}: {error}")
        self.key, self.name = key, name


class Context(FunctionCtx):
    """What a function's forward and backward pass share."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given."""
        return self.to_save


@dataclass(frozen=True)
class OwnCall:
    """One call of a function, whose forward pass has run."""

    key: Any  # the function, or the name of an operator
    name: str  # of its backward pass
    run: Callable[..., Any]
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
        return isinstance(value, Tensor) and differentiable(value) and id(value) not in apart

    def backward(self, with_gradient: Sequence[bool]) -> list[bool]:
        """Run it, given which of `differentiable` have a gradient; which of the inputs get one.

        Raises:
            OwnBackwardError: it raises.
        """
        has, gradients = iter(with_gradient), []
        for output in self.outputs:
            gradients.append(self._gradient(output, next(has) if self._can(output) else False))
        try:
            with torch.no_grad():
                given = self.run(self.context, *gradients)
                return self._accepted(given if isinstance(given, tuple) else (given,))
        except NeuralPowerError:
            raise
        except Exception as error:
            raise OwnBackwardError(self.key, self.name, error) from error

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


def called(kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any], asks: Asks) -> OwnCall:
    """Run a function's forward pass; `asks` says which tensors ask for a gradient."""
    apart = kind.setup_context is not Function.setup_context
    if apart:
        bound = inspect.signature(kind.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    context = Context(tuple(isinstance(arg, Tensor) and differentiable(arg) and asks(arg) for arg in args))
    asking = [arg for arg, needs in zip(args, context.needs_input_grad, strict=True) if needs]
    with requiring(asking), torch.no_grad():
        if apart:
            output = kind.forward(*args, **kwargs)
            kind.setup_context(context, args, output)
        else:
            output = kind.forward(context, *args, **kwargs)
    same = {id(arg) for arg in args} - {id(tensor) for tensor in context.dirty_tensors}
    single = not isinstance(output, tuple)
    found = tuple(
        one.detach() if id(one) in same and isinstance(one, Tensor) else one
        for one in ((output,) if single else output)
    )
    run = kind.backward if kind.backward is not Function.backward else kind.vjp
    return OwnCall(
        kind, f"{kind.__name__}.backward", run, context, args, found[0] if single else found, found
    )


def called_operator(name: str, args: Sequence[Any], kwargs: Any, output: Any, asks: Asks) -> OwnCall | None:
    """The call of an operator made by `torch.library.custom_op`; None where it has registered no backward pass."""
    made = OPDEFS.get(name.replace(".", "::"))
    if made is None or made._backward_fn is None:
        return None
    schema = made._opoverload._schema.arguments
    wanted = [one for one in schema if not one.kwarg_only]
    inputs = (*args, *(kwargs.get(one.name, one.default_value) for one in wanted[len(args) :]))
    named = {one.name: kwargs.get(one.name, one.default_value) for one in schema if one.kwarg_only}
    context = Context(tuple(isinstance(one, Tensor) and differentiable(one) and asks(one) for one in inputs))
    if not any(context.needs_input_grad):
        return None
    if made._setup_context_fn is not None:
        made._setup_context_fn(
            ctx=context, inputs=inputs, output=output, **({"keyword_only_inputs": named} if named else {})
        )
    outputs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
    return OwnCall(name, f"the backward pass of {name}", made._backward_fn, context, inputs, output, outputs)


# What autograd calls for the backward pass of an operator, with the operator's name, its arguments, and the share of the
# backward pass that is run, given the call's own arguments.
Reversed = tuple[str, tuple[Any, ...], float]
REVERSED: Mapping[str, Callable[..., Reversed]] = {
    "aten._softmax_backward_data": lambda _, y, dim, *__: ("aten._softmax", (y, dim, False), 1.0),
    "aten._log_softmax_backward_data": lambda _, y, dim, *__: ("aten._log_softmax", (y, dim, False), 1.0),
    "aten.convolution_backward": lambda _, x, w, __, *how: (
        "aten.convolution",
        (x, w, None, *how[:6]),
        sum(how[6][:2]) / 2,
    ),
    "aten.native_layer_norm_backward": lambda _, x, sides, __, ___, w, b, *____: (
        "aten.native_layer_norm",
        (x, sides, w, b, 1e-5),
        1.0,
    ),
    "aten.embedding_dense_backward": lambda grad, places, rows, *_: (
        "aten.embedding",
        (grad.new_empty((rows, grad.shape[-1])), places),
        1.0,
    ),
    **{
        f"aten.{name}_backward": lambda _, x, *__, name=function: (f"aten.{name}", (x,), 1.0)
        for name, function in (
            ("gelu", "gelu"),
            ("silu", "silu"),
            ("threshold", "relu"),
            ("tanh", "tanh"),
            ("sigmoid", "sigmoid"),
        )
    },
}


def gradient_of(tensor: Tensor) -> Tensor:
    """One that somebody else has computed: no operator call of the model's."""
    with _disable_current_modes():
        return torch.ones_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)


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

    def run(outputs: Sequence[Tensor], *rest: Any, **settings: Any) -> Any:
        _gradients, _retain, _create, inputs, *_ = rest
        return engine(outputs, inputs, bool(settings.get("accumulate_grad")))

    names = {
        "_engine_run_backward": run,
        "_make_grads": lambda outputs, gradients, *_, **__: tuple(gradients),
    }
    before = {name: vars(torch.autograd)[name] for name in names}
    vars(torch.autograd).update(names)
    try:
        yield
    finally:
        vars(torch.autograd).update(before)
