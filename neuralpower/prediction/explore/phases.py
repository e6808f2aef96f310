"""A grid of training steps, or of a language model's phases: each point is traced and predicted alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from neuralpower.ask import texts
from neuralpower.ask.spread import Given, layouts_in
from neuralpower.devices.names import bytes_of
from neuralpower.errors import InputError, NeuralPowerError, one_line
from neuralpower.files.stages import counted
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import PREDICTED, Phase
from neuralpower.prediction.case import Recordings
from neuralpower.prediction.costs.footprint import Terms, made_by, terms_in
from neuralpower.prediction.explore.doubts import doubts
from neuralpower.prediction.explore.space import TRACED
from neuralpower.prediction.explore.sweep import (
    Grid,
    Sweep,
    SweepPoint,
    best_settings,
    costs_of,
    left_bytes,
    pareto_front,
    set_as,
    sweep,
)
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request, dtype_for, phase_in, request_of, run_of
from neuralpower.trace.parts.routing import ROUTING

SAID = {"batch_size": "batch size", "seq_len": "seq-len"}  # in messages
NO_TERMS = Terms()
UNKNOWN = """
    runtime_s low_s high_s samples_per_s energy_j memory_bytes memory_high_bytes fits coverage
""".split()


def sweep_grid(request: Request, predictors: Sequence[Predictor], grid: Grid) -> Sweep:
    """Predict a grid in one phase: a plain forward pass by formulas, any other point by point.

    Args:
        request: what is the same in all points.
        predictors: one for each device.
        grid: what differs.

    Raises:
        InputError: as `sweep`; phases of several names, or one that says its batch.
        PredictorError: a dtype or a phase that a predictor was not trained on.
    """
    name = _checked(grid.phases)
    special = request.autocast or request.lora or request.memory_format
    usual = request.routing == ROUTING and not special and not request.source().pictures
    if name == FORWARD and usual and all(layout.alone for layout in grid.layouts):
        return sweep(request, predictors, grid)
    grid.check(predictors)
    points = grid.requests(request)
    for predictor, dtype in itertools.product(predictors, grid.dtypes):
        replace(points[0], dtype=dtype).check(predictor)
    return sweep_phases(points, predictors, memory_bytes=grid.memory_bytes, terms=grid.terms)


def grids_of(
    model: Any, options: Given, predictors: Sequence[Predictor]
) -> tuple[Request, list[tuple[Grid, list[Predictor]]], tuple[str, ...]]:
    """What is the same in all points of a sweep's options, what differs, by whom, and notes.

    Without a dtype, predictors that answer in different ones have a grid each. Raises InputError.
    """
    phases = _phases_in(options)
    dtypes, batches, lengths = (
        options.get("dtype"),
        _several(options, "batch_size"),
        _several(options, "seq_len"),
    )
    notes: dict[str, None] = {}
    groups: dict[Any, list[Predictor]] = {}
    for predictor in predictors if dtypes is None else ():
        run = run_of(options.get("run"), phases[0].name if phases else FORWARD, predictor.platform)
        usual, said = dtype_for(model, None, predictor, run)
        groups.setdefault((usual,), []).append(predictor)
        notes |= dict.fromkeys(said)
    if isinstance(dtypes, (str, list, tuple)):  # other values are refused later
        listed = texts.names(dtypes, "dtype") if isinstance(dtypes, str) else dtypes
        dtypes = [dtype_for(model, name)[0] for name in listed or ()]
    gridded = ("phase", "context", "prompt", "batch_size", "seq_len", "dtype")
    same = {name: value for name, value in options.items() if name not in gridded}
    more = {} if batches is None else {"batch_size": 1}
    request = request_of(model, {**same, "phase": phases[0]}, **more) if phases else Request(model)
    memory = options.get("memory")
    lists = Grid(
        (request.batch_size,) if batches is None else batches,
        (None,) if lengths is None else lengths,
        () if dtypes is None else dtypes,
        phases,
        layouts_in(options),
        None if memory is None else bytes_of(memory),
        terms_in(options),
    )
    grids = [(replace(lists, dtypes=dtypes), those) for dtypes, those in groups.items()]
    return request, grids or [(lists, [*predictors])], tuple(notes)


def _several(options: Given, name: str) -> Any:
    """The values of a size: one number, a list, or a text of some; None where it is not asked."""
    value = options.get(name)
    if isinstance(value, (int, float)):
        return (value,)
    return texts.sizes(value, SAID.get(name, name)) if isinstance(value, str) else value


def _phases_in(options: Given) -> list[Phase]:
    """The phases of a sweep, at each context and prompt; raises InputError."""
    asked = options.get("phase", FORWARD)
    named = asked if isinstance(asked, (list, tuple)) else [asked]
    for phase in named:
        if not isinstance(phase, (str, Phase)):
            raise InputError(
                f"phase {phase!r:.40}: must be a name, or a Phase; write 'decode', or leave it out"
            )
    tokens = [_several(options, name) for name in ("context", "prompt")]
    every = itertools.product(named, *((None,) if sizes is None else sizes for sizes in tokens))
    return [
        phase_in({**options, "phase": phase, "context": context, "prompt": prompt, **dict.fromkeys(SAID)})
        for phase, context, prompt in every
    ]


def _checked(phases: Sequence[Phase]) -> str:
    """The name of all phases; raises InputError."""
    names = dict.fromkeys(phase.name for phase in phases)
    if len(names) != 1:
        raise InputError(f"phases {', '.join(names) or '()'}: a sweep takes one phase; call it for each")
    for phase in phases:
        phase.check(PREDICTED)
        if phase.batch is not None or phase.lengths is not None:
            field = "lengths" if phase.batch is None else "batch"
            raise InputError(f"{field} of phase {phase.name}: a sweep takes batch_size; leave {field} out")
    return next(iter(names))


def sweep_phases(
    requests: Sequence[Request],
    predictors: Sequence[Predictor],
    *,
    memory_bytes: float | None = None,
    terms: Terms = NO_TERMS,
) -> Sweep:
    """Predict each request by each predictor.

    Args:
        requests: of one phase; one that cannot be predicted has its error.
        predictors: one for each device.
        memory_bytes: of the device; None: that of its spec sheet.
        terms: of node, site, electricity and price.

    Raises:
        PredictorError: a predictor was not trained on the dtype or phase.
    """
    rows, traces = [], 0
    for recordings in map(Recordings, counted(requests, f"tracing {requests[0].called}:")):
        rows.append([_point(recordings, predictor, memory_bytes, terms) for predictor in predictors])
        traces += recordings.traces
    columns = [*zip(*rows, strict=True)]  # of a device
    points = [point for column in columns for point in column]
    front, best = pareto_front(points)
    marked = tuple(replace(point, best=i in best) for i, point in enumerate(points))
    shares = ([p.coverage for p in marked], [p.trained_here for p in marked], [p.device for p in marked])
    warnings = tuple(doubts(predictors, *shares))
    run = ", ".join(dict.fromkeys(requests[0].run_on(p.platform) for p in predictors))
    answering = [
        p for p, column in zip(predictors, columns, strict=True) if not all(point.error for point in column)
    ]
    notes = dict.fromkeys(filter(None, (p.platform.memory_note(requests[0].way) for p in answering)))
    return Sweep(marked, front, traces, (*notes, *best_settings(marked)), warnings, run)


def _point(
    recordings: Recordings, predictor: Predictor, memory_bytes: float | None, terms: Terms
) -> SweepPoint:
    """The answer of one predictor, or its error."""
    request = recordings.request
    about = _about(request, predictor)
    try:
        prediction = recordings.predict(predictor)
    except NeuralPowerError as error:
        return SweepPoint(**{**dict.fromkeys(UNKNOWN), **about, "error": one_line(error)})
    samples = request.batch_size * (request.recipe.accumulation if request.way != FORWARD else 1)
    figures = dict(memory_figures(prediction, predictor, memory_bytes, request.margin))
    costs = costs_of(made_by(prediction), terms) if prediction.runtime_s.value else {}
    return SweepPoint(**about, **_figures(prediction, samples), **figures, **costs)


def _about(request: Request, predictor: Predictor) -> dict[str, Any]:
    """The network, sizes and device of a point."""
    phase = request.phase
    return {
        "model": request.called,
        "predictor": predictor.name,
        "device": predictor.device,
        "batch_size": request.batch_size,
        "seq_len": phase.context or phase.prompt or request.seq_len,
        "dtype": request.dtype,
        "basis": TRACED,
        "phase": phase.name,
        "layout": "" if request.layout.alone else request.layout.short,
        "ranks": request.layout.ranks,
        **set_as(predictor),
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


def memory_figures(
    prediction: Prediction, predictor: Predictor, room: float | None, margin: float | None
) -> Iterator[tuple[str, Any]]:
    """The peak, and whether its upper bound fits into the device's memory, minus what is kept free."""
    memory = prediction.memory
    yield "memory_bytes", None if memory is None else memory.value_bytes
    yield "memory_high_bytes", None if memory is None else memory.high_bytes
    left = None if memory is None else left_bytes(predictor, room, memory.phase, margin)
    yield "fits", None if memory is None or left is None else memory.high_bytes <= left
