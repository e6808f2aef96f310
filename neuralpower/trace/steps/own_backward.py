"""Backward passes that a model writes itself, as a `torch.autograd.Function`: run without autograd.

forward    runs as in training: its context says which inputs need a gradient, and keeps what it is given
backward   runs, and is recorded, once it is known which outputs have a gradient
recompute  what it runs under `torch.enable_grad` is followed; `torch.autograd` is answered
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.autograd import Function, forward_ad, functional
from torch.autograd.function import FunctionCtx
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.errors import NeuralPowerError, said
from neuralpower.trace.operators.undisturbed import swapped
from neuralpower.trace.steps.gradients import differentiable

# (of, with respect to, whether these keep them) -> gradients
Engine = Callable[[Sequence[Tensor], Sequence[Tensor], bool], tuple[Any, ...]]
Kind = type[Function]
Asks = Callable[[Tensor], bool]  # whether a tensor asks for a gradient


class OwnBackwardError(Exception):
    """A model's own backward pass that cannot be run without values; `key` identifies it."""

    def __init__(self, key: Any, name: str, error: Exception) -> None:
        super().__init__(f"{name} raises {type(error).__name__}: {error}")
        self.key, self.name = key, name


class Context(FunctionCtx):
    """The context that a function's forward and backward pass share."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
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
        return [t for t in self.outputs if self._can(t)]

    def _can(self, value: Any) -> bool:
        apart = {id(tensor) for tensor in self.context.non_differentiable}
        return isinstance(value, Tensor) and differentiable(value) and id(value) not in apart

    def backward(self, with_gradient: Sequence[bool]) -> list[bool]:
        """Run it, given which of `differentiable` have a gradient; which inputs get one."""
        has = iter(with_gradient)
        gradients = [self._gradient(output, self._can(output) and next(has)) for output in self.outputs]
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
        """Which inputs get a gradient, each brought to the input's shape and type as autograd does."""
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
    context = _context(args, asks)
    asking = [arg for arg, needs in zip(args, context.needs_input_grad, strict=True) if needs]
    with requiring(asking), torch.no_grad():
        if apart:
            output = kind.forward(*args, **kwargs)
            kind.setup_context(context, args, output)
        else:
            output = kind.forward(context, *args, **kwargs)
    same = {id(arg) for arg in args} - {id(tensor) for tensor in context.dirty_tensors}
    outputs = output if isinstance(output, tuple) else (output,)
    found = tuple(one.detach() if id(one) in same and isinstance(one, Tensor) else one for one in outputs)
    run = kind.backward if kind.backward is not Function.backward else kind.vjp
    output = found if isinstance(output, tuple) else found[0]
    return OwnCall(kind, f"{kind.__name__}.backward", run, context, args, output, found)


def _context(inputs: Sequence[Any], asks: Asks) -> Context:
    return Context(tuple(isinstance(one, Tensor) and differentiable(one) and asks(one) for one in inputs))


def called_operator(name: str, args: Sequence[Any], kwargs: Any, output: Any, asks: Asks) -> OwnCall | None:
    """The call of an operator made by `torch.library.custom_op`; None without a registered backward pass."""
    made = OPDEFS.get(name.replace(".", "::"))
    if made is None or made._backward_fn is None:
        return None
    schema = made._opoverload._schema.arguments
    wanted = [one for one in schema if not one.kwarg_only]
    inputs = (*args, *(kwargs.get(one.name, one.default_value) for one in wanted[len(args) :]))
    named = {one.name: kwargs.get(one.name, one.default_value) for one in schema if one.kwarg_only}
    context = _context(inputs, asks)
    if not any(context.needs_input_grad):
        return None
    if made._setup_context_fn is not None:
        more = {"keyword_only_inputs": named} if named else {}
        made._setup_context_fn(ctx=context, inputs=inputs, output=output, **more)
    outputs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
    return OwnCall(name, f"the backward pass of {name}", made._backward_fn, context, inputs, output, outputs)


class Reversed(NamedTuple):
    """The operator whose backward pass a call of autograd's is."""

    operator: str
    args: tuple[Any, ...]
    asked: frozenset[str] | None = None  # operands whose gradients it makes; None: all of them
    output: Tensor | None = None  # of the operator, by its shape; None: that of its first argument


def _of_input(operator: str, gradient: Tensor, x: Tensor, *_: Any) -> Reversed:
    return Reversed(operator, (x,))


def _softmax(operator: str, gradient: Tensor, y: Tensor, dim: int, *_: Any) -> Reversed:
    return Reversed(operator, (y, dim, False))


def _convolution(gradient: Tensor, x: Tensor, weight: Tensor, bias: Any, *how: Any) -> Reversed:
    asked = frozenset(name for name, asks in zip(("input", "weight", "bias"), how[6], strict=True) if asks)
    return Reversed("aten.convolution", (x, weight, None, *how[:6]), asked, gradient)


def _pool(operator: str, gradient: Tensor, x: Tensor, *how: Any) -> Reversed:
    return Reversed(operator, (x, *how[:3]), None, gradient)


def _batch_norm(gradient: Tensor, x: Tensor, weight: Any, mean: Any, spread: Any, *how: Any) -> Reversed:
    return Reversed("aten.batch_norm", (x, weight, None, mean, spread, how[2], 0.1, how[3]))


def _group_norm(gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, *how: Any) -> Reversed:
    return Reversed("aten.group_norm", (x, how[3], weight))


def _attention(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Reversed:
    return Reversed("aten.scaled_dot_product_attention", (query, key, value))


def _layer_norm(gradient: Tensor, x: Tensor, sides: Any, mean: Any, rstd: Any, *more: Any) -> Reversed:
    return Reversed("aten.native_layer_norm", (x, sides, *more[:2], 1e-5))


def _embedding(gradient: Tensor, places: Tensor, rows: int, *_: Any) -> Reversed:
    return Reversed("aten.embedding", (gradient.new_empty((rows, gradient.shape[-1])), places))


# what autograd calls for a backward pass, by its arguments
REVERSED: Mapping[str, Callable[..., Reversed]] = {
    **{
        f"aten.{name}_backward_data": partial(_softmax, f"aten.{name}")
        for name in ("_softmax", "_log_softmax")
    },
    **{
        f"aten.{name}_backward": partial(_of_input, f"aten.{name}")
        for name in ("gelu", "silu", "tanh", "sigmoid")
    },
    "aten.threshold_backward": partial(_of_input, "aten.relu"),
    **{
        f"aten.{name}_backward": partial(_pool, f"aten.{name}")
        for name in ("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")
    },
    **{
        f"aten._adaptive_avg_pool{rank}d_backward": partial(_pool, f"aten.{prefix}adaptive_avg_pool{rank}d")
        for rank, prefix in ((2, ""), (3, "_"))
    },
    **{
        f"aten._scaled_dot_product_{name}_backward": _attention
        for name in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    },
    "aten.native_batch_norm_backward": _batch_norm,
    "aten.native_group_norm_backward": _group_norm,
    "aten.convolution_backward": _convolution,
    "aten.native_layer_norm_backward": _layer_norm,
    "aten.embedding_dense_backward": _embedding,
}


def gradient_of(tensor: Tensor) -> Tensor:
    """A gradient that comes from elsewhere: no operator call of the model's."""
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
    """Have `torch.autograd.grad` and `backward` ask `engine` for gradients: a trace has no graph."""

    def run(outputs: Sequence[Tensor], *rest: Any, **settings: Any) -> Any:
        _gradients, _retain, _create, inputs, *_ = rest
        return engine(outputs, inputs, bool(settings.get("accumulate_grad")))

    def given(outputs: Any, gradients: Any, *_: Any, **__: Any) -> Any:
        return tuple(gradients)

    with swapped(torch.autograd, _engine_run_backward=run, _make_grads=given):
        yield


# ---- Gradients that a forward pass takes itself, as forces are of an energy: it then runs with autograd ----
# Without autograd composite operators stay whole, and a forward pass that asks for gradients fails. So it
# is tried without first; `takes_gradients` says where autograd is needed.


FAILING = ("does not require grad", "Cannot set version_counter for inference tensor")
NOTE = (
    "its forward pass takes gradients itself, or makes jagged tensors: composite operators are followed in "
    "their parts"
)


class GradientsAskedError(Exception):
    """A call that answers zeros or nothing, and no error, where there is no autograd."""


def takes_gradients(error: BaseException) -> bool:
    """Whether a forward pass failed without autograd: it asks for gradients, or makes jagged tensors."""
    text = said(error)
    return isinstance(error, GradientsAskedError) or any(words in text for words in FAILING)


@contextlib.contextmanager
def asking_noticed() -> Iterator[None]:
    """Have `torch.autograd.functional` and dual numbers raise GradientsAskedError.

    `torch.func` has an autograd of its own, which makes dual numbers, too.
    """

    def asked(*_: Any, **__: Any) -> Any:
        raise GradientsAskedError("torch.autograd.functional asks for gradients")

    own: Any = forward_ad.make_dual

    def make_dual(*args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is None:
            raise GradientsAskedError("torch.autograd.forward_ad asks for gradients")
        return own(*args, **kwargs)

    with swapped(functional, _grad_preprocess=asked), swapped(forward_ad, make_dual=make_dual):
        yield
