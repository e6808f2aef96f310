"""Measure networks here and compare with predictions: same statistic, same settings, same sentinel.

Networks are built with random weights and run for many rounds. By a predictor that knows what fresh memory
costs, each is measured alone, in a process that gives memory back as that of a plain loop does. Else networks
run in turn, a group at a time where memory is short, and the process keeps its memory, as while layers were
timed. Errors are given raw, and with the measured time divided by the machine's slow-down as the sentinel saw
it.
"""

from __future__ import annotations

import contextlib
import random
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from neuralpower.devices.host import read_cpu
from neuralpower.errors import InputError, ModelError, quoted
from neuralpower.layers.base import FORWARD, Call
from neuralpower.learn.networks.pace import Pace
from neuralpower.learn.predictor import Predictor
from neuralpower.measure import NETWORK_ROUNDS
from neuralpower.measure.calls import TrainingStep, settings_of
from neuralpower.measure.cpu.reached import usual_heap
from neuralpower.measure.cpu.timer import Sentinel, Timing, prepare_process, time_calls
from neuralpower.measure.meters import PowerMeter, open_meter
from neuralpower.measure.power.energy import measure_power
from neuralpower.networks.decoder import cached_call
from neuralpower.networks.phases import GENERATE
from neuralpower.networks.users_code import raised, users_code
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.memory.fresh_memory import fetched_by
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.timeline import Omitted, Stage
from neuralpower.trace.records import Trace

GROUP_BYTES = 4 * 2**30  # of weights, for the networks that are timed in turn
GROUP = 8
PAGE = resource.getpagesize()
# When a virtual machine's cores shared no cache, the sentinel took 1.3 times as long, networks 1.07 times
SLOW = 1.08  # times the sentinel's best in the run: a network in such a slow period is measured again
AGAIN = 2  # times at most


class Timed(Protocol):
    """The measurement of one network: a CPU's `Timing`, or a GPU's."""

    @property
    def samples_s(self) -> tuple[float, ...]:
        """The time of each round (s)."""

    @property
    def runtime_s(self) -> float:
        """The statistic of these that is compared (s)."""

    @property
    def faults_per_call(self) -> float | None:
        """Page faults of a call; None where nobody counts them."""


@dataclass(frozen=True)
class Drawn:
    """Watts and joules of a network while it was repeated; None where the meter gave none."""

    power_w: float | None
    energy_j: float | None  # of one pass or step
    source: str
    scope: str | None
    reason: str | None  # why there are none

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Drawn:
        """From the power columns of a dataset's row."""
        names = ("power_w", "energy_j", "power_source", "power_scope", "power_reason")
        power_w, energy_j, source, scope, reason = (row.get(name) for name in names)
        return cls(power_w, energy_j, source or "none", scope, reason)


@dataclass(frozen=True)
class Evaluation:
    request: Request
    prediction: Prediction
    timing: Timed
    roofline_s: float
    flops_only_s: float
    slowdown: float  # of this network, from the machine's speed and its layers' known sensitivity to it
    parts_s: Mapping[str, float] = field(default_factory=dict)  # of a training step, by its parts
    over: float | None = None  # sentinel's time over its usual time; None where that is not known
    too_slow: float | None = None  # the same, where it is more than for 95 % of the predictor's networks
    drawn: Drawn | None = None  # None: not requested
    waited: float = 0.0  # share of the measured time in which other processes had its cores

    @property
    def measured_s(self) -> float:
        """The statistic over the rounds, as measured: of a CPU their 10th percentile."""
        return self.timing.runtime_s

    @property
    def corrected_s(self) -> float:
        """The same with the machine's slow-down taken out."""
        return self.measured_s / self.slowdown

    @property
    def noise(self) -> float | None:
        """How far odd and even rounds' statistics differ: smaller errors are noise."""
        samples = self.timing.samples_s
        if len(samples) < 2:
            return None
        odd, even = (float(np.percentile(samples[i::2], 10)) for i in (0, 1))
        return abs(odd / even - 1)

    @property
    def disturbed(self) -> float:
        """Times its usual that it took, by the sentinel and by how long others had its cores."""
        return (self.over or 1.0) / (1 - self.waited)

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
    requests: Sequence[Request],
    predictor: Predictor,
    *,
    rounds: int = NETWORK_ROUNDS,
    threads: int | None = None,
    meter: PowerMeter | None = None,
    show: Callable[[str], None] = lambda text: None,
    refused: Callable[[Request, InputError], None] | None = None,
) -> list[Evaluation]:
    """Predict, then measure each, of one phase; `refused` gets what cannot be built or run.

    With an open `meter`, each is repeated once more for its power.

    Where the predictor was trained on this machine, networks measured in slow periods are measured again at
    the end: periods slower than others of the run, or than for 95 % of the predictor's networks.

    Raises:
        InputError: a whole generation: measure its prefill or a step instead. Without `refused`, also the
            errors that it would get.
    """
    for request in requests:
        if request.phase.name == GENERATE:
            way = "choose --phase prefill and decode"
            raise InputError(f"{request.label}: a whole generation is not measured; {way}")
    run = _Run(requests, predictor, rounds, show, refused, meter)
    run.predict()
    prepare_process(threads or torch.get_num_threads())
    run.prepare()
    results = run.measured(list(run.predicted))
    run.refused = lambda *_: None  # one that fails now keeps its first measurement
    for _ in range(AGAIN):
        slow = _in_slow_periods(results)
        if not slow:
            break
        show(f"the machine was slow during {len(slow)} networks; they are timed again")
        again = run.measured(list(slow))
        results |= {i: result for i, result in again.items() if result.disturbed < slow[i]}
    return list(results.values())


@contextlib.contextmanager
def metered(device: str, energy: bool) -> Iterator[PowerMeter | None]:
    """An open meter of a device while the block runs; None where no energy is requested."""
    if not energy:
        yield None
        return
    with contextlib.closing(open_meter("auto", device)) as meter:
        yield meter


@dataclass
class _Run:
    """Networks that are predicted, and measured in turn."""

    requests: Sequence[Request]
    predictor: Predictor
    rounds: int
    show: Callable[[str], None]
    refused: Callable[[Request, InputError], None] | None
    meter: PowerMeter | None = None
    predicted: dict[int, tuple[Prediction, Trace]] = field(default_factory=dict)
    thresholds: dict[int, int] = field(default_factory=dict)  # of the heap, where memory is not kept (B)

    def refuse(self, request: Request, error: InputError) -> None:
        """Report a network that cannot be built or run to `refused`; raise the error where there is none."""
        if self.refused is None:
            raise error
        self.refused(request, error)

    @contextlib.contextmanager
    def refusing(self, request: Request) -> Iterator[None]:
        """Refuse the network if the block raises InputError."""
        try:
            yield
        except InputError as error:
            self.refuse(request, error)

    def predict(self) -> None:
        for i, request in enumerate(self.requests):
            self.show(f"predicting {request.label}")
            with self.refusing(request):
                self.predicted[i] = predict_request(request, self.predictor, seen=partial(self.heap, i))

    def heap(self, i: int, stage: Stage | Omitted) -> None:
        """Remember how a loop over the network finds its heap, if the predictor knows what that costs."""
        if isinstance(stage, Stage):
            storages = stage.trace.storages if stage.memory is None else stage.memory.storages
            found = fetched_by(storages, self.requests[i].way, self.predictor)
            if found is not None:
                self.thresholds[i] = found.threshold_bytes

    def prepare(self) -> None:
        """Settle the sentinel, in a process that is prepared for measuring."""
        self.generator, self.sentinel = random.Random(0), Sentinel().settle()
        self.here = not self.predictor.unlike(read_cpu())  # it knows no other machine's usual speed

    def measured(self, chosen: Sequence[int]) -> dict[int, Evaluation]:
        """The chosen networks, timed a group at a time; those that fail are refused."""
        held = 4 if self.requests[0].trains else 1  # weights, gradients, two moments
        kept = {i: held * self.predicted[i][1].parameter_bytes for i in chosen if i not in self.thresholds}
        found: dict[int, Evaluation] = {}
        for group in _groups(kept):
            found |= self.timed(group)
        for i, threshold_bytes in self.thresholds.items():
            if i in chosen:
                with usual_heap(threshold_bytes):
                    found |= self.timed([i])
        return {i: found[i] for i in chosen if i in found}

    def timed(self, group: Sequence[int]) -> dict[int, Evaluation]:
        """Networks that are timed in turn."""
        self.show("measuring " + ", ".join(self.requests[i].label for i in group))
        calls, steps = self.built(group)
        names = ", ".join(self.requests[i].label for i in calls)
        with users_code(f"while {names} were timed, a pass that ran before raises"):
            timings = time_calls(list(calls.values()), self.sentinel, self.generator, rounds=self.rounds)
        found = {}
        for i, timing in zip(calls, timings, strict=True):
            request = self.requests[i]
            if isinstance(timing, Exception):
                said = f"its forward raises {quoted(raised(timing))}; nothing to measure"
                self.refuse(request, ModelError(f"{request.called}: {said}"))
                continue
            if i in self.thresholds:
                timing = timing.at_mean_faults(self.fault_s)
            parts = steps[i].parts_s(len(timing.samples_s)) if steps else {}
            found[i] = self.evaluation(i, timing, parts)
            if self.meter is not None:
                found[i] = replace(found[i], drawn=self.drawn(calls[i]))
        return found

    @property
    def fault_s(self) -> float:
        """Seconds of a page fault, by the predictor's device."""
        hardware = self.predictor.hardware
        return PAGE * ((hardware and hardware.fresh_s_per_byte) or 0.0)

    def drawn(self, call: Call) -> Drawn:
        """The power of a call that is repeated."""
        assert self.meter is not None

        def once() -> None:
            with settings_of(call):
                call()

        return Drawn.of_row(measure_power(once, self.meter).to_row())

    def built(self, group: Sequence[int]) -> tuple[dict[int, Call], dict[int, TrainingStep]]:
        """The group's calls, and the training steps that they may be; what cannot be built is refused."""
        calls: dict[int, Call] = {}
        steps: dict[int, TrainingStep] = {}
        for i in group:
            request = self.requests[i]
            with self.refusing(request):
                call = built(request)
                if request.trains:
                    steps[i] = TrainingStep(call, request.recipe)
                    call = Call(steps[i], (), warm=call.warm)
                calls[i] = call
        return calls, steps

    def evaluation(self, i: int, timing: Timing, parts_s: Mapping[str, float]) -> Evaluation:
        """One network's prediction compared with its measurement."""
        request, prediction, predictor = self.requests[i], self.predicted[i][0], self.predictor
        pace = Pace(timing.sentinel_s, timing.sentinel_again_s)
        rows = [(row.layer, row.runtime_s) for row in prediction.rows if row.layer is not None]
        found = predictor.estimate([layer for layer, _ in rows])
        # how many calls of each layer take the time of its row
        counts = np.array([seconds for _, seconds in rows]) / np.maximum(
            found.runtime_s, np.finfo(float).tiny
        )
        return beside_baselines(
            request,
            prediction,
            timing,
            predictor,
            # the sentinel finds moments without other processes, and a long network does not
            slowdown=max(predictor.slowdown(found, pace, counts), timing.runtime_s / timing.alone_s),
            waited=1 - timing.alone_s / timing.runtime_s,
            parts_s=parts_s,
            over=predictor.over(pace) if self.here else None,
            too_slow=predictor.too_slow(pace) if self.here else None,
        )


def beside_baselines(
    request: Request, prediction: Prediction, timing: Timed, predictor: Predictor, **more: Any
) -> Evaluation:
    """The evaluation with the times of the two simplest predictors; `more`: its other fields."""
    roof = predictor.own.roofline(request.dtype)
    roofline_s = sum(float(roof.seconds(row.flops, row.bytes)) for row in prediction.rows)
    flops_only_s = prediction.flops / roof.flops_only_per_s
    return Evaluation(request, prediction, timing, roofline_s, flops_only_s, **more)


def _in_slow_periods(results: Mapping[int, Evaluation]) -> dict[int, float]:
    """How much slower than usual the machine was, by network, for those measured in a slow period."""
    over = {i: result.disturbed for i, result in results.items()}
    best = max(1.0, SLOW * min(over.values(), default=1.0))
    return {i: times for i, times in over.items() if times > best or results[i].too_slow}


def _groups(sizes: Mapping[int, int]) -> list[list[int]]:
    """Groups of networks that fit into memory together, from the bytes that each holds."""
    groups: list[list[int]] = []
    for i, size in sizes.items():
        if not groups or len(groups[-1]) == GROUP or sum(sizes[j] for j in groups[-1]) + size > GROUP_BYTES:
            groups.append([])
        groups[-1].append(i)
    return groups


def built(request: Request, device: str = "cpu") -> Call:
    """The network on a device with random weights and inputs; a step's cache, on the CPU, has random content.

    Raises InputError, also for a prefill or a step on another device than the CPU.
    """
    source, phase = request.source(), request.passed
    if phase.name == FORWARD:
        return source.call(request.inputs, device)
    if device != "cpu":
        text = "is measured on a CPU only; choose --phase forward or training"
        raise InputError(f"phase {phase.name}: {text}")
    return cached_call(source, request.inputs, phase)


def summary(
    evaluations: Sequence[Evaluation], predicted: Callable[[Evaluation], float], corrected: bool = True
) -> Summary:
    """Errors of `predicted` against the measured times."""
    from scipy.stats import spearmanr

    measured = np.array([e.corrected_s if corrected else e.measured_s for e in evaluations])
    values = np.array([predicted(e) for e in evaluations])
    error = values / measured - 1
    size = np.abs(error)
    return Summary(
        networks=len(error),
        mape=float(np.mean(size)),
        median=float(np.median(size)),
        rmspe=float(np.sqrt(np.mean(error**2))),
        worst=float(error[np.argmax(size)]),
        spearman=float(spearmanr(values, measured).statistic) if len(error) > 2 else None,
    )
