"""Sections of a run: the pass, and the backward passes that a model writes itself, hooks included."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.hooks import RemovableHandle

from neuralpower.errors import quoted
from neuralpower.trace.lifetimes import Flow, Lifetimes
from neuralpower.trace.operators.loops import View, in_loop
from neuralpower.trace.operators.modules import Modules
from neuralpower.trace.operators.undisturbed import swapped
from neuralpower.trace.records import LayerCall, OwnBackward, UnmodelledCall, backward_calls
from neuralpower.trace.steps.gradients import Gradients
from neuralpower.trace.steps.own_backward import (
    REVERSED,
    OwnCall,
    called,
    called_operator,
    engine_answered,
    gradient_of,
    requiring,
)
from neuralpower.trace.weights import StandIns


@dataclass
class Section:
    """A run that is recorded by itself: the pass, or one of the model's own backward passes."""

    outside: str = ""  # path of what runs outside of every module
    gradients: Gradients = field(default_factory=lambda: Gradients(()))
    # of a backward pass of the model's own: its calls as they are listed, of which no gradient is asked again
    listed: list[LayerCall] | None = None
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    calls: list[LayerCall] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    unmodelled: list[UnmodelledCall] = field(default_factory=list)
    flows: dict[int, Flow] = field(default_factory=dict)  # what each call reads and writes, by LayerCall.at
    # call -> its first part, its backward pass
    own: dict[int, tuple[int, tuple[LayerCall, ...]]] = field(default_factory=dict)
    beside: list[LayerCall] = field(default_factory=list)  # what hooks on gradients call
    in_function: bool | None = None  # whether a running autograd function was called with gradients

    @property
    def at(self) -> int:
        """Number of the running operator call, from 1."""
        return self.lifetimes.calls + 1

    def flush(self) -> None:
        """List what was called so far; a gradient may still be asked through it."""
        assert self.listed is not None  # in a backward pass alone
        for number, call in enumerate(self.calls):
            if not call.done:
                share = call.gradient if call.operator in REVERSED else 0.0
                self.listed.append(dataclasses.replace(call, gradient=share))
                self.calls[number] = dataclasses.replace(call, done=True)

    def answer(self, gradients: Gradients) -> None:
        """List the backward pass that these gradients take through what was called so far."""
        self.flush()
        assert self.listed is not None  # in a backward pass alone
        own = self.own_backward(gradients, self.calls)
        self.listed += backward_calls(passed(self.calls, gradients), own)
        self.listed += [LayerCall(path, layer) for path, layer, _ in gradients.beside()]

    def own_backward(self, gradients: Gradients, calls: Sequence[LayerCall]) -> tuple[OwnBackward, ...]:
        """Own backward passes of the calls that a gradient goes through."""
        callers = {call.at: (call.path, call.operator) for call in calls}
        recurs = {call.at for call in calls if call.layer.recurs}
        passes = []
        for at, layers in gradients.instead():
            path, operator = callers[at]
            made = tuple(LayerCall(path, layer, operator, at=at) for layer in layers)
            passes.append(OwnBackward(at, made))
        for at, (first, own) in self.own.items():
            if at in gradients.passed:
                is_looped = any(number in recurs for number in range(first, at))
                passes.append(OwnBackward(at, tuple(map(in_loop, own)) if is_looped else own))
        return tuple(sorted(passes, key=lambda backward: backward.at))


def passed(calls: Sequence[LayerCall], gradients: Gradients) -> list[LayerCall]:
    """The calls, without a gradient where none goes through them."""
    through = gradients.passed
    return [c if c.at in through else dataclasses.replace(c, gradient=0.0) for c in calls]


class OwnPasses:
    """Knows the section that is running; within a backward pass of the model's own that is another."""

    def __init__(self, modules: Modules, stand_ins: StandIns, training: bool | None) -> None:
        self.modules, self.stand_ins = modules, stand_ins
        self.section = Section()
        self.gradients = training is not False  # whether they are enabled, unless the model disables them
        # whether autograd functions hear that their inputs need gradients, and their backward passes are run
        self.asked = training or (training is None and torch.is_grad_enabled())
        self.trained = training is True
        self.derived: dict[Any, str] = {}  # functions whose backward pass cannot be followed -> why
        self.gathered: set[str] = set()  # parameters whose gradient such a backward pass has made
        self.notes: dict[str, None] = {}

    @property
    def path(self) -> str:
        return self.modules.path or self.section.outside

    @property
    def enabled(self) -> bool:
        """Whether the model has not disabled gradients, as `torch.no_grad` does."""
        if self.section.in_function is not None:
            return self.section.in_function
        return not self.gradients or torch.is_grad_enabled()

    def asks(self, tensor: Tensor) -> bool:
        return self.section.gradients.asks(tensor)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Recognise calls of a `torch.autograd.Function`: without gradients, yet with a backward pass."""
        own = vars(Function)["apply"]

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if self.asked and kind not in self.derived and any(map(self._follows, tensors)):
                return self._called(kind, args, kwargs)
            # with gradients it would keep what a trace cannot
            with swapped(self.section, in_function=self.enabled), torch.no_grad():
                return own.__func__(kind, *args, **kwargs)

        own_hook: Any = Tensor.register_hook
        own_retain: Any = Tensor.retain_grad

        def register_hook(tensor: Tensor, hook: Any) -> Any:
            return self._hooked(tensor, hook) if self._follows(tensor) else own_hook(tensor, hook)

        def retain_grad(tensor: Tensor) -> None:
            if not self._follows(tensor):
                own_retain(tensor)

        hooks = {"register_hook": register_hook, "retain_grad": retain_grad}
        with swapped(Function, apply=classmethod(apply)), swapped(Tensor, **hooks):
            yield

    def _follows(self, tensor: Tensor) -> bool:
        """Whether it has no graph, but asks for a gradient."""
        return self.gradients and self.enabled and self.asks(tensor)

    def _called(self, kind: Any, args: Any, kwargs: Any) -> Any:
        """Call an autograd function; its backward pass runs once it is known what depends on its outputs."""
        section = self.section
        first = section.at
        with swapped(section, in_function=False):
            call = called(kind, args, kwargs, self.asks)
        section.lifetimes.called(())  # a number of its own
        if section.calls and any(tensor is not None for tensor in call.context.to_save):
            section.calls[-1] = dataclasses.replace(section.calls[-1], saves=True)
        unknown = section.unmodelled
        unknown[:] = [dataclasses.replace(u, once=True) if u.at >= first else u for u in unknown]
        self._note(call, section.lifetimes.calls, first)
        return call.output

    def operator(self, operator: str, args: Any, kwargs: Any, output: Any) -> bool:
        """Whether it is a custom operator with a backward pass of its own, which is then followed."""
        call = None
        if self.trained and self.enabled and operator not in self.derived:
            call = called_operator(operator, args, kwargs, output, self.asks)
        if call is not None:
            self._note(call, self.section.at, self.section.at)
        return call is not None

    def _note(self, call: OwnCall, at: int, first: int) -> None:
        """Record the user-written backward pass of call `at`, which began at operator `first`."""
        path = self.path

        def run(with_gradient: Sequence[bool]) -> Sequence[bool]:
            if not self.trained:
                return [True for _ in call.inputs]
            saved = [t for t in call.context.to_save if t is not None and self.asks(t)]
            with requiring([*saved, *self.stand_ins.leaves]), self._apart(path) as listed:
                gets = call.backward(with_gradient)
            self.section.own[at] = first, tuple(listed)
            return gets

        self.section.gradients.note_own(path, at, call.inputs, call.differentiable, run)

    def _hooked(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
        """Note a hook on a tensor's gradient, as `Tensor.register_hook` takes it."""
        hooks: OrderedDict[int, Any] = OrderedDict()
        handle, path = RemovableHandle(hooks), self.path
        hooks[handle.id] = hook

        def call() -> None:
            for one in hooks.values():
                try:
                    with requiring(self.stand_ins.leaves), self._apart(path) as listed, torch.no_grad():
                        one(gradient_of(tensor))
                    self.section.beside += listed
                except Exception as error:
                    note = f"a hook on a gradient is not priced: it raises {quoted(error)[:200]}"
                    self.notes[note] = None

        self.section.gradients.hook(tensor, call)
        return handle

    @contextlib.contextmanager
    def _apart(self, path: str) -> Iterator[list[LayerCall]]:
        """Record what a backward pass of its own calls, as if a module of that path made it."""
        before, seen, listed = self.section, len(self.modules.seen), list[LayerCall]()
        inner = self.section = Section(path, Gradients((), found=True), listed)
        try:
            with engine_answered(self._answer):
                yield listed
                inner.flush()
        finally:
            self.section = before
            before.unmodelled += [dataclasses.replace(call, once=True) for call in inner.unmodelled]
            del self.modules.seen[seen:]

    def _answer(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], keeps: bool) -> tuple[Any, ...]:
        """Run the backward pass of what ran again in one of the model's own; the gradients of `inputs`."""
        if not any(map(self.asks, outputs)):
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        followed = self.section.gradients.again()
        followed.end_at(outputs)
        self.section.answer(followed)
        if not keeps:
            return tuple(gradient_of(tensor) if followed.reaches(tensor) else None for tensor in inputs)
        for tensor in followed.reached():
            if name := self.stand_ins.name(tensor):
                self.gathered.add(name)
            elif not inputs or any(tensor is one for one in inputs):
                tensor.grad = gradient_of(tensor)
        return ()
