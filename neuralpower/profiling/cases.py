"""Evaluated networks with their measured and predicted timelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from neuralpower.errors import ModelError
from neuralpower.learn.predictor import Predictor
from neuralpower.measure.calls import TrainingStep
from neuralpower.networks.caches import Again
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.evaluation.evaluate import Evaluation, built
from neuralpower.prediction.request import Request
from neuralpower.prediction.timeline import Omitted, Stage
from neuralpower.profiling import NetworkProfile, profile
from neuralpower.report.perfetto import Process, about, document, predicted

MOST_REPEATS = 9  # of a profile: only its typical run is drawn
WARMUP = 2


def profile_request(request: Request, *, repeats: int = 9) -> NetworkProfile:
    """Profile on this CPU what `evaluate` measures; of a training step one micro-batch. Raises ModelError."""
    call = built(request)
    model, optimizer = call.function, None
    if isinstance(model, Again):  # a decoding step, whose cache grows with every run
        again, model = model, model.module
        model.register_forward_pre_hook(lambda *_: again.rewind())
    if not isinstance(model, nn.Module):
        raise ModelError(f"{request.label}: a {type(model).__name__} has no modules to profile")
    if request.trains:
        step = TrainingStep(call, request.recipe)
        model, optimizer = step.model, step.optimizer
    return profile(
        model,
        call.args,
        call.kwargs,
        phase=request.way,
        optimizer=optimizer,
        warmup=WARMUP,
        repeat=max(min(repeats, MOST_REPEATS), 1),
        name=request.label,
    )


def side_by_side(
    evaluations: Sequence[Evaluation],
    predictor: Predictor,
    *,
    repeats: int = 9,
    show: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Predicted and measured timelines, each from 0; profiles the networks on this CPU. Raises ModelError."""
    processes: list[Process] = []
    said: dict[str, list[dict[str, Any]]] = {"predicted": [], "measured": []}
    for e in evaluations:
        stages: list[Stage | Omitted] = []
        prediction, _ = predict_request(e.request, predictor, seen=stages.append)
        show(f"profiling {e.request.label}")
        profiled = profile_request(e.request, repeats=repeats)
        processes += [predicted(prediction, stages, predictor), profiled.timeline()]
        said["predicted"].append(about(prediction, stages))
        said["measured"].append(_measured(e, profiled))
    return document(processes, said)


def _measured(e: Evaluation, profiled: NetworkProfile) -> dict[str, Any]:
    notes = ["the timeline is a run with instrumentation, after the measured ones"]
    if e.request.recipe.accumulation > 1:
        notes.append(f"one of {e.request.recipe.accumulation} micro-batches is drawn")
    total = profiled.total
    return {
        "model": e.request.label,
        "device": profiled.device,
        "runtime_s": e.measured_s,
        "corrected_s": e.corrected_s,
        "slowdown": e.slowdown,
        "profiled_s": total.runtime_s,
        "instrumentation_s": profiled.overhead_s,
        "power_w": total.power_w,
        "power_reason": profiled.power_reason or None,
        "memory_bytes": total.peak_memory_bytes,
        "notes": notes,
    }
