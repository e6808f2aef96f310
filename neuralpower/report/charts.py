"""What a picture shows, apart from who draws it: `static` draws files, `page` draws in a browser.

Numbers are in the units that the labels name; None is a point that is not known, and is left out, never drawn as 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from neuralpower.errors import InputError

Number = float | int | None
Mode = Literal["markers", "lines", "lines+markers"]

# Okabe and Ito's colours that show on white and on black, then four of Tol's: told apart with any colour vision.
PALETTE = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #808080 #AA4499 #44AA99 #999933".split()


@dataclass(frozen=True)
class Series:
    """Points that belong together: one colour, one symbol, one entry in the legend."""

    name: str
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    text: tuple[str, ...] = ()  # of each point, shown when it is pointed at
    values: tuple[Number, ...] = ()  # of each point, shown as its colour
    mode: Mode = "markers"
    dash: bool = False
    labels: tuple[str, ...] = ()  # of each point, standing beside it; "" for none

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        for what in ("y", "text", "values", "labels"):
            given = getattr(self, what)
            if len(given) != len(self.x) and (given or what == "y"):
                raise InputError(f"series {self.name!r}: {len(given)} {what} for {len(self.x)} x; give one for each")


@dataclass(frozen=True)
class XY:
    """Points and lines over two axes."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    value_label: str = ""
    note: str = ""

    def points(self, series: Series) -> list[int]:
        """Which points of a series can be drawn: all numbers known, and above 0 on an axis of logarithms."""
        return [
            i
            for i, (x, y, value) in enumerate(zip(series.x, series.y, series.values or series.x, strict=True))
            if _known(x, self.log_x) and _known(y, self.log_y) and _known(value, False)
        ]

    def named(self) -> tuple[list[tuple[Series, int]], list[str]]:
        """(series, number) of every point that can be drawn, and the name beside each."""
        every = [(series, i) for series in self.series for i in self.points(series)]
        return every, [series.labels[i] if series.labels else "" for series, i in every]


@dataclass(frozen=True)
class BarSeries:
    """One bar for each category."""

    name: str
    values: tuple[Number, ...]


@dataclass(frozen=True)
class Bars:
    """Bars over categories, beside each other or stacked."""

    title: str
    y_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    log_y: bool = False
    stacked: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        for series in self.series:
            if len(series.values) != len(self.categories):
                raise InputError(
                    f"bars {series.name!r}: {len(series.values)} values for {len(self.categories)} categories; "
                    "give one for each"
                )


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
        """Raises InputError where lengths differ."""
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            raise InputError(
                f"heat map {self.title!r}: values must be {len(self.rows)} rows of {len(self.columns)} columns"
            )


@dataclass(frozen=True)
class Pie:
    """Parts of one whole; values are 0 or more."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        if len(self.values) != len(self.labels) or any(value < 0 for value in self.values):
            raise InputError(f"pie {self.title!r}: one value of 0 or more for each of {len(self.labels)} labels")


@dataclass(frozen=True)
class Pies:
    """Pies beside each other; a label has the same colour in all."""

    title: str
    pies: tuple[Pie, ...]
    note: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all, the one with the largest shares first."""
        shares: dict[str, float] = {}
        for pie in self.pies:
            whole = sum(pie.values) or 1.0
            for label, value in zip(pie.labels, pie.values, strict=True):
                shares[label] = shares.get(label, 0.0) + value / whole
        return tuple(sorted(shares, key=lambda label: -shares[label]))


Chart = XY | Bars | Heatmap | Pies


def _known(value: Number, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def colour(index: int) -> str:
    """Of the n-th series; they repeat after ten."""
    return PALETTE[index % len(PALETTE)]


def symbol(index: int) -> int:
    """Number of the n-th series' symbol, 0 to 9: where colours repeat, symbols are others."""
    return (index + index // len(PALETTE)) % len(PALETTE)


def slug(title: str) -> str:
    """A file name of a title: lower case, digits and hyphens, at most 60 letters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "chart"


def limits(values: Sequence[float], log: bool) -> tuple[float, float]:
    """Ends of an axis that holds all values with some room: of their logarithms to base 10 where `log`."""
    scaled = [math.log10(value) if log else float(value) for value in values] or [0.0, 1.0]
    low, high = min(scaled), max(scaled)
    room = (high - low) * 0.06 or (0.5 if log else abs(high) * 0.5 or 1.0)
    return low - room, high + room


def room(values: Sequence[float], labels: Sequence[str], ends: tuple[float, float], log: bool) -> tuple[float, float]:
    """Ends of a horizontal axis, the right one farther out where names stand at the last points."""
    low, high = ends
    edge = high - 0.1 * (high - low)
    widest = max(
        (len(name) for x, name in zip(values, labels, strict=True) if name and (math.log10(x) if log else x) >= edge),
        default=0,
    )
    return low, high + (high - low) * min(0.3, widest * 0.011)


def cell(value: Number) -> str:
    """Digits of a cell: three significant ones, a dash for what is not known."""
    return "-" if value is None else f"{value:.3g}"
