"""A drawing of one size, as SVG: texts, lines, boxes, symbols, a legend, and names that cover nothing."""

from __future__ import annotations

import importlib.resources
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from markupsafe import escape

from neuralpower.files.terminal import visible
from neuralpower.report.axes import limits, scaled
from neuralpower.report.charts import XY, symbol

CIVIDIS = ((0, 32, 77), (65, 77, 107), (124, 123, 120), (188, 175, 111), (255, 234, 70))  # even steps of it


class Size(NamedTuple):
    """Sizes of a drawing in pixels: its width, and a letter and a line of its text."""

    name: str
    width: float
    letter: float
    line: float
    height: float  # of a plot

    def room(self, text: str) -> float:
        return self.letter * len(text)


SIZES = (Size("wide", 880, 7.0, 18, 345), Size("narrow", 370, 6.9, 17, 300))


@dataclass
class Canvas:
    """Marks on a drawing of one size; `height` grows with them."""

    size: Size
    height: float = 0.0
    marks: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, anchor: str = "start", more: str = "") -> None:
        """A line of text, its middle at y."""
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.marks.append(f'<text x="{number(x)}" y="{number(y + 4)}"{where}{more}>{letters(text)}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, kind: str = "g") -> None:
        """A line of the grid, or of another class."""
        self.marks.append(f'<path class="{kind}" d="M{number(x0)},{number(y0)}L{number(x1)},{number(y1)}"/>')

    def box(self, x: float, y: float, width: float, height: float, fill: str, title: str = "") -> None:
        where = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        self.marks.append(f'<rect {where} fill="{fill}">{_title(title)}</rect>')

    def path(self, d: str, more: str, title: str = "") -> None:
        self.marks.append(f'<path d="{d}" {more}>{_title(title)}</path>')

    def mark(self, index: int, x: float, y: float, fill: str, title: str = "", kind: str = "m") -> None:
        more = f'class="{kind}" fill="{fill}" transform="translate({number(x)},{number(y)})"'
        self.path(symbol(index), more, title)

    def legend(self, entries: Sequence[tuple[str, Callable[[float, float], None]]]) -> None:
        """A legend in columns: each name follows the symbol that its function draws at (x, middle)."""
        x, y = 4.0, self.height + 10
        for name, draw in entries:
            shown = shortened(name, int((self.size.width - 40) / self.size.letter))
            wide = 34 + self.size.room(shown)
            if x > 4 and x + wide > self.size.width:
                x, y = 4.0, y + self.size.line
            draw(x, y)
            self.text(x + 24, y, shown)
            x += wide
        self.height = y + 14

    def svg(self, title: str) -> str:
        name, width = self.size.name, self.size.width
        about = f'role="img" aria-label="{letters(title)}"'
        box = f'class="{name}" viewBox="0 0 {number(width)} {number(self.height)}"'
        return f"<svg {box} {about}>{''.join(self.marks)}</svg>"


def shortened(text: str, most: int) -> str:
    """The text, cut to at most `most` letters."""
    return text if len(text) <= most else f"{text[: max(1, most - 2)].rstrip()} .."


def shade(share: float) -> tuple[int, int, int]:
    """A colour of the scale, from 0, dark blue, to 1, yellow."""
    place = min(max(share, 0.0), 1.0) * (len(CIVIDIS) - 1)
    low = CIVIDIS[min(int(place), len(CIVIDIS) - 2)]
    high = CIVIDIS[min(int(place) + 1, len(CIVIDIS) - 1)]
    part = place - min(int(place), len(CIVIDIS) - 2)
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def letters(text: str) -> str:
    """Escaped text, for elements and quoted attributes."""
    return str(escape(visible(text.replace("\n", " "))))


def _title(text: str) -> str:
    return f"<title>{letters(text)}</title>" if text else ""


def hex_colour(rgb: Sequence[int]) -> str:
    """#rrggbb of red, green and blue, each from 0 to 255."""
    return "#" + "".join(f"{part:02x}" for part in rgb)


def stylesheet() -> str:
    return importlib.resources.files("neuralpower.report").joinpath("page.css").read_text(encoding="utf-8")


# Place the names of points so that they cover neither each other nor other points.

Pair = tuple[float, float]

# Twelve ways from a point, the best first; lengths here are pixels.
ANGLES = [math.pi * k / 6 for k in (1, 11, 3, 9, 0, 6, 5, 7, 2, 10, 4, 8)]
DIRECTIONS = [(math.cos(angle), math.sin(angle)) for angle in ANGLES]
DISTANCES = (10.0, 18.0, 28.0, 40.0, 55.0, 75.0, 100.0, 130.0, 170.0)
COLUMN = 14.0  # to the right of the ends of lines, where a column of names begins
SYMBOL = 5.0  # half of a point's symbol
GAP = 2.0  # between two names
FAR = 20.0  # distance from which a line joins a name to its point


class Label(NamedTuple):
    """A name and its point, in units of the axes; on a logarithmic axis log10."""

    text: str
    x: float
    y: float
    offset: Pair  # from the point to the name's middle, pixels, y upward
    far: bool


class Named(NamedTuple):
    """The names of a chart, and the ends of axes that leave space for them, in the labels' units."""

    labels: list[Label]
    x_ends: Pair
    y_ends: Pair


class Plot(NamedTuple):
    """Sizes in pixels: of a plot, and of a letter and a line of its names."""

    width: float
    height: float
    letter: float = 6.5
    line: float = 13.0


def named(chart: XY, plot: Plot) -> Named:
    """Place names on a plot of that size, and find the ends of its axes."""
    series = chart.drawn()
    names = [name for s in series for name in s.labels or [""] * len(s.x)]
    log_x, log_y = chart.logs
    x = [scaled(value, log_x) for s in series for value in s.x]
    y = [scaled(value, log_y) for s in series for value in s.y]
    far = [scaled(v, log_y) for s in series for pair in s.bounds for v in pair or () if v > 0 or not log_y]
    x_ends, y_ends = limits(x, log_x), limits([*y, *far], log_y)
    x_ends = x_ends[0], x_ends[1] + _room(x, names, x_ends, plot)
    if not any(names):
        return Named([], x_ends, y_ends)
    at = list(zip(_shares(x, x_ends, plot.width), _shares(y, y_ends, plot.height), strict=True))
    pixels = iter(at)
    runs = [[next(pixels) for _ in s.x] for s in series]
    others = [p for s, run in zip(series, runs, strict=True) if "lines" in s.mode for p in along(run)]
    offsets = place(at, names, plot, others)
    found = []
    for name, a, b, offset in zip(names, x, y, offsets, strict=True):
        if offset is not None:
            beside = max(0.0, abs(offset[0]) - plot.letter * len(name) / 2)
            found.append(Label(name, a, b, offset, math.hypot(beside, offset[1]) > FAR))
    return Named(found, x_ends, y_ends)


def _room(values: Sequence[float], names: Sequence[str], ends: Pair, plot: Plot) -> float:
    """The factor by which a horizontal axis must grow for names at its last points."""
    length = ends[1] - ends[0]
    shown = {x: len(name) for x, name in zip(values, names, strict=True) if name}
    last = [len(name) for x, name in zip(values, names, strict=True) if x >= ends[1] - 0.1 * length]
    needed = max(last, default=0) * plot.letter / plot.width
    if len(names) > 1 and len(shown) == 1:  # all names in a column
        share = min(0.5, needed + 2 * COLUMN / plot.width)
        return length * share / (1 - share)
    return length * min(0.3, needed * 1.3)


def _shares(values: Sequence[float], ends: Pair, length: float) -> list[float]:
    return [(value - ends[0]) / (ends[1] - ends[0]) * length for value in values]


def along(ends: Sequence[Pair]) -> list[Pair]:
    """Points of a broken line, so close that no name fits between them; pixels."""
    found = list(ends[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 8))
        found += [(x0 + (x1 - x0) * k / count, y0 + (y1 - y0) * k / count) for k in range(1, count + 1)]
    return found


def place(
    points: Sequence[Pair], names: Sequence[str], plot: Plot, others: Sequence[Pair] = ()
) -> list[Pair | None]:
    """Offset of each name's middle from its point (y upward); None if there is no space.

    `points` are pixels from the lower left corner, `others` more points to keep free; "" needs no space.
    """
    _, height, letter, line = plot
    shown = [i for i, name in enumerate(names) if name]
    places: list[Pair | None] = [None] * len(points)
    if len(shown) > 1 and np.ptp([points[i][0] for i in shown]) < 1:
        for i, middle in zip(shown, _stacked([points[i][1] for i in shown], line, height), strict=True):
            places[i] = COLUMN + letter * len(names[i]) / 2, middle - points[i][1]
        return places
    # x, y, half of width and height
    taken: list[Sequence[float]] = [(x, y, SYMBOL, SYMBOL) for x, y in (*points, *others)]
    middles = np.array(points)
    near = {i: (np.abs(middles - points[i]) < (60, 30)).all(axis=1).sum() for i in shown}
    order = sorted(shown, key=lambda i: -near[i])  # crowded ones choose first
    for number, i in enumerate((*order, *order)):
        if number == len(order):  # a name on a line is better than none
            del taken[len(points) : len(points) + len(others)]
        half = np.array([letter * len(names[i]) / 2 + 2, line / 2])
        boxes = np.array(taken)
        for offset in () if places[i] else _around(float(half[0])):
            where = np.add(points[i], offset)
            inside = (where >= half).all() and (where <= np.array(plot[:2]) - half).all()
            if inside and not (np.abs(boxes[:, :2] - where) < boxes[:, 2:] + half + GAP).all(axis=1).any():
                places[i] = offset
                taken.append([*where, *half])
                break
    return places


def _around(half: float) -> Iterator[Pair]:
    """Offsets to try, the nearest first; the distance is that of a name's nearest edge."""
    for distance, (right, up) in itertools.product(DISTANCES, DIRECTIONS):
        yield right * distance + (math.copysign(half, right) if abs(right) > 0.1 else 0.0), up * distance


def _stacked(wanted: Sequence[float], line: float, height: float) -> list[float]:
    """Heights as near to `wanted` as possible, in its order and at least a line apart.

    After subtracting the lines below, heights must not fall: neighbours that fall get their mean, lowest
    first.
    """
    order = np.argsort(wanted, kind="stable")
    below = line * np.arange(len(wanted))  # height of the lines under each
    groups: list[tuple[float, int]] = []  # mean, count
    for free in np.asarray(wanted)[order] - below:
        mean, count = float(free), 1
        while groups and groups[-1][0] >= mean:
            other, more = groups.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        groups.append((mean, count))
    low, high = line / 2, max(height - line / 2 - below[-1], line / 2)
    found = np.empty(len(wanted))
    level = [mean for mean, count in groups for _ in range(count)]
    found[order] = np.clip(level, low, high) + below
    return [float(middle) for middle in found]
