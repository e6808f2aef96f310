"""A page of text, tables and charts, as one HTML file, or as Markdown with pictures.

The HTML holds its charts as drawings. It runs no script and loads nothing; its policy forbids both.
"""

from __future__ import annotations

import base64
import functools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from neuralpower.errors import InputError, writing
from neuralpower.files import csv_files
from neuralpower.files.atomic import aside
from neuralpower.files.terminal import visible
from neuralpower.report import chart_files
from neuralpower.report.charts import Chart, slug
from neuralpower.report.grid import Share as Share
from neuralpower.report.svg_canvas import stylesheet
from neuralpower.report.svg_charts import drawing

T = TypeVar("T")


class Nested(str):
    """A cell: a name indented by a number of steps, since it is a part of one above."""

    depth: int

    def __new__(cls, text: str, depth: int) -> Nested:
        made = super().__new__(cls, text)
        made.depth = depth
        return made


Cell = str | float | int | None
Columns = Mapping[str, Callable[[T], Cell]]  # the cell of a record under each header
NUMBER = re.compile(r"[-+]?\d")
INDENT = "\u2003"  # prefix of a nested name, for each step


@dataclass(frozen=True)
class Table:
    """Columns whose header names their units; numbers stay numbers, None is unknown."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @classmethod
    def of(cls, title: str, records: Iterable[T], columns: Columns[T], note: str = "") -> Table:
        """A row for each record; `columns` give its cell under each header."""
        rows = tuple(tuple(cell(record) for cell in columns.values()) for record in records)
        return cls(title, tuple(columns), rows, note)

    def __post_init__(self) -> None:
        """Raises InputError if a row has more or fewer cells than the header."""
        for row in self.rows:
            if len(row) != len(self.header):
                raise InputError(f"table {self.title!r}: {len(row)} cells under {len(self.header)} headers")

    def numbers(self) -> list[bool]:
        """Whether each column holds numbers, alone or with a unit."""
        columns = [
            [row[i] for row in self.rows if row[i] not in (None, "", "-")] for i in range(len(self.header))
        ]
        return [bool(cells) and all(map(_is_number, cells)) for cells in columns]

    def texts(self) -> list[list[str]]:
        return [[*map(shown, row)] for row in self.rows]


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or (NUMBER.match(cell) is not None and len(cell) < 16)


@dataclass(frozen=True)
class Picture:
    """A PNG, such as a photograph."""

    title: str
    png: bytes
    note: str = ""


Part = Chart | Table | Picture
P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, then charts, tables and pictures.

    A paragraph holds `code` in backticks and addresses, which become links. "- " begins a list's item.
    """

    title: str
    text: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    level: int = 2  # 3: part of the section before it


@dataclass(frozen=True)
class Page:
    """A title, an introduction, sections."""

    title: str
    lead: str
    sections: tuple[Section, ...]

    def __post_init__(self) -> None:
        """Number parts that share a title, so that each title is unique."""
        seen: Counter[str] = Counter()
        sections = []
        for section in self.sections:
            parts = []
            for part in section.parts:
                seen[part.title] += 1
                again = seen[part.title]
                parts.append(part if again == 1 else replace(part, title=f"{part.title} ({again})"))
            sections.append(replace(section, parts=tuple(parts)))
        object.__setattr__(self, "sections", tuple(sections))

    def parts(self) -> list[Part]:
        return [part for section in self.sections for part in section.parts]

    def charts(self) -> list[tuple[str, Chart]]:
        """(unique file name without suffix, chart), in their order."""
        return _numbered(part for part in self.parts() if not isinstance(part, Table | Picture))

    def tables(self) -> list[tuple[str, Table]]:
        """(unique file name without suffix, table), in their order."""
        return _numbered(part for part in self.parts() if isinstance(part, Table))


def _numbered(parts: Iterable[P]) -> list[tuple[str, P]]:
    return [(f"{i:02}-{slug(part.title)}", part) for i, part in enumerate(parts, 1)]


def shown(value: Cell) -> str:
    """A cell's text: four digits, or all before the point, in groups of three; "-" for unknown ones."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str):
        return f"{INDENT * value.depth}{value}" if isinstance(value, Nested) else value
    if isinstance(value, Share):
        return f"{value:.1%}"
    if not math.isfinite(value):
        return "-"
    small = abs(value) < 999.95 and not float(value).is_integer()
    return f"{value:.4g}" if small else f"{value:,.0f}"


def html_text(page: Page) -> str:
    """One HTML file that needs no network and no script."""
    return render("page.html.j2", page=page, css=css(), **_PARTS)


def write_html(page: Page, path: Path) -> None:
    """Write `html_text`; raises InputError if the place is not writable."""
    _write(path, html_text(page))


def write_markdown(
    page: Page, path: Path, images: Path, formats: Sequence[str] = ("png", "svg")
) -> dict[str, tuple[Path, ...]]:
    """Write the page, and its pictures into `images`; return the files of each chart."""
    drawn = {stem: chart_files.save(chart, images, stem, formats) for stem, chart in page.charts()}
    pictures = [part for part in page.parts() if isinstance(part, Picture)]
    stored = [images / f"{slug(picture.title)}.png" for picture in pictures]
    for file, picture in zip(stored, pictures, strict=True):
        _write(file, picture.png)

    def links(files: Iterable[Path]) -> Iterator[str]:
        return (Path(os.path.relpath(file, path.parent)).as_posix() for file in files)

    charts = links(files[0] for files in drawn.values())
    text = render("page.md.j2", page=page, charts=charts, pictures=links(stored), **_PARTS)
    _write(path, text.rstrip() + "\n")
    return drawn


def css() -> str:
    return stylesheet()


def markup(template: str, **values: Any) -> str:
    """A template's HTML, with the functions that draw a page's parts."""
    return render(template, **values, **_PARTS)


def _blocks(paragraphs: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Groups of paragraphs: whether they are a list's items, and their texts without hyphens."""
    for listed, some in groupby(paragraphs, key=lambda text: text.startswith("- ")):
        yield listed, [text[2:] if listed else text for text in some]


# Functions for the templates.
_PARTS: dict[str, Callable[..., Any]] = {
    **{"blocks": _blocks, "shown": shown, "next": next, "drawing": drawing},
    "share": lambda cell: float(cell) if isinstance(cell, Share) else None,
    "slug": slug,
    "depth": lambda cell: getattr(cell, "depth", 0),
    "kind": lambda part: {Table: "table", Picture: "picture"}.get(type(part), "chart"),
}


def _write(path: Path, content: str | bytes) -> None:
    with writing(path, "folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as new:
            new.write_bytes(content.encode() if isinstance(content, str) else content)


CODE = re.compile(r"`([^`]+)`")
URL = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:)]")


def render(template: str, **values: Any) -> str:
    """A template's text; HTML templates escape their values."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("neuralpower.report"),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"letters": _letters, "inline": _inline, "code": "`{}`".format}
    environment.filters |= {"md": csv_files.inline, "md_escaped": csv_files.escaped}
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    environment.globals["table"] = lambda header, rows, right=None: "\n".join(
        csv_files.table(header, rows, right)
    )
    return environment


def _letters(text: str) -> Markup:
    return escape(visible(text.replace("\n", " ")))


def _inline(text: str) -> Markup:
    """Escaped text whose `code` and addresses become markup."""
    with_code = CODE.sub(r"<code>\1</code>", str(_letters(text)))
    return Markup(
        URL.sub(lambda m: f'<a href="{m[0]}">{m[0]}</a>', with_code)
    )  # an address contains no quotes
