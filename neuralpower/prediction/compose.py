"""A traced pass or step and a predictor -> Prediction: rows of equal calls, and their sum.

A network's time is the sum of its layers' times. Where the host's time of each call is known, it ends with
the last stream: the device idles while it waits for calls (`neuralpower.prediction.streams`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import BARE, ROOFLINE, ROOFLINE_FACTOR, Estimates, by_origin, in_words
from neuralpower.learn.network_estimates import Answer, ask
from neuralpower.learn.notes import origins
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.costs.energy import clock_not_held, energy_of
from neuralpower.prediction.memory.fresh_memory import fresh_row
from neuralpower.prediction.prediction import Prediction, Training
from neuralpower.prediction.rows import Interval, Row, Unmodelled, ranges, with_shares
from neuralpower.prediction.streams import Plan, Rank, end_s
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.passes import applied
from neuralpower.trace.paths import pattern
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, RECIPE, TRAINING, Recipe, check_masters
from neuralpower.trace.records import Trace, UnmodelledCall


def question_of(
    predictor: Predictor, *, phase: str = FORWARD, dtype: str = "float32", recipe: Recipe = RECIPE, **how: Any
) -> Question:
    """The question for a pass on the predictor's device; `how`: further fields of `Question`.

    Raises InputError for masters of weights that have none.
    """
    check_masters(phase == TRAINING and recipe.masters, dtype, autocast=how.get("autocast"))
    device: dict[str, Any] = {"platform": predictor.platform, "knows": predictor.knows}
    return Question(phase, dtype, recipe.on(predictor.platform), **device, **how)


def check(predictor: Predictor, question: Question) -> None:
    """Raise PredictorError for a dtype or phase that the predictor was not trained on."""
    predictor.check(question.dtype, FORWARD if question.phase == TRAINING else question.phase)


def compose(
    trace: Trace,
    predictor: Predictor,
    *,
    model: str,
    batch_size: int,
    dtype: str = "float32",
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
) -> Prediction:
    """Predict every layer of a forward pass's trace in a phase, and add up.

    `phase`: forward, backward, or training, a step by `recipe` of a trace in training mode with its loss.

    Raises:
        PredictorError: the predictor was not trained on the dtype or phase.
        InputError: nothing to train.
    """
    question = question_of(predictor, phase=phase, dtype=dtype, recipe=recipe)
    check(predictor, question)
    return composed(applied(trace, question), predictor, question, model=model, batch_size=batch_size)


def composed(
    work: Trace,
    predictor: Predictor,
    question: Question,
    *,
    model: str,
    batch_size: int,
    lifetimes: StepLifetimes | None = None,
) -> Prediction:
    """The prediction of a trace's tasks (`Trace.tasks`), for the question that they were made for.

    `lifetimes`: of memory in a step of training.
    """
    answer = ask(predictor, work, question)
    busy = Interval(*answer.busy)
    storages = work.storages if question.phase == FORWARD else lifetimes.storages if lifetimes else ()
    fresh = fresh_row(storages, question.phase, predictor)
    whole = Whole(_runtime(answer, busy), busy, fresh=fresh)
    return assembled(answer, work, predictor, question, whole, model=model, batch_size=batch_size)


@dataclass(frozen=True)
class Whole:
    """How long all takes, and what the rows take of it."""

    runtime_s: Interval
    busy_s: Interval  # the rows' sum
    repeats: Sequence[int] | None = None  # [tasks] how often each runs; None: once
    shown: Sequence[float] | None = None  # [tasks] part of its time that the whole is longer for; None: all
    waits_s: float = 0.0  # for other devices
    fresh: Row | None = None  # what fresh memory takes besides

    def with_fresh(self) -> Whole:
        """All times with those of fresh memory, if there is any."""
        if self.fresh is None:
            return self
        fresh = Interval(self.fresh.runtime_s, self.fresh.low_s, self.fresh.high_s)
        return replace(self, runtime_s=sum_of(self.runtime_s, fresh), busy_s=sum_of(self.busy_s, fresh))


def assembled(
    answer: Answer,
    work: Trace,
    predictor: Predictor,
    question: Question,
    whole: Whole,
    *,
    model: str,
    batch_size: int,
) -> Prediction:
    """The prediction from what the predictor has said of a trace's tasks, and from how long all takes."""
    whole = whole.with_fresh()
    runtime, busy = whole.runtime_s, whole.busy_s
    rows = rows_of(answer, whole)
    hardware = predictor.hardware
    power, energy, reason = energy_of(rows, busy, runtime, hardware, predictor.setting)
    fresh = () if whole.fresh is None else (replace(whole.fresh, power_w=power),)
    origins = _origins(predictor, answer)
    training = None
    if question.phase == TRAINING:
        peaks = {} if hardware is None else hardware.peak_flops_per_s
        training = _training(answer, rows, question.recipe, batch_size, peaks.get(question.dtype))
    return Prediction(
        model=model,
        predictor=predictor.name,
        device=predictor.device,
        batch_size=batch_size,
        dtype=question.dtype,
        phase=question.phase,
        runtime_s=runtime,
        rows=with_shares((*rows, *fresh), runtime),
        unmodelled=_unmodelled(answer, runtime.value),
        parameters=work.parameters,
        method=work.method,
        notes=work.notes,
        power_w=power,
        energy_j=energy,
        power_reason=reason,
        idle_s=None if answer.issue is None else max(runtime.value - busy.value - whole.waits_s, 0.0),
        training=training,
        assumptions=tuple(dict.fromkeys((*work.assumptions, *answer.assumptions, *work.granted))),
        origin=in_words(origins) if predictor.answers else "",
        origins=origins,
        warned=(*answer.warnings, *clock_not_held(rows, predictor.setting)),
        passes=work.passes,
        run=question.run,
        weights=work.quantised,
        savings=work.savings,
    )


def sum_of(first: Interval, second: Interval) -> Interval:
    """The sum of two times that err apart from each other."""
    value = first.value + second.value
    low, high = (
        math.hypot(getattr(first, bound) - first.value, getattr(second, bound) - second.value)
        for bound in ("low", "high")
    )
    return Interval(value, value - low, value + high)


def rows_of(answer: Answer, whole: Whole) -> list[Row]:
    """Equal tasks of repeated blocks together, then calls that no kind describes."""
    missing = zip(answer.unknown, answer.unknown_s, strict=True)
    return [*_rows(answer, whole), *(unmodelled_row(*one) for one in missing)]


def _origins(predictor: Predictor, answer: Answer) -> dict[str, float]:
    """Shares of the layers' time by how they are known."""
    times = by_origin(origins(predictor, answer.estimates), answer.device_s)
    times[BARE] += sum(answer.unknown_s)
    total = sum(times.values()) or 1.0
    return {name: taken / total for name, taken in times.items() if taken}


def _rows(answer: Answer, whole: Whole) -> Iterator[Row]:
    """One row for equal tasks of repeated blocks; times are the device's."""
    tasks, estimates, roof = answer.tasks, answer.estimates, answer.roof
    own = answer.own
    basis = estimates.basis
    grouped: dict[tuple[object, ...], list[int]] = {}
    for i, task in enumerate(tasks):
        alike = (pattern(task.path), task.layer, task.step, task.share, task.asked, task.parts, task.stream)
        grouped.setdefault(alike, []).append(i)
    for index in grouped.values():
        first = index[0]
        count = len(index) if whole.repeats is None else sum(whole.repeats[i] for i in index)
        task, n = tasks[first], count * tasks[first].share
        if whole.shown is not None:
            n *= whole.shown[first]
        flops, size = task.flops_and_bytes()
        calls, count = count, round(count * max(task.share, 1.0))  # a part that runs in each step is one task
        yield Row(
            ranges([tasks[i].path for i in index]),
            task.layer.kind,
            count,
            n * float(own[first] * estimates.runtime_s[first]),
            n * float(own[first] * estimates.low_s[first]),
            n * float(own[first] * estimates.high_s[first]),
            round(calls * flops),
            round(calls * size),
            "compute" if flops / roof.flops_per_s > size / roof.bytes_per_s else "memory",
            basis[first],
            power_w=_power(estimates, first),
            power_trained=bool(estimates.power_trained[first]),
            step=task.step,
            layer=task.layer,
            parts=task.parts,
            paths=tuple(tasks[i].path for i in index),
        )


def unmodelled_row(missing: UnmodelledCall, seconds: float) -> Row:
    """The row of a call that no kind describes, with a roofline's bounds."""
    bounds = seconds / ROOFLINE_FACTOR, seconds * ROOFLINE_FACTOR
    return Row(missing.path, missing.operator, 1, seconds, *bounds, 0, missing.bytes, "memory", ROOFLINE)


def _unmodelled(answer: Answer, whole_s: float) -> tuple[Unmodelled, ...]:
    times: dict[tuple[str, str], list[float]] = {}
    for call, taken in zip(answer.unknown, answer.unknown_s, strict=True):
        times.setdefault((call.operator, call.reason), []).append(taken)
    return tuple(Unmodelled(*name, len(some), sum(some), sum(some) / whole_s) for name, some in times.items())


def _training(
    answer: Answer, rows: Sequence[Row], recipe: Recipe, batch_size: int, peak_flops_per_s: float | None
) -> Training:
    """The parts of a step: what its rows take, with the bounds of what the device does once."""
    steps = {}
    for step, (once, low, high) in answer.parts.items():
        seconds = sum(row.runtime_s for row in rows if row.step == step)
        steps[step] = Interval(seconds, *(seconds * bound / (once or 1.0) for bound in (low, high)))
    flops = sum(t.flops_and_bytes()[0] for t in answer.tasks if t.step != OPTIMIZER and not t.again)
    samples = batch_size * recipe.accumulation
    return Training(recipe, samples, steps, round(flops), peak_flops_per_s, answer.derived)


def _power(estimates: Estimates, i: int) -> Interval | None:
    bounds = (estimates.power_w, estimates.power_low_w, estimates.power_high_w)
    return Interval(*(float(bound[i]) for bound in bounds)) if np.isfinite(estimates.power_w[i]) else None


def _runtime(answer: Answer, busy: Interval) -> Interval:
    """Time until the device's stream ends, busy or idle; `busy` where the host's part is not known."""
    kernels, issue = answer.kernels_s, answer.issue_s
    if answer.issue is None or issue is None or not len(kernels):
        return busy
    spread, low, high = answer.issue.spread, busy.low / busy.value, busy.high / busy.value
    bounds = ((kernels, issue), (kernels * low, issue / spread), (kernels * high, issue * spread))
    return Interval(*(end_s(Plan([Rank(seconds, issued)])) for seconds, issued in bounds))
