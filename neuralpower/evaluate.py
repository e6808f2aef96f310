"""Measure networks here, beside what was predicted: the same statistic, the same settings, the same sentinel.

Networks are built with random weights, run in turn for many rounds, a group at a time where memory is short. Errors are
given raw, and with the measured time divided by the machine's slow-down as the sentinel saw it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from neuralpower.compose import Prediction, compose
from neuralpower.errors import ModelError
from neuralpower.layers.base import FORWARD, Call, torch_dtype
from neuralpower.measure import Sentinel, Timing, prepare_process, time_calls
from neuralpower.memory import forward_memory, training_memory
from neuralpower.predictor import Predictor
from neuralpower.sources import InputRequest, Source, resolve
from neuralpower.trace import Trace, trace

GROUP_BYTES = 4 * 2**30  # of weights, for the networks that are timed in turn
GROUP = 8
ROUNDS = 21


@dataclass(frozen=True)
class Case:
    """One network with its inputs."""

    model: str
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"

    def request(self) -> InputRequest:
        """What its inputs are made from."""
        return InputRequest(self.batch_size, self.seq_len, self.input_shape, torch_dtype(self.dtype))

    @property
    def label(self) -> str:
        """Name, batch size and length."""
        return f"{self.model} b{self.batch_size}" + (f" s{self.seq_len}" if self.seq_len else "")


@dataclass(frozen=True)
class Evaluation:
    """One network predicted and measured."""

    case: Case
    prediction: Prediction
    timing: Timing
    roofline_s: float
    flops_only_s: float
    slowdown: float  # of this network, by the speed that the machine had and what its layers are known to make of it

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
    case: Case, predictor: Predictor, source: Source | None = None, phase: str = FORWARD
) -> tuple[Prediction, Trace]:
    """Trace a network on the meta device and predict it; a backward pass is that of a forward pass in training mode."""
    source = source or resolve(case.model)
    module = source.build("meta", torch_dtype(case.dtype))
    inputs = source.inputs(module, case.request())
    traced = trace(module, inputs.args, inputs.kwargs, training=phase != FORWARD)
    about = {"model": case.model, "dtype": case.dtype, "phase": phase}
    prediction = compose(traced, predictor, batch_size=case.batch_size, **about)
    accelerator = predictor.hardware is not None and predictor.hardware.accelerator
    if phase == FORWARD:
        memory = forward_memory(traced, accelerator=accelerator)
    else:  # gradients need what a step's backward pass needs; what an optimizer keeps depends on the optimizer
        memory = training_memory(module, inputs.args, inputs.kwargs, optimizer="sgd", accelerator=accelerator)
    return replace(prediction, memory=memory), traced


def evaluate(
    cases: Sequence[Case],
    predictor: Predictor,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    threads: int | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> list[Evaluation]:
    """Predict, then measure each; raises ModelError where a network cannot be built or run."""
    predicted = []
    for case in cases:
        show(f"predicting {case.label}")
        predicted.append(predict_case(case, predictor))
    prepare_process(threads or torch.get_num_threads())
    generator, sentinel = random.Random(seed), Sentinel().settle()
    results = []
    for group in _groups(cases, [t.parameter_bytes for _, t in predicted]):
        show("measuring " + ", ".join(cases[i].label for i in group))
        timings = time_calls([_built(cases[i]) for i in group], sentinel, generator, rounds=rounds)
        for i, timing in zip(group, timings, strict=True):
            if isinstance(timing, Exception):
                raise ModelError(
                    f"{cases[i].label}: its forward raises {type(timing).__name__}: {timing}; nothing to measure"
                )
            prediction, traced = predicted[i]
            roof = predictor.roofline(cases[i].dtype)
            roofline_s = sum(float(roof.seconds(layer.flops(), sum(layer.bytes()))) for layer in traced.layers)
            estimates = predictor.estimate(traced.layers)
            slowdown = estimates.slowdown(timing.sentinel_s / predictor.sentinel_s) if predictor.sentinel_s else 1.0
            flops_only_s = traced.flops / roof.flops_only_per_s
            results.append(Evaluation(cases[i], prediction, timing, roofline_s, flops_only_s, slowdown))
    return results


def _groups(cases: Sequence[Case], sizes: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for i in range(len(cases)):
        if groups[-1] and (len(groups[-1]) == GROUP or sum(sizes[j] for j in groups[-1]) + sizes[i] > GROUP_BYTES):
            groups.append([])
        groups[-1].append(i)
    return groups


def _built(case: Case) -> Call:
    """The network on the CPU with random weights and inputs."""
    return resolve(case.model).call(case.request())


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
