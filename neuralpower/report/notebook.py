"""Results as panels of a notebook: headline numbers, and a table with bars; no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from neuralpower.prediction.explore.compare import Comparison
from neuralpower.prediction.explore.fit import Fit
from neuralpower.prediction.explore.sweep import Sweep
from neuralpower.prediction.prediction import Prediction, Tree
from neuralpower.report.explored import point_columns
from neuralpower.report.grid import letters, percent
from neuralpower.report.module_tree import COLUMNS, named
from neuralpower.report.number_format import binary, quantity
from neuralpower.report.tables import Figure as Figure
from neuralpower.report.tables import bounds, figures, row_columns
from neuralpower.report.templating import render

MOST_ROWS = 20  # of a panel


@dataclass(frozen=True)
class Line:
    """A row of a panel's table; `part` is the length of its bar, from 0 to 1."""

    name: str
    part: float | None
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panel:
    """The panel of a result in a notebook."""

    title: str
    about: str = ""
    figures: tuple[Figure, ...] = ()
    header: tuple[str, ...] = ()  # header of the names, the bars, then the cells
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def html(result: object) -> str:
    """A panel as markup, with its own styles."""
    return drawn(panel(result))


def drawn(shown: Panel) -> str:
    """A panel as markup."""
    return render("notebook.html.j2", panel=shown)


@singledispatch
def panel(result: object) -> Panel:
    """The panel of a result."""
    raise TypeError(f"{type(result).__name__} cannot be shown: it is not a result")


@panel.register
def _(result: Prediction) -> Panel:
    p, columns = result, row_columns(result)
    about = f"batch {p.batch_size}, {p.dtype}, {p.phase}, on {p.device}"
    lines = [
        Line(row.kind, row.share, tuple(letters(cell(row)) for cell in [*columns.values()][2:]))
        for row in p.by_kind()
    ]
    return Panel(p.model, about, tuple(figures(p)), tuple(columns), *_cut(lines, p.remarks), p.warnings)


def _cut(lines: Sequence[Line], notes: Sequence[str] = ()) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """(the first lines, the notes, and the number of further lines)."""
    rest = len(lines) - MOST_ROWS
    return tuple(lines[:MOST_ROWS]), (*notes, *([f"{rest} more rows: print shows them"] if rest > 0 else []))


@panel.register
def _(result: Tree) -> Panel:
    p = result.prediction
    indent = "\N{NO-BREAK SPACE}" * 3
    lines = [
        Line(indent * one.depth + named(one), one.share, tuple(cell(one) for cell in COLUMNS.values()))
        for one in result
    ]
    about = f"batch {p.batch_size}, {p.dtype}, {p.phase}, on {p.device}"
    header = ("module", "", *COLUMNS)
    return Panel(p.model, about, (bounds("latency", p.runtime_s, "s"),), header, tuple(lines), (), p.warnings)


@panel.register
def _(result: Sweep) -> Panel:
    longest = max((p.runtime_s for p in result.points if p.runtime_s is not None), default=0.0) or 1.0
    star, *columns = point_columns(result).values()
    lines = [
        Line(star(p), p.runtime_s and p.runtime_s / longest, tuple(cell(p) for cell in columns))
        for p in result.points
    ]
    header = ("", *point_columns(result))
    name = result.points[0].model if result.points else "-"
    about = f"{', '.join(dict.fromkeys(p.device for p in result.points))}; * Pareto-optimal ({result.front})"
    return Panel(name, about, (), header, *_cut(lines, result.notes), result.warnings)


@panel.register
def _(result: Comparison) -> Panel:
    longest = max(result.a_s.high, result.b_s.high) or 1.0
    sides = (("A", result.a, result.a_s), ("B", result.b, result.b_s))
    lines = [
        Line(
            f"{side}: {name}",
            seconds.value / longest,
            tuple(quantity(value, "s") for value in (seconds.value, seconds.low, seconds.high)),
        )
        for side, name, seconds in sides
    ]
    faster, chance = result.faster
    r = result.ratio
    figures = (
        Figure("A's time / B's", f"{r.value:.3g}", f"{r.low:.3g} to {r.high:.3g}"),
        Figure("faster", faster, f"probability {percent(chance)}"),
    )
    return Panel(
        f"{result.a} or {result.b}",
        "",
        figures,
        ("", "", "latency", "low", "high"),
        tuple(lines),
        (),
        result.warnings,
    )


@panel.register
def _(result: Fit) -> Panel:
    asked, room = result.request, result.room_bytes or 1.0
    parts = result.memory.shown_parts
    lines = [Line(name, min(size / room, 1.0), (binary(size),)) for name, size in parts.items()]
    m = result.memory
    figures = [
        Figure("verdict", result.verdict, f"into {binary(result.room_bytes)}"),
        Figure("memory", binary(m.value_bytes), f"up to {binary(m.high_bytes)}"),
        Figure("largest batch", str(result.largest_batch)),
    ]
    if result.longest is not None:
        figures.append(Figure("longest context", str(result.longest), f"limit: {result.longest_reason}"))
    about = "" if asked is None else f"batch {asked.batch_size}, {asked.dtype}, {asked.phase}"
    name = "fit" if asked is None else str(asked.model)
    return Panel(name, about, tuple(figures), ("memory", "", "size"), tuple(lines), result.notes)
