"""Compare predictors with measurements made elsewhere: tables, JSON, and a scatter plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neuralpower.prediction.measured import Compared, agreement
from neuralpower.report.charts import XY, Series
from neuralpower.report.grid import grid, listed
from neuralpower.report.number_format import quantity
from neuralpower.report.tables import short

HEADINGS = (
    "error: predicted over measured, minus 1; inside: the measured time lies within the predicted 90 % bounds"
)


def measured_table(compared: Sequence[Compared], names: Sequence[str]) -> str:
    """A line per network, then one per predictor: median and mean error, and the share inside bounds."""
    columns: dict[str, Callable[[Compared], str]] = {"network": lambda one: short(one.measurement.label)}
    if any(one.measurement.device for one in compared):
        columns["device"] = lambda one: one.measurement.device or "-"
    left = len(columns)
    columns["measured"] = lambda one: quantity(one.measurement.measured_s, "s")
    for name in names:
        columns |= _columns(name, alone=len(names) == 1)
    lines = [[name, *_agreement(compared, name)] for name in names]
    header = ["predictor", "networks", "median error", "mean error", "worst", "inside bounds"]
    return "\n".join([listed(compared, columns, left), f"({HEADINGS})", "", grid(header, lines)])


def _columns(name: str, alone: bool) -> dict[str, Callable[[Compared], str]]:
    """One predictor's result for each network."""

    def known(cell: Callable[[Compared], str]) -> Callable[[Compared], str]:
        return lambda one: cell(one) if name in one.predictions else "-"

    return {
        "predicted" if alone else name: known(
            lambda one: quantity(one.predictions[name].runtime_s.value, "s")
        ),
        "error" if alone else f"{name} error": known(lambda one: f"{one.error(name):+.1%}"),
        "inside" if alone else f"{name} inside": known(lambda one: "yes" if one.inside(name) else "no"),
    }


def _agreement(compared: Sequence[Compared], name: str) -> list[str]:
    found = agreement(compared, name)
    if found is None:
        return ["0", "-", "-", "-", "-"]
    errors = [f"{found.median:.1%}", f"{found.mean:.1%}", f"{found.worst:+.1%}"]
    return [str(found.networks), *errors, f"{found.inside:.0%}"]


def measured_json(
    compared: Sequence[Compared], names: Sequence[str], refused: Sequence[str] = ()
) -> dict[str, Any]:
    """The same numbers in SI units and shares; `refused`: rows of the file that could not be read."""
    networks = []
    for one in compared:
        m = one.measurement
        predictions = {
            name: {
                "predicted_s": found.runtime_s.to_json(),
                "error": one.error(name),
                "inside": one.inside(name),
            }
            for name, found in one.predictions.items()
        }
        networks.append(
            {
                **{name: getattr(m.request, name) for name in ("model", "batch_size", "seq_len", "dtype")},
                "phase": m.request.phase.name,
                "device": m.device,
                "line": m.line,
                "measured_s": m.measured_s,
                "predictors": predictions,
                "refused": dict(one.refused),
            }
        )
    summary = {name: (found := agreement(compared, name)) and asdict(found) for name in names}
    return {"schema": 1, "networks": networks, "refused": list(refused), "summary": summary}


def measured_plot(compared: Sequence[Compared], names: Sequence[str], path: Path) -> None:
    """Predicted against measured times of each predictor, as .html, .png or .svg; raises InputError."""
    from neuralpower.report.page import Page, Section
    from neuralpower.report.pictures import draw

    chart = _scatter(compared, names)
    draw(Page(chart.title, "", (Section("", (), (chart,)),)), path)


def _scatter(compared: Sequence[Compared], names: Sequence[str]) -> XY:
    """A point for each network and predictor, and the line where both times are equal."""
    series = []
    for name in names:
        points = [
            (
                one.measurement.measured_s * 1e3,
                one.predictions[name].runtime_s.value * 1e3,
                one.measurement.label,
            )
            for one in compared
            if name in one.predictions
        ]
        series.append(Series.of(name, points))
    times = [one.measurement.measured_s * 1e3 for one in compared]
    ends = [(min(times) / 1.5, min(times) / 1.5), (max(times) * 1.5, max(times) * 1.5)]
    equal = Series.of("equal", ends, mode="lines", dash=True)
    return XY(
        "Predicted and measured",
        "measured (ms)",
        "predicted (ms)",
        (*series, equal),
        True,
        True,
        note=HEADINGS,
    )
