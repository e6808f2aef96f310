"""When each call of a predicted pass runs: the sum of `compose` laid out in time.

    one row      calls back to back. Each takes its estimate. Where times were trained with the host's
                 launches, which a queue of calls hides, it takes the part of the side that sets the pace:
                 the device's (estimate without what is hidden) or the host's (what is hidden)
    two clocks   the host issues one call after the other, the device runs them in order and waits in between
                 (`neuralpower.prediction.streams`): its calls and its waits are the predicted time

A call without a layer kind stands where it is called; on two clocks it comes last, as in the predicted time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.learn.network_estimates import ask
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.compose import question_of, unmodelled_row
from neuralpower.prediction.memory.peak import alive, steady
from neuralpower.prediction.parallel.lanes import Lane
from neuralpower.prediction.prediction import FRESH, Prediction, fresh_memory_of
from neuralpower.prediction.rows import Row
from neuralpower.prediction.streams import Plan, Rank, times_of
from neuralpower.trace.lifetimes import StepLifetimes, on_library
from neuralpower.trace.recipe import OPTIMIZER, RECIPE, TRAINING
from neuralpower.trace.records import Trace

UNPLACED = "not modelled"  # the part of a pass with calls that have no place


@dataclass(frozen=True)
class Stage:
    """One pass or step of training, as it was traced and predicted."""

    name: str
    trace: Trace  # after its passes
    prediction: Prediction
    memory: StepLifetimes | None = None  # of a step of training
    lanes: tuple[Lane, ...] = ()  # on several devices: what each of their streams does when

    @property
    def has_memory(self) -> bool:
        """Whether it is known what lives when: of a forward pass always."""
        return self.memory is not None or self.prediction.phase not in (TRAINING, BACKWARD)


@dataclass(frozen=True)
class Omitted:
    """Steps that are known only in sum."""

    name: str
    runtime_s: float
    energy_j: float | None


Seen = Callable[[Stage | Omitted], None]
"""Receives each stage of a prediction, in order."""


@dataclass(frozen=True)
class Timed:
    """One call in time; seconds from the stage's begin, numbers of this call."""

    path: str
    name: str  # operator, or kind
    kind: str
    step: str  # of training: forward, backward, optimizer
    start_s: float
    end_s: float
    runtime_s: float  # its estimate
    low_s: float
    high_s: float
    flops: int
    bytes: int
    basis: str
    power_w: float | None
    at: int = 0  # operator call of a forward pass that it is
    host_start_s: float | None = None  # when the host issues it; None where only the sum is known
    host_end_s: float | None = None

    @property
    def energy_j(self) -> float | None:
        """Power times the time that it takes in the sum."""
        return None if self.power_w is None else self.power_w * (self.end_s - self.start_s)


def timed(stage: Stage, predictor: Predictor) -> list[Timed]:
    """The calls of a stage in order, by the predictor that made its prediction."""
    p = stage.prediction
    phase = p.phase if p.phase in (TRAINING, BACKWARD) else FORWARD
    recipe = p.training.recipe if p.training else RECIPE
    question = question_of(predictor, phase=phase, dtype=p.dtype, recipe=recipe, run=p.run)
    answer = ask(predictor, stage.trace, question)
    estimates, shares = answer.estimates, answer.shares
    hidden = shares * estimates.hidden_s
    taken = shares * estimates.runtime_s
    if answer.issue is None:
        taken = max(taken - hidden, hidden, key=np.sum)
    basis = estimates.basis
    calls = []
    for i, task in enumerate(answer.tasks):
        flops, size = task.flops_and_bytes()
        power = float(estimates.power_w[i])
        call = Timed(
            path=task.path,
            name=task.operator or task.layer.kind,
            kind=task.layer.kind,
            step=task.step,
            start_s=0.0,
            end_s=float(taken[i]),
            runtime_s=float(shares[i] * estimates.runtime_s[i]),
            low_s=float(shares[i] * estimates.low_s[i]),
            high_s=float(shares[i] * estimates.high_s[i]),
            flops=round(flops),
            bytes=round(size),
            basis=basis[i],
            power_w=power if np.isfinite(power) else None,
            at=task.at,
        )
        calls.append(call)
    steps = (FORWARD, BACKWARD) if phase == TRAINING else (phase,)
    if answer.issue is not None:
        steps = (UNPLACED,)
    missing = [
        _of_row(unmodelled_row(call, seconds), steps[number % len(steps)], call.at)
        for number, (call, seconds) in enumerate(zip(answer.unknown, answer.unknown_s, strict=True))
    ]
    if answer.issue is None:
        fresh = [_of_row(row, FRESH, 0) for row in [fresh_memory_of(p)] if row]
        return _on_a_stream([*_placed(calls, missing), *fresh])
    return _on_a_stream([*calls, *missing], answer.issue_s)


def _of_row(row: Row, step: str, at: int) -> Timed:
    """The entry of what has no layer kind."""
    return Timed(
        path=row.path,
        name=row.kind,
        kind=row.kind,
        step=step,
        start_s=0.0,
        end_s=row.runtime_s,
        runtime_s=row.runtime_s,
        low_s=row.low_s,
        high_s=row.high_s,
        flops=0,
        bytes=row.bytes,
        basis=row.basis,
        power_w=None if row.power_w is None else row.power_w.value,
        at=at,
    )


def memory_bytes(stage: Stage, calls: Sequence[Timed]) -> list[int]:
    """[calls + 1] most bytes of tensors alive since the call before, during each call, and at last after all.

    A forward pass's calls are found among its operator calls. In a step of training each part's operator
    calls are spread evenly over its layers' calls.
    """
    if stage.memory is None:
        total = alive(on_library(stage.trace.storages, ""))
        within = _called(calls, len(total) - 2)
    else:
        total = alive(steady(on_library(stage.memory.storages, "")), stage.memory.end + 2)
        within = _spread(stage.memory, calls)
    last = len(total) - 1
    sizes = [int(total[min(first, last) : max(end, first) + 1].max()) for first, end in within]
    after = last if stage.memory is None or not within else min(max(within[-1]) + 1, last)
    return [*sizes, int(total[after])]


def _called(calls: Sequence[Timed], last: int) -> list[tuple[int, int]]:
    """(first, last) operator call of each call of a forward pass; the last one takes what is left."""
    within: list[tuple[int, int]] = []
    for call in calls:
        first = within[-1][1] + 1 if within else 0
        within.append((first, max(call.at, first)))
    if within:
        within[-1] = (within[-1][0], max(within[-1][1], last))
    return within


def _spread(memory: StepLifetimes, calls: Sequence[Timed]) -> list[tuple[int, int]]:
    """(first, last) operator call of each call of a step of training."""
    *passes, update = [
        (before + 1, end) for before, end in itertools.pairwise((-1, *memory.passes, memory.end))
    ]
    after = memory.end + 1
    parts = {FORWARD: passes[::2], BACKWARD: passes[1::2], OPTIMIZER: [update]}
    parts |= dict.fromkeys((UNPLACED, FRESH), [(after, after)])
    within: list[tuple[int, int]] = []
    for step, block in itertools.groupby(calls, key=lambda call: call.step):
        ranges = parts[step]
        (first, last), count = ranges.pop(0) if len(ranges) > 1 else ranges[0], len(list(block))
        edges = [first + (last + 1 - first) * i // count for i in range(count + 1)]
        within += [(low, high - 1) for low, high in itertools.pairwise(edges)]
    return within


def _placed(calls: list[Timed], missing: Sequence[Timed]) -> list[Timed]:
    """Put calls without a layer kind among the others: forward in place, backward at the end of a pass."""
    blocks = [list(block) for _, block in itertools.groupby(calls, key=lambda call: call.step)]
    for step in dict.fromkeys(call.step for call in missing):
        own = [call for call in missing if call.step == step]
        places = [block for block in blocks if block[0].step == step]  # of every micro-batch
        if not places:
            blocks.append(own)
        for number, block in enumerate(places):
            block += own[number :: len(places)]
            if step == FORWARD:
                block.sort(key=lambda call: call.at)
    return [call for block in blocks for call in block]


def _on_a_stream(calls: Sequence[Timed], issue_s: np.ndarray | None = None) -> list[Timed]:
    """The calls in time, given how long each takes (`end_s`), and the host for it [calls]."""
    (times,) = times_of(Plan([Rank(np.array([call.end_s for call in calls]), issue_s)]))
    found = [
        replace(call, start_s=start, end_s=end)
        for call, start, end in zip(calls, times.start_s.tolist(), times.end_s.tolist(), strict=True)
    ]
    if issue_s is None:
        return found
    hosts = itertools.pairwise([0.0, *times.issued_s.tolist()])
    return [replace(one, host_start_s=a, host_end_s=b) for one, (a, b) in zip(found, hosts, strict=True)]
