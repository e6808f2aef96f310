"""A grid of training steps, or of a language model's phases: each point is traced and predicted alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from neuralpower.devices.layout import ONE, Layout
from neuralpower.errors import InputError, NeuralPowerError, one_line
from neuralpower.files.stages import counted
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import PHASES, PREDICTED, Phase
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.case import Case, device_memory, predict_case, run_of
from neuralpower.prediction.explore.doubts import doubts
from neuralpower.prediction.explore.space import TRACED
from neuralpower.prediction.explore.sweep import Options, Sweep, SweepPoint, check_grid, pareto_front, sweep
from neuralpower.prediction.prediction import Prediction
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

UNKNOWN = """
    runtime_s low_s high_s samples_per_s energy_j memory_bytes memory_high_bytes fits coverage
""".split()


def sweep_grid(
    model: Any,
    predictors: Sequence[Predictor],
    phases: Sequence[Phase],
    *,
    recipe: Recipe = RECIPE,
    batch_sizes: Sequence[int] = (1,),
    lengths: Sequence[int | None] = (None,),
    dtypes: Sequence[str] = ("float32",),
    **options: Unpack[Options],
) -> Sweep:
    """Predict a grid in one phase: a forward pass by formulas, any other phase point by point.

    Args:
        model: a name, a module or a function, as `resolve` takes it.
        predictors: one for each device.
        phases: of one name ("training" and "backward", too), which may differ in tokens.
        recipe: how the network is trained.
        batch_sizes: samples.
        lengths: tokens of each sample; None leaves them to the model.
        dtypes: of weights and inputs.
        **options: as `sweep` takes them.

    Raises:
        InputError: as `sweep`; phases of several names, or one that says its batch.
        PredictorError: a dtype or a phase that a predictor was not trained on.
    """
    name, layouts = _checked(phases), options.get("layouts") or (ONE,)
    if not isinstance(layouts, (list, tuple)) or not all(isinstance(one, Layout) for one in layouts):
        raise InputError(f"layouts {layouts!r:.60}: must be a list, such as [neuralpower.Layout(tensor=2)]")
    if name == FORWARD and all(layout.alone for layout in layouts):
        return sweep(model, predictors, batch_sizes=batch_sizes, lengths=lengths, dtypes=dtypes, **options)
    check_grid(predictors, batch_sizes, lengths, dtypes, phases)
    shape, run, weights = (options.get(field) for field in ("input_shape", "run", "weights"))
    how: dict[str, Any] = {"run": run, "weights": weights, "cluster": options.get("cluster")}
    how["require_plan"] = options.get("require_plan", False)
    how["input_shape"] = tuple(shape) if isinstance(shape, Iterable) else shape
    way, asked = (FORWARD, phases) if name in PHASES else (name, [Phase()])
    for predictor, dtype in itertools.product(predictors, dtypes):
        predictor.check(dtype, FORWARD if way == TRAINING else way)
    called = model if isinstance(model, str) else type(model).__name__
    cases = [
        Case(
            called,
            int(batch),
            None if length is None else int(length),
            dtype=dtype,
            phase=phase,
            layout=layout,
            **how,
        )
        for dtype, phase, length, batch, layout in itertools.product(
            dtypes, asked, lengths, batch_sizes, layouts
        )
    ]
    source = None if isinstance(model, str) else resolve(model)
    room = options.get("memory_bytes")
    return sweep_phases(cases, predictors, way=way, recipe=recipe, memory_bytes=room, source=source)


def _checked(phases: Sequence[Phase]) -> str:
    """The name of all phases; raises InputError."""
    names = dict.fromkeys(phase.name for phase in phases)
    if len(names) != 1:
        raise InputError(f"phases {', '.join(names) or '()'}: a sweep takes one phase; call it for each")
    for phase in phases:
        phase.check(PREDICTED)
        if phase.batch is not None or phase.lengths is not None:
            field = "lengths" if phase.batch is None else "batch"
            raise InputError(f"{field} of phase {phase.name}: a sweep takes batch_sizes; leave {field} out")
    return next(iter(names))


def sweep_phases(
    cases: Sequence[Case],
    predictors: Sequence[Predictor],
    *,
    way: str = FORWARD,
    recipe: Recipe = RECIPE,
    memory_bytes: float | None = None,
    source: Source | None = None,
) -> Sweep:
    """Predict each case by each predictor.

    Args:
        cases: networks with their phases; a point that cannot be predicted has its error.
        predictors: one for each device.
        way: forward, training or backward.
        recipe: how the network is trained.
        memory_bytes: of the device; None: that of its spec sheet.
        source: the network; None: the one that the name means.

    Raises:
        PredictorError: a predictor was not trained on the dtype or phase.
    """
    pairs = [(case, predictor) for predictor in predictors for case in cases]
    notes: dict[str, None] = {}
    points = []
    for case, predictor in counted(pairs, f"tracing {cases[0].model}:"):
        about = _about(case, predictor, way)
        try:
            prediction, _ = predict_case(case, predictor, source, phase=way, recipe=recipe)
        except NeuralPowerError as error:
            points.append(SweepPoint(**{**dict.fromkeys(UNKNOWN), **about, "error": one_line(error)}))
            continue
        if note := predictor.platform.memory_note(way):
            notes[note] = None
        samples = case.batch_size * (recipe.accumulation if way != FORWARD else 1)
        figures = dict(_memory(prediction, predictor, memory_bytes))
        points.append(SweepPoint(**about, **_figures(prediction, samples), **figures))
    front, best = pareto_front(points)
    marked = tuple(replace(point, best=i in best) for i, point in enumerate(points))
    coverages, trained = [p.coverage for p in marked], [p.trained_here for p in marked]
    warnings = tuple(doubts(predictors, coverages, trained))
    run = ", ".join(dict.fromkeys(run_of(p, cases[0].run, cases[0].phase, way) for p in predictors))
    return Sweep(marked, front, len(pairs), tuple(notes), warnings, run)


def _about(case: Case, predictor: Predictor, way: str) -> dict[str, Any]:
    """The network, sizes and device of a point."""
    return {
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


def _figures(prediction: Prediction, samples: int) -> dict[str, Any]:
    """Time and energy of a point, and how they are known."""
    time, launches = prediction.runtime_s, prediction.launch_row
    several, energy = prediction.parallel, prediction.energy_j
    figures = {
        "runtime_s": time.value,
        "low_s": time.low,
        "high_s": time.high,
        "samples_per_s": samples / time.value if time.value else None,
        "energy_j": energy.value if energy else None,
        "coverage": prediction.coverage,
        "trained_here": prediction.trained_here,
        "launch_share": None if launches is None else launches.share,
    }
    if several is not None:
        figures |= {
            "samples_per_s": several.samples_per_s.value,
            "energy_j": several.energy_j.value if several.energy_j else None,
            "tokens_per_s": several.tokens_per_s.value if several.tokens_per_s else None,
            "exposed_share": several.exposed_share,
            "bubble_share": several.bubble_share,
        }
    return figures


def _length(case: Case) -> int | None:
    """The tokens that a phase begins with."""
    phase = case.phase
    return phase.context or phase.prompt or case.seq_len


def _memory(prediction: Prediction, predictor: Predictor, room: float | None) -> Iterator[tuple[str, Any]]:
    """The peak, and whether its upper bound fits into the device's memory, minus what is kept free."""
    memory, platform = prediction.memory, predictor.platform
    room = room if room is not None else device_memory(predictor)
    yield "memory_bytes", None if memory is None else memory.value_bytes
    yield "memory_high_bytes", None if memory is None else memory.high_bytes
    if memory is None or room is None:
        yield "fits", None
    else:
        usable_bytes = room * (1 - platform.margin(memory.phase))
        yield "fits", memory.high_bytes + platform.framework.process_bytes <= usable_bytes
