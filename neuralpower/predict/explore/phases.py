"""A grid of training steps, or of a language model's phases: each point is traced and predicted alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from neuralpower.errors import NeuralPowerError, one_line
from neuralpower.files.stages import counted
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.predict.case import Case, device_memory, predict_case, run_of
from neuralpower.predict.explore.doubts import doubts
from neuralpower.predict.explore.space import TRACED
from neuralpower.predict.explore.sweep import Sweep, SweepPoint, pareto_front
from neuralpower.predict.prediction import Prediction
from neuralpower.trace.recipe import RECIPE, Recipe


def sweep_phases(
    cases: Sequence[Case],
    predictors: Sequence[Predictor],
    *,
    way: str = FORWARD,
    recipe: Recipe = RECIPE,
    memory_bytes: float | None = None,
) -> Sweep:
    """Predict each case by each predictor.

    Args:
        cases: networks with their phases; a point that cannot be predicted has its error.
        predictors: one for each device.
        way: forward, training or backward.
        recipe: how the network is trained.
        memory_bytes: of the device; None: as its spec sheet says.

    Raises:
        PredictorError: a dtype or a phase that a predictor has not learnt.
    """
    pairs = [(case, predictor) for predictor in predictors for case in cases]
    notes: dict[str, None] = {}
    points = [
        _point(case, predictor, way, recipe, memory_bytes, notes)
        for case, predictor in counted(pairs, f"tracing {cases[0].model}:")
    ]
    front, best = pareto_front(points)
    marked = tuple(replace(point, best=i in best) for i, point in enumerate(points))
    coverages, trained = [p.coverage for p in marked], [p.trained_here for p in marked]
    warnings = tuple(doubts(predictors, coverages, trained))
    run = ", ".join(dict.fromkeys(run_of(p, cases[0].run, cases[0].phase, way) for p in predictors))
    return Sweep(marked, front, len(pairs), tuple(notes), warnings, run)


def _point(
    case: Case, predictor: Predictor, way: str, recipe: Recipe, room: float | None, notes: dict[str, None]
) -> SweepPoint:
    """One point of the grid; `notes` gets what its figures take for granted."""
    about = {
        "model": case.model,
        "predictor": predictor.name,
        "device": predictor.device,
        "batch_size": case.batch_size,
        "seq_len": _length(case),
        "dtype": case.dtype,
        "basis": TRACED,
        "phase": case.phase.name if way == FORWARD else way,
        "layout": "" if case.layout.alone else case.layout.short,
        "ranks": case.layout.ranks,
    }
    try:
        prediction, _ = predict_case(case, predictor, phase=way, recipe=recipe)
    except NeuralPowerError as error:
        return SweepPoint(**{**dict.fromkeys(UNKNOWN), **about, "error": one_line(error)})  # type: ignore[arg-type]
    if predictor.platform.memory_note:
        notes[predictor.platform.memory_note] = None
    time, launches = prediction.runtime_s, prediction.launch_row
    samples = case.batch_size * (recipe.accumulation if way != FORWARD else 1)
    several = prediction.parallel
    rate = samples / time.value if time.value else None
    energy = prediction.energy_j
    if several is not None:
        rate, energy = several.samples_per_s.value, several.energy_j
        about |= {
            "tokens_per_s": several.tokens_per_s.value if several.tokens_per_s else None,
            "exposed_share": several.exposed_share,
            "bubble_share": several.bubble_share,
        }
    return SweepPoint(
        **about,  # type: ignore[arg-type]
        runtime_s=time.value,
        low_s=time.low,
        high_s=time.high,
        samples_per_s=rate,
        energy_j=energy.value if energy else None,
        coverage=prediction.coverage,
        trained_here=prediction.trained_here,
        launch_share=None if launches is None else launches.share,
        **dict(_memory(prediction, predictor, room)),  # type: ignore[arg-type]
    )


UNKNOWN = """
    runtime_s low_s high_s samples_per_s energy_j memory_bytes memory_high_bytes fits coverage
""".split()


def _length(case: Case) -> int | None:
    """The tokens that a phase begins with."""
    phase = case.phase
    return phase.context or phase.prompt or case.seq_len


def _memory(prediction: Prediction, predictor: Predictor, room: float | None) -> Iterator[tuple[str, object]]:
    """The peak, and whether its high figure fits into the device's memory, less what is kept free."""
    memory, platform = prediction.memory, predictor.platform
    room = room if room is not None else device_memory(predictor)
    yield "memory_bytes", None if memory is None else memory.value_bytes
    yield "memory_high_bytes", None if memory is None else memory.high_bytes
    if memory is None or room is None:
        yield "fits", None
    else:
        usable_bytes = room * (1 - platform.margin(memory.phase))
        yield "fits", memory.high_bytes + platform.framework.process_bytes <= usable_bytes
