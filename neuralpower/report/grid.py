"""Tables in plain text with styles for terminals, and the lines around them. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from neuralpower.files.terminal import styled, unstyled, visible
from neuralpower.report.number_format import bar

T = TypeVar("T")

WIDTH = 80  # letters of a line where no terminal says more


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


def grid(header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """A table whose first `left` columns are flush left, the others flush right.

    Cells of class `Cell` leave marks of their style, which `files.terminal.unstyled` takes out.
    """
    lines = [
        [visible(with_bar(cell) if isinstance(cell, Share) else str(cell)) for cell in row]
        for row in (header, *rows)
    ]
    styles = [[getattr(cell, "style", "") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [str.ljust if i < left else str.rjust for i in range(len(widths))]
    cells = [
        [styled(side(cell, width), style) for side, cell, width, style in zip(sides, *row, strict=True)]
        for row in ((line, widths, own) for line, own in zip(lines, styles, strict=True))
    ]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(row).rstrip() for row in cells)


def with_bar(value: float) -> str:
    """A share in digits, and as a bar."""
    return f"{value:6.1%} {bar(value)}"


def warning_lines(warnings: Iterable[str]) -> Iterator[str]:
    return (styled(f"Warning: {visible(text)}", "weak") for text in warnings)


def note_lines(notes: Iterable[str]) -> Iterator[str]:
    return (f"Note: {visible(text)}" for text in notes)


def as_asked(lines: Iterable[str], marked: bool) -> str:
    """The lines as one text, `marked` with styles or without."""
    text = "\n".join(lines)
    return text if marked else unstyled(text)


def listed(records: Iterable[T], columns: Mapping[str, Callable[[T], object]], left: int = 1) -> str:
    """A row for each record; `columns` give a cell's text by its header."""
    return grid([*columns], [[cell(record) for cell in columns.values()] for record in records], left)


def narrowed(
    records: Sequence[T], columns: Mapping[str, Callable[[T], object]], spared: Sequence[str], width: int
) -> dict[str, Callable[[T], object]]:
    """The columns without the first of `spared` that make the table wider than `width`."""
    kept = dict(columns)
    for name in spared:
        if max(map(len, unstyled(listed(records, kept)).splitlines())) > width:
            kept.pop(name, None)
    return kept


def percent(value: float | None, form: str = ".1%") -> str:
    """A share in digits; "-" if unknown."""
    return "-" if value is None else f"{value:{form}}"
