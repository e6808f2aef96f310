"""Tables and plots of the what-if commands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from neuralpower.files.terminal import visible
from neuralpower.layers.base import FORWARD
from neuralpower.networks.phases import DECODE
from neuralpower.predict.explore.compare import Comparison
from neuralpower.predict.explore.fit import Fit, Request
from neuralpower.predict.explore.score import Score
from neuralpower.predict.explore.sweep import Sweep, SweepPoint
from neuralpower.report.number_format import counted, plain
from neuralpower.report.tables import grid, listed, memory_line, quantity

MOST_SAID = 60  # characters of a reason in a cell


def sweep_table(result: Sweep, top: int = 0) -> str:
    """One line per point; a star marks the Pareto-optimal ones."""
    many = len({p.predictor for p in result.points}) > 1
    shown = result.points[: top or None]
    columns: dict[str, Callable[[SweepPoint], str]] = {
        "": lambda p: "*" if p.best else "",
        "predictor": lambda p: p.predictor,
        "dtype": lambda p: p.dtype,
        "batch": lambda p: str(p.batch_size),
        "length": lambda p: "-" if p.seq_len is None else str(p.seq_len),
        "latency": lambda p: quantity(p.runtime_s, "s"),
        "90 %": _bounds,
        "samples": lambda p: "-" if p.samples_per_s is None else f"{plain(p.samples_per_s, 4)}/s",
        "energy": lambda p: quantity(p.energy_j, "J"),
        "memory": lambda p: quantity(p.memory_bytes, "B"),
        "up to": lambda p: quantity(p.memory_high_bytes, "B"),
        "fits": lambda p: {True: "yes", False: "no", None: "-"}[p.fits],
        "basis": lambda p: p.basis,
    }
    if not many:
        del columns["predictor"]
    devices = ", ".join(dict.fromkeys(p.device for p in result.points))
    phase = "" if result.points[0].phase == FORWARD else f", {result.points[0].phase},"
    head = visible(f"{result.points[0].model}{phase} on {devices}")
    more = [f"({len(result.points) - len(shown)} more)"] if len(shown) < len(result.points) else []
    points = f"{counted(len(result.points), 'point')} from {counted(result.traces, 'trace')}"
    foot = [*more, f"* nothing else is better in {result.front}", points, *map(visible, result.notes)]
    return "\n".join([head, "", listed(shown, columns, left=3 if many else 2), *foot])


def _bounds(one: SweepPoint | Score) -> str:
    """The bounds of the time, or why they are not known."""
    if one.low_s is None:
        return textwrap.shorten(one.error, MOST_SAID, placeholder=" ...")
    return f"{quantity(one.low_s, 's')} to {quantity(one.high_s, 's')}"


def comparison_table(found: Comparison) -> str:
    """Both times, their ratio and which one is faster."""
    sides = ((f"A  {found.a}", found.a_s), (f"B  {found.b}", found.b_s))
    rows = [[name, *(quantity(seconds, "s") for seconds in (t.value, t.low, t.high))] for name, t in sides]
    r = found.ratio
    faster, chance = ("A", found.a_faster) if found.a_faster >= 0.5 else ("B", 1 - found.a_faster)
    ratio = f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g}, 90 %)"
    verdict = f"the probability that {faster} is faster is {min(chance, 0.999):.1%}"
    return f"{grid(['', 'latency', 'low', 'high'], rows)}\n{ratio}; {verdict}"


def score_table(scores: Sequence[Score], top: int) -> str:
    """The best first, then those without a rank."""
    ordered = sorted(scores, key=lambda s: (s.rank is None, s.rank or 0, s.line))
    shown = ordered[: top or None]
    columns: dict[str, Callable[[Score], str]] = {
        "rank": lambda s: "-" if s.rank is None else str(s.rank),
        "candidate": lambda s: s.name,
        "latency": lambda s: quantity(s.runtime_s, "s"),
        "90 %": _bounds,
        "energy": lambda s: quantity(s.energy_j, "J"),
        "memory": lambda s: quantity(s.memory_bytes, "B"),
        "parameters": lambda s: quantity(s.parameters, ""),
        "basis": lambda s: s.basis or "-",
    }
    table = listed(shown, columns, left=2)
    return table if len(shown) == len(ordered) else f"{table}\n({len(ordered) - top} more)"


def fit_table(found: Fit, request: Request, device: str) -> str:
    """Whether it fits, what takes the memory, and what would fit."""
    what = "context" if request.phase == DECODE else "length"
    length = f", {what} {request.length}" if request.length else ""
    optimizer = f" with {request.optimizer}" if request.phase == "training" else ""
    kept = f" with {found.margin:.0%} of it kept free (--margin)" if found.margin else ""
    lines = [
        f"{request.model}, batch {request.batch_size}{length}, {request.dtype}, {request.phase}{optimizer}: "
        f"{'fits' if found.fits else 'does not fit'} into {quantity(found.room_bytes, 'B')} ({device}){kept}",
        *([] if found.weights is None else [found.weights.line]),
        memory_line(found.memory),
        f"largest batch size: {found.largest_batch}",
    ]
    if found.longest is not None:
        lines.append(f"longest context: {found.longest} (ended by {found.longest_reason})")
    process = f" beside {quantity(found.process_bytes, 'B')} of the process" if found.process_bytes else ""
    figure = "high figure" if found.memory.assumed else "upper bound"
    lines.append(f"{counted(found.traces, 'trace')}; the {figure} of the memory is what has to fit{process}")
    return "\n".join([*lines, *(f"note: {text}" for text in found.notes)])
