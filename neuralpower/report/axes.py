"""Axes of charts: where they begin and end, and the ticks on them, each with a plain number.

An axis is logarithmic only if the caller wants it and its values span enough: 15 % on a logarithmic axis
 shows nothing. Every axis has three ticks or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SPAN = 5.0  # least ratio of largest to smallest value for which a logarithmic axis shows more
FEWEST = 3  # labelled ticks
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of a linear axis, times a power of ten
DIGITS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # of ticks in each decade, coarse to fine
PLAIN = (1e-3, 1e6)  # numbers in between need no prefix
SIZES = 65_536  # whole numbers up to here are sizes, such as a batch's: the axis has ticks at them
PREFIXES = {1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "u", 1e-9: "n"}


@dataclass(frozen=True)
class Axis:
    """Ends, and (value, text) of each tick; on a logarithmic axis the ends are logarithms to base 10."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the beginning, 1 at the end."""
        return (scaled(value, self.log) - self.low) / (self.high - self.low)


def scaled(value: float | None, log: bool) -> float:
    """A value in the units of its axis."""
    return math.log10(value or 0) if log else float(value or 0)


def logarithmic(values: Iterable[float], wanted: bool, span: float = SPAN) -> bool:
    """Whether an axis of these values is logarithmic: the caller wants it, and they span enough."""
    known = [value for value in values if value > 0]
    return wanted and bool(known) and max(known) >= span * min(known)


def limits(values: Sequence[float], log: bool, room: float = 0.06) -> tuple[float, float]:
    """Ends of an axis for values in its units, with a margin at both ends, as a share of its length."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = (high - low) * room or (0.5 if log else abs(high) * 0.5 or 1.0)
    return low - more, high + more


def axis(low: float, high: float, log: bool, most: int, sizes: Iterable[float] = ()) -> Axis:
    """An axis between two ends in its units, with at most about `most` ticks.

    `sizes` are its values. If they are whole and small, a logarithmic axis has its ticks there. A linear one
    then has ticks at whole numbers, and grows until it holds three of them.
    """
    known = sorted(set(sizes))
    whole = bool(known) and all(isinstance(value, int) and 0 <= value <= SIZES for value in known)
    if not log:
        return _linear(low, high, most, whole)
    if whole and 1 < len(known) < FEWEST:
        known = sorted({*known, *doublings(known[0], known[-1])})
    own = _apart(known, (high - low) / most) if whole else []
    ticks = own if len(own) >= FEWEST else _decades(low, high, most)
    return Axis(low, high, True, tuple(zip(ticks, texts(ticks, each=True), strict=True)))


def doublings(low: float, high: float) -> list[float]:
    """Low, twice it, four times it, up to high."""
    return [low * 2**n for n in range(int(math.log2(high / low)) + 1)] if low > 0 else []


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """The last value, and those others that are at least a gap (log10) from the next kept one."""
    kept: list[float] = []
    for value in reversed([value for value in values if value > 0]):
        if not kept or math.log10(kept[-1] / value) >= gap * 0.6:
            kept.append(value)
    return kept[::-1]


def _decades(low: float, high: float, most: int) -> list[float]:
    """Ticks of a logarithmic axis: whole decades, or several digits in each, as space allows."""
    first, last = math.floor(low), math.ceil(high)
    ticks: list[float] = []
    for every in range(1 + (last - first) // max(FEWEST, most), 0, -1):
        ticks = [10.0**n for n in range(first, last + 1) if low <= n <= high and n % every == 0]
        if len(ticks) >= FEWEST:
            break
    for digits in DIGITS:
        finer = [d * 10.0**n for n in range(first - 1, last + 1) for d in digits]
        finer = [value for value in finer if low <= math.log10(value) <= high]
        if len(ticks) < FEWEST or len(ticks) < len(finer) <= most:
            ticks = finer
    if len(ticks) < FEWEST:  # less than half a decade
        ticks = [value for value, _ in _linear(10**low, 10**high, most, False).ticks]
    return ticks


def _linear(low: float, high: float, most: int, whole: bool) -> Axis:
    """A linear axis: a nice step, the largest that gives enough ticks."""
    if whole:
        low, high = (low, high) if high - low >= FEWEST - 1 else (math.floor(low), math.floor(low) + 3.0)
    step = _step((high - low) / max(FEWEST, most), whole)
    while True:
        first = math.ceil(low / step - 1e-9)
        places = range(first, math.floor(high / step + 1e-9) + 1)
        if len(places) >= FEWEST:
            break
        step = _step(step * 0.49, False)
    ticks = [n * step for n in places]
    return Axis(low, high, False, tuple(zip(ticks, texts(ticks), strict=True)))


def _step(least: float, whole: bool) -> float:
    """The smallest nice step that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    found = next(nice * power for nice in NICE if nice * power >= least * (1 - 1e-9))
    return max(1.0, math.ceil(found)) if whole else found


def texts(values: Sequence[float], each: bool = False) -> list[str]:
    """Plain numbers of ticks: 0.05, 1,000, 2.5 M; all with the same decimals, or `each` with its own."""
    if each:
        return [text for value in values for text in texts([value])]
    largest = max((abs(value) for value in values), default=0.0)
    prefixed = largest and not PLAIN[0] <= largest < PLAIN[1]
    factor = next((f for f in PREFIXES if largest >= f * 0.9999), 1e-9) if prefixed else 1.0
    parts = [value / factor for value in values]
    decimals = next((d for d in range(6) if all(_exact(part, d) for part in parts)), 6)
    return [f"{part:,.{decimals}f} {PREFIXES[factor]}".strip() if part else "0" for part in parts]


def _exact(value: float, decimals: int) -> bool:
    return math.isclose(round(value, decimals), value, rel_tol=1e-6, abs_tol=1e-12)
