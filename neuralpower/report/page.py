"""A page of text, tables and charts: one HTML file that needs nothing else, Markdown with pictures, CSV.

The HTML holds plotly.js once and loads no fonts, scripts or pictures from elsewhere; its policy forbids it.
Without JavaScript the text and the tables are all there.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from neuralpower.errors import InputError, writing
from neuralpower.files.atomic import aside
from neuralpower.report import matplotlib_charts
from neuralpower.report.charts import Chart, slug
from neuralpower.report.plotly_charts import plot
from neuralpower.report.templating import render

T = TypeVar("T")
Cell = str | float | int | None
Columns = Mapping[str, Callable[[T], Cell]]  # what of a record stands under which header
NUMBER = re.compile(r"[-+]?\d")


@dataclass(frozen=True)
class Table:
    """Columns with a header that names their units; numbers stay numbers, None is not known."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @classmethod
    def of(cls, title: str, records: Iterable[T], columns: Columns[T], note: str = "") -> Table:
        """A row for each record; `columns` say under which header stands what of it."""
        rows = tuple(tuple(cell(record) for cell in columns.values()) for record in records)
        return cls(title, tuple(columns), rows, note)

    def __post_init__(self) -> None:
        """Raises InputError where a row has more or fewer cells than the header."""
        for row in self.rows:
            if len(row) != len(self.header):
                raise InputError(f"table {self.title!r}: {len(row)} cells under {len(self.header)} headers")

    def numbers(self) -> list[bool]:
        """Of each column: whether it holds numbers, alone or with a unit."""
        found = []
        for i in range(len(self.header)):
            cells = [row[i] for row in self.rows if row[i] not in (None, "", "-")]
            found.append(bool(cells) and all(_is_number(cell) for cell in cells))
        return found

    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        return [[shown(cell) for cell in row] for row in self.rows]


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str) or (NUMBER.match(cell) is not None and len(cell) < 16)


@dataclass(frozen=True)
class Picture:
    """A PNG of its own, such as a photograph."""

    title: str
    png: bytes
    note: str = ""


Part = Chart | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, then charts, tables and pictures.

    A paragraph holds `code` in backticks and addresses, which become links. "- " begins a list's item.
    """

    title: str
    text: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    level: int = 2  # 3: below the section before it


@dataclass(frozen=True)
class Page:
    """A title, what a reader must know first, sections."""

    title: str
    lead: str
    sections: tuple[Section, ...]

    def parts(self) -> list[Part]:
        """Of all sections."""
        return [part for section in self.sections for part in section.parts]

    def charts(self) -> list[tuple[str, Chart]]:
        """(file name without suffix, chart), in their order; no name twice."""
        found = [part for part in self.parts() if not isinstance(part, Table | Picture)]
        return [(f"{i:02}-{slug(chart.title)}", chart) for i, chart in enumerate(found, 1)]

    def tables(self) -> list[tuple[str, Table]]:
        """(file name without suffix, table), in their order; no name twice."""
        found = [part for part in self.parts() if isinstance(part, Table)]
        return [(f"{i:02}-{slug(table.title)}", table) for i, table in enumerate(found, 1)]


def shown(value: Cell) -> str:
    """A cell for people: whole numbers with all digits, others with four, "-" for what is not known."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return value if isinstance(value, str) else f"{int(value):,}"


def write_html(page: Page, path: Path) -> None:
    """One file that shows the page without a network. Raises InputError: no plotly, or not writable."""
    specs = [plot(chart) for _, chart in page.charts()]
    styles = {name: _beside(f"page.{name}") for name in ("css", "js")}
    script = _plotly() if specs else ""
    text = render(
        "page.html.j2", page=page, specs=specs, left=iter(enumerate(specs)), plotly=script, **styles, **_PARTS
    )
    _write(path, text)


def write_markdown(
    page: Page, path: Path, images: Path, formats: Sequence[str] = ("png", "svg")
) -> dict[str, tuple[Path, ...]]:
    """The page with pictures that are drawn into `images` and linked from `path`; the files of each chart."""
    drawn = {stem: matplotlib_charts.save(chart, images, stem, formats) for stem, chart in page.charts()}
    photographs = [part for part in page.parts() if isinstance(part, Picture)]
    for picture in photographs:
        _write(_file_of(picture, images), picture.png)

    def link(file: Path) -> str:
        return Path(os.path.relpath(file, path.parent)).as_posix()

    files = iter([link(files[0]) for files in drawn.values()])
    stored = iter([link(_file_of(picture, images)) for picture in photographs])
    text = render("page.md.j2", page=page, charts=files, pictures=stored, **_PARTS)
    _write(path, text.rstrip() + "\n")
    return drawn


def _file_of(picture: Picture, images: Path) -> Path:
    return images / f"{slug(picture.title)}.png"


def _blocks(paragraphs: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Runs of paragraphs: whether they are items of a list, and their texts without the hyphens."""
    for listed, some in groupby(paragraphs, key=lambda text: text.startswith("- ")):
        yield listed, [text[2:] if listed else text for text in some]


def _kind(part: Part) -> str:
    return {Table: "table", Picture: "picture"}.get(type(part), "chart")


# What templates ask of the parts of a page.
_PARTS = {"blocks": _blocks, "kind": _kind, "shown": shown, "next": next}


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError("pages need plotly: pip install 'neuralpower[report]'") from None
    return str(get_plotlyjs())


def _beside(name: str) -> str:
    """A file of this folder."""
    return importlib.resources.files("neuralpower.report").joinpath(name).read_text(encoding="utf-8")


def _write(path: Path, content: str | bytes) -> None:
    with writing(path, "folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as new:
            new.write_bytes(content.encode() if isinstance(content, str) else content)
