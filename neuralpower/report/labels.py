"""Where the names of points go so that they neither cover each other nor other points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from neuralpower.report.charts import Series

Box = tuple[float, float, float, float]  # left, bottom, right, top

DIRECTIONS = tuple(
    (math.cos(a), math.sin(a)) for a in (math.pi * k / 6 for k in (1, 11, 3, 9, 0, 6, 5, 7, 2, 10, 4, 8))
)
DISTANCES = (10.0, 18.0, 28.0, 40.0, 55.0, 75.0, 100.0, 130.0, 170.0)  # pixels
COLUMN = 14.0  # pixels to the right of the ends of lines, where their names stand below each other
SYMBOL = 5.0  # pixels that a point reaches from its middle
GAP = 2.0


def place(
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    width: float,
    height: float,
    *,
    others: Sequence[tuple[float, float]] = (),
    letter: float = 6.5,
    line: float = 13.0,
) -> list[tuple[float, float] | None]:
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
    named = [i for i, name in enumerate(names) if name]
    if len(named) > 1 and max(points[i][0] for i in named) - min(points[i][0] for i in named) < 1:
        heights = _stacked([points[i][1] for i in named], line, height)
        column = dict(zip(named, heights, strict=True))
        return [
            (COLUMN + letter * len(name) / 2, column[i] - points[i][1]) if i in column else None
            for i, name in enumerate(names)
        ]
    symbols = [(x - SYMBOL, y - SYMBOL, x + SYMBOL, y + SYMBOL) for x, y in (*points, *others)]
    taken: list[Box] = []
    found: list[tuple[float, float] | None] = [None] * len(points)
    for i in sorted(range(len(points)), key=lambda i: -_crowd(points, i)):
        if names[i]:
            size = (letter * len(names[i]) + 4, line)
            found[i] = _free(points[i], size, (width, height), symbols, taken)
    return found


def _stacked(wanted: Sequence[float], line: float, height: float) -> list[float]:
    """Heights in the order of `wanted`, a line apart at least and as near to it as that allows."""
    from sklearn.isotonic import isotonic_regression

    order = np.argsort(wanted, kind="stable")
    below = line * np.arange(len(wanted))  # lines that stand under each
    low, high = line / 2, max(height - line / 2 - below[-1], line / 2)
    found = np.empty(len(wanted))
    found[order] = isotonic_regression(np.asarray(wanted)[order] - below, y_min=low, y_max=high) + below
    return [float(middle) for middle in found]


def along(ends: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of a broken line, so near each other that no name fits between them; pixels."""
    found = list(ends[:1])
    for (x0, y0), (x1, y1) in pairwise(ends):
        count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 8))
        found += [(x0 + (x1 - x0) * k / count, y0 + (y1 - y0) * k / count) for k in range(1, count + 1)]
    return found


def on_lines(points: Sequence[tuple[Series, int]], pixels: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """`along` every line that some points of a chart are joined by."""
    runs = groupby(zip(points, pixels, strict=True), key=lambda pair: pair[0][0])
    return [at for series, run in runs if "lines" in series.mode for at in along([end for _, end in run])]


def is_far(offset: tuple[float, float], name: str, letter: float = 6.5) -> bool:
    """Whether a name lies so far from its point that a line should join them."""
    return math.hypot(max(0.0, abs(offset[0]) - letter * len(name) / 2), offset[1]) > 20


def _crowd(points: Sequence[tuple[float, float]], i: int) -> int:
    """How many points are near: those in a crowd choose first."""
    x, y = points[i]
    return sum(abs(x - a) < 60 and abs(y - b) < 30 for a, b in points)


def _free(
    point: tuple[float, float],
    size: tuple[float, float],
    plot: tuple[float, float],
    symbols: Sequence[Box],
    taken: list[Box],
) -> tuple[float, float] | None:
    for distance in DISTANCES:
        # the nearest edge of the box, not its middle, lies at that distance
        around = [
            (right * distance + (math.copysign(size[0] / 2, right) if abs(right) > 0.1 else 0.0), up * distance)
            for right, up in DIRECTIONS
        ]
        for dx, dy in around:
            x, y = point[0] + dx, point[1] + dy
            box = (x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= plot[0] and box[3] <= plot[1]
            if inside and not any(_meet(box, other) for other in (*symbols, *taken)):
                taken.append(box)
                return dx, dy
    return None


def _meet(a: Box, b: Box) -> bool:
    return a[0] - GAP < b[2] and b[0] - GAP < a[2] and a[1] - GAP < b[3] and b[1] - GAP < a[3]
