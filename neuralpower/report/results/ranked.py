"""Devices in their order, as a table, rows and a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from neuralpower.files.terminal import styled, visible
from neuralpower.prediction.costs.footprint import HOUR_S, times
from neuralpower.prediction.costs.images import NOUNS
from neuralpower.prediction.explore.rank import COMMON, PRICE, RATE, Ranked, Ranking
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.report.charts import Bars, BarSeries
from neuralpower.report.grid import Cell, as_asked, head_lines, listed, note_lines, percent
from neuralpower.report.number_format import binary, counted, plain, probable, quantity, rate
from neuralpower.report.page import Page, Section, Table

MOST_NAMED = 3  # devices of a line
SPARED = ("metered", "trained", "dtype", "memory", "J, 90 %", "g, 90 %", "price, 90 %", "90 %", "fits")
"""Columns that narrow tables do without, in this order."""


def rank_table(ranking: Ranking, top: int = 0, *, marked: bool = False) -> str:
    """The best, then the devices in their order, those that are too small, and those that were skipped."""
    shown = ranking.devices[: top or None]
    columns = rank_columns(ranking)
    more = (
        [f"({len(ranking.devices) - len(shown)} more: --top 0)"] if len(shown) < len(ranking.devices) else []
    )
    notes = [
        *ranking.notes,
        *skipped_lines(ranking),
        "column first: how often a device leads, in draws of all devices' errors from their bounds",
        f"errors of scaled times agree in {COMMON:.0%} of their variance, waits for hosts in all of it",
        f"{counted(len(ranking.devices), 'device')} from {counted(ranking.traces, 'trace')}",
    ]
    table = listed(shown, columns, left=2, spared=SPARED)
    head = head_lines(ranking.warnings, _head(ranking))
    return as_asked([*head, "", table, *more, *note_lines(notes)], marked)


def _head(ranking: Ranking) -> Iterator[str]:
    if not ranking.ranked:
        yield styled("too large for all of them", "bad")
    else:
        best = ranking.ranked[0]
        chance = probable(best.first or 0.0)
        yield styled(f"best by {ranking.standing}: {best.device}, first with probability {chance}", "bold")
    yield visible(f"{ranking.model}, {ranking.about}")


def rank_columns(ranking: Ranking) -> dict[str, Callable[[Ranked], str]]:
    """Header -> cell of a device."""
    unit = ranking.unit
    columns: dict[str, Callable[[Ranked], str]] = {
        "": lambda one: "-" if one.rank is None else str(one.rank),
        "device": lambda one: one.device,
        "dtype": lambda one: one.dtype,
        **_rates(unit),
        f"J/{unit}": lambda one: _each(one.each.energy_j, lambda v: quantity(v, "J")),
        "J, 90 %": lambda one: _ends(one.each.energy_j, lambda v: quantity(v, "J")),
        "price": lambda one: (
            _each(one.each.price, plain) + (f" {one.each.currency}" if one.each.price else "")
        ),
        "price, 90 %": lambda one: _ends(one.each.price, plain),
        "carbon": lambda one: _each(one.each.carbon_g, lambda v: quantity(v, "g")),
        "g, 90 %": lambda one: _ends(one.each.carbon_g, lambda v: quantity(v, "g")),
        "first": lambda one: "-" if one.first is None else probable(one.first),
        "memory": lambda one: binary(one.memory_high_bytes),
        "fits": lambda one: {True: Cell("yes", ""), False: Cell("no", "bad"), None: Cell("-", "")}[one.fits],
        "trained": lambda one: percent(one.trained_here, ".0%"),
        "metered": lambda one: "-" if one.power_w is None else percent(one.power_measured or 0.0, ".0%"),
    }
    by = {RATE: "90 %", "energy": "J, 90 %", PRICE: "price, 90 %"}.get(ranking.by, "g, 90 %")
    hidden = {"90 %", "J, 90 %", "price, 90 %", "g, 90 %"} - {by}
    hidden |= {"price"} if all(one.each.price is None for one in ranking.devices) else set()
    hidden |= {"carbon"} if all(one.each.carbon_g is None for one in ranking.devices) else set()
    hidden |= {"dtype"} if len({one.dtype for one in ranking.devices}) == 1 else set()
    return {name: cell for name, cell in columns.items() if name not in hidden}


def _rates(unit: str) -> dict[str, Callable[[Ranked], str]]:
    """Columns of how fast it is: seconds and hours of pictures, which take long."""
    if unit not in NOUNS:
        return {
            f"{unit}s": lambda one: rate(one.each.per_s.value),
            "90 %": lambda one: _ends(one.each.per_s, plain),
        }
    return {
        f"s/{unit}": lambda one: plain(1 / one.each.per_s.value),
        f"{unit}s/h": lambda one: plain(HOUR_S * one.each.per_s.value),
        "90 %": lambda one: _ends(times(one.each.per_s, HOUR_S), plain),
    }


def _each(value: Interval | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value.value)


def _ends(value: Interval | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else f"{text(value.low)} to {text(value.high)}"


def skipped_lines(found: Ranking) -> Iterator[str]:
    """A line for each reason why devices were skipped."""
    reasons: dict[str, list[str]] = {}
    for device, why in found.skipped.items():
        same = re.sub(rf"[\w-]*{re.escape(device)}\b", "the device", why)
        reasons.setdefault(same, []).append(device)
    for why, devices in reasons.items():
        named = ", ".join(devices[:MOST_NAMED])
        counted = f"{len(devices)} devices, such as " if len(devices) > MOST_NAMED else ""
        yield visible(f"skipped {counted}{named}: {why}")


def rank_cells(ranking: Ranking) -> list[list[Any]]:
    """A header, then a row for each device in SI units; those that were skipped have their reason."""
    measures = ("per_s", "energy_j", "price", "carbon_g")
    header = ["rank", "device", "dtype", "run", "fits", "first", "unit"]
    header += [f"{name}{end}" for name in measures for end in ("", "_low", "_high")]
    header += ["currency", "power_w", "memory_high_bytes", "trained_here", "power_measured", "skipped"]
    rows = []
    for one in ranking.devices:
        row: list[Any] = [one.rank, one.device, one.dtype, one.run, one.fits, one.first, one.each.unit]
        for name in measures:
            value = getattr(one.each, name)
            row += [None if value is None else getattr(value, bound) for bound in BOUNDS]
        power = None if one.power_w is None else one.power_w.value
        rows.append(
            [
                *row,
                one.each.currency,
                power,
                one.memory_high_bytes,
                one.trained_here,
                one.power_measured,
                None,
            ]
        )
    empty = [None] * (len(header) - 3)
    rows += [[None, device, *empty, why] for device, why in ranking.skipped.items()]
    return [header, *rows]


def rank_page(ranking: Ranking) -> Page:
    """What the devices are ranked by, with bounds, and their table."""
    shown = ranking.ranked[:30]
    what = {RATE: "per_s", "energy": "energy_j", PRICE: "price"}.get(ranking.by, "carbon_g")
    values = [(one, getattr(one.each, what)) for one in shown]
    bars = Bars(
        f"By {ranking.standing}",
        {RATE: f"{ranking.unit}s per second", "energy": f"J per {ranking.unit}"}.get(
            ranking.by, f"per million {ranking.unit}s"
        ),
        tuple(one.device for one, _ in values),
        (
            BarSeries(
                ranking.standing, tuple(v.value for _, v in values), tuple((v.low, v.high) for _, v in values)
            ),
        ),
        log_y=True,
    )
    columns = rank_columns(ranking)
    rows = tuple(tuple(str(cell(one)) for cell in columns.values()) for one in ranking.devices)
    lines = tuple(f"- {line}" for line in skipped_lines(ranking))
    sections = (Section("Devices", tuple(_plain(ranking)), (bars, Table("All", tuple(columns), rows))),)
    more = (Section("Skipped", lines),) if lines else ()
    return Page(f"{ranking.model} on {len(ranking.devices)} devices", "Nothing was run.", (*sections, *more))


def _plain(found: Ranking) -> list[str]:
    return as_asked(_head(found), marked=False).splitlines()
