"""Results that show themselves: `print` gives the command's table, `repr` one line, a notebook a panel.

How each result looks is drawn by `neuralpower.report.shown`, which is imported when it is first asked for: a
result can be made, compared and pickled without it.
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
        """One line: what it is, and its headline figures."""
        return str(drawn_by().line(self))

    def _repr_html_(self) -> str:
        """A panel for notebooks, dark or light as the page is; no scripts."""
        return str(drawn_by().html(self))
