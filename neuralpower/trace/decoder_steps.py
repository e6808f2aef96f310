"""The steps of a decoder against a context that grows: few are traced, those between them are interpolated.

Between the lengths at which a cache fills its windows, every size in a step's trace grows by the same
number with each token. So a few steps are traced, and those between them get interpolated sizes of layers.
The middle of each piece is traced to check that; where it differs, the piece is halved. Evenly spaced steps,
as many as CALLS allows, are predicted: all steps of a small model or a short text. The others are
interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.columns import is_number
from neuralpower.layers.movement import APPENDED
from neuralpower.networks.decoder import Pass
from neuralpower.networks.requests import Generating
from neuralpower.trace.records import Trace

CALLS = 100_000  # layer calls of all steps that are predicted: a second
FEWEST_STEPS = 9  # that are predicted, whatever a step costs
MOST_TRACES = 24  # past it, what lies between two traced steps is interpolated as it is
BYTES = ("bytes", "work_bytes")

Traced = Callable[[Pass], Trace]


class Growing:
    """The steps of a decoder from one context to another, each with its trace."""

    def __init__(self, asked: Generating, traced: Traced, first: int, last: int) -> None:
        self.asked, self.traced, self.first, self.last = asked, traced, first, last
        self.traces: dict[int, Trace] = {}  # those that were made
        self.pieces: list[tuple[int, int]] = []

    def spread(self) -> tuple[list[int], list[float]]:
        """(contexts to look at, how many steps each stands for): on lines between them the sum is exact."""
        kinks = {APPENDED - 1, APPENDED}  # a cache shorter than that is not appended to, but concatenated
        kinks |= {c for window in self.asked.decoder.windows for c in range(window - 2, window + 1)}
        edges = {self.first, self.last, *(c for c in kinks if self.first < c < self.last)}
        for low, high in zip(sorted(edges), sorted(edges)[1:], strict=False):
            self._split(low, high)
        corners = sorted({self.first, self.last, *(c for piece in self.pieces for c in piece)})
        most = max(CALLS // max(len(self._trace(self.first).calls), 1), FEWEST_STEPS)
        even = np.linspace(self.first, self.last, min(most, self.last - self.first + 1)).round().astype(int)
        contexts = sorted({*corners, *even.tolist()})
        return contexts, lined(contexts)

    def at(self, context: int) -> Trace:
        """The trace of a step, made or interpolated."""
        if context in self.traces:
            return self.traces[context]
        low, high = next(piece for piece in self.pieces if piece[0] <= context <= piece[1])
        return between(self._trace(low), self._trace(high), (context - low) / (high - low))

    def _trace(self, context: int) -> Trace:
        if context not in self.traces:
            self.traces[context] = self.traced(self.asked.step(context))
        return self.traces[context]

    def _split(self, low: int, high: int) -> None:
        """Note pieces of the range in which sizes grow evenly."""
        start, stop = self._trace(low), self._trace(high)
        middle = (low + high) // 2
        if high - low > 1 and start.layers != stop.layers and len(self.traces) < MOST_TRACES:
            share = (middle - low) / (high - low)
            if not alike(start, stop) or between(start, stop, share).layers != self._trace(middle).layers:
                self._split(low, middle)
                self._split(middle, high)
                return
        self.pieces.append((low, high))


def alike(one: Trace, other: Trace) -> bool:
    """Whether two traces make the same calls, but for sizes."""
    if len(one.calls) != len(other.calls) or len(one.unmodelled) != len(other.unmodelled):
        return False
    pairs = zip(one.layers, other.layers, strict=True)
    return all(a == b or _form(a) == _form(b) for a, b in pairs)


def _form(layer: Layer) -> tuple[object, ...]:
    """The parts of a layer that are not sizes: its kind, its names and its switches."""
    values = (getattr(layer, f.name) for f in fields(layer))
    return (layer.kind, *(value for value in values if isinstance(value, (str, bool))))


def between(first: Trace, other: Trace, share: float) -> Trace:
    """The trace between two others, with interpolated sizes of layers; `share`: how far from the first."""
    if not alike(first, other):
        return first if share < 0.5 else other
    mixed = cache(partial(_mixed, share=share))
    calls = [
        a if a.layer == b.layer else replace(a, layer=mixed(a.layer, b.layer))
        for a, b in zip(first.calls, other.calls, strict=True)
    ]
    missing = []
    for a, b in zip(first.unmodelled, other.unmodelled, strict=True):
        sizes = {name: round((1 - share) * getattr(a, name) + share * getattr(b, name)) for name in BYTES}
        missing.append(replace(a, **sizes))
    return replace(first, calls=tuple(calls), unmodelled=tuple(missing))


def _mixed(one: Layer, other: Layer, share: float) -> Layer:
    changes: dict[str, Any] = {}
    for name in (f.name for f in fields(one)):
        a, b = getattr(one, name), getattr(other, name)
        if is_number(a) and a != b:
            changes[name] = round(a + share * (b - a))
    return replace(one, **changes)


def lined(contexts: Sequence[int]) -> list[float]:
    """Weights with which values at `contexts` add up to the sum over all whole numbers from first to last.

    Exact for straight lines: a gap of n steps gives each of its ends (n - 1) / 2 of what lies inside.
    """
    inside = (np.diff(contexts) - 1) / 2
    weights: list[float] = (1 + np.append(inside, 0) + np.append(0, inside)).tolist()
    return weights
