"""Model + inputs -> the layers that one forward pass makes, in order, without weights and without a device.

The model runs on the `meta` device under inference mode, where composite operators stay whole, below a
dispatch mode that sees each operator with its output. Every operator is
  a layer      its kind's fields describe the call,
  decomposed   no kind describes it, but it is composed of operators that are traced instead,
  free         its output shares memory with an input (a view that no loop makes), or it is listed in FREE,
  unmodelled   anything else; listed with its reason and its bytes, never dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from neuralpower.errors import BoundError, ModelError, UsersError, quoted
from neuralpower.layers import Call
from neuralpower.networks.inputs.known_values import promised, tensors_within
from neuralpower.networks.inputs.size_limits import overflows
from neuralpower.networks.refusals import check_followable, way_out
from neuralpower.networks.running import WAYS, Ways, on_cpu, values_change_nothing
from neuralpower.networks.users_code import raised, users_code
from neuralpower.trace.notes import forward_of
from neuralpower.trace.operators.casts import casting, not_blind
from neuralpower.trace.operators.fast_attention import attention_in_parts
from neuralpower.trace.operators.undisturbed import own_caches, unchanged, undisturbed, unwrapped
from neuralpower.trace.parts.routing import ROUTING, Routing
from neuralpower.trace.recorder import Recorder
from neuralpower.trace.records import Trace
from neuralpower.trace.steps.own_backward import OwnBackwardError, takes_gradients


class Asked(NamedTuple):
    """Inputs and settings of a trace, as `trace` takes them."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    training: bool | None = False
    loss: Callable[[Any], Any] | None = None
    autocast: torch.dtype | None = None
    routing: Routing = ROUTING


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool | None = False,
    loss: Callable[[Any], Any] | None = None,
    autocast: torch.dtype | None = None,
    routing: Routing = ROUTING,
) -> Trace:
    """The layers of `model(*args, **kwargs)`, and of a loss of its output where one is given.

    The module is left as it was found (state dict, mode, hooks, attributes, random state), also after an
    error. Inputs may be on any device; their values matter only to the last of three ways: meta tensors, fake
    tensors, a real run on the CPU. `training` is the mode during the pass: None leaves every module in its
    own, and autograd functions then make gradients where the caller has them enabled. `autocast` is the low
    precision that products are cast to, as by `torch.autocast`, to which meta tensors are blind, as to a
    model's own. `routing` says how many experts of a mixture are reached.

    Raises:
        ModelError: the forward raises in all ways, and the message quotes it; or it cannot be followed.
        InputError: tensors that are not dense, or an output without a loss.
    """
    return trace_by(WAYS, model, Asked(args, kwargs, training, loss, autocast, routing))


def trace_by(ways: Ways, model: nn.Module, asked: Asked) -> Trace:
    """As `trace`, by these ways alone, in their order; raises as it does."""
    model = unwrapped(model)
    inputs = tuple(asked.args), dict(asked.kwargs or {})
    with users_code(f"{type(model).__name__} cannot be followed"):
        check_followable(model, inputs)
    ways = [(method, run) for method, run in ways if method != "meta" or asked.autocast is None]
    # autograd functions -> why their backward pass is derived from their forward
    derived: dict[Any, str] = {}
    autograd = False
    while True:
        traced = _followed(model, asked, ways, derived, autograd)
        if isinstance(traced, Trace):
            return traced
        if not autograd and any(takes_gradients(raised(error)) for error in traced):
            autograd = True
            continue
        own = [error for error in map(raised, traced) if isinstance(error, OwnBackwardError)]
        if not own:
            raise _untraced(model, traced[-1] if traced else None, inputs)
        derived.update({error.key: str(error) for error in own})


def _followed(
    model: nn.Module, asked: Asked, ways: Ways, derived: dict[Any, str], autograd: bool
) -> Trace | list[ModelError]:
    """The trace by the first way that succeeds, else the errors of all; raises what no way avoids."""
    notes: list[str] = []
    failures: list[ModelError] = []
    forward, training = forward_of(model), asked.training
    for method, run in ways:
        if run is on_cpu and values_change_nothing(model, map(raised, failures)):
            break
        recorder = Recorder(model, asked.routing, training)
        recorder.own.derived, recorder.autograd = derived, autograd
        casts = not_blind() if method == "meta" else contextlib.nullcontext()
        try:
            with users_code(forward), _prepared(model, training, asked.autocast), recorder.attached(), casts:
                recorder.follow(run, tuple(asked.args), dict(asked.kwargs or {}), asked.loss)
        except BoundError as error:
            raise BoundError(f"{type(model).__name__}: {error}") from error
        except ModelError as error:  # no other way avoids these errors
            failures.append(error)
            if overflows(raised(error)) or (not autograd and takes_gradients(raised(error))):
                break
            notes.append(f"{method}: {quoted(raised(error))}"[:300])
        else:
            return recorder.trace(method, tuple(notes))
    return failures


@contextlib.contextmanager
def _prepared(model: nn.Module, training: bool | None, autocast: torch.dtype | None) -> Iterator[None]:
    """The mode of the pass, and nothing of it left in the module afterwards."""
    with (
        unchanged(model),
        undisturbed(model, training),
        own_caches(model),
        attention_in_parts(),
        casting(autocast),
    ):
        yield


def _untraced(model: nn.Module, failure: ModelError | None, inputs: Any) -> ModelError:
    """The error for a forward pass that raises in all ways of tracing."""
    forward = forward_of(model)
    if failure is None:
        ways = ", ".join(name for name, _ in WAYS)
        return ModelError(f"{forward} cannot be traced this way; choose one of {ways}")
    if not isinstance(failure, UsersError) or failure.what != forward:  # as where values cannot be had
        return failure
    cause = raised(failure)
    made = any(promised(tensor) for tensor in tensors_within(inputs))
    error = ModelError(f"{forward} raises {quoted(cause)}; {way_out(cause, made, model)}")
    error.__cause__ = cause
    return error


def trace_call(call: Callable[[], Any]) -> Trace:
    """The layers that a call on meta tensors makes, such as a layer's own `build`; nothing runs."""
    model = nn.Module()
    recorder = Recorder(model)
    recorder.layers.have_run = True
    owner = getattr(call.function, "__self__", None) if isinstance(call, Call) else None
    steps = isinstance(owner, torch.optim.Optimizer)  # it writes its weights
    inference = contextlib.nullcontext() if steps else torch.inference_mode()
    with torch.random.fork_rng(devices=[]), recorder.attached(), inference, recorder:
        call()
    return recorder.trace("meta", ())
