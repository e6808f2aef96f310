"""Results that show themselves: `print` shows the command's table, `repr` one line, a notebook a panel.

What draws them lies above this package. `neuralpower` gives a function that imports it: a result can be made,
compared and pickled without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Shown:
    """A result that shows itself."""

    drawing: ClassVar[Callable[[], Any]]
    """Gives the module that draws results, with `text`, `line`, `html` and `plot`."""

    def __str__(self) -> str:
        return str(type(self).drawing().text(self))

    def __repr__(self) -> str:
        """One line: the kind of result, and its headline numbers."""
        return str(type(self).drawing().line(self))

    def _repr_html_(self) -> str:
        """A panel for notebooks, dark or light like the page; no scripts."""
        return str(type(self).drawing().html(self))
