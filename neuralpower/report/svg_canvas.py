"""A drawing of one size, as SVG: texts, lines, boxes, symbols, a legend."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import escape

from neuralpower.files.terminal import visible
from neuralpower.report.charts import symbol

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
