"""Trace + Predictor -> Prediction: every layer's time, folded, and their sum with an interval.

A network takes the sum of its layers; where the host's part of each is known apart, on two clocks: the device then idles
while it waits for calls (`neuralpower.learn.launch_overhead`). Errors of layers of one regressor have a part in common, those of
different ones do not: `Estimates.totals` adds them up accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD, in_tf32
from neuralpower.learn.estimates import ROOFLINE, ROOFLINE_FACTOR, Estimates, Roofline
from neuralpower.learn.launch_overhead import Dispatch
from neuralpower.learn.predictor import Predictor
from neuralpower.predict.prediction import Interval, Prediction, Row, Training, Unmodelled, ranges, with_shares
from neuralpower.trace.paths import pattern
from neuralpower.trace.records import Trace, UnmodelledCall
from neuralpower.trace.sparse_gradients import grows
from neuralpower.trace.training import OPTIMIZER, RECIPE, STEPS, TRAINING, Recipe, Task, backward_tasks, training_tasks

UNMODELLED_OVERHEAD_S = 1e-6  # of a call of which nothing but its bytes is known
NEGLIGIBLE_IDLE = 0.02  # of the time, where idle power is not known
ENERGY_COVERAGE = 0.9  # of the time must have a learnt power before energy is given


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
        PredictorError: a dtype or phase that was not learnt.
        InputError: nothing to train.
    """
    predictor.check(dtype, FORWARD if phase == TRAINING else phase)
    recipe = recipe.on(predictor.platform)
    work = work_of(trace, predictor, dtype=dtype, phase=phase, recipe=recipe)
    rows = [*_rows(work, predictor.roofline(dtype))]
    rows += [unmodelled_row(missing, seconds) for missing, seconds in zip(work.unknown, work.unknown_s, strict=True)]
    shared, total = with_shares(rows)
    busy = runtime = _total(work, predictor.system)
    if predictor.dispatch is not None:
        runtime = _on_two_clocks(busy, work, predictor.dispatch)
    idle_w = predictor.hardware.idle_w if predictor.hardware is not None else None
    power, energy, reason = _energy(shared, busy, runtime, idle_w)
    return Prediction(
        model=model,
        predictor=predictor.name,
        device=predictor.device,
        batch_size=batch_size,
        dtype=dtype,
        phase=phase,
        runtime_s=runtime,
        rows=shared,
        unmodelled=_unmodelled(work, total),
        parameters=trace.parameters,
        method=trace.method,
        notes=trace.notes,
        power_w=power,
        energy_j=energy,
        power_reason=reason,
        idle_s=None if predictor.dispatch is None else runtime.value - busy.value,
        training=_training(trace, work, predictor, batch_size, dtype, recipe) if phase == TRAINING else None,
        assumptions=(*trace.assumptions, *predictor.assumed(work.layers), *_of_rows(trace, phase, recipe)),
    )


def _of_rows(trace: Trace, phase: str, recipe: Recipe) -> tuple[str, ...]:
    """In words, which step it is where they differ."""
    return (
        (grows(trace.sparse, recipe.accumulation),)
        if phase == TRAINING and trace.sparse and recipe.optimizer == "sgd"
        else ()
    )


@dataclass(frozen=True)
class Work:
    """All calls of a pass or step, with what each is estimated to take."""

    tasks: Sequence[Task]  # in order
    estimates: Estimates  # of the tasks, of a whole call each
    unknown: Sequence[UnmodelledCall] = ()
    unknown_s: Sequence[float] = ()

    @cached_property
    def layers(self) -> list[Layer]:
        """Of the tasks."""
        return [task.layer for task in self.tasks]

    @cached_property
    def shares(self) -> np.ndarray:
        """Of the tasks."""
        return np.array([task.share for task in self.tasks])

    def of(self, step: str) -> Work:
        """The tasks of a part of a training step."""
        index = np.array([i for i, task in enumerate(self.tasks) if task.step == step], dtype=int)
        return replace(self.at(index), unknown=(), unknown_s=())

    def at(self, index: np.ndarray) -> Work:
        """Some of the tasks."""
        return replace(self, tasks=[self.tasks[i] for i in index], estimates=self.estimates.at(index))


def work_of(trace: Trace, predictor: Predictor, *, dtype: str, phase: str, recipe: Recipe) -> Work:
    """What `compose` adds up; raises InputError where there is nothing to train."""
    tasks = _tasks(trace, predictor, phase, recipe)
    if dtype == TENSORFLOAT32:
        tasks = [replace(task, layer=in_tf32(task.layer)) for task in tasks]
    # what is not modelled takes as long backward as forward
    passes = recipe.accumulation if phase == TRAINING else 1
    unknown = [m for m in trace.unmodelled for _ in range(passes * (1 if m.once or phase != TRAINING else 2))]
    roof = predictor.roofline(dtype)
    unknown_s = [missing.work_bytes / roof.bytes_per_s + UNMODELLED_OVERHEAD_S for missing in unknown]
    shares = np.array([task.share for task in tasks])
    found = predictor.estimate_network([task.layer for task in tasks], shares)
    # loops' views, where the predictor knows nothing of them, are no rows
    return Work(tasks, found, unknown, unknown_s).at(np.flatnonzero(found.runtime_s > 0))


def _tasks(trace: Trace, predictor: Predictor, phase: str, recipe: Recipe) -> list[Task]:
    if phase == TRAINING:
        return training_tasks(trace, recipe, predictor.has_learnt)
    if phase == BACKWARD:
        return backward_tasks(trace, predictor.has_learnt)
    return [Task.forward(call) for call in trace.calls]


def _rows(work: Work, roof: Roofline) -> Iterator[Row]:
    """Equal tasks of repeated blocks together."""
    tasks, estimates = work.tasks, work.estimates
    basis = estimates.basis
    grouped: dict[tuple[object, ...], list[int]] = {}
    for i, task in enumerate(tasks):
        grouped.setdefault((pattern(task.path), task.layer, task.step, task.share, task.asked), []).append(i)
    for index in grouped.values():
        first = index[0]
        task, n = tasks[first], len(index) * tasks[first].share
        flops, size = task.flops_and_bytes()
        yield Row(
            ranges([tasks[i].path for i in index]),
            task.layer.kind,
            len(index),
            n * float(estimates.runtime_s[first]),
            n * float(estimates.low_s[first]),
            n * float(estimates.high_s[first]),
            round(len(index) * flops),
            round(len(index) * size),
            "compute" if flops / roof.flops_per_s > size / roof.bytes_per_s else "memory",
            basis[first],
            power_w=_power(estimates, first),
            step=task.step,
            layer=task.layer,
        )


def unmodelled_row(missing: UnmodelledCall, seconds: float) -> Row:
    """The row of a call that no kind describes, with a roofline's bounds."""
    bounds = seconds / ROOFLINE_FACTOR, seconds * ROOFLINE_FACTOR
    return Row(missing.path, missing.operator, 1, seconds, *bounds, 0, missing.bytes, "memory", ROOFLINE)


def _unmodelled(work: Work, total: float) -> tuple[Unmodelled, ...]:
    times: dict[tuple[str, str], list[float]] = {}
    for call, taken in zip(work.unknown, work.unknown_s, strict=True):
        times.setdefault((call.operator, call.reason), []).append(taken)
    return tuple(Unmodelled(*name, len(some), sum(some), sum(some) / total) for name, some in times.items())


def _training(trace: Trace, work: Work, predictor: Predictor, batch_size: int, dtype: str, recipe: Recipe) -> Training:
    """The parts of a step."""
    steps = {step: _total(work.of(step), predictor.system) for step in STEPS}
    peaks = predictor.hardware.peak_flops_per_s if predictor.hardware is not None else {}
    flops = sum(t.flops_and_bytes()[0] for t in work.tasks if t.step != OPTIMIZER and not t.again)
    derived = sorted(
        {c.layer.kind for c in trace.calls if c.gradient and not predictor.has_learnt(c.layer.kind, BACKWARD)}
    )
    return Training(recipe, batch_size * recipe.accumulation, steps, round(flops), peaks.get(dtype), tuple(derived))


def _power(estimates: Estimates, i: int) -> Interval | None:
    if not np.isfinite(estimates.power_w[i]):
        return None
    return Interval(float(estimates.power_w[i]), float(estimates.power_low_w[i]), float(estimates.power_high_w[i]))


def _total(work: Work, system: float) -> Interval:
    """The sum of all calls; those that are not modelled are as uncertain as a roofline."""
    first: dict[Layer, int] = {}
    counts = np.zeros((1, len(work.tasks)))
    for i, (layer, share) in enumerate(zip(work.layers, work.shares, strict=True)):
        counts[0, first.setdefault(layer, i)] += share
    total = work.estimates.totals(counts, system)
    value, low, high = (float(part[0]) for part in (total.value, total.low, total.high))
    extra = sum(work.unknown_s)
    return Interval(value + extra, low + extra / ROOFLINE_FACTOR, high + extra * ROOFLINE_FACTOR)


def _on_two_clocks(busy: Interval, work: Work, dispatch: Dispatch) -> Interval:
    """Until the device is done, `busy` or idle; calls that are not modelled come last, since their place is not known."""
    issued = np.concatenate([dispatch.seconds(work.layers), np.full(len(work.unknown_s), dispatch.unknown_s)])
    kernels = np.concatenate([work.shares * work.estimates.runtime_s, np.asarray(work.unknown_s, dtype=float)])
    if not len(kernels):
        return busy
    return Interval(*dispatch.ends_s(issued, kernels, busy.low / busy.value, busy.high / busy.value))


def _energy(
    rows: Sequence[Row], busy: Interval, runtime: Interval, idle_w: float | None
) -> tuple[Interval | None, Interval | None, str]:
    """(power, energy, why there is none): the rows' powers weighed by their times, idle power while the device waits."""
    known = [(row.power_w, row.share) for row in rows if row.power_w is not None]
    if not known:
        return None, None, "the predictor has not learnt power"
    covered = sum(share for _, share in known)
    if covered < ENERGY_COVERAGE:
        return None, None, f"power is learnt for {covered:.0%} of the time; {ENERGY_COVERAGE:.0%} are needed"
    idle = 1 - busy.value / runtime.value if runtime.value > busy.value else 0.0
    if idle > NEGLIGIBLE_IDLE and idle_w is None:
        return None, None, f"the device idles {idle:.0%} of the time, and what it then draws is not known"
    energies, powers = [], []
    for bound in ("value", "low", "high"):
        power = sum(getattr(power, bound) * share for power, share in known) / covered
        waits = max(getattr(runtime, bound) - getattr(busy, bound), 0.0)
        energies.append(power * getattr(busy, bound) + waits * (idle_w or 0.0))
        powers.append(power * (1 - idle) + idle * (idle_w or 0.0))
    return Interval(*powers), Interval(*energies), ""
