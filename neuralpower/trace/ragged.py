"""A batch whose samples differ in length, as engines run it: without padding.

Two traces at neighbouring lengths, with the mean length between them, show how each layer grows. Layers that
grow linearly with the tokens, such as products, follow from the mean: their sizes are those of all tokens
together. Attention is priced length by length: a kernel for all samples at one length, times the share of the
samples that have it, because they fill the device together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from neuralpower.layers import Layer
from neuralpower.layers.columns import is_number
from neuralpower.layers.rows import field_names, to_row
from neuralpower.networks.decoder import Pass
from neuralpower.networks.phases import DECODE, mean_length
from neuralpower.trace.decoder_steps import alike, between
from neuralpower.trace.lifetimes import Storage
from neuralpower.trace.records import LayerCall, Savings, Trace, counted

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


def _savings(one: Savings | None, longer: Savings | None, found: Trace, share: float) -> Savings | None:
    """Savings of a way to run at the mean length."""
    if one is None or longer is None:
        return None
    before = round(one.bytes_before + share * (longer.bytes_before - one.bytes_before))
    calls, size = counted(found)
    return Savings(one.run, one.calls_before, before, calls, size)


def _storages(shorter: tuple[Storage, ...], longer: tuple[Storage, ...], share: float) -> tuple[Storage, ...]:
    """Memory at the mean length; that of the shorter pass where they differ in more than sizes."""
    if len(shorter) != len(longer):
        return shorter
    return tuple(
        a._replace(bytes=round(a.bytes + share * (b.bytes - a.bytes)))
        for a, b in zip(shorter, longer, strict=True)
    )
