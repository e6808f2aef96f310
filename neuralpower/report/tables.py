"""Predictions and evaluations as plain tables, CSV and JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neuralpower.files.terminal import visible
from neuralpower.learn.estimates import BASES, IN_RANGE, MEASURED, ROOFLINE
from neuralpower.learn.regressor import Regressor
from neuralpower.prediction import rows
from neuralpower.prediction.costs.images import Images
from neuralpower.prediction.prediction import HOST_BOUND, LAUNCHES, Prediction, Training, fresh_memory_of
from neuralpower.prediction.rows import Column, Interval, Row
from neuralpower.report.glance import details, footprint_lines, glance, parallel_lines
from neuralpower.report.grid import Cell, Share, as_asked, at_most, grid, note_lines
from neuralpower.report.number_format import binary, many, quantity

FLOP_CONVENTION = "all-ops"  # 2 per multiply-add, and every other operation: as `profile` counts by default
# How a terminal shows each way to know a time.
STYLE_OF_BASIS = {basis: "weak" for basis in BASES} | {MEASURED: "good", IN_RANGE: "good", ROOFLINE: "bad"}
PARTS = 6  # names of a joined call that are shown
SUMS = ("calls", "latency", "share")  # columns that say something of all further rows together
READABLE_DEPTH = 3  # of modules in Markdown
Value = str | Share
SPARED = ("bound", "FLOP", "calls", "power")  # columns that narrow tables do without, in this order
NOTED_FRESH = 0.1  # share of the time from which fresh memory has a note


def score_cells(regressor: Regressor) -> list[str]:
    """Held out: MAPE, RMSPE, medians of base and of base + residual, bias, error beyond, share inside."""
    s = regressor.scores
    shares = [f"{one:.1%}" for one in (s.mape, s.rmspe, s.median_base)]
    shares += [f"{s.median:.1%}" if regressor.trees else "-", f"{s.bias:+.1%}", f"{s.beyond:.1%}"]
    return ["-" if "nan" in one else one for one in (*shares, f"{s.inside:.0%}")]


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    about: str = ""  # its bounds

    def __str__(self) -> str:
        return f"{self.value} ({self.about})" if self.about else self.value


def bounds(name: str, value: Interval, unit: str) -> Figure:
    low, high = quantity(value.low, unit), quantity(value.high, unit)
    return Figure(name, quantity(value.value, unit), f"{low} to {high}")


def figures(p: Prediction) -> list[Figure]:
    """The headline numbers of a prediction, as far as they are known."""
    known = (("latency", p.runtime_s, "s"), ("energy", p.energy_j, "J"), ("power", p.power_w, "W"))
    shown = [bounds(name, value, unit) for name, value, unit in known if value is not None]
    if p.memory is not None:
        m = p.memory
        span = f"{binary(m.low_bytes)} to {binary(m.high_bytes)}"
        shown.append(Figure("memory", binary(m.value_bytes), span))
    return [
        *shown,
        Figure("work", quantity(p.flops, "FLOP"), many(p.parameters, "parameters")),
        Figure("coverage", f"{p.coverage:.1%}", f"extrapolated {p.extrapolated:.1%}"),
    ]


def prediction_table(
    prediction: Prediction,
    by: str,
    depth: int,
    top: int,
    *,
    marked: bool = False,
    full: bool = False,
) -> str:
    """Totals, rows, and notes of a prediction, in lines of the letters that `grid.at_most` allows.

    Args:
        prediction: what is shown.
        by: "kind", "layer", "module", or "tree", which is drawn as a whole, down to `depth`.
        depth: names of a module's path.
        top: rows; 0 for all.
        marked: with styles for `cli.output.say`.
        full: with all details, columns and notes.
    """
    if by == "tree":
        return str(prediction.tree(depth))
    p, columns = prediction, row_columns(prediction, by)
    every = rows_by(p, by, depth)
    largest = {id(row) for row in sorted(every, key=lambda row: -row.runtime_s)[: top or None]}
    shown, rest = ([row for row in every if (id(row) in largest) is kept] for kept in (True, False))
    cells = [[cell(row) for cell in columns.values()] for row in shown]
    if rest:
        whole = replace(rest[0], **{name: sum(getattr(row, name) for row in rest) for name in rows.SUMMED})
        more = [cell(whole) if name in SUMS else "" for name, cell in columns.items()]
        cells.append([f"({len(rest)} more)", *more[1:]])
    head = [*glance(p), *(details(p) if full else ())]
    with at_most(None) if full else contextlib.nullcontext():
        table = grid([*columns], cells, left=2, spared=SPARED if by == "kind" else (*SPARED, "energy"))
        notes = [*note_lines(_notes(p))]
    foot = map(visible, (*footprint_lines(p), *parallel_lines(p), *_foot(p)))
    parts = ["", part_table(p.images)] if isinstance(p.images, Images) else []
    return as_asked([*head, *parts, "", table, *foot, *notes], marked)


def part_table(images: Images) -> str:
    """The parts of a pipeline: how often each runs, and what one run and all runs take."""
    cells: list[list[Value]] = [
        [
            part.name,
            f"{part.times:,}",
            quantity(part.each_s, "s"),
            quantity(part.runtime_s, "s"),
            Share(part.share),
            "" if part.energy_j is None else quantity(part.energy_j, "J"),
        ]
        for part in images.parts
    ]
    return grid(["part", "runs", "each", "latency", "share", "energy"], cells, left=1)


def rows_by(prediction: Prediction, by: str, depth: int) -> Sequence[Row]:
    """The rows of a view: kinds and layers, the slowest first, or modules as they first run."""
    if by == "layer":
        return sorted(prediction.with_launches, key=lambda row: -row.runtime_s)
    return prediction.by_kind() if by == "kind" else prediction.by_module(depth)


def row_columns(prediction: Prediction, by: str = "kind") -> dict[str, Callable[[Row], Value]]:
    """Header -> cell of a row, for every table of a view; no power if none is known."""
    shown = sorted((column for column in rows.COLUMNS if column.header), key=lambda column: column.seat)
    powered = any(row.power_w is not None for row in prediction.rows)
    return {
        by: lambda row: row_name(row, by),
        "kind" if by == "layer" else "": _kind if by == "layer" else lambda row: "",
        **{c.header: partial(_cell, c) for c in shown if powered or c.unit not in ("W", "J")},
    }


def row_name(row: Row, by: str) -> str:
    """What a row stands for in a view: a kind, or modules and layers by their path."""
    return row.kind if by == "kind" or row.kind == LAUNCHES else row.path or "(model)"


def _kind(row: Row) -> str:
    """The kind of a layer, with the parts of a joined call."""
    if row.kind == LAUNCHES:
        return ""
    return f"{row.kind} ({joined_parts(row.parts)})" if row.parts else row.kind


def _cell(column: Column, row: Row) -> Value:
    value = column.value(row)
    if column.unit == "%":
        return Share(value)
    if column.unit:
        work = column.unit in ("FLOP", "B")
        return quantity(value or None if work else value, column.unit)
    if column.name == "basis":
        return "" if row.kind == LAUNCHES else Cell(value, STYLE_OF_BASIS.get(value, ""))
    return str(value)


def readable(prediction: Prediction, by: str) -> list[list[Value]]:
    """A header and all rows of a view, for Markdown."""
    view = "module" if by == "tree" else by
    columns = {name: cell for name, cell in row_columns(prediction, view).items() if name}
    records = rows_by(prediction, view, READABLE_DEPTH)
    return [[*columns], *([cell(row) for cell in columns.values()] for row in records)]


def joined_parts(parts: Sequence[str]) -> str:
    """The parts of one call: "add to pow mean and 5 more"."""
    shown = " ".join(parts[:PARTS])
    return shown if len(parts) <= PARTS else f"{shown} and {len(parts) - PARTS} more"


def _foot(p: Prediction) -> Iterator[str]:
    """The parts of a training step, and calls that no layer kind describes."""
    if p.training is not None:
        yield _training_line(p.training, p)
    for u in p.unmodelled:
        yield f"unmodelled: {u.operator} x{u.count}, {u.share:.1%} by roofline ({u.reason})"


def _notes(p: Prediction) -> Iterator[str]:
    launches = p.launch_row
    if launches is not None and launches.share > 1 - 1 / HOST_BOUND:
        yield f"bound by launch overhead: the device waits for its host {launches.share:.0%} of the time"
    fresh = fresh_memory_of(p)
    if fresh is not None and fresh.share >= NOTED_FRESH:
        size, way = quantity(fresh.bytes, "B"), "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 keep it"
        yield f"fresh memory: {size} that glibc gave back are fetched anew each time; {way}"
    if p.training is not None and p.training.derived:
        yield f"no backward data for {', '.join(p.training.derived)}; estimated from their forward products"
    if p.method != "meta":
        why = f" ({'; '.join(p.notes)})" if p.notes else ""
        yield f"traced on {p.method} tensors{why}"
    yield from p.remarks


def _training_line(training: Training, p: Prediction) -> str:
    """The parts of a step, which add up to it, and the share of the peak that it uses."""
    times = {step: time.value for step, time in training.steps.items()}
    beside = (p.bubble_row, p.launch_row, fresh_memory_of(p))
    times |= {row.kind: row.runtime_s for row in beside if row is not None}
    parts = ", ".join(f"{name} {quantity(seconds, 's')}" for name, seconds in times.items())
    used = training.utilisation(p.runtime_s.value)
    of_peak = "" if used is None else f", {used:.1%} of the dense peak"
    return f"step: {parts}{of_peak} ({training.recipe})"


def prediction_cells(prediction: Prediction) -> list[Sequence[Any]]:
    """The lines of a CSV file: a header, then a row per folded layer, in SI units."""
    cells = [row.cells().values() for row in prediction.with_launches]
    return [[column.name for column in rows.COLUMNS], *map(list, cells)]
