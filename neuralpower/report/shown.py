"""Show results in Python: a text for `print`, one line for `repr`, a panel for notebooks, bars."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from neuralpower.errors import InputError, unknown
from neuralpower.files.terminal import visible
from neuralpower.prediction.explore.compare import Comparison
from neuralpower.prediction.explore.fit import Fit
from neuralpower.prediction.explore.sweep import Sweep
from neuralpower.prediction.prediction import Prediction, Tree
from neuralpower.prediction.tree import Branch
from neuralpower.report.explored import comparison_table, fit_table, sweep_table
from neuralpower.report.grid import as_asked, listed, percent, warning_lines
from neuralpower.report.module_tree import COLUMNS, named
from neuralpower.report.notebook import html as html
from neuralpower.report.number_format import binary, bounded, counted, quantity
from neuralpower.report.tables import figures, prediction_table, row_name, rows_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEWS = ("kind", "layer", "module")
DEPTH, TOP = 3, 15  # of the table, as the command's
WIDE = 0.35  # inches of a bar


@singledispatch
def text(result: object) -> str:
    """The table that the command prints."""
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
    table = listed([*_drawn(result.root)], columns, left=2)
    foot = f"latency {bounded(whole.runtime_s, 's')}"
    return as_asked([*warning_lines(whole.warnings), title(whole), "", table, "", foot], marked=False)


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
def _(result: Comparison) -> str:
    return comparison_table(result)


@line.register
def _(result: Comparison) -> str:
    r = result.ratio
    ratio = f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g})"
    return visible(f"Comparison(A {result.a}, B {result.b}: {ratio})")


@text.register
def _(result: Fit) -> str:
    if result.request is None:  # made by a caller
        return line(result)
    return fit_table(result, result.request, result.device or result.request.platform.called)


@line.register
def _(result: Fit) -> str:
    asked = result.request
    name = "" if asked is None else f"{asked.model}, batch {asked.batch_size}, {asked.dtype}, {asked.phase}: "
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
        raise InputError("plot needs matplotlib: pip install 'neuralpower[report]'") from None
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
