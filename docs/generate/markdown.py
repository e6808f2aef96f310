"""Tables and text in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """A text that a table's cell can hold."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: object) -> str:
    """A text set as code."""
    return f"`{text}`"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; an empty one is an empty text."""
    lines = [f"| {' | '.join(cell(one) for one in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *lines])


def page(*blocks: str) -> str:
    """Blocks of a page, with an empty line between them."""
    return "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"
