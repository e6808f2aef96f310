"""Plain tables of trainings, predictions and evaluations; CSV and JSON of the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from neuralpower.errors import InputError, one_line
from neuralpower.files.terminal import visible
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.learn.keys import Key
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import Trained
from neuralpower.predict.case import Case
from neuralpower.predict.evaluate import Evaluation, summary
from neuralpower.predict.memory.peak import Memory
from neuralpower.predict.prediction import COLUMNS, Prediction, Row, Training
from neuralpower.report.tokens import bounded, counted, plain, tokens
from neuralpower.report.tokens import quantity as quantity
from neuralpower.trace.training import STEPS

WIDEST = 24  # letters of a group


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in columns; the first `left` are flush left, numbers flush right."""
    header, *rows = [[visible(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def score_cells(regressor: Regressor) -> list[str]:
    """MAPE, RMSPE, median of the base, of base + residual, bias, error beyond the box, share inside 90 %: all held out."""
    s = regressor.scores
    shares = [f"{share:.1%}" for share in (s.mape, s.rmspe, s.median_base)]
    shares += [f"{s.median:.1%}" if regressor.trees else "-", f"{s.bias:+.1%}", f"{s.beyond:.1%}", f"{s.inside:.0%}"]
    return ["-" if "nan" in share else share for share in shares]


def training_summary(trained: Trained) -> str:
    """In a few lines: how far predictions of held-out rows lie from their measurements, and where they are worst."""
    p = trained.predictor
    targets = (("time", p.regressors), ("power", p.power or {}))
    lines = [line for what, regressors in targets for line in _errors(what, regressors)]
    return "\n".join([f"{p.device}: {counted(len({key[0] for key in p.regressors}), 'layer kind')} learnt", *lines])


def _errors(what: str, regressors: Mapping[Key, Regressor]) -> Iterator[str]:
    """A sentence on all regressors of one target, and one on the least certain of several."""
    medians = [(r.scores.median if r.trees else r.scores.median_base, r.scores, key) for key, r in regressors.items()]
    known = [one for one in medians if np.isfinite([one[0], one[1].mape, one[1].inside]).all()]
    if not known:
        return
    known.sort(key=lambda one: one[0])
    rows = np.array([scores.rows for _, scores, _ in known])
    middle = int(np.searchsorted(np.cumsum(rows), rows.sum() / 2))
    typical = known[middle][0]  # the median of the groups' medians, by rows
    mean = float(np.average([scores.mape for _, scores, _ in known], weights=rows))
    inside = float(np.average([scores.inside for _, scores, _ in known], weights=rows))
    yield (
        f"{what}: typical error on held-out rows {typical:.1%}, mean {mean:.1%}; {inside:.0%} of {rows.sum():,} lie within their "
        "90 % bounds"
    )
    median, scores, (kind, dtype, phase, group) = known[-1]
    if len(known) > 1:
        name = " ".join(part for part in (kind, group, dtype, phase) if part)
        yield f"{what}: least certain is {name}: typical error {median:.1%} on {scores.rows:,} rows (--verbose prints all)"


def training_table(trained: Trained) -> str:
    """Per regressor: rows, degree, alpha, terms kept, errors on held-out folds."""
    lost = Counter(row.kind for row in trained.rejected)
    rows = []
    p = trained.predictor
    named = [(key, r, "") for key, r in p.regressors.items()] + [(key, r, " W") for key, r in (p.power or {}).items()]
    for (kind, dtype, phase, group), r, target in named:
        rows.append(
            [
                kind + target,
                group if len(group) <= WIDEST else group[: WIDEST - 3] + "...",
                dtype,
                phase,
                str(r.scores.rows),
                str(lost.pop(kind, "")),  # of the kind as a whole: beside its first group
                r.basis(),
                str(r.degree),
                f"{r.alpha:.0e}",
                str(len(r.terms)),
                *score_cells(r),
            ]
        )
    header = ["kind", "group", "dtype", "phase", "rows", "left out", "base", "degree", "alpha", "terms"]
    header += ["MAPE", "RMSPE", "median base", "base+residual", "bias", "beyond", "inside"]
    return grid(header, rows, left=4)


def prediction_table(prediction: Prediction, by: str, depth: int, top: int) -> str:
    """The total, its rows, and what is not well known."""
    p = prediction
    if by == "kind":
        rows = p.by_kind()
    elif by == "module":
        rows = p.by_module(depth)
    else:
        rows = sorted(p.rows, key=lambda row: -row.runtime_s)
    shown = rows[:top] if top else rows
    powered = any(row.power_w is not None for row in p.rows)
    cells = [[_name(row, by), row.kind if by == "layer" else "", *_figures(row, powered)] for row in shown]
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        cells.append(
            [
                f"({len(rest)} more)",
                "",
                str(sum(r.count for r in rest)),
                quantity(sum(r.runtime_s for r in rest), "s"),
                f"{sum(r.share for r in rest):.1%}",
                *[""] * (5 if powered else 3),
            ]
        )
    t = p.runtime_s
    head = visible(f"{p.model}, batch {p.batch_size}, {p.dtype}, {p.phase}, on {p.device} ({p.predictor})")
    head += (
        f"\nlatency {quantity(t.value, 's')} ({quantity(t.low, 's')} to {quantity(t.high, 's')}, 90 %), "
        f"{quantity(p.flops, 'FLOP')}, {quantity(p.parameters, '')}parameters, "
        f"coverage {p.coverage:.1%}, extrapolated {p.extrapolated:.1%}"
    )
    if p.energy_j is not None and p.power_w is not None:
        head += f"\nenergy {bounded(p.energy_j, 'J')}, power {bounded(p.power_w, 'W')}"
    elif powered:
        head += f"\nenergy is not known: {p.power_reason}"
    if p.memory is not None:
        head += "\n" + memory_line(p.memory)
    watts = ["power", "energy"] if powered else []
    header = [by, "kind" if by == "layer" else "", "calls", "latency", "share", *watts, "FLOP", "bound", "basis"]
    foot = [f"unmodelled: {u.operator} x{u.count}, {u.share:.1%} by roofline ({u.reason})" for u in p.unmodelled]
    if p.host_bound and p.idle_s:
        foot.append(f"launch-bound: the device waits for the host {p.idle_s / t.value:.0%} of the time")
    if p.training is not None:
        foot += _training_lines(p.training, t.value)
    if p.method != "meta":
        foot.append(f"traced on {p.method} tensors ({'; '.join(p.notes)})")
    foot += [f"note: {text}" for text in p.remarks]
    return "\n".join([head, *tokens(p), "", grid(header, cells, left=2), *map(visible, foot)])


def _training_lines(training: Training, runtime_s: float) -> Iterator[str]:
    parts = ", ".join(f"{step} {quantity(interval.value, 's')}" for step, interval in training.steps.items())
    used = training.utilisation(runtime_s)
    share = "" if used is None else f", {used:.1%} of the dense peak"
    yield f"step: {parts}; {plain(training.samples / runtime_s)} samples/s{share} ({training.recipe})"
    if training.derived:
        yield f"not measured backward, taken as the forward passes of their products: {', '.join(training.derived)}"


def memory_line(memory: Memory) -> str:
    """The peak with its bounds, and what it is made of, the largest part first."""
    parts = sorted(((size, name) for name, size in memory.parts.items() if size), reverse=True)
    return (
        f"memory {quantity(memory.value_bytes, 'B')} ({quantity(memory.low_bytes, 'B')} to "
        f"{quantity(memory.high_bytes, 'B')}{', assumed, not an upper bound' if memory.assumed else ''}): "
        + ", ".join(f"{name} {quantity(size, 'B')}" for size, name in parts)
    )


def _name(row: Row, by: str) -> str:
    return row.kind if by == "kind" else row.path or "(model)"


def _figures(row: Row, powered: bool) -> Iterator[str]:
    yield str(row.count)
    yield quantity(row.runtime_s, "s")
    yield f"{row.share:.1%}"
    if powered:
        yield "-" if row.power_w is None else quantity(row.power_w.value, "W")
        yield "-" if row.energy_j is None else quantity(row.energy_j, "J")
    yield quantity(row.flops, "FLOP") if row.flops else "-"
    yield row.bound
    yield row.basis


def prediction_cells(prediction: Prediction) -> list[Sequence[Any]]:
    """A header, then one row per folded layer, in SI units: what a CSV file holds."""
    cells = [row.cells() for row in prediction.rows]
    return [COLUMNS, *([row.get(name) for name in COLUMNS] for row in cells)]


def evaluation_table(evaluations: Sequence[Evaluation]) -> str:
    """Predicted beside measured, then the errors of neuralpower and of the two simplest predictors."""
    rows = [
        [
            short(e.case.label),
            quantity(e.prediction.runtime_s.value, "s"),
            quantity(e.measured_s, "s"),
            f"{e.slowdown:.2f}",
            quantity(e.corrected_s, "s"),
            f"{e.error(corrected=False):+.1%}",
            f"{e.error():+.1%}",
            "-" if e.noise is None else f"{e.noise:.1%}",
            f"{e.prediction.coverage:.1%}",
        ]
        for e in evaluations
    ]
    header = ["network", "predicted", "measured", "slow-down", "corrected", "error raw", "error", "noise", "coverage"]
    parts = [grid(header, rows), ""]
    lines = []
    for name, predicted in _predictors():
        for corrected in (True, False):
            s = summary(evaluations, predicted, corrected)
            lines.append(
                [
                    name,
                    "corrected" if corrected else "raw",
                    str(s.networks),
                    f"{s.median:.1%}",
                    f"{s.mape:.1%}",
                    f"{s.rmspe:.1%}",
                    f"{s.worst:+.1%}",
                    "-" if s.spearman is None else f"{s.spearman:.4f}",
                ]
            )
    parts.append(
        grid(["predictor", "against", "networks", "median", "MAPE", "RMSPE", "worst", "Spearman"], lines, left=2)
    )
    if any(e.parts_s for e in evaluations):
        parts += [_steps_grid(evaluations), ""]
    inside = sum(e.inside for e in evaluations)
    parts.append(f"measured (corrected) inside the 90 % bounds: {inside} of {len(evaluations)}")
    return "\n".join(parts)


def _steps_grid(evaluations: Sequence[Evaluation]) -> str:
    """The parts of a training step, predicted and measured, and how long backward takes in terms of forward."""
    header = ["training step", *(f"{step} {what}" for step in STEPS for what in ("predicted", "measured"))]
    header += ["backward : forward predicted", "measured"]
    rows = []
    for e in evaluations:
        if e.prediction.training is None:
            continue
        said = {step: interval.value for step, interval in e.prediction.training.steps.items()}
        cells = [quantity(times[step], "s") for step in STEPS for times in (said, e.parts_s)]
        rows.append([short(e.case.label), *cells, *(f"{t[BACKWARD] / t[FORWARD]:.2f}" for t in (said, e.parts_s))])
    return grid(header, rows)


def short(label: str) -> str:
    """A label whose overrides are left out: they can fill lines."""
    model, _, rest = label.partition(" ")
    name, query, _ = model.partition("?")
    return f"{name.removeprefix('transformers:')}{'?..' if query else ''} {rest}".strip()


def _predictors() -> list[tuple[str, Any]]:
    return [
        ("neuralpower", lambda e: e.prediction.runtime_s.value),
        ("roofline", lambda e: e.roofline_s),
        ("FLOPs only", lambda e: e.flops_only_s),
    ]


def evaluation_json(
    evaluations: Sequence[Evaluation], refused: Sequence[tuple[Case, InputError]] = ()
) -> dict[str, Any]:
    """The same figures in SI units and shares; `refused` are those that there are none of, and why."""
    networks = [
        {
            **_case_json(e.case),
            "predicted_s": e.prediction.runtime_s.to_json(),
            "measured_s": e.measured_s,
            "corrected_s": e.corrected_s,
            "samples_s": list(e.timing.samples_s),
            "minflt_per_call": e.timing.faults_per_call,
            "slowdown": e.slowdown,
            "too_slow": e.too_slow,
            "noise": e.noise,
            "error": e.error(),
            "error_raw": e.error(corrected=False),
            "coverage": e.prediction.coverage,
            "roofline_s": e.roofline_s,
            "flops_only_s": e.flops_only_s,
            "training": e.prediction.training.to_json(e.prediction.runtime_s.value) if e.prediction.training else None,
            "measured_parts_s": dict(e.parts_s),
        }
        for e in evaluations
    ]
    return {
        "schema": 1,
        "networks": networks,
        "refused": [{**_case_json(case), "error": one_line(error)} for case, error in refused],
        "inside_bounds": sum(e.inside for e in evaluations),
        "summary": {name: summary(evaluations, predicted).__dict__ for name, predicted in _predictors()},
    }


def _case_json(case: Case) -> dict[str, Any]:
    phase = case.phase
    return {
        "model": case.model,
        "batch_size": case.batch_size,
        "seq_len": case.seq_len,
        "phase": phase.name,
        "context": phase.context,
        "prompt": phase.prompt,
    }
