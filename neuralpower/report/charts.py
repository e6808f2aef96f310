"""Descriptions of charts; `svg_charts` draws them on pages, `chart_files` puts the drawings into files.

Labels name the units. None is an unknown value: it is skipped, not drawn as 0.
Other style is in `page.css` in this folder.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import Any, Literal

from neuralpower.errors import InputError
from neuralpower.report.axes import Axis, axis, limits, logarithmic

PLOTS = (".html", ".png", ".svg")
NO_MATPLOTLIB = "PNG needs matplotlib: pip install matplotlib; FILE.html and FILE.svg need nothing else"
Number = float | int | None
Named = tuple[Number, Number, str]  # x, y and the text of a point
Ends = tuple[float, float]
Mode = Literal["markers", "lines", "lines+markers"]

# Okabe and Ito's colours for white and black paper, then four of Tol's: distinct with any colour vision.
PALETTE = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #808080 #AA4499 #44AA99 #999933".split()


BARS_SPAN = 30.0  # as `axes.SPAN`, for bars, whose length should begin at 0


SYMBOLS = [  # outlines around (0, 0), 10 wide, y downward
    "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z",
    "M-4,-4h8v8h-8z",
    "M0,-5.5L5,0L0,5.5L-5,0z",
    "M-5,-4H5L0,5z",
    "M-5,4H5L0,-5z",
    "M-1.7,-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "M-4.6,-2.4L-2.4,-4.6L0,-2.2L2.4,-4.6L4.6,-2.4L2.2,0L4.6,2.4L2.4,4.6L0,2.2L-2.4,4.6L-4.6,2.4L-2.2,0z",
    "M4,-5V5L-5,0z",
    "M-4,-5V5L5,0z",
    "M0,-6L1.5,-2L5.7,-1.8L2.4,0.8L3.5,4.9L0,2.6L-3.5,4.9L-2.4,0.8L-5.7,-1.8L-1.5,-2z",
]


def colour(index: int) -> str:
    """The n-th series' colour; they repeat after ten."""
    return PALETTE[index % len(PALETTE)]


def symbol(index: int) -> str:
    """The n-th series' symbol; series of the same colour have different symbols."""
    return SYMBOLS[(index + index // len(PALETTE)) % len(SYMBOLS)]


@dataclass(frozen=True)
class Series:
    """Points that belong together: one colour, one symbol, one entry in the legend."""

    name: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    text: tuple[str, ...] = ()  # of each point, shown under the pointer
    values: tuple[Number, ...] = ()  # of each point, shown as its colour
    mode: Mode = "markers"
    dash: bool = False
    halo: bool = False  # a wide, pale line that marks the points on it
    labels: tuple[str, ...] = ()  # of each point, shown next to it; "" for none
    bounds: tuple[tuple[float, float] | None, ...] = ()  # of each y; a pale band joins those of a line

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[Number, Number] | Named], **more: Any) -> Series:
        """From (x, y) or (x, y, text) of each point; `more`: the other fields."""
        x, y, *rest = [*zip(*points, strict=True)] or [(), ()]
        return cls(name, x, y, **{"text": rest[0] if rest else (), **more})

    def __post_init__(self) -> None:
        """Raises InputError if lengths differ."""
        for what in ("y", "text", "values", "labels", "bounds"):
            given = len(getattr(self, what))
            if given != len(self.x) and (given or what == "y"):
                counts = f"{given} {what} for {len(self.x)} x"
                raise InputError(f"series {self.name!r}: {counts}; give one for each")

    def where(self, kept: Sequence[bool]) -> Series:
        """Only the kept points."""
        columns = {name: getattr(self, name) for name in ("x", "y", "text", "values", "labels", "bounds")}
        found: dict[str, Any] = {name: tuple(compress(all_, kept)) for name, all_ in columns.items()}
        return replace(self, **found)


@dataclass(frozen=True)
class XY:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False  # if the values span enough (`axes.logarithmic`)
    log_y: bool = False
    value_label: str = ""
    note: str = ""

    @property
    def logs(self) -> tuple[bool, bool]:
        """Whether each axis is logarithmic: the chart wants it, and the values span enough."""
        drawn = self.drawn()
        x, y = ([v for s in drawn for v in getattr(s, name) if v is not None] for name in "xy")
        return logarithmic(x, self.log_x), logarithmic(y, self.log_y)

    def axes(self, ends: tuple[Ends, Ends], most: tuple[int, int]) -> tuple[Axis, Axis]:
        """Both axes between ends in their units, each with at most about `most` ticks."""
        logs, drawn = self.logs, self.drawn()
        sizes = [[v for s in drawn if "markers" in s.mode for v in getattr(s, name)] for name in "xy"]
        x, y = (axis(*ends[i], logs[i], most[i], sizes[i]) for i in range(2))
        return x, y

    def drawn(self) -> list[Series]:
        """The series with their drawable points: known ones, above 0 on a logarithmic axis."""
        found = []
        for series in self.series:
            points = zip(series.x, series.y, series.values or series.x, strict=True)
            known = [_known(x, self.log_x) and _known(y, self.log_y) and _known(v) for x, y, v in points]
            found.append(series.where(known))
        return found


@dataclass(frozen=True)
class BarSeries:
    """One bar for each category, with its bounds if known."""

    name: str
    values: tuple[Number, ...]
    bounds: tuple[tuple[float, float] | None, ...] = ()

    def bound(self, index: int) -> tuple[float, float] | None:
        return self.bounds[index] if self.bounds else None


@dataclass(frozen=True)
class Bars:
    """Bars over categories, side by side or stacked."""

    title: str
    y_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    log_y: bool = False  # if the values span enough
    stacked: bool = False
    note: str = ""

    def axis(self, most: int) -> Axis:
        """The axis of the values: from 0, or from the decade below the smallest on a logarithmic one."""
        known = [v for s in self.series for v in s.values if v is not None and math.isfinite(v)]
        known += [end for s in self.series for pair in s.bounds if pair is not None for end in pair]
        if logarithmic(known, self.log_y and not self.stacked, BARS_SPAN):
            lows = [math.log10(v) for v in known if v > 0]
            return axis(math.floor(min(lows) - 0.1), limits(lows, True)[1], True, most)
        if self.stacked:
            known = [sum(s.values[i] or 0.0 for s in self.series) for i in range(len(self.categories))]
        low, high = min([0.0, *known]), max([0.0, *known]) or 1.0
        return axis(low * 1.06, high * 1.06, False, most)

    def __post_init__(self) -> None:
        """Raises InputError if lengths differ."""
        _check_lengths("bars", self.series, len(self.categories), "categories")


@dataclass(frozen=True)
class Heatmap:
    """A number for each row and column, as a colour and in digits; `values` [rows][columns]."""

    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[Number, ...], ...]
    value_label: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        """Raises InputError if lengths differ."""
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            sizes = f"{len(self.rows)} rows of {len(self.columns)} columns"
            raise InputError(f"heat map {self.title!r}: values must be {sizes}")

    def digits(self) -> list[list[str]]:
        """The cells' texts: three significant digits, a dash for None."""
        return [["-" if value is None else f"{value:.3g}" for value in row] for row in self.values]


@dataclass(frozen=True)
class Pie:
    """Parts of one whole; values are 0 or more."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises InputError if lengths differ, or for a value below 0."""
        if len(self.values) != len(self.labels) or any(value < 0 for value in self.values):
            text = f"one value of 0 or more for each of {len(self.labels)} labels"
            raise InputError(f"pie {self.title!r}: {text}")


@dataclass(frozen=True)
class Pies:
    """Pies side by side; a label has the same colour in all."""

    title: str
    pies: tuple[Pie, ...]
    note: str = ""

    def colours(self) -> dict[str, str]:
        """A colour for each label of all pies; labels with the largest shares come first."""
        shares: Counter[str] = Counter()
        for pie in self.pies:
            whole = sum(pie.values) or 1.0
            for label, value in zip(pie.labels, pie.values, strict=True):
                shares[label] += value / whole  # type: ignore[assignment]  # counts may be floats
        return {label: colour(i) for i, (label, _) in enumerate(shares.most_common())}

    @property
    def beside(self) -> int:
        """Pies in a row, if the page is wide enough."""
        return 2 if len(self.pies) == 4 else min(3, max(1, len(self.pies)))


@dataclass(frozen=True)
class Areas:
    """Areas stacked over an axis, each value holding until the next x; lines mark where something begins."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]  # rising
    areas: tuple[BarSeries, ...]  # the lowest first; values 0 or more, one for each x
    marks: tuple[tuple[float, str], ...] = ()  # (x, name) of what begins there
    top: tuple[float, str] | None = None  # (x, name) of the value that matters
    note: str = ""

    def __post_init__(self) -> None:
        """Raises InputError if lengths differ."""
        _check_lengths("areas", self.areas, len(self.x), "x")

    def edges(self) -> list[tuple[float, ...]]:
        """The upper edge of each area, at each x."""
        found: list[tuple[float, ...]] = []
        for one in self.areas:
            below = found[-1] if found else (0.0,) * len(self.x)
            found.append(tuple(low + (value or 0.0) for low, value in zip(below, one.values, strict=True)))
        return found

    def axes(self, most: tuple[int, int]) -> tuple[Axis, Axis]:
        """Both axes, each with at most about `most` ticks."""
        high = max(max(edge, default=0.0) for edge in self.edges()) if self.areas else 0.0
        ends = (self.x[0], max(self.x[-1], self.x[0] + 1.0)) if self.x else (0.0, 1.0)
        return axis(*ends, False, most[0]), axis(0.0, 1.08 * high or 1.0, False, most[1])


Chart = XY | Bars | Heatmap | Pies | Areas


def check_plot(path: Path) -> None:
    """Raise InputError for an ending that is not in PLOTS, and for a PNG without matplotlib."""
    if path.suffix not in PLOTS:
        text = f"the ending must be one of {', '.join(PLOTS)}; choose another name"
        raise InputError(f"plot {str(path)!r}: {text}")
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise InputError(f"plot {str(path)!r}: {NO_MATPLOTLIB}")


def _check_lengths(what: str, series: Iterable[BarSeries], count: int, places: str) -> None:
    for one in series:
        if len(one.values) != count:
            counts = f"{len(one.values)} values for {count} {places}"
            raise InputError(f"{what} {one.name!r}: {counts}; give one for each")


def _known(value: Number, log: bool = False) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def slug(title: str) -> str:
    """A file name of a title: lower case, digits and hyphens, at most 60 letters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "chart"
