"""Show results in Python: a text for `print`, one line for `repr`, a panel for notebooks, bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING

from neuralpower.errors import InputError, unknown
from neuralpower.files.terminal import visible
from neuralpower.prediction.explore.compare import Comparison
from neuralpower.prediction.explore.rank import Ranking
from neuralpower.prediction.explore.sweep import Sweep
from neuralpower.prediction.fits.fit import Fit
from neuralpower.prediction.prediction import Prediction, Tree
from neuralpower.prediction.tree import Branch
from neuralpower.report.grid import as_asked, head_lines, letters, listed, percent
from neuralpower.report.module_tree import COLUMNS, named
from neuralpower.report.number_format import binary, bounded, counted, quantity
from neuralpower.report.page import render
from neuralpower.report.results.explored import comparison_table, fit_table, point_columns, sweep_table
from neuralpower.report.results.ranked import rank_columns, rank_table
from neuralpower.report.results.traces import explanation_table, shown_columns
from neuralpower.report.tables import Figure as Figure
from neuralpower.report.tables import bounds, figures, prediction_table, row_columns, row_name, rows_by
from neuralpower.traces.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEWS = ("kind", "layer", "module")
SPARED = ("memory (weights + outputs)", "FLOP", "output", "parameters")
"""Columns that a narrow tree does without, in this order."""
DEPTH, TOP = 3, 15  # of the table, as the command's
WIDE = 0.35  # inches of a bar


@singledispatch
def text(result: object) -> str:
    raise TypeError(f"{type(result).__name__} cannot be shown: it is not a result")


@singledispatch
def line(result: object) -> str:
    """One line: the kind of result and its headline numbers."""
    raise TypeError(f"{type(result).__name__} cannot be shown: it is not a result")


def title(prediction: Prediction) -> str:
    """The network, how it runs, and on what device."""
    p = prediction
    return visible(f"{p.model}, batch {p.batch_size}, {p.dtype}, {p.phase}, on {p.device}")


@text.register
def _(result: Prediction) -> str:
    return prediction_table(result, "kind", DEPTH, TOP)


@line.register
def _(result: Prediction) -> str:
    latency, *others = figures(result)
    more = "".join(f", {f.name} {f.value}" for f in others if f.name in ("energy", "memory"))
    return f"Prediction({title(result)}: latency {latency}{more})"


@text.register
def _(result: Tree) -> str:
    whole = result.prediction
    figures = {header: lambda one, cell=cell: cell(one[1]) for header, cell in COLUMNS.items()}
    columns = {"module": lambda one: one[0], **figures, "share": lambda one: percent(one[1].share)}
    table = listed([*_drawn(result.root)], columns, left=2, spared=SPARED)
    foot = f"latency {bounded(whole.runtime_s, 's')}"
    return as_asked([*head_lines(whole.warnings, [title(whole)]), "", table, "", foot], marked=False)


@line.register
def _(result: Tree) -> str:
    lines = sum(1 for _ in result)
    return f"Tree({title(result.prediction)}: {counted(lines, 'line')}, depth {result.depth})"


def _drawn(branch: Branch, before: str = "", end: str = "") -> list[tuple[str, Branch]]:
    """(what a line begins with, the branch) of a branch and all below it."""
    found = [(f"{before}{end}{named(branch)}", branch)]
    inner = before + {"": "", "├─ ": "│  ", "└─ ": "   "}[end]
    for n, below in enumerate(branch.branches, 1):
        found += _drawn(below, inner, "└─ " if n == len(branch.branches) else "├─ ")
    return found


@text.register
def _(result: Sweep) -> str:
    return sweep_table(result) if result.points else "no point was swept"


@line.register
def _(result: Sweep) -> str:
    points = counted(len(result.points), "point")
    known = [point.runtime_s for point in result.points if point.runtime_s is not None]
    span = f", latency {quantity(min(known), 's')} to {quantity(max(known), 's')}" if known else ""
    devices = ", ".join(dict.fromkeys(point.device for point in result.points))
    name = result.points[0].model if result.points else "-"
    return visible(f"Sweep({name} on {devices}: {points}{span})")


@text.register
def _(result: Ranking) -> str:
    return rank_table(result, TOP)


@line.register
def _(result: Ranking) -> str:
    first = result.ranked[0].device if result.ranked else "none fits"
    return visible(
        f"Ranking({result.model} on {counted(len(result.devices), 'device')} by {result.by}: {first})"
    )


@text.register
def _(result: Comparison) -> str:
    return comparison_table(result)


@line.register
def _(result: Comparison) -> str:
    r = result.ratio
    ratio = f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g})"
    return visible(f"Comparison(A {result.a}, B {result.b}: {ratio})")


@text.register
def _(result: Explanation) -> str:
    return explanation_table(result, TOP)


@line.register
def _(result: Explanation) -> str:
    said = ", ".join(f"{one.cause} {quantity(one.saving_s, 's')}" for one in result.findings[:3])
    span = f"span {quantity(result.span_s, 's')}, {percent(result.priced_share)} of what ran priced"
    return visible(f"Explanation({result.trace} on {result.device}: {span}{'; ' * bool(said)}{said})")


@text.register
def _(result: Fit) -> str:
    if result.request is None:  # made by a caller
        return line(result)
    return fit_table(result, result.request, result.device or result.request.platform.called)


@line.register
def _(result: Fit) -> str:
    asked = result.request
    name = (
        ""
        if asked is None
        else f"{asked.called}, batch {asked.batch_size}, {asked.dtype}, {asked.phase.name}: "
    )
    verdict = result.verdict
    needs = binary(result.memory.high_bytes)
    into = f"{verdict} into {binary(result.room_bytes)}, needs up to {needs}"
    return visible(f"Fit({name}{into}, largest batch {result.largest_batch})")


def plot(prediction: Prediction, by: str = "kind", top: int = TOP, ax: Axes | None = None) -> Axes:
    """Bars of the latency (ms), the slowest on top; raises InputError."""
    if by not in VIEWS:
        raise unknown("view", by, VIEWS)
    if not isinstance(top, int) or top < 1:
        raise InputError(f"top {top!r}: must be a whole number, 1 or more; choose {TOP}")
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError("plot needs matplotlib: pip install matplotlib") from None
    names, values = _bars(prediction, by, top)
    if ax is None:
        _, ax = pyplot.subplots(figsize=(8, 1.2 + WIDE * len(names)), layout="constrained")
    bars = ax.barh(range(len(names)), values, color="#0b63a5")
    ax.bar_label(bars, [quantity(value / 1e3, "s") for value in values], padding=4, fontsize=8)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set_xlabel("latency (ms)")
    ax.set_title(title(prediction), loc="left", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _bars(prediction: Prediction, by: str, top: int) -> tuple[list[str], list[float]]:
    """(names, ms) of the slowest `top` rows, and of the others together."""
    slowest = sorted(rows_by(prediction, by, DEPTH), key=lambda row: -row.runtime_s)
    bars = [(row_name(row, by), row.runtime_s) for row in slowest]
    if by == "layer":
        bars = [(f"{name} ({row.kind})", row.runtime_s) for (name, _), row in zip(bars, slowest, strict=True)]
    if len(bars) > top:
        rest = bars[top:]
        bars = [*bars[:top], (f"({len(rest)} more)", sum(seconds for _, seconds in rest))]
    return [visible(name) for name, _ in bars], [seconds * 1e3 for _, seconds in bars]


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
    return render("notebook.html.j2", panel=shown)


@singledispatch
def panel(result: object) -> Panel:
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
def _(result: Ranking) -> Panel:
    columns = rank_columns(result)
    lines = [
        Line(one.device, one.first, tuple(cell(one) for cell in columns.values())) for one in result.devices
    ]
    about = f"{result.about}, by {result.by}"
    return Panel(result.model, about, (), ("", "", *columns), *_cut(lines, result.notes), result.warnings)


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
def _(result: Explanation) -> Panel:
    columns = shown_columns(result)
    busy = max(result.priced_s + result.unpriced_s, 1e-30)
    lines = [
        Line(
            row.operator,
            min(row.measured_s / busy, 1.0),
            tuple(cell(row) for cell in [*columns.values()][1:]),
        )
        for row in result.rows
    ]
    figures = [
        Figure("span", quantity(result.span_s, "s"), ""),
        Figure("idle", quantity(result.idle_s, "s"), ""),
    ]
    figures += [Figure(one.cause, quantity(one.saving_s, "s"), "saved") for one in result.findings[:3]]
    header = ("operator", "", *[*columns][1:])
    return Panel(result.trace, result.device, tuple(figures), header, *_cut(lines, result.notes))


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
