"""Predict points instead of running them.

A training step is forward, backward and optimizer. If the predictor is not trained on all three, inference is
predicted instead, with a note.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from neuralpower.errors import NeuralPowerError
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.optimizer import Optimizer
from neuralpower.learn.estimates import ROOFLINE
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request
from neuralpower.suites.paradnn.formulas import INFER, TRAIN, counted, described
from neuralpower.suites.paradnn.learning import LAYER_FUNCTIONS, optimizer_settings
from neuralpower.suites.paradnn.points import Point
from neuralpower.suites.paradnn.result import Result, Setup, State

TRAINING = (FORWARD, BACKWARD, "optimizer")


def predictable(setup: Setup, predictor: Predictor) -> tuple[Setup, str]:
    """The setup that can be predicted, and a note on its change or ""; raises PredictorError, InputError."""
    optimizer_settings(setup.optimizer, torch.float32, setup.rmsprop)
    predictor.check(setup.arithmetic, FORWARD)
    name = predictor.name or predictor.device
    named = replace(setup, predictor=name, warmup_steps=0)
    missing = " and ".join(phase for phase in TRAINING if phase not in predictor.phases)
    if setup.mode == TRAIN and missing:
        return replace(
            named, mode=INFER
        ), f"{name} was not trained on {missing}; inference is predicted instead"
    return named, ""


def predict_point(point: Point, setup: Setup, predictor: Predictor) -> Result:
    """Predict a point's time; an error becomes its state."""
    known: dict[str, Any] = {"point": point, "setup": setup, "machine": predictor.device}
    try:
        known |= described(point, setup.mode)
        step_s, coverage = _step(point, setup, predictor)
        return Result(**known, duration_s=setup.steps * step_s, steps=setup.steps, coverage=coverage)
    except NeuralPowerError as error:
        return Result(**known, state=State.FAILED, reason=str(error))


def _step(point: Point, setup: Setup, predictor: Predictor) -> tuple[float, float]:
    """Seconds of one step, and the share that was trained; raises PredictorError or ModelError."""
    request = Request(point.model, point.batch_size, dtype=setup.arithmetic)
    phases = (FORWARD, BACKWARD) if setup.mode == TRAIN else (FORWARD,)
    passes = [predict_request(replace(request, phase=Phase(name)), predictor)[0] for name in phases]
    parts = [(one.runtime_s.value, one.coverage) for one in passes]
    if setup.mode == TRAIN:
        work, function = counted(point), LAYER_FUNCTIONS[setup.optimizer]
        sizes: dict[str, Any] = {"tensors": work.tensors, "elements": work.parameters}
        estimate = predictor.estimate([Optimizer(dtype=setup.dtype, function=function, **sizes)])
        parts.append((float(estimate.runtime_s[0]), float(estimate.basis[0] != ROOFLINE)))
    total = sum(seconds for seconds, _ in parts)
    return total, sum(seconds * share for seconds, share in parts) / total if total else 1.0
