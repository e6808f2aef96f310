"""Tables and pictures of what-if commands."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from neuralpower.errors import InputError
from neuralpower.files.terminal import visible
from neuralpower.networks.phases import DECODE
from neuralpower.predict.compose import Interval
from neuralpower.predict.explore.compare import Comparison
from neuralpower.predict.explore.fit import Fit, Request
from neuralpower.predict.explore.score import Score
from neuralpower.predict.explore.sweep import Sweep, SweepPoint
from neuralpower.report.tables import grid, memory_line, quantity
from neuralpower.report.tokens import counted, plain

PLOTS = (".html", ".png", ".svg")
MOST_SAID = 60  # characters of a cell that says what is wrong


def sweep_table(result: Sweep, top: int = 0) -> str:
    """One line per point; a star marks the front."""
    many = len({p.predictor for p in result.points}) > 1
    rows = []
    shown = result.points[:top] if top else result.points
    for p in shown:
        rows.append(
            [
                "*" if p.best else "",
                *([p.predictor] if many else []),
                p.dtype,
                str(p.batch_size),
                str(p.seq_len) if p.seq_len is not None else "-",
                quantity(p.runtime_s, "s"),
                _bounds(p),
                f"{plain(p.samples_per_s, 4)}/s" if p.samples_per_s is not None else "-",
                quantity(p.energy_j, "J"),
                quantity(p.memory_bytes, "B"),
                quantity(p.memory_high_bytes, "B"),
                {True: "yes", False: "no", None: "-"}[p.fits],
                p.basis,
            ]
        )
    header = ["", *(["predictor"] if many else []), "dtype", "batch", "length", "latency", "90 %", "samples", "energy"]
    header += ["memory", "up to", "fits", "basis"]
    first = result.points[0]
    head = visible(f"{first.model} on {', '.join(dict.fromkeys(p.device for p in result.points))}")
    foot = [
        f"* nothing else is better in {result.front}",
        f"{counted(len(result.points), 'point')} from {counted(result.traces, 'trace')}",
    ]
    if len(shown) < len(result.points):
        foot.insert(0, f"({len(result.points) - len(shown)} more)")
    return "\n".join([head, "", grid(header, rows, left=3 if many else 2), *foot, *map(visible, result.notes)])


def _bounds(one: SweepPoint | Score) -> str:
    """Between which times it lies, or why that is not known."""
    if one.low_s is None:
        return textwrap.shorten(one.error, MOST_SAID, placeholder=" ...")
    return f"{quantity(one.low_s, 's')} to {quantity(one.high_s, 's')}"


def comparison_table(found: Comparison) -> str:
    """Both times, their ratio and who is faster."""

    def line(interval: Interval) -> list[str]:
        return [quantity(interval.value, "s"), quantity(interval.low, "s"), quantity(interval.high, "s")]

    table = grid(
        ["", "latency", "low", "high"], [["A  " + found.a, *line(found.a_s)], ["B  " + found.b, *line(found.b_s)]]
    )
    r = found.ratio
    faster, chance = ("A", found.a_faster) if found.a_faster >= 0.5 else ("B", 1 - found.a_faster)
    ratio = f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g}, 90 %)"
    return f"{table}\n{ratio}; the probability that {faster} is faster is {min(chance, 0.999):.1%}"


def score_table(scores: Sequence[Score], top: int) -> str:
    """The best first, then those without a rank."""
    ordered = sorted(scores, key=lambda s: (s.rank is None, s.rank or 0, s.line))
    rows = [
        [
            str(s.rank) if s.rank is not None else "-",
            s.name,
            quantity(s.runtime_s, "s"),
            _bounds(s),
            quantity(s.energy_j, "J"),
            quantity(s.memory_bytes, "B"),
            quantity(s.parameters, ""),
            s.basis or "-",
        ]
        for s in (ordered[:top] if top else ordered)
    ]
    table = grid(["rank", "candidate", "latency", "90 %", "energy", "memory", "parameters", "basis"], rows, left=2)
    return table if not top or len(ordered) <= top else f"{table}\n({len(ordered) - top} more)"


def fit_table(found: Fit, request: Request, device: str) -> str:
    """Fits or not, what takes the room, and what would fit."""
    verdict = "fits" if found.fits else "does not fit"
    length = f", {'context' if request.phase == DECODE else 'length'} {request.length}" if request.length else ""
    optimizer = f" with {request.optimizer}" if request.phase == "training" else ""
    lines = [
        f"{request.model}, batch {request.batch_size}{length}, {request.dtype}, {request.phase}{optimizer}: {verdict} into "
        f"{quantity(found.room_bytes, 'B')} ({device}){_kept_free(found)}",
        memory_line(found.memory),
        f"largest batch size: {found.largest_batch}",
    ]
    if found.longest is not None:
        lines.append(f"longest context: {found.longest} (ended by {found.longest_reason})")
    process = f" beside {quantity(found.process_bytes, 'B')} of the process" if found.process_bytes else ""
    figure = "high figure" if found.memory.assumed else "upper bound"
    lines.append(f"{counted(found.traces, 'trace')}; the {figure} of the memory is what has to fit{process}")
    return "\n".join([*lines, *(f"note: {text}" for text in found.notes)])


def _kept_free(found: Fit) -> str:
    """In words, which share of the memory is kept free."""
    return f" with {found.margin:.0%} of it kept free (--margin)" if found.margin else ""


def check_plot(path: Path) -> None:
    """Raise InputError for another ending than those of PLOTS."""
    if path.suffix not in PLOTS:
        raise InputError(f"plot {str(path)!r}: the ending must be one of {', '.join(PLOTS)}; choose another name")


def sweep_plot(result: Sweep, path: Path) -> None:
    """Latency against energy or throughput, a line per predictor, type and length; raises InputError."""
    from neuralpower.report.charts import XY, Series

    check_plot(path)
    energy = result.front.startswith("latency")
    groups: dict[str, list[SweepPoint]] = {}
    for p in result.points:
        if p.runtime_s is not None:
            groups.setdefault(f"{p.predictor} {p.dtype}{f' s{p.seq_len}' if p.seq_len else ''}", []).append(p)
    if not groups:
        raise InputError("no point has a latency: there is nothing to plot")

    def y(p: SweepPoint) -> float:
        return (p.energy_j or 0.0) / p.batch_size if energy else p.samples_per_s or 0.0

    series = [
        Series(
            name,
            tuple((p.runtime_s or 0.0) * 1e3 for p in some),
            tuple(y(p) for p in some),
            _labels(some),
            mode="lines+markers",
        )
        for name, some in groups.items()
    ]
    front = sorted((p for p in result.points if p.best), key=lambda p: p.runtime_s or 0.0)
    series.append(
        Series("front", tuple((p.runtime_s or 0.0) * 1e3 for p in front), tuple(y(p) for p in front), _labels(front))
    )
    label = "energy per sample (J)" if energy else "samples per second"
    chart = XY(result.points[0].model, "latency (ms)", label, tuple(series), log_x=True, log_y=True, note=result.front)
    if path.suffix == ".html":
        from neuralpower.report.page import Page, Section, write_html

        write_html(Page(chart.title, "", (Section("", (), (chart,)),)), path)
    else:
        from neuralpower.report.static import save

        save(chart, path.parent, path.stem, (path.suffix[1:],))


def _labels(points: Sequence[SweepPoint]) -> tuple[str, ...]:
    return tuple(f"batch {p.batch_size}{f', length {p.seq_len}' if p.seq_len else ''}" for p in points)
