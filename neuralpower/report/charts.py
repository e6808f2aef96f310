"""What a chart shows, apart from who draws it: `plotly_charts` on pages, `matplotlib_charts` into files.

Labels name the units. None is a point that is not known: it is left out, not drawn as 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from neuralpower.errors import InputError

Number = float | int | None
Named = tuple[Number, Number, str]  # x, y and the text of a point
Mode = Literal["markers", "lines", "lines+markers"]


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

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[Number, Number] | Named], **more: Any) -> Series:
        """Of (x, y) or (x, y, text) of each point; `more`: the other fields."""
        x, y, *rest = [*zip(*points, strict=True)] or [(), ()]
        return cls(name, x, y, **{"text": rest[0] if rest else (), **more})

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        for what in ("y", "text", "values", "labels"):
            given = getattr(self, what)
            if len(given) != len(self.x) and (given or what == "y"):
                counts = f"{len(given)} {what} for {len(self.x)} x"
                raise InputError(f"series {self.name!r}: {counts}; give one for each")

    def at(self, places: Iterable[int]) -> Series:
        """The points at these places alone."""
        kept = [*places]
        columns = {name: getattr(self, name) for name in ("x", "y", "text", "values", "labels")}
        found: dict[str, Any] = {name: tuple(all_[i] for i in kept) for name, all_ in columns.items() if all_}
        return replace(self, **found)


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

    def drawn(self) -> list[Series]:
        """The series with the points that can be drawn: known ones, above 0 on an axis of logarithms."""
        found = []
        for series in self.series:
            points = zip(series.x, series.y, series.values or series.x, strict=True)
            known = [_known(x, self.log_x) and _known(y, self.log_y) and _known(v) for x, y, v in points]
            found.append(series.at(i for i, drawable in enumerate(known) if drawable))
        return found


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
        for one in self.series:
            if len(one.values) != len(self.categories):
                counts = f"{len(one.values)} values for {len(self.categories)} categories"
                raise InputError(f"bars {one.name!r}: {counts}; give one for each")


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
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            sizes = f"{len(self.rows)} rows of {len(self.columns)} columns"
            raise InputError(f"heat map {self.title!r}: values must be {sizes}")

    def digits(self) -> list[list[str]]:
        """Of each cell: three significant ones, a dash for what is not known."""
        return [["-" if value is None else f"{value:.3g}" for value in row] for row in self.values]


@dataclass(frozen=True)
class Pie:
    """Parts of one whole; values are 0 or more."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        if len(self.values) != len(self.labels) or any(value < 0 for value in self.values):
            count = len(self.labels)
            raise InputError(f"pie {self.title!r}: one value of 0 or more for each of {count} labels")


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

    @property
    def beside(self) -> int:
        """How many stand beside each other, where there is room."""
        return 2 if len(self.pies) == 4 else min(3, max(1, len(self.pies)))

    @property
    def below(self) -> int:
        """How many stand below each other."""
        return max(1, math.ceil(len(self.pies) / self.beside))


Chart = XY | Bars | Heatmap | Pies


def _known(value: Number, log: bool = False) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def slug(title: str) -> str:
    """A file name of a title: lower case, digits and hyphens, at most 60 letters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "chart"
