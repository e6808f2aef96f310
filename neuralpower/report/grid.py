"""Tables in plain text with styles for terminals, and the lines around them. It needs no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

from neuralpower.files.terminal import BLOCKS, styled, unstyled, visible
from neuralpower.report.number_format import bar, counted

T = TypeVar("T")

WIDTH = 80  # letters of a line where no terminal says more
MOST_LINES, MOST_NOTES = 4, 3  # before a table, and after it
LEAST, LEAST_SAID = 12, 18  # letters that a name, and another text keep where their table is too wide
_width: ContextVar[int | None] = ContextVar("letters of a table's line; None: any number", default=WIDTH)


class Cell(str):
    """A cell's text, and one of `files.terminal.STYLES` for terminals."""

    style: str

    def __new__(cls, text: str, style: str) -> Cell:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


class Share(float):
    """A cell: a share of one whole; a number and a bar."""


def letters(value: object) -> str:
    """A cell's text; "-" for an unknown value."""
    if isinstance(value, Share):
        return f"{value:.1%}"
    return "-" if value is None or value == "" else str(value)


@contextlib.contextmanager
def at_most(width: int | None) -> Iterator[None]:
    """Make tables within no wider than `width` letters; None: as wide as their cells."""
    before = _width.set(width)
    try:
        yield
    finally:
        _width.reset(before)


def line_width() -> int | None:
    """Letters of a table's line; None: any number."""
    return _width.get()


def grid(
    header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1, spared: Sequence[str] = ()
) -> str:
    """A table whose first `left` columns are flush left, the others flush right.

    Where it is wider than `at_most` allows, columns of `spared` go, in that order, then ends of long texts
    at the right, bars of shares, and letters of the first columns. Cells of class `Cell` leave marks of
    their style, which `files.terminal.unstyled` takes out.
    """
    columns = [
        [visible(with_bar(cell) if isinstance(cell, Share) else str(cell)) for cell in column]
        for column in zip(header, *rows, strict=True)
    ]
    styles = [[getattr(cell, "style", "") for cell in column] for column in zip(header, *rows, strict=True)]
    kept = _fitted(columns, left, spared)
    lined = []
    for i in kept:
        width = max(map(len, columns[i]))
        side = str.ljust if i < left else str.rjust
        cells = [styled(side(cell, width), style) for cell, style in zip(columns[i], styles[i], strict=True)]
        lined.append([cells[0], "-" * width, *cells[1:]])
    return "\n".join("  ".join(row).rstrip() for row in zip(*lined, strict=True))


def _fitted(columns: list[list[str]], left: int, spared: Sequence[str]) -> list[int]:
    """The columns that stay, by their place; shortens long texts of `columns` where these are too wide."""
    kept, width = [*range(len(columns))], _width.get()

    def excess() -> int:
        return sum(2 + max(map(len, columns[i])) for i in kept) - 2 - (width or 0)

    for name in spared if width is not None else ():
        if excess() > 0:
            kept = [i for i in kept if columns[i][0] != name]
    if width is not None:
        _shorten(columns, [i for i in kept if i >= left and _is_text(columns[i][1:])], excess, LEAST_SAID)
        if excess() > 0:
            columns[:] = [[_without_bar(cell) for cell in column] for column in columns]
        _shorten(columns, [i for i in kept if i < left], excess, LEAST)
    return kept


def _shorten(columns: list[list[str]], places: Sequence[int], excess: Callable[[], int], least: int) -> None:
    """Shorten the texts of the widest column of some, again and again, until nothing is left to gain."""
    while (more := excess()) > 0 and places:
        longest = {i: max(map(len, columns[i])) for i in places}
        place = max(places, key=lambda i: longest[i])
        if longest[place] <= least:
            return
        second = max((longest[i] for i in places if i != place), default=0)
        kept = max(least, longest[place] - more, min(second, longest[place] - 1))
        columns[place] = [shorter(cell, kept) for cell in columns[place]]


def _without_bar(cell: str) -> str:
    return cell.rstrip(BLOCKS + " ") if set(BLOCKS) & set(cell) else cell.rstrip()


def _is_text(cells: Sequence[str]) -> bool:
    """Whether a column has words; numbers with their units are not shortened."""
    return any(len(cell) > LEAST_SAID and not any(letter.isdigit() for letter in cell) for cell in cells)


def shorter(text: str, length: int) -> str:
    """A text without its end where it is longer than `length`; a path without its middle."""
    end = 0 if " " in text else (length - 1) * 2 // 3
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def with_bar(value: float) -> str:
    """A share in digits, and as a bar."""
    return f"{value:6.1%} {bar(value)}"


def warning_lines(warnings: Iterable[str]) -> Iterator[str]:
    return (styled(f"Warning: {visible(text)}", "weak") for text in warnings)


def note_lines(notes: Iterable[str]) -> Iterator[str]:
    """The first MOST_NOTES, and how many more there are; all where a table may be of any width."""
    every = [*dict.fromkeys(notes)]
    told = every if _width.get() is None else every[:MOST_NOTES]
    yield from (f"Note: {visible(text)}" for text in told)
    if len(told) < len(every):
        yield f"({counted(len(every) - len(told), 'more note')} with -v)"


def head_lines(warnings: Iterable[str], lines: Iterable[str]) -> list[str]:
    """What stands before a table; where there is too much of it, warnings become one line, and last lines."""
    warned, found = [*warning_lines(warnings)], [*lines]
    if len(warned) + len(found) > MOST_LINES and warned:
        warned = [" ".join(warned)]
    found = [*warned, *found]
    while len(found) > MOST_LINES:
        found[-2:] = ["; ".join(found[-2:])]
    return found


def as_asked(lines: Iterable[str], marked: bool) -> str:
    """The lines as one text, `marked` with styles or without."""
    text = "\n".join(lines)
    return text if marked else unstyled(text)


def listed(
    records: Iterable[T],
    columns: Mapping[str, Callable[[T], object]],
    left: int = 1,
    spared: Sequence[str] = (),
) -> str:
    """A row for each record; `columns` give a cell's text by its header."""
    rows = [[cell(record) for cell in columns.values()] for record in records]
    return grid([*columns], rows, left, spared)


def percent(value: float | None, form: str = ".1%") -> str:
    """A share in digits; "-" if unknown."""
    return "-" if value is None else f"{value:{form}}"
