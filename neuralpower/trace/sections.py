"""What a pass has called so far, and a backward pass of the model's own within it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuralpower.trace.accesses import Flow
from neuralpower.trace.gradients import Gradients
from neuralpower.trace.lifetimes import Lifetimes
from neuralpower.trace.loops import View, in_loop
from neuralpower.trace.own_backward import REVERSED
from neuralpower.trace.records import LayerCall, OwnBackward, UnmodelledCall, backward_calls


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
