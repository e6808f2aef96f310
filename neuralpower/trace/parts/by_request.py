"""Layers that work request by request, attention and scans: in a step each request has tokens of its own.

A step is traced as one prompt of all its new tokens, and as a decode step of those that get their next token.
Layers that work by request are priced as one kernel for all requests at one request's length, in the share of
the requests that have that length, because they fill the device together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.rows import field_names
from neuralpower.networks.phases import Step
from neuralpower.trace.lifetimes import CACHE
from neuralpower.trace.records import Task, Trace

Array = np.ndarray
REQUESTS, NEW, SEEN = "batch", ("query_length", "length"), "key_length"  # sizes of what works by request


def by_request(layer: Layer) -> bool:
    """Whether a layer works request by request."""
    names = field_names(type(layer))
    return REQUESTS in names and (SEEN in names or any(name in names for name in NEW))


def one_each(layer: Layer) -> bool | None:
    """Whether each request of a kernel has one new token; None where it does not work request by request."""
    if not by_request(layer):
        return None
    return all(getattr(layer, name) == 1 for name in NEW if name in field_names(type(layer)))


@dataclass(frozen=True)
class RequestLayer:
    example: Layer
    window: int  # keys that a query sees at most; 0: all
    count: float = 0.0  # calls in a pass

    def numbers(self, requests: Array, new: Array, seen: Array, *, decodes: bool) -> dict[str, Array]:
        """Its numbers [rows] for a kernel of `requests`, each with `new` tokens and keys of `seen` tokens."""
        names = field_names(type(self.example))
        numbers = {REQUESTS: requests}
        numbers |= {name: new for name in NEW if name in names}
        if SEEN in names:
            numbers[SEEN] = np.minimum(seen, self.window) if decodes and self.window else seen
        if self.window and not decodes and "window" in names:
            numbers["window"] = np.where(self.window < seen, self.window, 0)
        return numbers

    def at(self, requests: int, new: int, seen: int, *, decodes: bool) -> Layer:
        """The layer of one kernel."""
        sizes = (np.array([size]) for size in (requests, new, seen))
        changes: dict[str, Any] = {
            name: int(value[0]) for name, value in self.numbers(*sizes, decodes=decodes).items()
        }
        return replace(self.example, **changes)


def stepped(prompts: Trace, decodes: Trace | None, step: Step) -> Trace:
    """The tasks of a step.

    Args:
        prompts: one prompt of all new tokens, after the trace passes.
        decodes: a decode step of the requests that get their next token; None: there are none.
        step: the requests.
    """
    work = {} if decodes is None else _by_path(decodes)
    tasks: list[Task] = []
    for task in prompts.tasks:
        if by_request(task.layer):
            tasks += _each(prompts, task, step.chunks, decodes=False)
            if decodes is not None and work.get(task.path):
                tasks += _each(
                    decodes, work[task.path].pop(0), [(1, held) for held in step.contexts], decodes=True
                )
        else:
            tasks.append(task)
    size = step.held / step.tokens
    storages = tuple(
        s._replace(bytes=round(s.bytes * size)) if s.part == CACHE else s for s in prompts.storages
    )
    return replace(prompts, tasks=tuple(tasks), storages=storages)


def _by_path(work: Trace) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in work.tasks:
        if by_request(task.layer):
            found.setdefault(task.path, []).append(task)
    return found


def _each(work: Trace, task: Task, requests: Sequence[tuple[int, int]], *, decodes: bool) -> Iterator[Task]:
    """A task for each (new, cached) of the requests, in their share."""
    layer = RequestLayer(task.layer, work.about.windows.get(task.path, 0))
    for (new, held), alike in sorted(Counter(requests).items()):
        kernel = layer.at(len(requests), new, new + held, decodes=decodes)
        yield replace(task, layer=kernel, share=task.share * alike / len(requests))
