"""Waiting times of a workload, and plans for one, as tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from neuralpower.files.terminal import visible
from neuralpower.prediction.costs.footprint import Each
from neuralpower.report.charts import XY, Bars, BarSeries, Series
from neuralpower.report.glance import lines_of
from neuralpower.report.grid import grid, note_lines
from neuralpower.report.number_format import counted, many, plain, quantity, share
from neuralpower.report.page import Page, Section, Table
from neuralpower.serving.plan import Choice, Plan
from neuralpower.serving.results import POINTS, Load
from neuralpower.serving.traffic import Traffic

CURVED = "The band: 90 % bounds of the mean."
NAMES = {
    "ttft_s": "first token (TTFT)",
    "tpot_s": "next tokens (TPOT)",
    "itl_s": "gaps (ITL)",
    "latency_s": "whole answer",
}


def traffic_table(found: Traffic) -> str:
    """What users wait for, and what the engine does meanwhile."""
    return "\n".join([*_head(found), "", _waits(found), "", *_foot(found)])


def _head(traffic: Traffic) -> Iterator[str]:
    """What was served on what, and how much comes out."""
    devices = f"{traffic.devices} x {traffic.device}" if traffic.devices > 1 else traffic.device
    replicas = f"{traffic.replicas} replicas of " if traffic.replicas > 1 else ""
    layout = f", {traffic.layout}" if traffic.layout.ranks > 1 else ""
    yield f"{traffic.model} in {traffic.dtype} on {replicas}{devices}{layout}, {traffic.engine}"
    load = traffic.value
    arrive = "closed loop" if load.rate is None else f"{load.rate:.3g} requests/s"
    if traffic.highest is not None:
        arrive = f"{load.rate:.3g} requests/s is the highest rate that holds {_promise(traffic)}"
    yield f"{arrive}: {counted(load.requests, 'request')}"
    yield (
        f"{load.tokens_per_s:,.0f} tokens/s ({load.tokens_per_s / traffic.devices:,.0f} per device), "
        f"{load.requests_per_s:.3g} answers/s"
    )


def _waits(found: Traffic) -> str:
    rows = []
    for measure, name in NAMES.items():
        mean = found.interval(measure)
        bounds = f"{quantity(mean.low, 's')} to {quantity(mean.high, 's')}"
        values = getattr(found.value, measure)
        rows.append([name, *(quantity(values[point], "s") for point in POINTS), bounds])
    return grid(["wait for", *POINTS, "mean, 90 %"], rows, left=1, spared=("p90", "p50"))


def _foot(traffic: Traffic) -> Iterator[str]:
    """What the engine does meanwhile, and what it takes."""
    load = traffic.value
    yield (
        f"engine: {share(load.busy)} of the time busy, {load.batch:.3g} requests in a step, "
        f"{share(load.reading)} of it with prompts"
    )
    if load.parts:
        yield f"steps: {', '.join(f'{kind} {share(part)}' for kind, part in list(load.parts.items())[:6])}"
    reused = f"; {share(load.reused)} of the prompts were there" if load.reused else ""
    preempted = f"; {load.preemptions:,} preemptions, {load.recomputed:,} tokens computed again"
    cache = f"cache: {many(traffic.blocks * traffic.block, 'tokens')}, {share(load.cache_share)} held{reused}"
    yield cache + (preempted if load.preemptions else "")
    if load.drawn is not None:
        yield f"draws {quantity(load.drawn.power_w, 'W')}, {quantity(load.drawn.per_token_j, 'J')} a token"
    if traffic.footprint is not None:
        yield from (
            visible(line) for line in lines_of(traffic.footprint.lines) if not line.startswith("energy per ")
        )
    if load.goodput_per_s is not None:
        held = share(load.goodput_per_s / load.requests_per_s)
        good = f"goodput {load.goodput_per_s:.3g} requests/s"
        yield f"promise: {held} of the requests hold {_promise(traffic)}: {good}"
    if traffic.curve:
        yield ""
        header = ["requests/s", "tokens/s", "first token p95", "next tokens p95", "cache", "J a token"]
        yield grid(header, [_point(point) for point in traffic.curve])
        if traffic.knee is not None:
            yield f"knee: {traffic.knee:.3g} requests/s"
    if traffic.compared:
        yield ""
        header = [f"next to {traffic.tool}", "point", "measured", "predicted", "off"]
        yield grid(header, _compared(traffic), left=2)
    yield from note_lines(traffic.notes)


def _compared(found: Traffic) -> list[list[str]]:
    """Rows of a benchmark's numbers next to the predicted ones."""
    rows = []
    for one in found.compared:
        unit = "s" if one.measure.endswith("_s") and not one.measure.endswith("per_s") else ""
        values = [
            quantity(value, unit) if unit else f"{value:.4g}" for value in (one.measured, one.predicted)
        ]
        name = NAMES.get(one.measure, one.measure.replace("_per_s", "/s"))
        rows.append(
            [one.definition and f"{name}, {one.definition}" or name, one.point, *values, f"{one.off:+.1%}"]
        )
    return rows


def _promise(found: Traffic | Plan) -> str:
    return ", ".join(map(str, found.targets))


def _point(load: Load) -> list[str]:
    return [
        f"{load.rate:.3g}",
        f"{load.tokens_per_s:,.0f}",
        quantity(load.ttft_s["p95"], "s"),
        quantity(load.tpot_s["p95"], "s"),
        share(load.cache_share),
        "-" if load.drawn is None else f"{load.drawn.per_token_j:.3g}",
    ]


def traffic_page(traffic: Traffic) -> Page:
    """Waiting times with bounds, what the time is spent on, and the curve over the rate."""
    bounds = [traffic.interval(measure) for measure in NAMES]
    waits = Bars(
        "Waiting times, mean",
        "seconds",
        tuple(NAMES.values()),
        (BarSeries("mean", tuple(b.value for b in bounds), tuple((b.low, b.high) for b in bounds)),),
        log_y=True,
    )
    header = ("seconds", *POINTS)
    rows = tuple(
        (name, *(getattr(traffic.value, measure)[point] for point in POINTS))
        for measure, name in NAMES.items()
    )
    sections = [
        Section("What users wait for", tuple(_head(traffic)), (waits, Table("Percentiles", header, rows)))
    ]
    parts = traffic.value.parts
    if parts:
        spent = Bars(
            "Share of the steps' time", "share", tuple(parts), (BarSeries("share", tuple(parts.values())),)
        )
        sections.append(Section("What the time is spent on", (), (spent,)))
    if len(traffic.curve) > 1:
        sections.append(Section("Over the rate", _knee(traffic), tuple(_curves(traffic))))
    sections.append(
        Section(
            "What the engine does", tuple(f"- {line}" for line in _foot(traffic) if line and "\n" not in line)
        )
    )
    return Page(
        f"{traffic.model} on {traffic.devices} x {traffic.device}", "Nothing was run.", tuple(sections)
    )


def _knee(found: Traffic) -> tuple[str, ...]:
    return () if found.knee is None else (f"Most answers for their latency at {found.knee:.3g} requests/s.",)


def _curves(traffic: Traffic) -> Iterator[XY]:
    label = "requests per second"
    for measure in ("ttft_s", "tpot_s", "latency_s"):
        lines = tuple(
            _over_rates(traffic, point, _seen(measure, point), band=point == "mean")
            for point in ("mean", "p95", "p99")
        )
        yield XY(
            f"{NAMES[measure].capitalize()} over the rate", label, "seconds", lines, True, True, note=CURVED
        )
    made = _over_rates(traffic, "tokens", attrgetter("tokens_per_s"), band=True)
    yield XY("Throughput over the rate", label, "tokens per second", (made,), True)


def _seen(measure: str, point: str) -> Callable[[Load], float]:
    return lambda load: float(getattr(load, measure)[point])


def _over_rates(found: Traffic, name: str, value: Callable[[Load], float], band: bool) -> Series:
    """A value of each point of the curve, with its bounds where a `band` is wanted."""
    bounds = tuple(found.between(load, value) for load in found.curve) if band else ()
    points = [(load.rate, value(load)) for load in found.curve]
    return Series.of(name, points, mode="lines+markers", bounds=bounds)


def plan_table(plan: Plan) -> str:
    """Ways to serve a rate, the best first, then the ways that do not."""
    lines = [f"{plan.model}, {plan.rate:.4g} requests/s with {_promise(plan)}", ""]
    if plan.choices:
        cells = [_cells(plan, choice) for choice in plan.choices]
        known = [name for name in cells[0] if any(row[name] != "-" for row in cells)]
        lines.append(grid(known, [[row[name] for name in known] for row in cells], left=1))
        lines += ["", "* no other takes fewer devices, less money and less energy at once"]
        best = plan.choices[0]
        lines.append(_goodput(best))
        if best.over_time:
            each = ", ".join(map(str, best.over_time))
            lines.append(f"replicas of the first in each {plan.span_s:,.0f} s: {each}")
    skipped = (f"skipped {what}: {reason}" for what, reason in plan.skipped)
    return "\n".join([*lines, *note_lines([*plan.notes, *skipped])])


def _goodput(best: Choice) -> str:
    """What one replica of the first way holds."""
    text = f"one replica of {best.candidate} holds {best.highest:.3g} requests/s"
    return (
        text if best.goodput is None else f"{text}, {best.goodput:.3g} of them within the promise (goodput)"
    )


def _cells(plan: Plan, choice: Choice) -> dict[str, str]:
    """A row of a plan, by its header."""
    apart = choice.candidate
    return {
        "device": choice.device + (" *" if choice.front else ""),
        "ranks": str(choice.layout.ranks),
        "stages": str(choice.layout.pipeline) if any(c.layout.pipeline > 1 for c in plan.choices) else "-",
        "weights": apart.weights or "-",
        "prefill + decode": f"{apart.prefills} + {apart.decodes}" if apart.prefills else "-",
        "replicas": str(choice.replicas),
        "devices": str(choice.devices),
        "requests/s each": f"{choice.highest:.3g}",
        "first token p95": quantity(choice.load.ttft_s["p95"], "s"),
        "next p95": quantity(choice.load.tpot_s["p95"], "s"),
        "power": "-" if choice.power_w is None else quantity(choice.power_w, "W"),
        "per hour": "-" if choice.cost is None else f"{choice.cost:.2f}",
        **_each_cells(choice.each),
    }


def _each_cells(each: Each | None) -> dict[str, str]:
    """What a token takes, where it was requested."""
    joules, price, grams = (None,) * 3 if each is None else (each.energy_j, each.price, each.carbon_g)
    return {
        "per token": "-" if joules is None else quantity(joules.value, "J"),
        "price per 1M": "-" if price is None or each is None else f"{plain(price.value)} {each.currency}",
        "g CO2e per 1M": "-" if grams is None else plain(grams.value),
    }


def plan_page(plan: Plan) -> Page:
    """Devices against what they cost or draw, all ways, and the replicas over a day."""
    rows = [_cells(plan, choice) for choice in plan.choices]
    parts: list[Table | XY] = []
    if rows:
        parts.append(Table("Ways", tuple(rows[0]), tuple(tuple(row.values()) for row in rows)))
        dear = [(c.devices, c.cost if c.cost is not None else c.power_w, c.device) for c in plan.choices]
        what = "price of an hour" if plan.choices[0].cost is not None else "watts"
        series = Series.of("ways", dear, labels=tuple(c.device for c in plan.choices))
        parts.append(XY("Devices and what they take", "devices", what, (series,), True, True))
    for choice in plan.choices[:1]:
        if choice.over_time and plan.span_s is not None:
            times = [(i * plan.span_s, count) for i, count in enumerate(choice.over_time)]
            parts.append(
                XY(
                    "Replicas over time",
                    "seconds",
                    "replicas",
                    (Series.of(choice.device, times, mode="lines"),),
                )
            )
    skipped = tuple(f"- {what}: {reason}" for what, reason in plan.skipped)
    sections = [Section("Ways to serve it", (), tuple(parts))]
    sections += [Section("Skipped", skipped)] if skipped else []
    lead = f"{plan.rate:.4g} requests/s with {_promise(plan)}. Nothing was run."
    return Page(f"{plan.model}: a plan", lead, tuple(sections))
