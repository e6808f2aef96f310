"""Results that show themselves: `print` shows the command's table, `repr` one line, a notebook a panel.

What draws them lies above this package. `neuralpower` names it, and it is imported on demand: a result can
be made, compared and pickled without it.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar


class Shown:
    """A result that shows itself."""

    drawn_by: ClassVar[str]
    """Name of the module that draws results, with `text`, `line`, `html` and `plot`."""

    @property
    def _drawing(self) -> Any:
        """The module that draws results."""
        return importlib.import_module(self.drawn_by)

    def __str__(self) -> str:
        """The table that the command prints."""
        return str(self._drawing.text(self))

    def __repr__(self) -> str:
        """One line: the kind of result, and its headline numbers."""
        return str(self._drawing.line(self))

    def _repr_html_(self) -> str:
        """A panel for notebooks, dark or light like the page; no scripts."""
        return str(self._drawing.html(self))
