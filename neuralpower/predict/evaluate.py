"""Measure networks here, beside what was predicted: the same statistic, the same settings, the same sentinel.

Networks are built with random weights, run in turn for many rounds, a group at a time where memory is short. Errors are
given raw, and with the measured time divided by the machine's slow-down as the sentinel saw it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from neuralpower.devices.host import read_cpu
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError, ModelError, StepError, quoted
from neuralpower.layers.base import FORWARD, Call, torch_dtype
from neuralpower.learn.predictor import Estimates, Pace, Predictor
from neuralpower.measure.cpu.timer import NETWORK_ROUNDS, Sentinel, Timing, prepare_process, time_calls
from neuralpower.networks.phases import GENERATE, Decoder, Pass, Phase, cached_call, passes
from neuralpower.networks.sources import InputRequest, Source, resolve
from neuralpower.networks.users_code import raised, users_code
from neuralpower.predict.compose import Prediction, compose
from neuralpower.predict.generation import predict_generation, with_step
from neuralpower.predict.memory.peak import (
    ASSUMED,
    Memory,
    forward_memory,
    framework_of,
    margin_of,
    settings_of,
    training_lifetimes,
)
from neuralpower.predict.timeline import Seen, Stage
from neuralpower.trace.routing import ROUTING, Routing
from neuralpower.trace.tracer import Trace, trace
from neuralpower.trace.training import RECIPE, TRAINING, Recipe, TrainingStep, default_loss

GROUP_BYTES = 4 * 2**30  # of weights, for the networks that are timed in turn
GROUP = 8
# A virtual machine's cores are moved: while they shared no cache, the sentinel took 1.3 times as long, networks 1.07 times.
SPELL = 1.08  # times what the sentinel took beside the run's quickest networks, from which a network is measured again
AGAIN = 2  # times at most


@dataclass(frozen=True)
class Case:
    """One network with its inputs."""

    model: str
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    phase: Phase = field(default_factory=Phase)
    routing: Routing = ROUTING

    def request(self) -> InputRequest:
        """What its inputs are made from."""
        return InputRequest(self.batch_size, self.seq_len, self.input_shape, torch_dtype(self.dtype))

    @property
    def label(self) -> str:
        """Name, batch size and length."""
        length = f" s{self.seq_len}" if self.seq_len else ""
        return f"{self.model} b{self.batch_size}{length}" + ("" if self.phase == Phase() else f" {self.phase.label}")


@dataclass(frozen=True)
class Evaluation:
    """One network predicted and measured."""

    case: Case
    prediction: Prediction
    timing: Timing
    roofline_s: float
    flops_only_s: float
    slowdown: float  # of this network, by the speed that the machine had and what its layers are known to make of it
    parts_s: Mapping[str, float] = field(default_factory=dict)  # of a training step: forward, backward, optimizer
    over: float | None = None  # times its usual that the sentinel took; None where no usual time is known
    too_slow: float | None = None  # the same, where 95 % of the networks that the predictor learnt from met less

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


def predict_case(
    case: Case,
    predictor: Predictor,
    source: Source | None = None,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    autocast: torch.dtype | None = None,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """Trace a network on the meta device and predict it; backward passes and training steps are those of training mode.

    `seen` is told of every pass or step that the prediction is made of, in order.
    """
    source = source or resolve(case.model)
    module = source.build("meta", torch_dtype(case.dtype))
    about: dict[str, Any] = {
        "model": case.model,
        "batch_size": case.phase.batch or case.batch_size,
        "dtype": case.dtype,
        "phase": phase,
    }
    if case.phase.name == GENERATE:
        case.phase.check()
        with users_code(f"{case.model} cannot be read"):
            decoder = Decoder(module, case.phase.applied(case.request()), GENERATE)
        traced = partial(_traced, autocast=autocast, routing=case.routing)
        prediction, found = predict_generation(decoder, case.phase, predictor, traced, about, seen)
        return _with_room(prediction, predictor), found
    with users_code(f"the inputs of {case.model} cannot be made"):
        (one,) = passes(source, case.request(), case.phase, module)
    prediction, found = predict_pass(
        one, predictor, recipe=recipe, autocast=autocast, routing=case.routing, seen=seen, **about
    )
    return (prediction if one.name == FORWARD else with_step(prediction, one)), found


def device_memory(predictor: Predictor) -> float | None:
    """Bytes of the predictor's device by its spec sheet; None where there is none."""
    spec = known_spec(predictor.device)
    return None if spec is None else spec.get("memory_bytes")


def _with_room(prediction: Prediction, predictor: Predictor) -> Prediction:
    """The prediction, with words where its memory is assumed, and where it needs more than the device has."""
    memory = prediction.memory
    if memory is None:
        return prediction
    said = (ASSUMED,) if memory.assumed else ()
    return replace(prediction, assumptions=(*prediction.assumptions, *said, *_too_little(memory, predictor)))


def _too_little(memory: Memory, predictor: Predictor) -> Iterator[str]:
    """In words, that the device may have too little memory, with the margin that `fit` keeps free."""
    room = device_memory(predictor)
    if room is None:
        return
    margin = margin_of(memory.assumed, memory.phase)
    needed = memory.high_bytes + framework_of(predictor.accelerator).process_bytes
    if memory.low_bytes > room:
        takes = f"does not fit into the device's {room / 1e9:.3g} GB: it takes {memory.low_bytes / 1e9:.3g} GB at least"
    elif needed <= room * (1 - margin):
        return
    elif memory.assumed:
        takes = f"may not fit into the device's {room / 1e9:.3g} GB: it takes {needed / 1e9:.3g} GB and what is not modelled"
    else:
        takes = f"may not fit into the device's {room / 1e9:.3g} GB: it takes {needed / 1e9:.3g} GB at most"
    yield f"it {takes}; fit says what would"


def predict_pass(
    one: Pass,
    predictor: Predictor,
    *,
    model: str,
    batch_size: int,
    dtype: str,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    autocast: torch.dtype | None = None,
    routing: Routing = ROUTING,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """Predict one call of a module on the meta device, with its memory, forward, backward or as a step of training.

    A step that asks for values has no memory, and a note that says so.
    """
    try:
        found = _traced(one, phase, autocast, routing)
    except ModelError as error:
        raise (ModelError(f"{error}; {one.inputs.note}") if one.inputs.note else error) from error.__cause__
    about = {"model": model, "dtype": dtype, "phase": phase}
    prediction = compose(found, predictor, batch_size=batch_size, recipe=recipe, **about)
    if one.inputs.note:
        prediction = replace(prediction, assumptions=(*prediction.assumptions, one.inputs.note))
    if found.idle and one.name == FORWARD:  # other passes of a generation leave the encoder out, as they should
        prediction = replace(prediction, assumptions=(*prediction.assumptions, found.idle))
    accelerator = predictor.accelerator
    if phase == FORWARD:
        if seen is not None:
            seen(Stage(one.name, found, prediction))
        return _with_room(replace(prediction, memory=forward_memory(found, accelerator=accelerator)), predictor), found
    settings = settings_of(recipe) if phase == TRAINING else {"optimizer": None}
    inputs = one.inputs
    lifetimes = None
    try:
        lifetimes = training_lifetimes(one.module, inputs.args, inputs.kwargs, accelerator=accelerator, **settings)
        prediction = replace(prediction, memory=lifetimes.memory(accelerator))
    except StepError as error:
        prediction = replace(prediction, assumptions=(*prediction.assumptions, f"its memory is not known: {error}"))
    if seen is not None:
        seen(Stage(phase, found, prediction, lifetimes))
    return _with_room(prediction, predictor), found


def _traced(one: Pass, phase: str = FORWARD, autocast: torch.dtype | None = None, routing: Routing = ROUTING) -> Trace:
    return trace(
        one.module,
        one.inputs.args,
        one.inputs.kwargs,
        training=phase != FORWARD,
        loss=default_loss if phase == TRAINING else None,
        autocast=autocast,
        routing=routing,
    )


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
            raise InputError(f"{case.label}: a whole generation is not measured; choose --phase prefill and decode")

    def refuse(case: Case, error: InputError) -> None:
        if refused is None:
            raise error
        refused(case, error)

    predicted: dict[int, tuple[Prediction, Trace]] = {}
    for i, case in enumerate(cases):
        show(f"predicting {case.label}")
        try:
            predicted[i] = predict_case(case, predictor, phase=phase, recipe=recipe)
        except InputError as error:
            refuse(case, error)
    prepare_process(threads or torch.get_num_threads())
    generator, sentinel = random.Random(0), Sentinel().settle()
    here = not predictor.unlike(read_cpu())  # of other machines it knows no usual speed

    def measured(chosen: Sequence[int], refuse: Callable[[Case, InputError], None]) -> dict[int, Evaluation]:
        held = 1 if phase == FORWARD else 4  # weights, gradients, two moments
        found = {}
        for group in _groups({i: held * predicted[i][1].parameter_bytes for i in chosen}):
            show("measuring " + ", ".join(cases[i].label for i in group))
            calls: dict[int, Call] = {}
            steps: dict[int, TrainingStep] = {}
            for i in group:
                try:
                    calls[i] = built(cases[i])
                    if phase == TRAINING:
                        steps[i] = TrainingStep(calls[i], recipe)
                        calls[i] = Call(steps[i], (), warm=calls[i].warm)
                except InputError as error:
                    calls.pop(i, None)
                    refuse(cases[i], error)
            with users_code(
                "while " + ", ".join(cases[i].label for i in calls) + " were timed, a pass that had run before raises"
            ):
                timings = time_calls(list(calls.values()), sentinel, generator, rounds=rounds)
            for i, timing in zip(calls, timings, strict=True):
                if isinstance(timing, Exception):
                    said = f"its forward raises {quoted(raised(timing))}; nothing to measure"
                    refuse(cases[i], ModelError(f"{cases[i].model}: {said}"))
                    continue
                parts = steps[i].parts_s(len(timing.samples_s)) if steps else {}
                found[i] = _evaluation(cases[i], predicted[i][0], timing, predictor, parts, here)
        return found

    results = measured(list(predicted), refuse)
    for _ in range(AGAIN):
        slow = _in_slow_spells(results)
        if not slow:
            break
        show(f"the machine was slower beside {len(slow)} networks than it can be: again")
        again = measured(list(slow), lambda *_: None)  # of one that fails now there is the first measurement
        results |= {i: result for i, result in again.items() if (result.over or 0.0) < slow[i]}
    return list(results.values())


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
    return found, np.array([seconds for _, seconds in rows]) / np.maximum(found.runtime_s, np.finfo(float).tiny)


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
