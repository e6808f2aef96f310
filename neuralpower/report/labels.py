"""Where the names of points stand so that they cover neither each other nor other points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuralpower.report.charts import XY, Number

Pair = tuple[float, float]

# Twelve ways from a point, the best first, and how far along each (pixels).
ANGLES = [math.pi * k / 6 for k in (1, 11, 3, 9, 0, 6, 5, 7, 2, 10, 4, 8)]
DIRECTIONS = [(math.cos(angle), math.sin(angle)) for angle in ANGLES]
DISTANCES = (10.0, 18.0, 28.0, 40.0, 55.0, 75.0, 100.0, 130.0, 170.0)
COLUMN = 14.0  # pixels to the right of the ends of lines, where their names stand below each other
SYMBOL = 5.0  # pixels that a point reaches from its middle
GAP = 2.0  # pixels between two names
FAR = 20.0  # pixels from which on a line joins a name to its point


class Label(NamedTuple):
    """A name and its point, in units of the axes: logarithms to base 10 on an axis of these."""

    text: str
    x: float
    y: float
    offset: Pair  # of the name's middle from the point, pixels, y upward
    far: bool


class Named(NamedTuple):
    """The names of a chart, and the ends of axes that leave room for them; in units as labels have them."""

    labels: list[Label]
    x_ends: Pair
    y_ends: Pair


def named(chart: XY, width: float, height: float, letter: float = 6.5, line: float = 13.0) -> Named | None:
    """Names on a plot of that size, sizes as `place` has them; None for a chart without names."""
    series = chart.drawn()
    names = [name for s in series for name in s.labels or [""] * len(s.x)]
    if not any(names):
        return None
    x = [_scaled(value, chart.log_x) for s in series for value in s.x]
    y = [_scaled(value, chart.log_y) for s in series for value in s.y]
    x_ends, y_ends = limits(x, chart.log_x), limits(y, chart.log_y)
    x_ends = x_ends[0], x_ends[1] + _room(x, names, x_ends)
    at = list(zip(_shares(x, x_ends, width), _shares(y, y_ends, height), strict=True))
    pixels = iter(at)
    runs = [[next(pixels) for _ in s.x] for s in series]
    others = [p for s, run in zip(series, runs, strict=True) if "lines" in s.mode for p in along(run)]
    offsets = place(at, names, width, height, others=others, letter=letter, line=line)
    found = [
        Label(name, a, b, offset, _is_far(offset, letter * len(name) / 2))
        for name, a, b, offset in zip(names, x, y, offsets, strict=True)
        if offset is not None
    ]
    return Named(found, x_ends, y_ends)


def _is_far(offset: Pair, half: float) -> bool:
    return math.hypot(max(0.0, abs(offset[0]) - half), offset[1]) > FAR


def _scaled(value: Number, log: bool) -> float:
    return math.log10(value or 0) if log else float(value or 0)


def limits(values: Sequence[float], log: bool) -> Pair:
    """Ends of an axis that holds all values, logarithms where `log`, with some room."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.06 or (0.5 if log else abs(high) * 0.5 or 1.0)
    return low - room, high + room


def _room(values: Sequence[float], names: Sequence[str], ends: Pair) -> float:
    """How much farther out a horizontal axis ends where names stand at the last points."""
    length = ends[1] - ends[0]
    last = [len(name) for x, name in zip(values, names, strict=True) if x >= ends[1] - 0.1 * length]
    return length * min(0.3, max(last, default=0) * 0.011)


def _shares(values: Sequence[float], ends: Pair, length: float) -> list[float]:
    return [(value - ends[0]) / (ends[1] - ends[0]) * length for value in values]


def along(ends: Sequence[Pair]) -> list[Pair]:
    """Points of a broken line, so near each other that no name fits between them; pixels."""
    found = list(ends[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 8))
        found += [(x0 + (x1 - x0) * k / count, y0 + (y1 - y0) * k / count) for k in range(1, count + 1)]
    return found


def place(
    points: Sequence[Pair],
    names: Sequence[str],
    width: float,
    height: float,
    *,
    others: Sequence[Pair] = (),
    letter: float = 6.5,
    line: float = 13.0,
) -> list[Pair | None]:
    """Offset of each name's middle from its point (pixels, y upward); None where there is no room.

    Args:
        points: in pixels from the lower left corner.
        names: of each point; an empty one needs no room.
        width: of the plot, pixels.
        height: of the plot, pixels.
        others: points without names, which are not to be covered either.
        letter: width of a letter, pixels.
        line: height of a line, pixels.
    """
    shown = [i for i, name in enumerate(names) if name]
    found: list[Pair | None] = [None] * len(points)
    if len(shown) > 1 and np.ptp([points[i][0] for i in shown]) < 1:
        for i, middle in zip(shown, _stacked([points[i][1] for i in shown], line, height), strict=True):
            found[i] = COLUMN + letter * len(names[i]) / 2, middle - points[i][1]
        return found
    # middle, and half of width and height
    taken: list[Sequence[float]] = [(x, y, SYMBOL, SYMBOL) for x, y in (*points, *others)]
    middles = np.array(points)
    near = {i: (np.abs(middles - points[i]) < (60, 30)).all(axis=1).sum() for i in shown}
    for i in sorted(shown, key=lambda i: -near[i]):  # those in a crowd choose first
        half = np.array([letter * len(names[i]) / 2 + 2, line / 2])
        boxes = np.array(taken)
        for offset in _around(float(half[0])):
            where = np.add(points[i], offset)
            inside = (where >= half).all() and (where <= np.array([width, height]) - half).all()
            if inside and not (np.abs(boxes[:, :2] - where) < boxes[:, 2:] + half + GAP).all(axis=1).any():
                found[i] = offset
                taken.append([*where, *half])
                break
    return found


def _around(half: float) -> Iterator[Pair]:
    """Offsets to try, the nearest first: a name's nearest edge, not its middle, lies at each distance."""
    for distance, (right, up) in itertools.product(DISTANCES, DIRECTIONS):
        yield right * distance + (math.copysign(half, right) if abs(right) > 0.1 else 0.0), up * distance


def _stacked(wanted: Sequence[float], line: float, height: float) -> list[float]:
    """Heights in the order of `wanted`, a line apart at least and as near to it as that allows."""
    from sklearn.isotonic import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    below = line * np.arange(len(wanted))  # lines that stand under each
    low, high = line / 2, max(height - line / 2 - below[-1], line / 2)
    found = np.empty(len(wanted))
    found[order] = isotonic_regression(np.asarray(wanted)[order] - below, y_min=low, y_max=high) + below
    return [float(middle) for middle in found]
