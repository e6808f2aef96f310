"""A gate's report: as a table, for test servers (JUnit), and as annotations of a GitHub workflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree

from neuralpower.ask.keywords import Limit
from neuralpower.errors import InputError
from neuralpower.files.terminal import styled
from neuralpower.prediction.explore.gate import Change, Checked, Gate, Measure
from neuralpower.report.grid import Cell, as_asked, listed, note_lines
from neuralpower.report.number_format import binary, quantity

MOST = 20  # changes that a table shows
VERDICTS = {True: ("pass", ""), False: ("FAIL", "bad")}


def gate_table(found: Gate, *, marked: bool = False) -> str:
    """For each model its metrics and the layers that changed; `marked` with styles."""
    lines = [f"Baseline written: {', '.join(found.written)}"] if found.written else []
    for model in found.models:
        lines += [*([""] if lines else []), *_of_model(model)]
    return as_asked(lines, marked)


def _of_model(checked: Checked) -> Iterator[str]:
    word, style = VERDICTS[checked.passes]
    verdict = styled(word, style or "good")
    yield f"{verdict}: {checked.model}, {checked.phase}, {checked.dtype}, on {checked.device}"
    yield ""
    yield listed(
        checked.measures,
        {
            "metric": lambda m: m.metric,
            "baseline": lambda m: valued(m, m.before),
            "now": lambda m: valued(m, m.now),
            "growth": growth,
            "limit": lambda m: m.limit or "-",
            "": lambda m: "" if m.holds else Cell("too much", "bad"),
        },
    )
    if checked.changes:
        yield ""
        yield listed(checked.changes[:MOST], COLUMNS, left=3)
        if len(checked.changes) > MOST:
            yield f"({len(checked.changes) - MOST} more)"
    yield from note_lines([*([checked.excused] if checked.excused else []), *checked.notes])


COLUMNS = {
    "layers": lambda change: change.change,
    "module": lambda change: change.module or "-",
    "kind": lambda change: change.kind,
    "baseline": lambda change: shortened(change.before),
    "now": lambda change: shortened(change.now),
    "latency": lambda change: signed_s(change.growth_s),
}
LONGEST = 36  # letters of a cell of sizes


def shortened(text: str) -> str:
    """Sizes that fit a cell."""
    return (text if len(text) <= LONGEST else text[: LONGEST - 4] + " ...") or "-"


def signed_s(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{quantity(abs(seconds), 's')}"


def valued(measure: Measure, value: float | None) -> str:
    return value_text(measure.unit, value)


def value_text(unit: str, value: float | None) -> str:
    """The same; bytes are counted in powers of 1024."""
    return binary(value) if unit == "B" else quantity(value, unit)


def growth(measure: Measure) -> str:
    """A share with its sign."""
    return "-" if measure.growth is None else f"{measure.growth:+.1%}"


def summary(found: Gate) -> Iterator[str]:
    """A line for each model, and one for each of its largest changes."""
    yield from (f"{name}: written to the baseline" for name in found.written)
    for model in found.models:
        yield f"{VERDICTS[model.passes][0]}: {model.model}, {model.phase}, {model.dtype}, on {model.device}"
        yield from (f"- {by(change)}" for change in model.changes[:MOST])
        yield from (f"({text})" for text in (model.excused, *model.notes) if text)


def cells(gate: Gate) -> list[list[str]]:
    """The metrics of all models for readers, below a header."""
    header = ["model", "metric", "baseline", "now", "growth", "limit", "holds"]
    body = [
        [
            model.model,
            m.metric,
            valued(m, m.before),
            valued(m, m.now),
            growth(m),
            m.limit,
            "yes" if m.holds else "NO",
        ]
        for model in gate.models
        for m in model.measures
    ]
    return [header, *body]


def said(model: Checked, measure: Measure) -> str:
    """One line on a limit that does not hold."""
    text = f"{measure.metric} {valued(measure, measure.before)} -> {valued(measure, measure.now)}"
    text += f" ({growth(measure)}), allowed: {measure.limit}"
    largest = next(iter(model.changes), None)
    return text + ("" if largest is None else f"; most by {by(largest)}")


def by(change: Change) -> str:
    """One change as words."""
    return f"{change.change} {change.kind} {change.module or ''}".rstrip() + f" ({signed_s(change.growth_s)})"


def junit_text(found: Gate) -> str:
    """The report as JUnit XML: a suite for each model, a case for each limit."""
    suites = ElementTree.Element("testsuites", name="neuralpower gate")
    for model in found.models:
        limited = [measure for measure in model.measures if measure.limit]
        failed = [] if model.passes else [measure for measure in limited if not measure.holds]
        suite = ElementTree.SubElement(
            suites, "testsuite", name=model.model, tests=str(len(limited)), failures=str(len(failed))
        )
        for measure in limited:
            case = ElementTree.SubElement(suite, "testcase", classname=model.model, name=measure.metric)
            if measure in failed:
                failure = ElementTree.SubElement(case, "failure", message=said(model, measure))
                failure.text = "\n".join(by(change) for change in model.changes)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def workflow_lines(found: Gate) -> Iterator[str]:
    """A line for each limit that does not hold, as GitHub's workflow commands."""
    for model in found.models:
        level = "warning" if model.passes else "error"
        for measure in model.measures:
            if not measure.holds:
                title = escaped(f"neuralpower gate: {model.model}", ":,")
                yield f"::{level} title={title}::{escaped(said(model, measure))}"


def escaped(text: str, more: str = "") -> str:
    """A text as a workflow command takes it: %, line ends, and of a property `more` as well."""
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def exceeded(values: Mapping[str, float | None], limits: Iterable[Limit]) -> list[str]:
    """A text for each value above its limit; raises InputError for one that is not known."""
    above = []
    for limit in limits:
        name, value = limit.metric.name, values[limit.metric.name]
        if value is None:
            raise InputError(f"--max-{name} {limit.text}: the {name} is not known here; leave it out")
        if not limit.holds(value, None):
            above.append(f"{name} {value_text(limit.metric.unit, value)} is above {limit.text}")
    return above
