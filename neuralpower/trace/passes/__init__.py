"""Trace passes: a recorded forward pass becomes the tasks of a question.

Each is a pure function, Trace in, Trace out. A file in this folder that decorates one with `trace_pass` is
found by itself; the place that the pass names in `ORDER` says when it runs. `Trace.passes` lists those that
ran.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from neuralpower.trace.passes.base import ORDER, TracePass, trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace


def passes_in(package: str, folders: Iterable[str]) -> tuple[TracePass, ...]:
    """The passes that the files of a package define, in no order.

    Args:
        package: its name.
        folders: where its files are, as its `__path__` says.
    """
    modules = [importlib.import_module(f"{package}.{file.name}") for file in pkgutil.iter_modules(folders)]
    defined = [one for module in modules for one in vars(module).values() if isinstance(one, TracePass)]
    return tuple({one.name: one for one in defined}.values())


def in_order(passes: Iterable[TracePass]) -> tuple[TracePass, ...]:
    """The passes as they run: by their places in `ORDER`, at one place by their names."""
    places = list(ORDER)
    return tuple(sorted(passes, key=lambda one: (places.index(one.place), one.name)))


PASSES = in_order(passes_in(__name__, __path__))
OF_CALLS = PASSES[: next(i for i, one in enumerate(PASSES) if one.place == "forward")]
"""Those that change calls, before there are tasks."""


def applied(trace: Trace, question: Question, passes: Sequence[TracePass] = PASSES) -> Trace:
    """The trace with its `tasks`, after all passes that have something to do and have not run yet.

    Args:
        trace: as it was recorded; for a backward pass or a step in training mode, with its loss.
        question: the phase, the types and the way to run.
        passes: in the order in which they run, as `in_order` gives it.

    Raises:
        InputError: the question is training, and there is nothing to train.
    """
    for one in passes:
        if one.name not in trace.passes and one.applies(trace, question):
            trace = one(trace, question)
    return trace


__all__ = ["OF_CALLS", "ORDER", "PASSES", "TracePass", "applied", "in_order", "passes_in", "trace_pass"]
