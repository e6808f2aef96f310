"""The steps of a decoder against a context that grows: few are traced, those between them are interpolated.

Between the lengths at which a cache fills its windows, every size in a step's trace grows by the same
number with each token. So a few steps are traced, and those between them get interpolated sizes of layers.
The middle of each piece is traced to check that; where it differs, the piece is halved. Evenly spaced steps,
as many as CALLS allows, are predicted: all steps of a small model or a short text. The others are
interpolated linearly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.columns import is_number
from neuralpower.layers.movement import APPENDED
from neuralpower.layers.rows import field_names, to_row
from neuralpower.networks.inputs.requests import Generating
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import DECODE, mean_length
from neuralpower.trace.lifetimes import Storage
from neuralpower.trace.records import LayerCall, Savings, Trace, counted

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


def _mixed(layer: Layer, other: Layer, share: float) -> Layer:
    changes: dict[str, Any] = {}
    for name in (f.name for f in fields(layer)):
        a, b = getattr(layer, name), getattr(other, name)
        if is_number(a) and a != b:
            changes[name] = round(a + share * (b - a))
    return replace(layer, **changes)


def lined(contexts: Sequence[int]) -> list[float]:
    """Weights with which values at `contexts` add up to the sum over all whole numbers from first to last.

    Exact for straight lines: a gap of n steps gives each of its ends (n - 1) / 2 of what lies inside.
    """
    inside = (np.diff(contexts) - 1) / 2
    weights: list[float] = (1 + np.append(inside, 0) + np.append(0, inside)).tolist()
    return weights


# ---- A batch whose samples differ in length, as engines run it: without padding ----
# Two traces at neighbouring lengths, with the mean length between them, show how each layer grows. Layers
# that grow linearly with the tokens, such as products, follow from the mean: their sizes are those of all
# tokens together. Attention is priced length by length: a kernel for all samples at one length, times the
# share of the samples that have it, because they fill the device together.


KEYS = "key_length"  # a field of attention
UNPADDED = "requests of different lengths run without padding, attention length by length"


def each_length(shorter: Trace, longer: Trace, asked: Pass) -> Trace:
    """The trace of samples of these lengths.

    Args:
        shorter: the pass where all have their mean length, rounded down.
        longer: the same with a token more.
        asked: the pass, with its lengths.
    """
    mixed = between(shorter, longer, asked.share)
    if not alike(shorter, longer):
        return replace(mixed, granted=(*mixed.granted, UNPADDED))
    lengths = _Lengths(asked)
    calls: list[LayerCall] = []
    for first, second, mean in zip(shorter.calls, longer.calls, mixed.calls, strict=True):
        window = shorter.about.windows.get(first.path, 0)
        apart = lengths.apart(first.layer, second.layer)
        calls += lengths.calls(first, second.layer, window) if apart else [mean]
    storages = _storages(shorter.storages, longer.storages, asked.share)
    found = replace(mixed, calls=tuple(calls), storages=storages, granted=(*mixed.granted, UNPADDED))
    return replace(found, savings=_savings(shorter.savings, longer.savings, found, asked.share))


@dataclass(frozen=True)
class _Lengths:
    """The lengths of a batch's samples."""

    asked: Pass

    @property
    def mean(self) -> int:
        """Rounded down: that of the first trace."""
        return mean_length(self.asked.lengths)

    @property
    def counts(self) -> Mapping[int, int]:
        """Number of samples of each length, the shortest first."""
        return dict(sorted(Counter(self.asked.lengths).items()))

    def apart(self, one: Layer, longer: Layer) -> bool:
        """Whether a layer is priced length by length: attention, and what grows faster than the length."""
        grows = [name for name, a, b in _sizes(one, longer) if a != b]
        names = field_names(type(one))
        if KEYS in names and (grows or self._windowed(one)):
            return True
        work = ((layer.flops(), sum(layer.bytes())) for layer in (one, longer))
        return any(self._squared(int(a), int(b)) for a, b in zip(*work, strict=True))

    def _windowed(self, one: Layer) -> bool:
        """Whether attention of the step is cut off at a window, which shorter samples do not fill."""
        return self.asked.name == DECODE and to_row(one)[KEYS] <= self.mean

    def _squared(self, a: int, b: int) -> bool:
        """Whether a size grows with the square of the length, as scores do."""
        return a != b and b * self.mean**2 == a * (self.mean + 1) ** 2

    def calls(self, call: LayerCall, longer: Layer, window: int) -> Iterator[LayerCall]:
        """One call for each length, in the share of the samples that have it."""
        for length, count in self.counts.items():
            layer = self._layer(call.layer, longer, length, window)
            yield replace(call, layer=layer, share=call.share * count / len(self.asked.lengths))

    def _layer(self, shorter: Layer, longer: Layer, length: int, window: int) -> Layer:
        """The layer where all samples have this length."""
        changes: dict[str, Any] = {}
        for name, a, b in _sizes(shorter, longer):
            if name == KEYS and self.asked.name == DECODE and (a != b or window):
                seen = length + a - self.mean if a != b else length + 1
                changes[name] = min(seen, window) if window else seen
            elif self._squared(a, b):
                changes[name] = round(a * length**2 / self.mean**2)
            elif a != b:
                changes[name] = a + (length - self.mean) * (b - a)
        if "window" in field_names(type(shorter)) and self.asked.name != DECODE and window:
            changes["window"] = window if window < length else 0
        return replace(shorter, **changes)


def _sizes(one: Layer, longer: Layer) -> Iterator[tuple[str, int, int]]:
    """(name, value, value of the longer one) of each field that is a size."""
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(longer, field.name)
        if is_number(a):
            yield field.name, a, b


def _savings(savings: Savings | None, longer: Savings | None, found: Trace, share: float) -> Savings | None:
    """Savings of a way to run at the mean length."""
    if savings is None or longer is None:
        return None
    before = round(savings.bytes_before + share * (longer.bytes_before - savings.bytes_before))
    calls, size = counted(found)
    return Savings(savings.run, savings.calls_before, before, calls, size)


def _storages(shorter: tuple[Storage, ...], longer: tuple[Storage, ...], share: float) -> tuple[Storage, ...]:
    """Memory at the mean length; that of the shorter pass where they differ in more than sizes."""
    if len(shorter) != len(longer):
        return shorter
    return tuple(
        a._replace(bytes=round(a.bytes + share * (b.bytes - a.bytes)))
        for a, b in zip(shorter, longer, strict=True)
    )
