"""Evaluated networks with their measured and predicted timelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from neuralpower.errors import ModelError
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.measure.steps import TrainingStep
from neuralpower.networks.caches import Again
from neuralpower.prediction.case import Case, predict_case
from neuralpower.prediction.evaluate import Evaluation, built
from neuralpower.prediction.timeline import Omitted, Stage
from neuralpower.profiling import NetworkProfile, profile
from neuralpower.report.perfetto import Process, about, document, predicted
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

MOST_REPEATS = 9  # of a profile: only its typical run is drawn
WARMUP = 2


def profile_case(
    case: Case, *, phase: str = FORWARD, recipe: Recipe = RECIPE, repeats: int = 9
) -> NetworkProfile:
    """Profile on this CPU what `evaluate` measures; of a training step one micro-batch. Raises ModelError."""
    call = built(case, phase=phase)
    model, optimizer = call.function, None
    if isinstance(model, Again):  # a decoding step, whose cache grows with every run
        again, model = model, model.module
        model.register_forward_pre_hook(lambda *_: again.rewind())
    if not isinstance(model, nn.Module):
        raise ModelError(f"{case.label}: a {type(model).__name__} has no modules to profile")
    if phase == TRAINING:
        step = TrainingStep(call, recipe)
        model, optimizer = step.model, step.optimizer
    return profile(
        model,
        call.args,
        call.kwargs,
        phase=phase,
        optimizer=optimizer,
        warmup=WARMUP,
        repeat=max(min(repeats, MOST_REPEATS), 1),
        name=case.label,
    )


def side_by_side(
    evaluations: Sequence[Evaluation],
    predictor: Predictor,
    *,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    repeats: int = 9,
    show: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Predicted and measured timelines, each from 0; profiles the networks on this CPU. Raises ModelError."""
    processes: list[Process] = []
    said: dict[str, list[dict[str, Any]]] = {"predicted": [], "measured": []}
    for e in evaluations:
        stages: list[Stage | Omitted] = []
        prediction, _ = predict_case(e.case, predictor, phase=phase, recipe=recipe, seen=stages.append)
        show(f"profiling {e.case.label}")
        profiled = profile_case(e.case, phase=phase, recipe=recipe, repeats=repeats)
        processes += [predicted(prediction, stages, predictor), profiled.timeline()]
        said["predicted"].append(about(prediction, stages))
        said["measured"].append(_measured(e, profiled, recipe if phase == TRAINING else RECIPE))
    return document(processes, said)


def _measured(e: Evaluation, profiled: NetworkProfile, recipe: Recipe) -> dict[str, Any]:
    notes = ["the timeline is a run with instrumentation, after the measured ones"]
    if recipe.accumulation > 1:
        notes.append(f"one of {recipe.accumulation} micro-batches is drawn")
    total = profiled.total
    return {
        "model": e.case.label,
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
