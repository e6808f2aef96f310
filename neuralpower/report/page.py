"""A page of text, tables and charts: one HTML file that needs nothing else, Markdown with pictures, CSV.

The HTML holds plotly.js once and loads nothing: no fonts, scripts or pictures from elsewhere; its policy forbids it.
Without JavaScript the text and the tables are all there.
"""

from __future__ import annotations

import base64
import html
import importlib.resources
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuralpower.errors import InputError, writing
from neuralpower.files import markdown
from neuralpower.files.atomic import aside
from neuralpower.files.csv_files import write_csv as write_rows
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible
from neuralpower.report import static
from neuralpower.report.charts import Chart, slug
from neuralpower.report.plots import plot

Cell = str | float | int | None
LONG = 60  # letters of a cell, from which on it may break into lines
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
URL = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:)]")
NUMBER = re.compile(r"[-+]?\d")


@dataclass(frozen=True)
class Table:
    """Columns with a header that names their units; numbers stay numbers, None is not known."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        """Raises InputError where a row has more or fewer cells than the header."""
        for row in self.rows:
            if len(row) != len(self.header):
                raise InputError(f"table {self.title!r}: {len(row)} cells under {len(self.header)} headers")

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers, alone or with a unit."""
        cells = [row[column] for row in self.rows if row[column] not in (None, "", "-")]
        return bool(cells) and all(not isinstance(c, str) or (NUMBER.match(c) and len(c) < 16) for c in cells)


@dataclass(frozen=True)
class Picture:
    """A PNG of its own, such as a photograph."""

    title: str
    png: bytes
    note: str = ""


Part = Chart | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, then charts, tables and pictures. Text: `code` in backticks, addresses as links, "- " for a list."""

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

    def charts(self) -> list[tuple[str, Chart]]:
        """(file name without suffix, chart), in their order; no name twice."""
        found = [part for s in self.sections for part in s.parts if not isinstance(part, Table | Picture)]
        return [(f"{i:02}-{slug(chart.title)}", chart) for i, chart in enumerate(found, 1)]

    def tables(self) -> list[tuple[str, Table]]:
        """(file name without suffix, table), in their order; no name twice."""
        found = [part for s in self.sections for part in s.parts if isinstance(part, Table)]
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
    charts = [chart for _, chart in page.charts()]
    scripts = ""
    if charts:
        data = json_text([plot(chart) for chart in charts], compact=True)
        scripts = (
            f'<script type="application/json" id="charts">{data.replace("<", chr(92) + "u003c")}</script>\n'
            f"<script>{_plotly()}</script>\n<script>{_resource('page.js')}</script>\n"
        )
    numbers = itertools.count()  # of the charts
    body = "".join(_section(section, i, numbers) for i, section in enumerate(page.sections))
    _write(
        path,
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n'
        f"<title>{_letters(page.title)}</title>\n<style>{_resource('page.css')}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_letters(page.title)}</h1>\n<p class="lead">{_inline(page.lead)}</p>\n'
        f"{_contents(page)}{body}</main>\n{scripts}</body>\n</html>\n",
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError("pages need plotly: pip install 'neuralpower[report]'") from None
    return str(get_plotlyjs())


def _resource(name: str) -> str:
    return importlib.resources.files("neuralpower.report").joinpath(name).read_text(encoding="utf-8")


def _contents(page: Page) -> str:
    if len(page.sections) < 4:
        return ""
    lines = (
        f'<li{" class=deep" if s.level > 2 else ""}><a href="#s{i}">{_letters(s.title)}</a></li>'
        for i, s in enumerate(page.sections)
    )
    return f'<nav aria-label="Contents"><ol>{"".join(lines)}</ol></nav>\n'


def _section(section: Section, index: int, numbers: Iterator[int]) -> str:
    heading = f'<h{section.level} id="s{index}">{_letters(section.title)}</h{section.level}>\n'
    return heading + "".join(_text(section.text)) + "".join(_figure(part, numbers) for part in section.parts)


def _text(paragraphs: Sequence[str]) -> Iterator[str]:
    for kind, some in _blocks(paragraphs):
        if kind == "list":
            yield "<ul>" + "".join(f"<li>{_inline(text[2:])}</li>" for text in some) + "</ul>\n"
        else:
            yield from (f"<p>{_inline(text)}</p>\n" for text in some)


def _blocks(paragraphs: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    items: list[str] = []
    for text in paragraphs:
        if text.startswith("- "):
            items.append(text)
            continue
        if items:
            yield "list", items
            items = []
        yield "text", [text]
    if items:
        yield "list", items


def _inline(text: str) -> str:
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", _letters(text))
    return URL.sub(lambda m: f'<a href="{m[0]}">{m[0]}</a>', escaped)  # which holds no quotes


def _letters(text: str) -> str:
    """Text as it stands, in elements and in quoted attributes."""
    return html.escape(visible(text.replace("\n", " ")))


def _figure(part: Part, numbers: Iterator[int]) -> str:
    title = _letters(part.title)
    if isinstance(part, Table):
        content = _table(part)
    elif isinstance(part, Picture):
        content = f'<img alt="{title}" src="data:image/png;base64,{base64.b64encode(part.png).decode()}">'
    else:
        content = (
            f'<div class="chart" id="c{next(numbers)}" role="img" aria-label="{title}" '
            f'style="height:{plot(part)["height"]}px"><noscript>This chart needs JavaScript.</noscript></div>'
        )
    note = f'<p class="note">{_inline(part.note)}</p>' if part.note else ""
    return f"<figure><figcaption>{title}</figcaption>{content}{note}</figure>\n"


def _table(table: Table) -> str:
    numeric = [table.numeric(i) for i in range(len(table.header))]

    def line(cells: Sequence[Cell], tag: str) -> str:
        return "<tr>" + "".join(_cell(cell, tag, number) for cell, number in zip(cells, numeric, strict=True)) + "</tr>"

    rows = "".join(line(row, "td") for row in table.rows)
    head = f"<thead>{line(table.header, 'th')}</thead>"
    return f'<div class="table" tabindex="0"><table>{head}<tbody>{rows}</tbody></table></div>'


def _cell(value: Cell, tag: str, number: bool) -> str:
    text = shown(value)
    name = "number" if number else "long" if len(text) > LONG else ""
    return f"<{tag}{f' class={name}' if name else ''}>{_inline(text)}</{tag}>"


def write_markdown(
    page: Page, path: Path, images: Path, formats: Sequence[str] = ("png", "svg")
) -> dict[str, tuple[Path, ...]]:
    """The page with pictures that are drawn into `images` and linked from `path`; the files of each chart."""
    drawn = {stem: static.save(chart, images, stem, formats) for stem, chart in page.charts()}
    stems = iter(drawn)
    inline = markdown.inline
    lines = [f"# {inline(page.title)}", "", inline(page.lead), ""]
    for section in page.sections:
        lines += ["#" * section.level + " " + inline(section.title), ""]
        for kind, some in _blocks(section.text):
            texts = [f"- {inline(text[2:])}" if kind == "list" else inline(text) for text in some]
            lines += [*texts, ""] if kind == "list" else [line for text in texts for line in (text, "")]
        for part in section.parts:
            if isinstance(part, Table):
                lines += _markdown_table(part)
            elif isinstance(part, Picture):
                file = images / f"{slug(part.title)}.png"
                _write(file, part.png)
                lines += [
                    f"![{markdown.escaped(part.title)}]({Path(os.path.relpath(file, path.parent)).as_posix()})",
                    "",
                ]
            else:
                picture = os.path.relpath(drawn[next(stems)][0], path.parent)
                lines += [f"![{markdown.escaped(part.title)}]({Path(picture).as_posix()})", ""]
            lines += [f"*{inline(part.note)}*", ""] if part.note else []
    _write(path, "\n".join(lines).rstrip() + "\n")
    return drawn


def _markdown_table(table: Table) -> list[str]:
    numeric = [table.numeric(i) for i in range(len(table.header))]
    rows = [[shown(cell) for cell in row] for row in table.rows]
    return [f"**{markdown.inline(table.title)}**", "", *markdown.table(table.header, rows, numeric), ""]


def write_csv(table: Table, path: Path) -> None:
    """The header and the rows with all digits; empty for what is not known. Raises InputError where it cannot."""
    write_rows(path, [table.header, *table.rows], "folder")


def _write(path: Path, content: str | bytes) -> None:
    with writing(path, "folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as new:
            new.write_bytes(content.encode() if isinstance(content, str) else content)
