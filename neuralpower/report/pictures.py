"""Pages of a prediction, a comparison and a sweep; their charts alone as PNG or SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuralpower.errors import InputError
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import Row
from neuralpower.prediction.timeline import Omitted, Stage, memory_bytes, timed
from neuralpower.report.charts import XY, Bars, BarSeries, Ends, Named, Number, Series, check_plot
from neuralpower.report.glance import tokens
from neuralpower.report.module_tree import module_tree
from neuralpower.report.number_format import SIZES, TIMES, binary, counted, plain, unit_of
from neuralpower.report.page import Cell, Page, Section, Share, Table, write_html
from neuralpower.report.tables import figures, row_columns

if TYPE_CHECKING:  # which predict does not need
    from neuralpower.prediction.explore.compare import Comparison, Side
    from neuralpower.prediction.explore.sweep import Sweep, SweepPoint

    Figure = Callable[[SweepPoint], float | None]
    Bounded = Callable[[SweepPoint], Ends | None]

NAMED = 6  # layers whose names stand on the roofline
INTENSITY = "FLOP per byte moved"
FITTED = "fitted to measured layers"  # a roof without a data sheet
BANDS = "Bands: 90 % bounds."


def draw(page: Page, path: Path) -> None:
    """Write a page as HTML, or its charts as one PNG or SVG; raises InputError."""
    check_plot(path)
    if path.suffix == ".html":
        write_html(page, path)
        return
    from neuralpower.report.chart_files import save_together

    save_together([chart for _, chart in page.charts()], path)


# ---- a prediction ----


def prediction_page(
    prediction: Prediction, stages: Sequence[Stage | Omitted] = (), predictor: Predictor | None = None
) -> Page:
    """The totals, kinds, modules, layers on the roofline, and memory over time.

    Args:
        prediction: what was predicted.
        stages: the stages that `predict.case.predict` passes to `seen`, for the memory over time.
        predictor: the predictor that was used, for the roof and the memory over time.
    """
    p = prediction
    sections = [
        Section("At a glance", (*_warned(p.warnings), *tokens(p)), (_totals({"value": p}),)),
        Section("Layer kinds", (), (_kind_bars({"": p}), _kind_table(p))),
        Section(
            "Modules",
            ("Repeated blocks share one line, with their numbers in brackets.",),
            (module_tree(p),),
        ),
        Section("Roofline", _roofline_text(p), (roofline(p, predictor),)),
    ]
    if p.memory is not None:
        over_time = [] if predictor is None else [*_memory_over_time(stages, predictor)]
        sections.append(Section("Memory", (), (*over_time, _memory_table({"bytes": p}))))
    if notes := (*p.notes, *p.remarks):
        sections.append(Section("Notes", tuple(f"- {text}" for text in notes)))
    return Page(p.model, _what(p), tuple(sections))


def _warned(warnings: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"Warning: {text}" for text in warnings)


def _what(p: Prediction) -> str:
    """How the network runs, on what device, and how times are known."""
    known = p.origin or p.predictor
    return (
        f"Batch {p.batch_size}, {p.dtype}, {p.phase}, run {p.run}, on {p.device} ({known}). Nothing was run."
    )


def _totals(predictions: Mapping[str, Prediction]) -> Table:
    """A column for each prediction; bounds are those of 90 %."""
    shown = [{figure.name: str(figure) for figure in figures(p)} for p in predictions.values()]
    names = dict.fromkeys(name for column in shown for name in column)
    rows = tuple((name, *(column.get(name, "-") for column in shown)) for name in names)
    return Table("Latency, memory and work, with 90 % bounds", ("quantity", *predictions), rows)


def _kind_bars(predictions: Mapping[str, Prediction]) -> Bars:
    """Latency by kind with its bounds, the slowest first; predictions side by side."""
    kinds = {name: {row.kind: row for row in p.by_kind()} for name, p in predictions.items()}
    total: dict[str, float] = {}
    for rows in kinds.values():
        for kind, row in rows.items():
            total[kind] = total.get(kind, 0.0) + row.runtime_s
    shown = sorted(total, key=lambda kind: -total[kind])[:14]
    size, unit = unit_of([row.runtime_s for rows in kinds.values() for row in rows.values()], TIMES)

    def bounds(row: Row | None) -> tuple[float, float] | None:
        return None if row is None else (row.low_s / size, row.high_s / size)

    series = tuple(
        BarSeries(
            name,
            tuple(rows[kind].runtime_s / size if kind in rows else None for kind in shown),
            tuple(bounds(rows.get(kind)) for kind in shown),
        )
        for name, rows in kinds.items()
    )
    note = "Whiskers: 90 % bounds."
    return Bars("Latency by layer kind", f"latency, {unit}", tuple(shown), series, note=note)


def _kind_table(p: Prediction) -> Table:
    columns = {name: cell for name, cell in row_columns(p).items() if name}
    return Table.of("Share of each kind", p.by_kind(), columns)


def _roof(p: Prediction, predictor: Predictor | None) -> tuple[str, float, float] | None:
    """(origin, FLOP/s, B/s) of the device: the data sheet's, else as fitted to its layers, else None."""
    if predictor is None:
        return None
    hardware = predictor.hardware
    if hardware is not None and hardware.memory_bytes_per_s > 1 and hardware.peak(p.dtype) > 1:
        return "data sheet", hardware.peak(p.dtype), hardware.memory_bytes_per_s
    if not predictor.rooflines:
        return None
    fitted = predictor.own.roofline(p.dtype)
    return FITTED, fitted.flops_per_s, fitted.bytes_per_s


def _roofline_text(p: Prediction) -> tuple[str, ...]:
    still = sum(row.share for row in p.rows if not row.flops)
    rest = f" Layers that only move data are not on it: {still:.1%} of the time." if still else ""
    return (f"A point is one layer, or several equal ones: its speed over its FLOP per byte.{rest}",)


def roofline(p: Prediction, predictor: Predictor | None) -> XY:
    """The layers by kind, the slowest named, and the device's roof above them."""
    rows = [row for row in p.rows if row.flops and row.bytes and row.runtime_s > 0]
    slowest = sorted(rows, key=lambda row: -row.share)[:NAMED]
    kinds: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row.share):
        kinds.setdefault(row.kind, []).append(row)
    names = _names([row.path for row in slowest])
    series = []
    roof = _roof(p, predictor)
    if roof is not None and rows:
        origin, flops_per_s, bytes_per_s = roof
        ridge = flops_per_s / bytes_per_s
        along = [row.flops / row.bytes for row in rows]
        # a decade down, so that both axes are logarithmic: only there is a roof straight
        ends = (min([*along, ridge]) / 10, ridge, max([*along, ridge]) * 2)
        line = [(x, min(flops_per_s, x * bytes_per_s)) for x in ends]
        series.append(Series.of(f"roof ({origin})", line, mode="lines"))
    for kind, some in kinds.items():
        points: list[Named] = [
            (row.flops / row.bytes, row.flops / row.runtime_s, f"{row.path or '(model)'}, {row.share:.1%}")
            for row in some
        ]
        labels = tuple(names.get(row.path, "") if row in slowest else "" for row in some)
        series.append(Series.of(kind, points, labels=labels))
    note = "Names: the layers that take longest."
    if roof is not None and roof[0] == FITTED:
        note += " No data sheet is known: the line is fitted to all layers, so some are above it."
    return XY(
        f"Layers on the roofline of {p.device}", INTENSITY, "FLOP/s", tuple(series), True, True, note=note
    )


def _names(paths: Sequence[str]) -> dict[str, str]:
    """The last names of each path, the fewest that distinguish it from the others."""
    names = {}
    for path in paths:
        parts = path.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [f".{other}" for other in paths if other != path]
        names[path] = next((end for end in ends if not any(o.endswith(f".{end}") for o in others)), path)
    return names


def _memory_over_time(stages: Sequence[Stage | Omitted], predictor: Predictor) -> Iterator[XY]:
    """Bytes of living tensors over the predicted time; nothing if unknown."""
    points: list[tuple[float, float]] = []
    begun_s = 0.0
    for stage in stages:
        if isinstance(stage, Stage) and stage.has_memory:
            calls = timed(stage, predictor)
            starts = [call.start_s if call.host_start_s is None else call.host_start_s for call in calls]
            times = [begun_s + start for start in (*starts, stage.prediction.runtime_s.value)]
            points += zip(times, map(float, memory_bytes(stage, calls)), strict=True)
        begun_s += stage.runtime_s if isinstance(stage, Omitted) else stage.prediction.runtime_s.value
    if len(points) < 2:
        return
    second, time = unit_of([point[0] for point in points], TIMES)
    byte, size = unit_of([point[1] for point in points], SIZES)
    steps: list[tuple[Number, Number]] = []
    for x, y in points:
        if steps and steps[-1][1] != y / byte:
            steps.append((x / second, steps[-1][1]))
        if not steps or steps[-1][1] != y / byte or x == points[-1][0]:
            steps.append((x / second, y / byte))
    series = (Series.of("tensors alive", steps, mode="lines"),)
    note = "Weights, inputs and activations, without memory of the framework and the allocator."
    yield XY("Memory over time", f"time, {time}", f"memory, {size}", series, note=note)


def _memory_table(predictions: Mapping[str, Prediction]) -> Table:
    """The parts of the memory at the peak, the largest first."""
    memories = {name: p.memory.shown_parts for name, p in predictions.items() if p.memory is not None}
    parts: dict[str, int] = {}
    for memory in memories.values():
        for part, size in memory.items():
            parts[part] = max(parts.get(part, 0), size)
    shown = sorted((part for part in parts if parts[part]), key=lambda part: -parts[part])
    rows: list[tuple[Cell, ...]] = [
        (part, *(binary(memory.get(part, 0)) for memory in memories.values())) for part in shown
    ]
    header = [*memories]
    if len(memories) == 1:
        header, whole = ["share", *header], sum(parts.values()) or 1
        rows = [(row[0], Share(parts[part] / whole), *row[1:]) for part, row in zip(shown, rows, strict=True)]
    return Table("Memory at the peak, by purpose", ("part", *header), tuple(rows))


# ---- a comparison ----


def comparison_page(comparison: Comparison, sides: Sequence[Side]) -> Page:
    """Two predictions side by side: totals, kinds, memory."""
    a, b = sides
    faster, chance = comparison.faster
    r = comparison.ratio
    lead = (
        f"A: {comparison.a}. B: {comparison.b}. "
        f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g}, 90 %). "
        f"{faster} is faster with a probability of {chance:.1%}."
    )
    predictions = {"A": a.prediction, "B": b.prediction}
    size, unit = unit_of([side.runtime_s.value for side in sides], TIMES)
    times = BarSeries(
        "latency",
        tuple(side.runtime_s.value / size for side in sides),
        tuple((side.runtime_s.low / size, side.runtime_s.high / size) for side in sides),
    )
    bars = Bars(
        "Latency",
        f"latency, {unit}",
        (f"A: {comparison.a}", f"B: {comparison.b}"),
        (times,),
        note="Whiskers: 90 % bounds.",
    )
    sections = [
        Section("At a glance", _warned(comparison.warnings), (bars, _totals(predictions))),
        Section("Layer kinds", (), (_kind_bars(predictions),)),
    ]
    if a.prediction.memory is not None and b.prediction.memory is not None:
        sections.append(Section("Memory", (), (_memory_table(predictions),)))
    notes = dict.fromkeys(f"- {name}: {text}" for name, p in predictions.items() for text in p.remarks)
    if notes:
        sections.append(Section("Notes", tuple(notes)))
    return Page(f"{comparison.a} against {comparison.b}", lead, tuple(sections))


# ---- a sweep ----


# Setting of a device -> (what an axis says, its unit)
SETTINGS = {"power_limit_w": ("power limit, W", 1.0), "clock_hz": ("clock, MHz", 1e6)}


@dataclass(frozen=True)
class Swept:
    """The known points of a sweep: a line for each predictor, dtype and length, along the batch sizes.

    With one batch size, a line runs along the lengths.
    """

    result: Sweep
    known: Sequence[SweepPoint]

    @property
    def along_length(self) -> bool:
        batches, lengths = ({getattr(p, name) for p in self.known} for name in ("batch_size", "seq_len"))
        return len(batches) == 1 and len(lengths) > 1

    @property
    def along_ranks(self) -> bool:
        """Whether lines run along the devices: one batch size and one length on several layouts."""
        batches = {p.batch_size for p in self.known}
        return len(batches) == 1 and not self.along_length and len({p.ranks for p in self.known}) > 1

    @property
    def along_setting(self) -> str:
        """The setting of the device that lines run along, where sizes are one: a key of SETTINGS."""
        alike = {(p.batch_size, p.seq_len, p.layout) for p in self.known}
        differs = (name for name in SETTINGS if len({getattr(p, name) for p in self.known}) > 1)
        return next(differs, "") if len(alike) == 1 else ""

    @property
    def word(self) -> str:
        if self.along_setting:
            return SETTINGS[self.along_setting][0]
        if self.along_ranks:
            return "devices"
        return "tokens per sample" if self.along_length else "batch size"

    def size(self, point: SweepPoint) -> float:
        """A point's size along its line."""
        if self.along_setting:
            return float(getattr(point, self.along_setting)) / SETTINGS[self.along_setting][1]
        if self.along_ranks:
            return point.ranks
        return (point.seq_len or 0) if self.along_length else point.batch_size

    def groups(self) -> dict[str, list[SweepPoint]]:
        """Name -> points of a line; a name contains only what differs."""
        points = self.known
        many = {
            name: len({getattr(p, name) for p in points}) > 1
            for name in ("predictor", "dtype", "seq_len", "layout")
        }
        grouped: dict[str, list[SweepPoint]] = {}
        for p in points:
            length = f"length {p.seq_len}" if many["seq_len"] and not self.along_length else ""
            layout = p.layout if many["layout"] and not self.along_ranks else ""
            own = (p.predictor if many["predictor"] else "", p.dtype if many["dtype"] else "")
            parts = (*own, length, layout)
            grouped.setdefault(" ".join(filter(None, parts)) or p.device, []).append(p)
        return {name: sorted(some, key=self.size) for name, some in grouped.items()}

    def text(self, p: SweepPoint) -> str:
        length, layout = f", length {p.seq_len}" if p.seq_len else "", f", {p.layout}" if p.layout else ""
        return f"batch {p.batch_size}{length}{layout}"

    def front(self) -> XY:
        """Latency against energy or throughput, each point with its size."""
        energy = self.result.front.startswith("latency")
        size, unit = unit_of([p.runtime_s or 0.0 for p in self.known], TIMES)

        def point(p: SweepPoint) -> Named:
            figure = (p.energy_j or 0.0) / p.batch_size if energy else p.samples_per_s or 0.0
            return (p.runtime_s or 0.0) / size, figure, self.text(p)

        ends = _sample_joules if energy else _sample_rates
        lines = [
            Series.of(
                name,
                map(point, some),
                mode="lines+markers",
                labels=tuple(f"{self.size(p):g}" for p in some),
                bounds=tuple(map(ends, some)),
            )
            for name, some in self.groups().items()
        ]
        best = sorted((p for p in self.known if p.best), key=lambda p: p.runtime_s or 0.0)
        front = Series.of("Pareto-optimal", map(point, best), mode="lines", halo=True)
        what = "energy of a sample, J" if energy else "samples/s"
        note = f"Numbers next to points: {self.word}. {BANDS} Pareto-optimal in {self.result.front}."
        title = f"Latency against {'energy' if energy else 'throughput'}: {self.result.points[0].model}"
        return XY(title, f"latency, {unit}", what, (*lines, front), True, True, note=note)

    def curves(self) -> Iterator[XY]:
        """Throughput and memory over the swept size, if it has two values or more."""
        if len({self.size(p) for p in self.known}) < 2:
            return
        if self.along_setting:
            yield from self.settings()
            return
        byte, unit = unit_of([p.memory_bytes or 0.0 for p in self.known], SIZES)

        def memory_ends(p: SweepPoint) -> Ends | None:
            known = p.memory_bytes is not None and p.memory_high_bytes is not None
            return ((p.memory_bytes or 0.0) / byte, (p.memory_high_bytes or 0.0) / byte) if known else None

        figures: dict[str, tuple[Figure, Bounded]] = {
            "Throughput, samples/s": (lambda p: p.samples_per_s, _sample_rates),
            f"Memory, {unit}": (
                lambda p: None if p.memory_bytes is None else p.memory_bytes / byte,
                memory_ends,
            ),
        }
        for what, (figure, ends) in figures.items():
            title = f"{what.partition(',')[0]} over {self.word}"
            note = "Bands: up to the upper bound." if ends is memory_ends else BANDS
            yield XY(title, self.word, what, tuple(self.lines(figure, ends)), True, True, note=note)

    def settings(self) -> Iterator[XY]:
        """Throughput, watts and joules over a power limit or clock, each with its 90 % bounds."""
        unit = self.known[0].unit
        figures: dict[str, tuple[Figure, Bounded]] = {
            f"{unit}s/s": (lambda p: p.units_per_s, _unit_rates),
            "W": (lambda p: p.power_w, lambda p: p.power_ends_w),
            f"J per {unit}": (lambda p: p.joules_per_unit, _unit_joules),
        }
        for what, (figure, ends) in figures.items():
            yield XY(f"{what} over {self.word}", self.word, what, tuple(self.lines(figure, ends)), note=BANDS)

    def lines(self, figure: Figure, ends: Bounded) -> Iterator[Series]:
        """A number of each point along its line, with its bounds."""
        for name, some in self.groups().items():
            points = [(self.size(p), figure(p), self.text(p)) for p in some]
            labels = tuple("" if y is None else plain(y) for _, y, _ in points)
            bounds = tuple(map(ends, some))
            yield Series.of(name, points, mode="lines+markers", labels=labels, bounds=bounds)


def _rate_ends(rate: Figure) -> Bounded:
    """Bounds of what is made per second, from those of the time that it takes."""

    def ends(point: SweepPoint) -> Ends | None:
        per_second = rate(point)
        if not (per_second and point.runtime_s and point.low_s and point.high_s):
            return None
        made = per_second * point.runtime_s
        return made / point.high_s, made / point.low_s

    return ends


_sample_rates = _rate_ends(lambda point: point.samples_per_s)
_unit_rates = _rate_ends(lambda point: point.units_per_s)


def _sample_joules(point: SweepPoint) -> Ends | None:
    """Bounds of the joules of a sample."""
    if point.energy_low_j is None or point.energy_high_j is None:
        return None
    return point.energy_low_j / point.batch_size, point.energy_high_j / point.batch_size


def _unit_joules(point: SweepPoint) -> Ends | None:
    """Bounds of the joules of a token or a sample, with node and site."""
    if point.joules_low is None or point.joules_high is None:
        return None
    return point.joules_low, point.joules_high


def sweep_page(result: Sweep) -> Page:
    """Latency against energy or throughput, each and the memory over the swept size, and all points.

    Raises InputError if no point has a latency.
    """
    from neuralpower.report.results.explored import point_columns

    known = [point for point in result.points if point.runtime_s is not None]
    if not known:
        raise InputError("no point has a latency to plot; see the reasons with --format table")
    swept = Swept(result, known)
    devices = ", ".join(dict.fromkeys(point.device for point in known))
    points, traces = counted(len(result.points), "point"), counted(result.traces, "trace")
    lead = f"{points} on {devices}, from {traces}. Nothing was run."
    charts = (swept.front(), *swept.curves())
    table = Table.of("Points of the sweep", result.points, point_columns(result))
    sections = [
        Section(
            "Cost of each point",
            (*_warned(result.warnings), f"Numbers next to points: {swept.word}."),
            charts,
        ),
        Section("Points", (f"* Pareto-optimal ({result.front}).",), (table,)),
    ]
    if result.notes:
        sections.append(Section("Notes", tuple(f"- {text}" for text in result.notes)))
    return Page(result.points[0].model, lead, tuple(sections))
