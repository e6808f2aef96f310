"""Compare predictors with measurements, made here or elsewhere: tables, JSON, and a scatter plot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, one_line
from neuralpower.files.json_files import named
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.prediction.evaluation.evaluate import Drawn, Evaluation, summary
from neuralpower.prediction.evaluation.measured import Compared, agreement
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import Interval
from neuralpower.report.charts import XY, Series
from neuralpower.report.grid import grid, listed, percent
from neuralpower.report.number_format import quantity, short
from neuralpower.trace.recipe import STEPS

REQUEST = (
    "model=called batch_size seq_len phase=passed.name context=passed.context prompt=passed.prompt"  # in JSON
)
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
    """Both times of each network, SI units and shares; `refused`: rows of the file that could not be read."""
    networks = []
    for row in compared:
        m = row.measurement
        predictions = {
            name: {
                "predicted_s": found.runtime_s.to_json(),
                "error": row.error(name),
                "inside": row.inside(name),
            }
            for name, found in row.predictions.items()
        }
        networks.append(
            {
                **{name: getattr(m.request, name) for name in ("model", "batch_size", "seq_len", "dtype")},
                "phase": m.request.phase.name,
                "device": m.device,
                "line": m.line,
                "measured_s": m.measured_s,
                "predictors": predictions,
                "refused": dict(row.refused),
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


def evaluation_table(evaluations: Sequence[Evaluation]) -> str:
    """Predicted and measured times, then the errors of neuralpower and of the two simplest predictors."""
    networks: dict[str, Callable[[Evaluation], str]] = {
        "network": lambda e: short(e.request.label),
        "predicted": lambda e: quantity(e.prediction.runtime_s.value, "s"),
        "measured": lambda e: quantity(e.measured_s, "s"),
        "slow-down": lambda e: f"{e.slowdown:.2f}",
        "corrected": lambda e: quantity(e.corrected_s, "s"),
        "error raw": lambda e: f"{e.error(corrected=False):+.1%}",
        "error": lambda e: f"{e.error():+.1%}",
        "noise": lambda e: percent(e.noise),
        "coverage": lambda e: f"{e.prediction.coverage:.1%}",
    }
    lines = []
    for (name, predicted), corrected in itertools.product(PREDICTORS.items(), (True, False)):
        s = summary(evaluations, predicted, corrected)
        about = [name, "corrected" if corrected else "raw", str(s.networks)]
        errors = [f"{s.median:.1%}", f"{s.mape:.1%}", f"{s.rmspe:.1%}", f"{s.worst:+.1%}"]
        lines.append([*about, *errors, percent(s.spearman, ".4f")])
    header = ["predictor", "against", "networks", "median", "MAPE", "RMSPE", "worst", "Spearman"]
    spared = ("noise", "slow-down", "error raw", "corrected", "coverage")
    parts = [
        listed(evaluations, networks, spared=spared),
        "",
        grid(header, lines, left=2, spared=("RMSPE", "Spearman")),
    ]
    if any(e.parts_s for e in evaluations):
        parts += [_steps_grid(evaluations), ""]
    if any(e.drawn for e in evaluations):
        parts += ["", listed(evaluations, ENERGY), ""]
    inside = sum(e.inside for e in evaluations)
    return "\n".join([*parts, f"measured (corrected) inside the 90 % bounds: {inside} of {len(evaluations)}"])


def _steps_grid(evaluations: Sequence[Evaluation]) -> str:
    """The parts of a training step, predicted and measured, and the ratio of backward to forward."""
    header = ["training step", *(f"{step} {what}" for step in STEPS for what in ("predicted", "measured"))]
    header += ["backward : forward predicted", "measured"]
    rows = []
    for e in evaluations:
        if e.prediction.training is None:
            continue
        said = {step: interval.value for step, interval in e.prediction.training.steps.items()}
        cells = [quantity(times[step], "s") for step in STEPS for times in (said, e.parts_s)]
        ratios = [f"{times[BACKWARD] / times[FORWARD]:.2f}" for times in (said, e.parts_s)]
        rows.append([short(e.request.label), *cells, *ratios])
    return grid(header, rows)


def _off(predicted: float | None, measured: float | None) -> str:
    return "-" if not predicted or not measured else f"{predicted / measured - 1:+.1%}"


def _value(of: Interval | None) -> float | None:
    return None if of is None else of.value


def _source(drawn: Drawn | None) -> str:
    """Whose the measured watts are, or why there are none."""
    if drawn is None:
        return "-"
    return f"{drawn.source}, {drawn.scope}" if drawn.reason is None else drawn.reason


ENERGY: Mapping[str, Callable[[Evaluation], str]] = {
    "network": lambda e: short(e.request.label),
    "W predicted": lambda e: quantity(_value(e.prediction.power_w), "W"),
    "W measured": lambda e: quantity(None if e.drawn is None else e.drawn.power_w, "W"),
    "W error": lambda e: _off(_value(e.prediction.power_w), None if e.drawn is None else e.drawn.power_w),
    "J predicted": lambda e: quantity(_value(e.prediction.energy_j), "J"),
    "J measured": lambda e: quantity(None if e.drawn is None else e.drawn.energy_j, "J"),
    "J error": lambda e: _off(_value(e.prediction.energy_j), None if e.drawn is None else e.drawn.energy_j),
    "measured by": lambda e: _source(e.drawn),
}
PREDICTORS: Mapping[str, Callable[[Evaluation], float]] = {
    "neuralpower": lambda e: e.prediction.runtime_s.value,
    "roofline": lambda e: e.roofline_s,
    "FLOPs only": lambda e: e.flops_only_s,
}


def evaluation_json(
    evaluations: Sequence[Evaluation], refused: Sequence[tuple[Request, InputError]] = ()
) -> dict[str, Any]:
    """Both times of each network, SI units and shares; `refused`: the cases without numbers, and why."""
    networks = [
        {
            **named(e.request, REQUEST),
            **named(
                e,
                """
                predicted_s=prediction.runtime_s measured_s corrected_s samples_s=timing.samples_s
                minflt_per_call=timing.faults_per_call slowdown waited too_slow noise
                """,
            ),
            "error": e.error(),
            "error_raw": e.error(corrected=False),
            **named(e, "coverage=prediction.coverage roofline_s flops_only_s"),
            "training": (t := e.prediction.training) and t.to_json(e.prediction.runtime_s.value),
            "measured_parts_s": dict(e.parts_s),
            **named(
                e,
                """
                predicted_w=prediction.power_w measured_w=drawn.power_w predicted_j=prediction.energy_j
                measured_j=drawn.energy_j power_source=drawn.source power_scope=drawn.scope
                power_reason=drawn.reason
                """,
            ),
        }
        for e in evaluations
    ]
    return {
        "schema": 1,
        "networks": networks,
        "refused": [{**named(request, REQUEST), "error": one_line(error)} for request, error in refused],
        "inside_bounds": sum(e.inside for e in evaluations),
        "summary": {name: vars(summary(evaluations, predicted)) for name, predicted in PREDICTORS.items()},
    }
