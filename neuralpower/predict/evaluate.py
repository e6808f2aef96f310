"""Measure networks here, beside what was predicted: the same statistic, the same settings, the same sentinel.

Networks are built with random weights, run in turn for many rounds, a group at a time where memory is short. Errors are
given raw, and with the measured time divided by the machine's slow-down as the sentinel saw it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from neuralpower.devices.host import read_cpu
from neuralpower.errors import InputError, ModelError, quoted
from neuralpower.layers.base import FORWARD
from neuralpower.layers.call import Call
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.pace import Pace
from neuralpower.learn.predictor import Predictor
from neuralpower.measure.cpu.timer import NETWORK_ROUNDS, Sentinel, Timing, prepare_process, time_calls
from neuralpower.measure.steps import TrainingStep
from neuralpower.networks.phases import GENERATE, cached_call
from neuralpower.networks.sources import resolve
from neuralpower.networks.users_code import raised, users_code
from neuralpower.predict.case import Case, predict_case
from neuralpower.predict.prediction import Prediction
from neuralpower.trace.records import Trace
from neuralpower.trace.training import RECIPE, TRAINING, Recipe

GROUP_BYTES = 4 * 2**30  # of weights, for the networks that are timed in turn
GROUP = 8
# A virtual machine's cores are moved: while they shared no cache, the sentinel took 1.3 times as long, networks 1.07 times.
SPELL = 1.08  # times what the sentinel took beside the run's quickest networks, from which a network is measured again
AGAIN = 2  # times at most


@dataclass(frozen=True)
class Evaluation:
    """One network predicted and measured."""

    case: Case
    prediction: Prediction
    timing: Timing
    roofline_s: float
    flops_only_s: float
    slowdown: float  # of this network, by the speed that the machine had and what its layers are known to make of it
    parts_s: Mapping[str, float] = field(
        default_factory=dict
    )  # of a training step: forward, backward, optimizer
    over: float | None = None  # times its usual that the sentinel took; None where no usual time is known
    too_slow: float | None = (
        None  # the same, where 95 % of the networks that the predictor learnt from met less
    )

    @property
    def measured_s(self) -> float:
        """10th percentile over the rounds, as measured."""
        return self.timing.runtime_s

    @property
    def corrected_s(self) -> float:
        """The same with the machine's slow-down taken out."""
        return self.timing.runtime_s / self.slowdown

    @property
    def noise(self) -> float | None:
        """How far the statistic of the odd rounds lies from that of the even ones: no error below it means anything."""
        samples = self.timing.samples_s
        if len(samples) < 2:
            return None
        odd, even = (float(np.percentile(samples[i::2], 10)) for i in (0, 1))
        return abs(odd / even - 1)

    @property
    def inside(self) -> bool:
        """Whether the corrected time lies within the predicted bounds."""
        return self.prediction.runtime_s.low <= self.corrected_s <= self.prediction.runtime_s.high

    def error(self, corrected: bool = True) -> float:
        """Predicted over measured, minus 1."""
        return self.prediction.runtime_s.value / (self.corrected_s if corrected else self.measured_s) - 1


@dataclass(frozen=True)
class Summary:
    """Errors of a set of networks: shares, not percent."""

    networks: int
    mape: float
    median: float
    rmspe: float
    worst: float
    spearman: float | None  # of three networks or more


def evaluate(
    cases: Sequence[Case],
    predictor: Predictor,
    *,
    rounds: int = NETWORK_ROUNDS,
    threads: int | None = None,
    show: Callable[[str], None] = lambda text: None,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    refused: Callable[[Case, InputError], None] | None = None,
) -> list[Evaluation]:
    """Predict, then measure each, `phase` forward or training; `refused` is told of each that cannot be built or run.

    Where the predictor was learnt on this machine, what was measured in slow spells is measured again, at the end: spells slower
    than others of the run, or than 95 % of the predictor's networks met.

    Raises:
        InputError: a whole generation, of which one step or its prefill can be measured; without `refused`, what it would be told.
    """
    for case in cases:
        if case.phase.name == GENERATE:
            raise InputError(
                f"{case.label}: a whole generation is not measured; choose --phase prefill and decode"
            )

    run = _Run(cases, predictor, phase, recipe, rounds, show, refused)
    run.predict()
    prepare_process(threads or torch.get_num_threads())
    run.prepare()
    results = run.measured(list(run.predicted))
    run.refused = lambda *_: None  # of one that fails now there is the first measurement
    for _ in range(AGAIN):
        slow = _in_slow_spells(results)
        if not slow:
            break
        show(f"the machine was slower beside {len(slow)} networks than it can be: again")
        again = run.measured(list(slow))
        results |= {i: result for i, result in again.items() if (result.over or 0.0) < slow[i]}
    return list(results.values())


@dataclass
class _Run:
    """Networks that are predicted, and measured in turn."""

    cases: Sequence[Case]
    predictor: Predictor
    phase: str
    recipe: Recipe
    rounds: int
    show: Callable[[str], None]
    refused: Callable[[Case, InputError], None] | None
    predicted: dict[int, tuple[Prediction, Trace]] = field(default_factory=dict)

    def refuse(self, case: Case, error: InputError) -> None:
        """Tell of a network that cannot be built or run; raises the error where nobody is told."""
        if self.refused is None:
            raise error
        self.refused(case, error)

    def predict(self) -> None:
        """Predict all."""
        for i, case in enumerate(self.cases):
            self.show(f"predicting {case.label}")
            try:
                self.predicted[i] = predict_case(case, self.predictor, phase=self.phase, recipe=self.recipe)
            except InputError as error:
                self.refuse(case, error)

    def prepare(self) -> None:
        """Settle the sentinel, in a process that is prepared for measuring."""
        self.generator, self.sentinel = random.Random(0), Sentinel().settle()
        self.here = not self.predictor.unlike(read_cpu())  # of other machines it knows no usual speed

    def measured(self, chosen: Sequence[int]) -> dict[int, Evaluation]:
        """The chosen networks, timed a group at a time; those that fail are refused."""
        held = 1 if self.phase == FORWARD else 4  # weights, gradients, two moments
        found = {}
        for group in _groups({i: held * self.predicted[i][1].parameter_bytes for i in chosen}):
            self.show("measuring " + ", ".join(self.cases[i].label for i in group))
            calls, steps = self.built(group)
            names = ", ".join(self.cases[i].label for i in calls)
            with users_code(f"while {names} were timed, a pass that had run before raises"):
                timings = time_calls(list(calls.values()), self.sentinel, self.generator, rounds=self.rounds)
            for i, timing in zip(calls, timings, strict=True):
                case = self.cases[i]
                if isinstance(timing, Exception):
                    said = f"its forward raises {quoted(raised(timing))}; nothing to measure"
                    self.refuse(case, ModelError(f"{case.model}: {said}"))
                    continue
                parts = steps[i].parts_s(len(timing.samples_s)) if steps else {}
                found[i] = _evaluation(case, self.predicted[i][0], timing, self.predictor, parts, self.here)
        return found

    def built(self, group: Sequence[int]) -> tuple[dict[int, Call], dict[int, TrainingStep]]:
        """The group's calls, and the training steps that they are, if they are; what cannot be built is refused."""
        calls: dict[int, Call] = {}
        steps: dict[int, TrainingStep] = {}
        for i in group:
            try:
                call = built(self.cases[i])
                if self.phase == TRAINING:
                    steps[i] = TrainingStep(call, self.recipe)
                    call = Call(steps[i], (), warm=call.warm)
                calls[i] = call
            except InputError as error:
                self.refuse(self.cases[i], error)
        return calls, steps


def _evaluation(
    case: Case,
    prediction: Prediction,
    timing: Timing,
    predictor: Predictor,
    parts: Mapping[str, float],
    here: bool,
) -> Evaluation:
    roof = predictor.roofline(case.dtype)
    roofline_s = sum(float(roof.seconds(row.flops, row.bytes)) for row in prediction.rows)
    pace = Pace(timing.sentinel_s, timing.sentinel_again_s)
    found, counts = _layers_of(prediction, predictor)
    slowdown = predictor.slowdown(found, pace, counts)
    flops_only_s = prediction.flops / roof.flops_only_per_s
    over, too_slow = (predictor.over(pace), predictor.too_slow(pace)) if here else (None, None)
    return Evaluation(case, prediction, timing, roofline_s, flops_only_s, slowdown, parts, over, too_slow)


def _layers_of(prediction: Prediction, predictor: Predictor) -> tuple[Estimates, np.ndarray]:
    """The layers of all steps, and how many calls of each take the time of its row."""
    rows = [(row.layer, row.runtime_s) for row in prediction.rows if row.layer is not None]
    found = predictor.estimate([layer for layer, _ in rows])
    return found, np.array([seconds for _, seconds in rows]) / np.maximum(
        found.runtime_s, np.finfo(float).tiny
    )


def _in_slow_spells(results: Mapping[int, Evaluation]) -> dict[int, float]:
    """Those that were measured while the machine was slower than usual and than in the run's best spell: by how much."""
    over = {i: result.over for i, result in results.items() if result.over is not None}
    best = max(1.0, SPELL * min(over.values(), default=1.0))
    return {i: times for i, times in over.items() if times > best or results[i].too_slow}


def _groups(sizes: Mapping[int, int]) -> list[list[int]]:
    """The networks that are timed in turn, by the bytes that each holds."""
    groups: list[list[int]] = []
    for i, size in sizes.items():
        if not groups or len(groups[-1]) == GROUP or sum(sizes[j] for j in groups[-1]) + size > GROUP_BYTES:
            groups.append([])
        groups[-1].append(i)
    return groups


def built(case: Case) -> Call:
    """The network on the CPU with random weights and inputs; a step's cache has random content."""
    source = resolve(case.model)
    if case.phase.name == FORWARD:
        return source.call(case.request())
    return cached_call(source, case.request(), case.phase)


def summary(
    evaluations: Sequence[Evaluation], predicted: Callable[[Evaluation], float], corrected: bool = True
) -> Summary:
    """Errors of `predicted` against the measured times."""
    from scipy.stats import spearmanr

    measured = np.array([e.corrected_s if corrected else e.measured_s for e in evaluations])
    values = np.array([predicted(e) for e in evaluations])
    error = values / measured - 1
    rank = float(spearmanr(values, measured).statistic) if len(error) > 2 else None
    return Summary(
        len(error),
        float(np.mean(np.abs(error))),
        float(np.median(np.abs(error))),
        float(np.sqrt(np.mean(error**2))),
        float(error[np.argmax(np.abs(error))]),
        rank,
    )
