"""Charts, apart from how they are drawn: by `plotly_charts` on pages, by `matplotlib_charts` into files.

Labels name the units. None is an unknown value: it is left out, not drawn as 0.
All other style stands beside this file: `page.css` and `page.js` of pages, `theme.mplstyle` of pictures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Literal, NamedTuple

from neuralpower.errors import InputError

Number = float | int | None
Named = tuple[Number, Number, str]  # x, y and the text of a point
Mode = Literal["markers", "lines", "lines+markers"]

# Okabe and Ito's colours for white and black paper, then four of Tol's: any colour vision tells them apart.
PALETTE = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #808080 #AA4499 #44AA99 #999933".split()


class Mark(NamedTuple):
    """One shape, under the names that plotly and matplotlib have for it."""

    plotly: str
    matplotlib: str


SYMBOLS = [
    Mark(*pair.split())
    for pair in (
        *("circle o", "square s", "diamond D", "triangle-down v", "triangle-up ^"),
        *("cross P", "x X", "triangle-left <", "triangle-right >", "star *"),
    )
]
HATCHES = [Mark(one, one * 3) for one in ("", "/", ".", "x", "\\", "+")]


def colour(index: int) -> str:
    """The n-th series' colour; they repeat after ten."""
    return PALETTE[index % len(PALETTE)]


def symbol(index: int) -> Mark:
    """The n-th series' symbol; where colours repeat, symbols differ."""
    return SYMBOLS[(index + index // len(PALETTE)) % len(SYMBOLS)]


def hatch(index: int) -> Mark:
    """The pattern of the n-th series' bars."""
    return HATCHES[index % len(HATCHES)]


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
    labels: tuple[str, ...] = ()  # of each point, shown beside it; "" for none

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[Number, Number] | Named], **more: Any) -> Series:
        """From (x, y) or (x, y, text) of each point; `more`: the other fields."""
        x, y, *rest = [*zip(*points, strict=True)] or [(), ()]
        return cls(name, x, y, **{"text": rest[0] if rest else (), **more})

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ."""
        for what in ("y", "text", "values", "labels"):
            given = len(getattr(self, what))
            if given != len(self.x) and (given or what == "y"):
                counts = f"{given} {what} for {len(self.x)} x"
                raise InputError(f"series {self.name!r}: {counts}; give one for each")

    def where(self, kept: Sequence[bool]) -> Series:
        """The kept points alone."""
        columns = {name: getattr(self, name) for name in ("x", "y", "text", "values", "labels")}
        found: dict[str, Any] = {name: tuple(compress(all_, kept)) for name, all_ in columns.items()}
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
        """The series with their drawable points: known ones, above 0 on a logarithmic axis."""
        found = []
        for series in self.series:
            points = zip(series.x, series.y, series.values or series.x, strict=True)
            known = [_known(x, self.log_x) and _known(y, self.log_y) and _known(v) for x, y, v in points]
            found.append(series.where(known))
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
        """The cells' texts: three significant digits, a dash for None."""
        return [["-" if value is None else f"{value:.3g}" for value in row] for row in self.values]


@dataclass(frozen=True)
class Pie:
    """Parts of one whole; values are 0 or more."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ, or for a value below 0."""
        if len(self.values) != len(self.labels) or any(value < 0 for value in self.values):
            text = f"one value of 0 or more for each of {len(self.labels)} labels"
            raise InputError(f"pie {self.title!r}: {text}")


@dataclass(frozen=True)
class Pies:
    """Pies beside each other; a label has the same colour in all."""

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
        """Pies in a row, where there is room."""
        return 2 if len(self.pies) == 4 else min(3, max(1, len(self.pies)))

    @property
    def below(self) -> int:
        """Rows of pies."""
        return max(1, math.ceil(len(self.pies) / self.beside))


Chart = XY | Bars | Heatmap | Pies


def _known(value: Number, log: bool = False) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def slug(title: str) -> str:
    """A file name of a title: lower case, digits and hyphens, at most 60 letters."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].rstrip("-") or "chart"
