"""A grid of batch sizes, lengths and types by predictors -> a table, with its Pareto-optimal points."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.devices.cluster import ONE, Layout
from neuralpower.errors import InputError, is_count
from neuralpower.files.json_files import Declared
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import device_memory
from neuralpower.prediction.costs.footprint import Made, Terms, each_of
from neuralpower.prediction.explore.doubts import doubts
from neuralpower.prediction.explore.outcomes import Outcomes, finite
from neuralpower.prediction.explore.space import Explored, Point, Tables, explore
from neuralpower.prediction.prediction import HOST_BOUND
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.prediction.shown import Shown
from neuralpower.prediction.weights import scheme_asked
from neuralpower.trace.question import EAGER, checked_run

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 10_000
HEAPLESS = (
    "memory excludes what the allocator keeps of freed tensors; its upper bound and `predict` include it"
)


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
    power_limit_w: float | None = None  # that the device is set to; None: its own
    clock_hz: float | None = None  # that it is set to, which a limit may lower; None: neither is requested
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    unit: str = "sample"  # what a pass makes: samples, or tokens of a language model's phase
    # with what the node and the site add; money and carbon where options say them
    units_per_s: float | None = None
    joules_per_unit: float | None = None
    joules_low: float | None = None
    joules_high: float | None = None
    price_per_million: float | None = None
    price_low: float | None = None
    price_high: float | None = None
    currency: str | None = None
    carbon_g_per_million: float | None = None
    carbon_low_g: float | None = None
    carbon_high_g: float | None = None

    @property
    def power_w(self) -> float | None:
        """Mean power of all devices."""
        return self.energy_j / self.runtime_s if self.energy_j and self.runtime_s else None

    @property
    def power_ends_w(self) -> tuple[float, float] | None:
        """The 90 % bounds of the mean power: its squared errors and those of time add up to joules'."""
        watts, joules = self.power_w, (self.energy_low_j, self.energy_j, self.energy_high_j)
        if watts is None or not all((*joules, self.low_s, self.runtime_s, self.high_s)):
            return None
        energy, time = np.log(np.array([joules, (self.low_s, self.runtime_s, self.high_s)], dtype=float))
        apart = np.sqrt(np.maximum(np.diff(energy) ** 2 - np.diff(time) ** 2, 0.0))
        return float(watts * np.exp(-apart[0])), float(watts * np.exp(apart[1]))

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


@dataclass(frozen=True)
class Grid:
    """The lists of a grid, and the memory that its points are to fit into."""

    batch_sizes: Sequence[int] = (1,)
    lengths: Sequence[int | None] = (None,)  # tokens of each sample; None leaves them to the model
    dtypes: Sequence[str] = ("float32",)
    phases: Sequence[Phase] = (Phase(),)  # of one name, which may differ in tokens
    layouts: Sequence[Layout] = (ONE,)
    memory_bytes: float | None = None  # of the device; None: that of its spec sheet
    terms: Terms = Terms()  # of node, site, electricity and price

    def requests(self, request: Request) -> list[Request]:
        """The points, with integers of Python's, since JSON has none of NumPy's."""
        lists = self.dtypes, self.phases, self.lengths, self.batch_sizes, self.layouts
        return [
            replace(
                request,
                batch_size=int(batch),
                seq_len=None if length is None else int(length),
                dtype=dtype,
                phase=phase,
                layout=layout,
            )
            for dtype, phase, length, batch, layout in itertools.product(*lists)
        ]

    def check(self, predictors: Sequence[Predictor]) -> None:
        """Raise InputError for an argument that is not a list, a bad size, no points, or too many."""
        named = {"batch sizes": self.batch_sizes, "lengths": self.lengths, "dtypes": self.dtypes}
        for what, given in named.items():
            if isinstance(given, str) or not isinstance(given, Sized):
                raise InputError(f"{what} {given!r}: must be a list; write [{given!r}]")
        lists = (*named.values(), predictors, self.phases, self.layouts)
        count = math.prod(map(len, lists))
        if count > MOST_POINTS:
            raise InputError(f"{count} points: a sweep takes at most {MOST_POINTS}; choose fewer sizes")
        if not count:
            what = "a batch size, a length (None for a model's own), a dtype and a predictor"
            raise InputError(f"no point to sweep: choose {what}")
        sizes = [("batch size", size) for size in self.batch_sizes]
        sizes += [("length", length) for length in self.lengths if length is not None]
        for what, size in sizes:
            if not is_count(size):
                raise InputError(f"{what} {size!r}: must be a list of whole numbers, each 1 or more")


def sweep(request: Request, predictors: Sequence[Predictor], grid: Grid) -> Sweep:
    """Predict the forward passes of a grid on one device each, from few traces.

    Raises:
        InputError: as `Grid.check`, or the way to run is unknown.
        PredictorError: a predictor was not trained on the dtype.
    """
    run, weights = checked_run(request.run or EAGER), scheme_asked(request.weights)
    grid.check(predictors)
    points = [
        Point(request.model, one.batch_size, one.seq_len, one.dtype, input_shape=one.input_shape, run=run)
        for one in grid.requests(request)
    ]
    found: list[SweepPoint] = []
    traces, notes = 0, dict[str, None]()
    known: Tables = {}
    for predictor in predictors:
        explored = explore(points, predictor, weights, known)
        traces += explored.traces
        notes |= dict.fromkeys(explored.notes)
        notes[predictor.platform.memory_note(FORWARD) or HEAPLESS] = None
        found += _swept(request, points, explored, predictor, grid)
    front, best = pareto_front(found)
    marked = tuple(replace(point, best=i in best) for i, point in enumerate(found))
    shares = ([p.coverage for p in marked], [p.trained_here for p in marked], [p.device for p in marked])
    said = (*notes, *best_settings(marked))
    return Sweep(marked, front, traces, said, tuple(doubts(predictors, *shares)), run)


def joined(sweeps: Sequence[Sweep]) -> Sweep:
    """Sweeps of one network by different predictors as one, with one Pareto front; at least one sweep."""
    if len(sweeps) == 1:
        return sweeps[0]
    points = [point for part in sweeps for point in part.points]
    front, best = pareto_front(points)
    lines = {
        name: tuple(dict.fromkeys(line for part in sweeps for line in getattr(part, name)))
        for name in ("notes", "warnings")
    }
    return Sweep(
        tuple(replace(point, best=i in best) for i, point in enumerate(points)),
        front,
        sum(part.traces for part in sweeps),
        **lines,
        run=", ".join(dict.fromkeys(part.run for part in sweeps)),
    )


def left_bytes(predictor: Predictor, room: float | None, phase: str, margin: float | None) -> float | None:
    """What a network may take of a device's memory, `room` or that of its sheet; None if not known."""
    room = device_memory(predictor) if room is None else room
    return None if room is None else predictor.platform.left_bytes(room, phase, margin)


def _swept(
    request: Request, points: Sequence[Point], explored: Explored, predictor: Predictor, grid: Grid
) -> Iterator[SweepPoint]:
    """The points by one predictor."""
    o, left = explored.outcomes, left_bytes(predictor, grid.memory_bytes, FORWARD, request.margin)
    for i, point in enumerate(points):
        value, high = finite(o.runtime_s[i]), finite(explored.memory_high_bytes[i])
        yield SweepPoint(
            model=request.called,
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
            fits=None if left is None or high is None else high <= left,
            basis=explored.basis[i],
            coverage=finite(o.coverage[i]),
            trained_here=finite(o.trained[i]),
            launch_share=finite(o.launch_s[i] / o.runtime_s[i]) if value else None,
            error=explored.errors.get(i, ""),
            **set_as(predictor),
            **_costs(o, i, point, predictor, grid.terms),
        )


def _costs(o: Outcomes, i: int, point: Point, predictor: Predictor, terms: Terms) -> dict[str, Any]:
    """What a sample of a point takes."""
    if not finite(o.runtime_s[i]):
        return {}
    time, energy = (
        Interval(*(float(getattr(o, name)[i]) for name in names.split()))
        for names in ("runtime_s low_s high_s", "energy_j energy_low_j energy_high_j")
    )
    known = energy if finite(energy.value) else None
    return costs_of(Made(predictor.device, "sample", point.batch_size, time, known), terms)


def costs_of(made: Made, terms: Terms) -> dict[str, Any]:
    """The columns of a point: throughput, joules, money and carbon; raises InputError for no price."""
    each, energy = each_of(made, terms), made.energy_j
    return {
        "energy_low_j": energy and energy.low,
        "energy_high_j": energy and energy.high,
        "unit": each.unit,
        "units_per_s": each.per_s.value,
        **_ends(each.energy_j, "joules_per_unit", "joules_low", "joules_high"),
        **_ends(each.price, "price_per_million", "price_low", "price_high"),
        "currency": each.currency,
        **_ends(each.carbon_g, "carbon_g_per_million", "carbon_low_g", "carbon_high_g"),
    }


def _ends(value: Interval | None, *names: str) -> dict[str, float | None]:
    bounds = [None] * len(BOUNDS) if value is None else [getattr(value, bound) for bound in BOUNDS]
    return dict(zip(names, bounds, strict=True))


def best_settings(points: Sequence[SweepPoint]) -> Iterator[str]:
    """The setting of least energy of each question, where it has several limits or clocks.

    Besides, that of the least energy times delay (Horowitz et al., IEEE SLPE 1994), which slows down less.
    """
    questions: dict[tuple[object, ...], list[SweepPoint]] = {}
    for point in points:
        if point.joules_per_unit and point.units_per_s:
            key = (point.device, point.dtype, point.batch_size, point.seq_len, point.layout)
            questions.setdefault(key, []).append(point)
    for some in questions.values():
        clocks = len({one.clock_hz for one in some}) > 1
        if not clocks and len({one.power_limit_w for one in some}) < 2:
            continue
        set_at = functools.partial(_setting, clocks=clocks)
        fastest = max(some, key=lambda one: one.units_per_s or 0.0)
        least = min(some, key=lambda one: one.joules_per_unit or 0.0)
        knee = min(some, key=lambda one: (one.joules_per_unit or 0.0) / (one.units_per_s or 1.0))
        sizes = f" of batch {least.batch_size}" if len(questions) > 1 else ""
        if knee is least:
            yield f"least energy{sizes}, times delay too: {set_at(least)}, {_against(least, fastest)}"
            continue
        yield f"least energy{sizes}: {set_at(least)}, {_against(least, fastest)}"
        yield f"least energy times delay{sizes}: {set_at(knee)}, {_against(knee, fastest)}"


def _setting(point: SweepPoint, clocks: bool) -> str:
    """The limit of a point, and the clock where points differ in it."""
    parts = [] if point.power_limit_w is None else [f"{point.power_limit_w:g} W"]
    if clocks and point.clock_hz is not None:
        parts.append(f"{point.clock_hz / 1e6:g} MHz")
    return " at ".join(parts)


def _against(point: SweepPoint, fastest: SweepPoint) -> str:
    """Joules and speed next to those of the fastest point."""
    ratios = [
        (getattr(point, name) or 0.0) / (getattr(fastest, name) or 1.0)
        for name in ("joules_per_unit", "units_per_s")
    ]
    each = f"{point.joules_per_unit:.3g} J per {point.unit}"
    if point is fastest:
        return f"{each}, the fastest"
    joules, speed = (f"{ratio - 1:+.1%}" for ratio in ratios)
    return f"{each} ({joules} against the fastest), {speed} {point.unit}s/s"


def set_as(predictor: Predictor) -> dict[str, Any]:
    """The power limit and the clock of a point's device."""
    setting = predictor.setting
    if setting is None:
        return {}
    highest = predictor.known_hardware().clock_hz
    return {
        "power_limit_w": setting.limit_w,
        "clock_hz": None if highest is None else setting.clock * highest,
    }


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
