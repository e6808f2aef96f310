"""A trace pass: a small pure function that takes a trace and gives another, with its place in the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

Change = Callable[[Trace, Question], Trace]
Applies = Callable[[Trace, Question], bool]

ORDER: Mapping[str, str] = {
    "weights": "change the types of weights in memory, and of products' operands",
    "calls": "change the recorded calls: which of them run again",
    "blocks": "put kernels of serving engines in the place of blocks of language models",
    "serving": "change the calls to those of an engine that serves language models",
    "fusion": "join calls into kernels, and launch them together",
    "forward": "make tasks of the forward pass",
    "backward": "add the tasks of the backward pass",
    "micro-batches": "repeat these tasks, and join what the repetitions leave",
    "update": "add what follows all micro-batches, such as the optimizer's step",
    "types": "change the types that tasks compute in",
}
"""Places in the order in which passes run, with the effect of passes there; at one place, by name."""


@dataclass(frozen=True)
class TracePass:
    """One pass; called with a trace, it gives the changed trace with its own name added to those that ran."""

    name: str
    place: str  # one of ORDER
    applies: Applies  # whether it has something to do
    change: Change

    @property
    def summary(self) -> str:
        """Its effect in one sentence: the first line of its docstring."""
        return (self.change.__doc__ or "").partition("\n")[0]

    def __call__(self, trace: Trace, question: Question) -> Trace:
        """The changed trace; raises what the pass refuses."""
        return replace(self.change(trace, question), passes=(*trace.passes, self.name))


def trace_pass(*, place: str, applies: Applies) -> Callable[[Change], TracePass]:
    """A decorator that makes a pass of a function, named as the function is.

    Args:
        place: one of ORDER, which says when the pass runs.
        applies: whether the pass has something to do, given the trace so far and the question.

    Raises:
        ValueError: there is no such place.
    """
    if place not in ORDER:
        raise ValueError(f"place {place!r} of a trace pass: choose one of {', '.join(ORDER)}")
    return lambda change: TracePass(change.__name__, place, applies, change)
