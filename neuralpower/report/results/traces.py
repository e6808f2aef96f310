"""Explanations of traces as tables and pages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neuralpower.files.terminal import visible
from neuralpower.prediction.rows import Column
from neuralpower.report.charts import Areas, BarSeries
from neuralpower.report.grid import as_asked, grid, line_width, listed, note_lines
from neuralpower.report.number_format import quantity, share
from neuralpower.report.page import Page, Section, Table
from neuralpower.traces.explanation import BINS, COLUMNS, CallRow, Explanation, Part

LONGEST = {"shapes": 44, "operator": 40, "path": 36}  # letters of a cell in tables
NARROW = {**LONGEST, "operator": 22}  # the same where lines have a width: causes stand whole
MOST = 12  # parts that are listed
NAMED = 55  # letters of a part's name
SPARED = ("basis", "low", "high", "dtype", "module", "shapes")
"""Columns that narrow tables do without, in this order."""


def explanation_table(explanation: Explanation, top: int = 0, *, marked: bool = False) -> str:
    """The totals, the causes, the calls by saving, then what has no price; `top` calls, 0 for all."""
    rows = [row for row in explanation.rows if row.measured_s]
    shown = rows[: top or None]
    lines = [*_head(explanation), ""]
    if explanation.findings:
        lines += [grid(["cause", "saves", "calls"], _causes(explanation), left=1), *_fixes(explanation), ""]
    if shown:
        lines.append(_calls(explanation, shown))
    if len(shown) < len(rows):
        lines.append(f"({len(rows) - len(shown)} more)")
    for title, parts in (("without a price", explanation.unpriced), ("idle", explanation.gaps)):
        if parts:
            lines += ["", grid([title, "time", "count"], _parts(parts), left=1)]
    lines += ["", *note_lines(explanation.notes)]
    return as_asked([part for line in lines for part in _wrapped(line)], marked).rstrip()


def _wrapped(line: str) -> list[str]:
    """A line of prose in lines of the table's width; a table as it is."""
    width = line_width()
    if width is None or "\n" in line or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)


def _calls(found: Explanation, rows: Sequence[CallRow]) -> str:
    columns = shown_columns(found)
    if not any(row.cause for row in rows):
        del columns["cause"]
    return listed(rows, columns, spared=SPARED)


def _head(explanation: Explanation) -> Iterator[str]:
    """What was traced, and the totals that add up to its span."""
    by = f", priced by {explanation.predictor}" if explanation.predictor else ""
    yield visible(f"{explanation.trace} on {explanation.device or 'a device'}{by}")
    if explanation.other:
        yield visible(f"next to {explanation.other}")
    low, high = (sum(getattr(row, name) or 0.0 for row in explanation.rows) for name in ("low_s", "high_s"))
    expected = (
        f"expected {quantity(explanation.expected_s, 's')}, {quantity(low, 's')} to {quantity(high, 's')}"
    )
    idle = share(explanation.idle_s / max(explanation.span_s, 1e-30))
    priced = f"{share(explanation.priced_share)} of what ran; {expected}"
    yield f"span {quantity(explanation.span_s, 's')} = priced + without a price + idle"
    yield f"  priced          {quantity(explanation.priced_s, 's')} ({priced})"
    yield f"  without a price {quantity(explanation.unpriced_s, 's')}"
    yield f"  idle            {quantity(explanation.idle_s, 's')} ({idle})"
    if explanation.exposed_s or explanation.overlapped_s:
        yield (
            f"communication: {quantity(explanation.exposed_s, 's')} while nothing else ran, "
            f"{quantity(explanation.overlapped_s, 's')} under other work"
        )


def _causes(found: Explanation) -> list[list[str]]:
    return [[one.cause, quantity(one.saving_s, "s"), f"{one.calls:,}"] for one in found.findings]


def _fixes(found: Explanation) -> list[str]:
    return [visible(f"{one.cause}: {one.fix} ({one.where})") for one in found.findings]


def _parts(parts: Sequence[Part]) -> list[list[str]]:
    rest = parts[MOST:]
    rows = [[visible(one.name)[:NAMED], quantity(one.seconds, "s"), f"{one.count:,}"] for one in parts[:MOST]]
    if rest:
        took, count = sum(one.seconds for one in rest), sum(one.count for one in rest)
        rows.append([f"{len(rest)} more", quantity(took, "s"), f"{count:,}"])
    return rows


def shown_columns(found: Explanation) -> dict[str, Callable[[CallRow], str]]:
    """Header -> cell of a row, for every table; no times of another trace where there is none."""
    paths = any(row.path for row in found.rows)
    wanted = {"other_s": bool(found.other), "path": paths}
    shown = (one for one in COLUMNS if one.header and wanted.get(one.name, True))
    return {one.header: _cell(one) for one in shown}


def _cell(column: Column) -> Callable[[CallRow], str]:
    longest = (LONGEST if line_width() is None else NARROW).get(column.name, 60)

    def cell(row: CallRow) -> str:
        value: Any = column.value(row)
        if column.unit:
            return quantity(value, column.unit)
        text = "-" if value in (None, "") else visible(str(value))
        if column.name == "path" and len(text) > longest:  # the innermost modules say most
            return f"...{text[3 - longest :]}"
        return text if len(text) <= longest else f"{text[: longest - 3]}..."

    return cell


def explanation_page(explanation: Explanation) -> Page:
    """The totals, the timeline, causes, calls, and what has no price."""
    columns = shown_columns(explanation)
    table = Table.of("Calls by what they would save", explanation.rows, columns)
    wide = explanation.span_s / BINS
    rest = [1.0 - min(sum(some), 1.0) for some in zip(*explanation.lanes.values(), strict=True)]
    lanes = (*explanation.lanes.items(), ("idle", tuple(rest)))
    over_time = Areas(
        "Timeline",
        "ms from the first that ran",
        "share of the time",
        tuple(1e3 * wide * i for i in range(BINS)),
        tuple(BarSeries(name, tuple(shares)) for name, shares in lanes),
    )
    head = tuple(line.strip() for line in _head(explanation))
    causes = tuple(
        (one.cause, quantity(one.saving_s, "s"), one.calls, one.fix, one.where)
        for one in explanation.findings
    )
    named = Table("Causes", ("cause", "saves", "calls", "fix", "where"), causes)
    other = [
        Table(title, (title, "time", "count"), tuple(map(tuple, _parts(parts))))
        for title, parts in (("without a price", explanation.unpriced), ("idle", explanation.gaps))
        if parts
    ]
    sections = [
        Section("At a glance", head[1:], (over_time,)),
        Section("Causes", () if causes else ("None is named.",), (named,) if causes else ()),
        Section("Calls", (), (table,)),
        Section("Without a price, and idle", (), tuple(other)),
        Section("Notes", tuple(f"- {note}" for note in explanation.notes)),
    ]
    return Page(head[0], "", tuple(sections))
