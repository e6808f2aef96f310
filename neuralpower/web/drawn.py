"""Answers as charts and tables: what the page shows, and what can be saved of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from neuralpower.prediction.costs.footprint import KWH_J, MILLION, Each
from neuralpower.prediction.costs.images import NOUNS
from neuralpower.prediction.fits.verdict import verdict_between
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import Interval
from neuralpower.report.charts import XY, Bars, BarSeries, Series
from neuralpower.report.number_format import binary, plain, quantity, unit_of
from neuralpower.report.page import Cell, Part, Section, Table
from neuralpower.report.results.explored import SHORT
from neuralpower.web.answers import Answer, Failure, Point
from neuralpower.web.traffic import Curve, Served
from neuralpower.web.view import View

TIMES = {1.0: "s", 1e-3: "ms", 1e-6: "us"}
GIB = 2.0**30
MOST_KINDS = 10
BOUNDED = "Bands: 90 % bounds."
BANDS = "Bands: the 90 % bounds of the steps' times, up to the rate that the slowest steps hold."


def short(answer: Answer | Failure, view: View) -> str:
    """A device's name in charts: without its maker, and with the number of ranks."""
    name = answer.name if isinstance(answer, Answer) else answer.device
    for maker in ("NVIDIA ", "AMD ", "Intel ", "Apple ", "GeForce "):
        name = name.replace(maker, "")
    return f"{view.ranks} x {name}" if view.ranks > 1 else name


def sections(view: View, found: Sequence[Answer | Failure]) -> list[Section]:
    """The views that follow a change at once."""
    answers = [one for one in found if isinstance(one, Answer)]
    if not answers:
        return []
    names = [short(one, view) for one in answers]
    of = [(short(one, view), one) for one in answers if len(one.curve) > 1]
    kinds = _kinds(names, answers)
    charts: tuple[Part, ...] = (_rates(of), _times(of), *_memory(of), kinds, *_money(of)) if of else (kinds,)
    return [
        Section("The answer", (), (glance(view, answers),)),
        Section("Charts", _unpriced(answers) if of else (), charts),
        Section("As numbers", (), (table(view, answers),)),
    ]


def said(view: View, found: Sequence[Answer | Failure]) -> str:
    """The answer in a sentence, for who does not see it."""
    parts = []
    for one in found:
        name = short(one, view)
        if isinstance(one, Failure):
            parts.append(f"{name}: {one.text}")
            continue
        time, seconds = _per(one.unit)
        rate = quantity(one.here.rate.value * seconds, "").strip()
        parts.append(f"{name}: {rate} {one.unit}s per {time}, {quantity(one.here.seconds.value, 's')}")
    return f"{_title(view)}. {'; '.join(parts)}"


def _title(view: View) -> str:
    tokens = "" if view.context is None else f", {view.context:,} tokens"
    return f"{view.model}, {view.phase}{tokens}, batch {view.batch}"


def glance(view: View, answers: Sequence[Answer]) -> Table:
    """A row for each device."""
    unit = answers[0].unit
    time, seconds = _per(unit)
    columns: dict[str, Callable[[Answer], Cell]] = {
        "device": lambda one: short(one, view),
        "latency": lambda one: quantity(one.here.seconds.value, "s"),
        "90 % bounds": lambda one: _ends(one.here.seconds),
        f"{unit}s/{time[0]}": lambda one: plain(one.here.rate.value * seconds, 4),
        f"energy per {unit}": lambda one: _each(one),
        "power": lambda one: _power(one),
        "memory": lambda one: "-" if one.here.memory is None else binary(one.here.memory[0]),
        "the device has": lambda one: binary(one.room_bytes),
        "fits": _fits,
    }
    priced = any(one.price is not None for one in answers)
    if priced or view.region:
        columns[f"kWh per million {unit}s"] = lambda one: _million(
            one, lambda each: each.energy_j, MILLION / KWH_J
        )
    if priced:
        columns[f"price per million {unit}s, USD"] = lambda one: _million(one, lambda each: each.price)
    if view.region:
        columns[f"g CO2e per million {unit}s"] = lambda one: _million(one, lambda each: each.carbon_g)
    return Table.of(_title(view), answers, columns)


def _per(unit: str) -> tuple[str, int]:
    """The time that rates of a unit are for, and its seconds: images and films take seconds each."""
    return ("hour", 3600) if unit in NOUNS else ("second", 1)


def _million(one: Answer, value: Callable[[Each], Interval | None], factor: float = 1.0) -> str:
    """What a million tokens or samples take of something."""
    found = value(one.each(one.here))
    return "-" if found is None else plain(found.value * factor)


def _ends(value: Interval) -> str:
    return f"{quantity(value.low, 's')} to {quantity(value.high, 's')}"


def _each(one: Answer) -> str:
    joules = one.each(one.here).energy_j
    return "-" if joules is None else quantity(joules.value, "J")


def _power(one: Answer) -> str:
    joules = one.here.energy_j
    return "-" if joules is None else quantity(joules.value / one.here.seconds.value, "W")


def _fits(one: Answer) -> str:
    """Whether the memory is within what the device leaves free, in the words of `neuralpower fit`."""
    if one.here.memory is None or one.left_bytes is None:
        return "not known"
    value, _, high = one.here.memory
    return SHORT[verdict_between(value, high, one.left_bytes)]


# ---- charts ----

Named = Sequence[tuple[str, Answer]]


def _line(name: str, points: Sequence[Point], value: Callable[[Point], Interval | None]) -> Series:
    """A line over the batch size, with its bounds."""
    known = [(point.batch, found) for point in points if (found := value(point)) is not None]
    bounds = tuple((found.low, found.high) for _, found in known)
    return Series.of(name, [(x, found.value) for x, found in known], mode="lines+markers", bounds=bounds)


def _rates(answers: Named) -> XY:
    lines = tuple(_line(name, one.curve, lambda point: point.rate) for name, one in answers)
    unit = f"{answers[0][1].unit}s"
    title = f"{unit.capitalize()} per second over the batch size"
    return XY(title, "batch size", f"{unit}/s", lines, True, True, note=BOUNDED)


def _times(answers: Named) -> XY:
    size, unit = unit_of([one.here.seconds.value for _, one in answers], TIMES)

    def scaled(point: Point) -> Interval:
        return Interval(*(end / size for end in (point.seconds.value, point.seconds.low, point.seconds.high)))

    lines = tuple(_line(name, one.curve, scaled) for name, one in answers)
    return XY(
        "Latency over the batch size", "batch size", f"latency, {unit}", lines, True, True, note=BOUNDED
    )


def _memory(answers: Named) -> Iterator[XY]:
    """Bytes over the batch size, and what each device has, as a broken line."""
    lines = []
    for name, one in answers:
        found = _line(name, one.curve, lambda point: _gib(point.memory))
        if found.x:
            lines.append(found)
    rooms: dict[float, list[str]] = {}
    for name, one in answers:
        if one.room_bytes is not None:
            rooms.setdefault(one.room_bytes / GIB, []).append(name)
    if not lines:
        return
    ends = [point.batch for _, one in answers for point in (one.curve[0], one.curve[-1])]
    for room, of in rooms.items():
        line = Series.of(
            f"{', '.join(of)} has", [(min(ends), room), (max(ends), room)], mode="lines", dash=True
        )
        lines.append(line)
    note = "Bands: from the tensors alone to the most that is needed. Broken: what a device has."
    yield XY("Memory over the batch size", "batch size", "memory, GiB", tuple(lines), True, True, note=note)


def _gib(memory: tuple[float, float, float] | None) -> Interval | None:
    return None if memory is None else Interval(*(size / GIB for size in memory))


def _kinds(names: Sequence[str], answers: Sequence[Answer]) -> Bars:
    """Seconds of the layers of each kind, the slowest first."""
    total: dict[str, float] = {}
    for one in answers:
        for kind, seconds in one.kinds.items():
            total[kind] = total.get(kind, 0.0) + seconds.value
    shown = sorted(total, key=lambda kind: -total[kind])[:MOST_KINDS]
    size, unit = unit_of([s.value for one in answers for s in one.kinds.values()], TIMES)
    series = tuple(
        BarSeries(
            name,
            tuple(one.kinds[kind].value / size if kind in one.kinds else 0.0 for kind in shown),
            tuple(_bounds(one.kinds.get(kind), size) for kind in shown),
        )
        for name, one in zip(names, answers, strict=True)
    )
    batch = answers[0].here.batch
    note = "Whiskers: 90 % bounds."
    return Bars(f"Time by kind of layer, batch {batch}", f"time, {unit}", tuple(shown), series, note=note)


def _bounds(value: Interval | None, size: float) -> tuple[float, float] | None:
    """Both ends in units of `size`; None where they are not known."""
    return None if value is None or value.low == value.high else (value.low / size, value.high / size)


def _money(answers: Named) -> Iterator[XY]:
    """Joules, and where a price is given its price, over the batch size."""
    unit = answers[0][1].unit
    lines = [_line(name, one.curve, lambda point, one=one: one.each(point).energy_j) for name, one in answers]  # type: ignore[misc]
    if lines := [line for line in lines if line.x]:
        title = f"Energy per {unit}"
        yield XY(title, "batch size", f"J per {unit}", tuple(lines), True, True, note=BOUNDED)
    lines = []
    for name, one in answers:
        if one.price is not None:
            lines.append(_line(name, one.curve, lambda point, one=one: one.each(point).price))  # type: ignore[misc]
    if lines:
        title = f"Price per million {unit}s"
        yield XY(title, "batch size", f"{title}, USD", tuple(lines), True, True, note=BOUNDED)


def _unpriced(answers: Sequence[Answer]) -> tuple[str, ...]:
    if any(one.price is not None for one in answers):
        return ()
    return ("Enter what a device costs for an hour, and its price over the batch size is drawn, too.",)


def table(view: View, answers: Sequence[Answer]) -> Table:
    """A row for each device and batch size; numbers in units of their headers."""
    unit = answers[0].unit
    header = (
        "device",
        "batch",
        "latency, s",
        "from",
        "to",
        f"{unit}s/s",
        f"J per {unit}",
        "memory, GiB",
        "up to",
    )
    rows: list[tuple[Cell, ...]] = []
    for one in answers:
        for p in one.curve:
            joules = None if p.energy_j is None else p.energy_j.value / p.amount
            memory = (None, None) if p.memory is None else (p.memory[0] / GIB, p.memory[2] / GIB)
            times = (p.seconds.value, p.seconds.low, p.seconds.high)
            rows.append((short(one, view), p.batch, *times, p.rate.value, joules, *memory))
    return Table("The same as numbers", header, tuple(rows))


def rooflined(p: Prediction, chart: XY, name: str) -> XY:
    """The roofline of one device, with its name and what it is of."""
    return replace(chart, title=f"Layers on the roofline: {name}, batch {p.batch_size}")


def served(view: View, curves: Sequence[tuple[str, Curve]]) -> Section:
    """Waiting times and throughput over the rate, with the knee of each curve."""
    label = "requests per second"
    text = []
    for name, curve in curves:
        how = "simulated" if curve.refined else "first estimate, by the mean step; a simulation replaces it"
        knee = curve.knee
        text.append(
            f"- {name} ({how}): knee at {knee.rate:.3g} requests/s, {knee.tokens_per_s:,.0f} tokens/s, "
            f"first token {quantity(knee.first_s, 's')}, then {quantity(knee.next_s, 's')} each"
        )

    def chart(title: str, unit: str, value: Callable[[Served], float], note: str = "") -> XY:
        lines = tuple(
            Series.of(
                name,
                [(one.rate, value(one)) for one in curve.points],
                mode="lines+markers",
                labels=tuple("knee" if one is curve.knee else "" for one in curve.points),
                bounds=tuple(curve.between(one, value) for one in curve.points) if note else (),
            )
            for name, curve in curves
        )
        return XY(title, label, unit, lines, True, True, note=note)

    charts = (
        chart("Whole answer over the rate", "seconds, mean", lambda one: one.whole_s, BANDS),
        chart("First token over the rate", "seconds, mean", lambda one: one.first_s, BANDS),
        chart("Throughput over the rate", "tokens per second", lambda one: one.tokens_per_s),
    )
    header = ("device", "requests/s", "tokens/s", "first token, s", "next tokens, s", "whole answer, s")
    rows = tuple(
        (name, one.rate, one.tokens_per_s, one.first_s, one.next_s, one.whole_s)
        for name, curve in curves
        for one in curve.points
    )
    text.append("The knee has the most answers for their latency.")
    return Section("Traffic", tuple(text), (*charts, Table("Traffic as numbers", header, rows)))
