"""Results that show themselves: `print` shows the command's table, `repr` one line, a notebook a panel.

`neuralpower.report.shown` draws each result, and is imported on demand: a result can be made, compared and
pickled without it.
"""

from __future__ import annotations

import importlib
from typing import Any


def drawn_by() -> Any:
    """The module that draws results."""
    return importlib.import_module("neuralpower.report.shown")


class Shown:
    """A result that shows itself."""

    def __str__(self) -> str:
        """The table that the command prints."""
        return str(drawn_by().text(self))

    def __repr__(self) -> str:
        """One line: the kind of result, and its headline numbers."""
        return str(drawn_by().line(self))

    def _repr_html_(self) -> str:
        """A panel for notebooks, dark or light like the page; no scripts."""
        return str(drawn_by().html(self))
