"""A grid of batch sizes, lengths and types by predictors -> a table, with its Pareto-optimal points."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from typing_extensions import Unpack

from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import Layout
from neuralpower.errors import InputError, is_count
from neuralpower.files.json_files import Declared
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.case import device_memory
from neuralpower.prediction.explore.doubts import doubts
from neuralpower.prediction.explore.outcomes import finite
from neuralpower.prediction.explore.space import Explored, Point, explore
from neuralpower.prediction.prediction import HOST_BOUND
from neuralpower.prediction.shown import Shown
from neuralpower.prediction.weights import scheme_asked
from neuralpower.trace.question import EAGER, checked_run

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 10_000
HEAPLESS = "memory excludes what the allocator keeps of freed tensors; `up to` and `predict` include it"


@dataclass(frozen=True)
class SweepPoint:
    """One point; None where not known."""

    model: str
    predictor: str
    device: str
    batch_size: int
    seq_len: int | None
    dtype: str
    runtime_s: float | None
    low_s: float | None
    high_s: float | None
    samples_per_s: float | None
    energy_j: float | None
    memory_bytes: float | None
    memory_high_bytes: float | None
    # whether the memory's upper bound plus the process's own is within the device's, minus what is kept free
    fits: bool | None
    basis: str  # formula or traced
    coverage: float | None
    trained_here: float | None = None  # share of the layers' time that was trained on the device
    launch_share: float | None = None  # of the time: what the device waits for its host's launches
    best: bool = False  # on the Pareto front of its model
    error: str = ""
    phase: str = FORWARD
    layout: str = ""  # over several devices, in few letters; "" for one device
    ranks: int = 1  # devices
    tokens_per_s: float | None = None  # of all devices, where there are several
    exposed_share: float | None = None  # of the time, that exchanges make longer
    bubble_share: float | None = None  # of the time, that the slowest rank waits for other stages

    @property
    def host_bound(self) -> bool:
        """Whether the host's launches set the pace, so that a larger batch hardly takes longer."""
        return (self.launch_share or 0.0) > 1 - 1 / HOST_BOUND

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "error" or value}


@dataclass(frozen=True, repr=False)
class Sweep(Declared, Shown):
    """All points, in the order of the grid. `print` gives the command's table."""

    in_json = "schema front traces notes warnings points"

    points: tuple[SweepPoint, ...]
    front: str  # what the front is of
    traces: int
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # why predictions are less certain than their bounds
    run: str = EAGER

    def to_pandas(self) -> pd.DataFrame:
        """One row per point, SI units; raises InputError where there is no pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas") from None
        return pd.DataFrame([vars(point) for point in self.points])


class Options(TypedDict, total=False):
    """Options of a sweep that are rarely given."""

    input_shape: Sequence[int] | None  # of one sample
    memory_bytes: float | None  # of the device, instead of its spec sheet's
    run: str | None  # one of `neuralpower.trace.question.RUNS`; None: the usual one of the phase
    weights: str | None  # how they are quantised, a name that `--weights` takes
    layouts: Sequence[Layout]  # over several devices, each a point of the grid
    cluster: Cluster | None  # these devices
    require_plan: bool  # whether a network without a plan for tensor ranks is refused


def sweep(
    model: Any,
    predictors: Sequence[Predictor],
    *,
    batch_sizes: Sequence[int] = (1,),
    lengths: Sequence[int | None] = (None,),
    dtypes: Sequence[str] = ("float32",),
    **options: Unpack[Options],
) -> Sweep:
    """Predict the grid; see `Options`.

    Raises:
        InputError: an argument is not a list, a size is not whole and positive, there is no point or too
            many, or the way to run is unknown.
        PredictorError: a predictor was not trained on the dtype.
    """
    run = checked_run(options.get("run") or EAGER)
    input_shape, weights = options.get("input_shape"), scheme_asked(options.get("weights"))
    memory_bytes = options.get("memory_bytes")
    check_grid(predictors, batch_sizes, lengths, dtypes)
    shape = tuple(input_shape) if isinstance(input_shape, Iterable) else input_shape
    points = [  # with integers of Python's, since JSON has none of NumPy's
        Point(model, int(batch), None if length is None else int(length), dtype, input_shape=shape, run=run)
        for dtype, length, batch in itertools.product(dtypes, lengths, batch_sizes)
    ]
    name = model if isinstance(model, str) else type(model).__name__
    found: list[SweepPoint] = []
    traces, notes = 0, dict[str, None]()
    for predictor in predictors:
        explored = explore(points, predictor, weights)
        traces += explored.traces
        notes |= dict.fromkeys(explored.notes)
        notes[predictor.platform.memory_note(FORWARD) or HEAPLESS] = None
        room = memory_bytes if memory_bytes is not None else device_memory(predictor)
        found += _swept(name, points, explored, predictor, room)
    front, best = pareto_front(found)
    marked = tuple(replace(point, best=i in best) for i, point in enumerate(found))
    coverages, trained = [p.coverage for p in marked], [p.trained_here for p in marked]
    return Sweep(marked, front, traces, tuple(notes), tuple(doubts(predictors, coverages, trained)), run)


def check_grid(
    predictors: Sequence[Predictor],
    batch_sizes: Sequence[int],
    lengths: Sequence[int | None],
    dtypes: Sequence[str],
    phases: Sequence[object] = (FORWARD,),
) -> None:
    """Raise InputError for an argument that is not a list, a bad size, no points, or too many."""
    for what, given in (("batch sizes", batch_sizes), ("lengths", lengths), ("dtypes", dtypes)):
        if isinstance(given, str) or not isinstance(given, Sized):
            raise InputError(f"{what} {given!r}: must be a list; write [{given!r}]")
    count = len(dtypes) * len(lengths) * len(batch_sizes) * len(predictors) * len(phases)
    if count > MOST_POINTS:
        raise InputError(f"{count} points: a sweep takes at most {MOST_POINTS}; choose fewer sizes")
    if not count:
        what = "a batch size, a length (None for a model's own), a dtype and a predictor"
        raise InputError(f"no point to sweep: choose {what}")
    known = [length for length in lengths if length is not None]
    for what, size in (*(("batch size", b) for b in batch_sizes), *(("length", length) for length in known)):
        if not is_count(size):
            raise InputError(f"{what} {size!r}: must be a list of whole numbers, each 1 or more")


def _swept(
    name: str, points: Sequence[Point], explored: Explored, predictor: Predictor, room: float | None
) -> Iterator[SweepPoint]:
    """The points by one predictor; `room` is the device's memory in bytes."""
    platform, o = predictor.platform, explored.outcomes
    usable_bytes = None if room is None else room * (1 - platform.margin(FORWARD))
    taken_bytes = platform.framework.process_bytes
    for i, point in enumerate(points):
        value, high = finite(o.runtime_s[i]), finite(explored.memory_high_bytes[i])
        yield SweepPoint(
            model=name,
            predictor=predictor.name,
            device=predictor.device,
            batch_size=point.batch_size,
            seq_len=point.seq_len,
            dtype=point.dtype,
            runtime_s=value,
            low_s=finite(o.low_s[i]),
            high_s=finite(o.high_s[i]),
            samples_per_s=point.batch_size / value if value else None,
            energy_j=finite(o.energy_j[i]),
            memory_bytes=finite(explored.memory_bytes[i]),
            memory_high_bytes=high,
            fits=None if usable_bytes is None or high is None else high + taken_bytes <= usable_bytes,
            basis=explored.basis[i],
            coverage=finite(o.coverage[i]),
            trained_here=finite(o.trained[i]),
            launch_share=finite(o.launch_s[i] / o.runtime_s[i]) if value else None,
            error=explored.errors.get(i, ""),
        )


def pareto_front(points: Sequence[SweepPoint]) -> tuple[str, set[int]]:
    """The quantities of the Pareto front, and the places on it; points that might not fit are not on it."""
    known = [point for point in points if not point.error]
    energy = bool(known) and all(point.energy_j is not None and point.ranks == 1 for point in known)
    usable = [i for i, point in enumerate(points) if point.runtime_s is not None and point.fits is not False]
    pairs = [
        (p.runtime_s, (p.energy_j or 0.0) / p.batch_size if energy else -(p.samples_per_s or 0.0))
        for p in (points[i] for i in usable)
    ]
    best = pareto(*np.array(pairs, dtype=float).reshape(-1, 2).T)
    return "latency and energy per sample" if energy else "throughput and latency", {usable[j] for j in best}


def pareto(first: np.ndarray, second: np.ndarray) -> list[int]:
    """Places of the Pareto-optimal pairs: no other is as small in both and smaller in one."""
    found: list[int] = []
    best = (np.inf, np.inf)  # of those found, the smallest second, with its first
    for i in np.lexsort((second, first)).tolist():
        here = float(second[i]), float(first[i])
        if here[0] < best[0] or here == best:
            found.append(i)
            best = here
    return sorted(found)
