"""Everything that a predictor estimates of a pass or a step: times, bounds, issue times, assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.learn.estimates import ROOFLINE_FACTOR, Estimates, Roofline, Totals
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.notes import assumed, foreign
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.trace.question import COMPILE, ENGINE, Question
from neuralpower.trace.recipe import STEPS, TRAINING
from neuralpower.trace.records import Task, Trace, UnmodelledCall

UNMODELLED_OVERHEAD_S = 1e-6  # of a call whose bytes alone are known
Bounds = tuple[float, float, float]  # (value, low, high) in seconds, 90 %


@dataclass(frozen=True)
class Issue:
    """The host's time to issue the calls, where layers were timed without it."""

    tasks_s: Array  # [tasks]
    unknown_s: float  # of each call that is not modelled
    spread: float  # 90 % of networks' hosts differ by at most this factor, either way


@dataclass(frozen=True)
class Answer:
    """A predictor's estimates of the tasks of a pass or a step."""

    tasks: Sequence[Task]  # those that take time, in order
    shares: Array  # [tasks]: the part of each that is done
    estimates: Estimates  # of the tasks, of a whole call each
    unknown: Sequence[UnmodelledCall]  # calls that no kind describes
    unknown_s: Sequence[float]  # of each of them, by roofline
    roof: Roofline
    busy: Bounds  # of all calls, one after the other on the device
    parts: Mapping[str, Bounds] = field(default_factory=dict)  # of training: forward, backward, optimizer
    issue: Issue | None = None
    derived: tuple[str, ...] = ()  # kinds that a gradient goes through and without trained backward data
    assumptions: tuple[str, ...] = ()  # as text
    warnings: tuple[str, ...] = ()  # as text: why the bounds may be too narrow

    @property
    def own(self) -> Array:
        """[tasks] the device's part of each estimate: without launches that a queue of calls hides.

        The whole estimate where the host's part is known.
        """
        hidden = np.zeros(len(self.shares)) if self.issue is not None else self.estimates.hidden_s
        return np.asarray(1 - hidden / np.maximum(self.estimates.runtime_s, 1e-30))

    @property
    def device_s(self) -> Array:
        """[tasks] seconds of the device, of the parts that are done."""
        return np.asarray(self.shares * self.own * self.estimates.runtime_s)

    @property
    def kernels_s(self) -> Array:
        """[tasks + unknown] seconds on the device; what is not modelled comes last: it stands nowhere."""
        unknown_s = np.asarray(self.unknown_s, dtype=float)
        return np.concatenate([self.shares * self.estimates.runtime_s, unknown_s])

    @property
    def issue_s(self) -> Array | None:
        """[tasks + unknown] seconds of the host for each call; None where its part is not known."""
        if self.issue is None:
            return None
        return np.concatenate([self.issue.tasks_s, np.full(len(self.unknown_s), self.issue.unknown_s)])


def ask(predictor: Predictor, work: Trace, question: Question) -> Answer:
    """A predictor's estimates of a trace's tasks.

    Args:
        predictor: of the device.
        work: a trace after its passes (`neuralpower.trace.passes.applied`).
        question: what it was made for.

    Raises:
        PredictorError: its numbers are wrong, or it serves several devices.
    """
    predictor = as_run(predictor, question.run)
    roof = predictor.own.roofline(question.dtype)
    unknown_s = [missing.work_bytes / roof.bytes_per_s + UNMODELLED_OVERHEAD_S for missing in work.unmodelled]
    shares = np.array([task.share for task in work.tasks])
    found = predictor.estimate_network([task.layer for task in work.tasks], shares)
    # loops' views, where the predictor knows nothing of them, are no rows
    index = np.flatnonzero(found.runtime_s > 0)
    tasks, shares, estimates = [work.tasks[i] for i in index], shares[index], found.at(index)
    layers, system = [task.layer for task in tasks], predictor.system
    parts = {}
    for step in STEPS if question.phase == TRAINING else ():
        at = np.array([i for i, task in enumerate(tasks) if task.step == step], dtype=int)
        own = [layers[i] for i in at]
        parts[step] = _total(own, shares[at], estimates.at(at), system, graphed=work.graphed)
    dispatch, issue = predictor.dispatch, None
    if dispatch is not None and work.graphed:
        issue = Issue(np.zeros(len(layers)), 0.0, 1.0)
    elif dispatch is not None:
        spread = float(np.exp(NINETY * dispatch.deviation))
        launched = [share if task.step == FORWARD else 1.0 for task, share in zip(tasks, shares, strict=True)]
        issue = Issue(dispatch.seconds(layers) * np.array(launched), dispatch.unknown_s, spread)
    host = "" if dispatch is None or work.graphed else dispatch.note(layers)
    with_gradient = {call.layer.kind for call in work.calls if call.gradient}
    return Answer(
        tasks=tasks,
        shares=shares,
        estimates=estimates,
        unknown=work.unmodelled,
        unknown_s=unknown_s,
        roof=roof,
        busy=_total(layers, shares, estimates, system, sum(unknown_s), graphed=work.graphed),
        parts=parts,
        issue=issue,
        derived=tuple(sorted(kind for kind in with_gradient if not predictor.knows(kind, BACKWARD))),
        assumptions=(*assumed(predictor, layers), *([host] if host else [])),
        warnings=foreign(predictor),
    )


def as_run(predictor: Predictor, run: str) -> Predictor:
    """The predictor of a way to run (`RUNS`): torch's kernels or engines', modules walked or compiled."""
    if run == ENGINE:
        return predictor
    dispatch = predictor.dispatch
    if dispatch is not None and run == COMPILE:
        dispatch = dispatch.of_compiled()
    return replace(predictor.of_torch(), dispatch=dispatch)


def _total(
    layers: Sequence[Layer],
    shares: Array,
    estimates: Estimates,
    system: float,
    unknown_s: float = 0.0,
    *,
    graphed: bool,
) -> Bounds:
    """The sum of all calls, the shares of them that are done; `unknown_s` is as uncertain as a roofline."""
    first: dict[Layer, int] = {}
    counts = np.zeros((1, len(layers)))
    for i, (layer, share) in enumerate(zip(layers, shares, strict=True)):
        counts[0, first.setdefault(layer, i)] += share
    sums = estimates.totals(counts, system, graphed=graphed)
    value, low, high = (float(part[0]) for part in (sums.value, sums.low, sums.high))
    return value + unknown_s, low + unknown_s / ROOFLINE_FACTOR, high + unknown_s * ROOFLINE_FACTOR


def predict_many(predictor: Predictor, networks: Sequence[Sequence[Layer]]) -> Totals:
    """Totals of networks given as their layers in order; each distinct layer is predicted once."""
    from scipy.sparse import coo_array

    at: dict[Layer, int] = {}
    columns = [at.setdefault(layer, len(at)) for network in networks for layer in network]
    rows = np.repeat(np.arange(len(networks)), [len(network) for network in networks])
    counts = coo_array((np.ones(len(columns)), (rows, columns)), shape=(len(networks), len(at))).tocsr()
    estimates = predictor.estimate(list(at))
    totals = estimates.totals(counts, predictor.system).times(predictor.in_cache(estimates, counts))
    if predictor.dispatch is None:
        return totals
    dispatch_s = predictor.dispatch.seconds(list(at))
    ends, stop = np.empty((len(networks), 3)), 0
    for i, network in enumerate(networks):
        calls = columns[stop : (stop := stop + len(network))]
        low, high = (float(bound[i] / max(totals.value[i], 1e-30)) for bound in (totals.low, totals.high))
        ends[i] = predictor.dispatch.ends_s(dispatch_s[calls], estimates.runtime_s[calls], low, high)
    value, lows, highs = ends.T
    deviation = np.log(np.maximum(highs, 1e-30) / np.maximum(lows, 1e-30)) / 2 / NINETY
    return Totals(value, lows, highs, deviation)
