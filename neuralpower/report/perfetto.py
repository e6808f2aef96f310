"""A prediction as a timeline: rows of nested modules and calls, with power and memory.

    one row      calls within their modules: a CPU, or a device with only a known sum of times
    host, device calls as the host issues them, and as the device runs them, with waits

The format is Chrome's, for ui.perfetto.dev and chrome://tracing ("Trace Event Format", Google, 2016):

    {"ph": "X"}   a complete slice: name, ts and dur in microseconds, process, thread, args
    {"ph": "C"}   a counter's value from a time on
    {"ph": "M"}   names and order of processes and threads

Slices of a row nest or follow each other; Perfetto drops one that crosses another's end, and truncates times
to nanoseconds, so they are whole nanoseconds here.

The times are those of `prediction.timeline`. A slice's `dur` is its part of the predicted time, so inner
slices add up to the outer one. A module that is called again right after itself is one slice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, named
from neuralpower.learn.estimates import BASES
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.timeline import Omitted, Stage, Timed, memory_bytes, timed
from neuralpower.version import __version__

Event = dict[str, Any]
WAIT = "(waits for the host)"
DIGITS = 6  # significant digits of numbers in args
FIGURES = ("runtime_s", "low_s", "high_s", "energy_j", "flops", "bytes", "basis")

Level = tuple[str, str]  # (category, path or name) of a slice that contains others
Point = tuple[int, float]


@dataclass(frozen=True)
class Slice:
    """An interval of time with a name."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A thread: slices that nest or follow each other; with equal times the outer one comes first."""

    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True)
class Counter:
    """A number that is constant from each of its times to the next."""

    name: str
    unit: str
    points: Sequence[tuple[int, float]]  # (nanoseconds, value)


@dataclass(frozen=True)
class Process:
    """Rows and counters that belong together."""

    name: str
    rows: Sequence[Row]
    counters: Sequence[Counter] = ()


def document(processes: Sequence[Process], about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole file as plain values: events in the order of their times, and `about`."""
    names = [event for pid, process in enumerate(processes, 1) for event in _names(pid, process)]
    events = [event for pid, process in enumerate(processes, 1) for event in _events(pid, process)]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": dict(about or {})}


def write(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a document as a whole; raises DatasetError, or DeviceError for a full disk."""
    replace_file(Path(path), json_text(data, compact=True) + "\n")


def microseconds(time_ns: int) -> float:
    """The number that yields these nanoseconds when it is multiplied by 1000 and truncated."""
    number = time_ns / 1000
    return number if int(number * 1000) == time_ns else math.nextafter(number, math.inf)


def _names(pid: int, process: Process) -> Iterator[Event]:
    rows = [("thread", i, i, row.name) for i, row in enumerate(process.rows, 1)]
    for kind, tid, place, name in (("process", 0, pid, process.name), *rows):
        for what, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
            yield {"name": f"{kind}_{what}", "ph": "M", "pid": pid, "tid": tid, "args": args}


def _events(pid: int, process: Process) -> Iterator[Event]:
    for tid, row in enumerate(process.rows, 1):
        for one in row.slices:
            times = {"ts": microseconds(one.start_ns), "dur": microseconds(one.end_ns - one.start_ns)}
            event = {"name": one.name, "cat": one.category, "ph": "X", "pid": pid, "tid": tid, **times}
            yield {**event, "args": dict(one.args)} if one.args else event
    for counter in process.counters:
        for time, value in counter.points:
            event = {"name": counter.name, "ph": "C", "pid": pid, "tid": 0, "ts": microseconds(time)}
            yield {**event, "args": {counter.unit: value}}


# ---- a prediction ----


@dataclass(frozen=True)
class Leaf:
    """An innermost slice and its levels, the outermost first."""

    levels: tuple[Level, ...]
    slice: Slice
    call: Timed | None = None  # None for a wait


@dataclass
class Drawn:
    """Slices and points so far; times count from the start of the first stage."""

    device: list[Slice] = field(default_factory=list)
    host: list[Slice] = field(default_factory=list)
    power: list[Point] = field(default_factory=list)
    memory: list[Point] = field(default_factory=list)


def predicted(prediction: Prediction, stages: Sequence[Stage | Omitted], predictor: Predictor) -> Process:
    """The timeline of a prediction from its stages and its predictor."""
    if any(isinstance(stage, Stage) and stage.lanes for stage in stages):
        return Process(f"predicted: {prediction.model} on {prediction.device}", [*_lane_rows(stages)])
    drawn, begun_s = Drawn(), 0.0
    for stage in stages:
        if isinstance(stage, Omitted):
            _draw_omitted(drawn, stage, begun_s)
            begun_s += stage.runtime_s
        else:
            _draw(drawn, stage, timed(stage, predictor), begun_s, predictor)
            begun_s += stage.prediction.runtime_s.value
    rows = [Row(_device_row(predictor), drawn.device)]
    if predictor.dispatch is not None:
        rows.insert(0, Row("host: modules and launches", drawn.host))
    known = (("power", "W", drawn.power), ("memory", "bytes", drawn.memory))
    counters = [Counter(name, unit, _changes(points)) for name, unit, points in known if points]
    return Process(f"predicted: {prediction.model} on {prediction.device}", rows, counters)


def _lane_rows(stages: Sequence[Stage | Omitted]) -> Iterator[Row]:
    """A row for each stream of each pipeline stage, where several devices run."""
    rows: dict[str, list[Slice]] = {}
    begun_s = 0.0
    for stage in stages:
        if isinstance(stage, Omitted):
            begun_s += stage.runtime_s
            continue
        for lane in stage.lanes:
            for span in lane.spans:
                args = {name: value for name in ("path", "kind") if (value := getattr(span, name))}
                times = _ns(begun_s + span.start_s), _ns(begun_s + span.end_s)
                rows.setdefault(lane.name, []).append(Slice(span.name, "layer", *times, args))
        begun_s += stage.prediction.runtime_s.value
    return (Row(name, slices) for name, slices in rows.items())


def about(prediction: Prediction, stages: Sequence[Stage | Omitted]) -> dict[str, Any]:
    """The prediction behind a timeline, as plain values; `stages` also names steps that are not drawn."""
    return {
        "neuralpower": __version__,
        **named(prediction, "model predictor device batch_size dtype phase"),
        "stages": [stage.name for stage in stages],
        **named(
            prediction, "runtime_s energy_j power_reason? host_bound memory_bytes=memory.bounds coverage"
        ),
        "warnings": list(prediction.warnings),
        "notes": [*prediction.notes, *prediction.remarks],
    }


def _device_row(predictor: Predictor) -> str:
    if predictor.hardware is None or predictor.platform.family == "cpu":
        return "modules and operators"
    if predictor.dispatch is None and any(regressor.launch_s for regressor in predictor.regressors.values()):
        return "modules and calls, at the pace of host or device"
    return "device: modules and kernels"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _draw_omitted(drawn: Drawn, stage: Omitted, begun_s: float) -> None:
    start, end = _ns(begun_s), _ns(begun_s + stage.runtime_s)
    args = _short({"runtime_s": stage.runtime_s, "energy_j": stage.energy_j})
    for row in (drawn.device, drawn.host):
        row.append(Slice(stage.name, "steps", start, end, args))
    if stage.energy_j is not None and stage.runtime_s:
        drawn.power.append((start, stage.energy_j / stage.runtime_s))


def _draw(drawn: Drawn, stage: Stage, calls: Sequence[Timed], begun_s: float, predictor: Predictor) -> None:
    p = stage.prediction
    called = {module.path for module in stage.trace.modules}
    top = {("stage", stage.name): _whole(p)}
    places = zip(_levels(stage.name, calls, called), calls, strict=True)
    device = [Leaf(level, _leaf(call, number, begun_s), call) for number, (level, call) in enumerate(places)]
    idle_w = predictor.hardware.idle_w if predictor.hardware is not None else None
    if predictor.dispatch is not None:
        drawn.host += nested([_launch(leaf, number, begun_s) for number, leaf in enumerate(device)], top)
        device = _with_waits(device, _ns(begun_s), idle_w)
    drawn.device += nested(device, top)
    if p.power_w is not None:
        powers = [(leaf.slice.start_ns, leaf.call.power_w if leaf.call else idle_w) for leaf in device]
        drawn.power += [(start, power) for start, power in powers if power is not None]
    if stage.has_memory:
        starts = [call.start_s if call.host_start_s is None else call.host_start_s for call in calls]
        times = [_ns(begun_s + start) for start in (*starts, p.runtime_s.value)]
        drawn.memory += zip(times, memory_bytes(stage, calls), strict=True)


def _levels(stage: str, calls: Sequence[Timed], called: set[str]) -> list[tuple[Level, ...]]:
    """The levels of each call: the stage, the part of the step if there are several, called modules."""
    several = len({call.step for call in calls}) > 1
    levels: list[tuple[Level, ...]] = []
    for number, (step, block) in enumerate(itertools.groupby(calls, key=lambda call: call.step)):
        part = ((f"part {number}", step),) if several else ()
        for call in block:
            names = call.path.split(".") if call.path else []
            paths = [".".join(names[:n]) for n in range(1, len(names) + 1)]
            modules = (("module", path) for path in paths if path in called or path == call.path)
            levels.append((("stage", stage), *part, *modules))
    return levels


def _leaf(call: Timed, number: int, begun_s: float) -> Slice:
    figures = _short({name: getattr(call, name) for name in (*FIGURES, "power_w")})
    args = {"call": number, "kind": call.kind, "path": call.path, **figures}
    return Slice(call.name, "layer", _ns(begun_s + call.start_s), _ns(begun_s + call.end_s), args)


def _launch(leaf: Leaf, number: int, begun_s: float) -> Leaf:
    call = leaf.call
    assert (
        call is not None and call.host_start_s is not None and call.host_end_s is not None
    )  # for two clocks
    start, end = _ns(begun_s + call.host_start_s), _ns(begun_s + call.host_end_s)
    args = {"call": number, "kind": call.kind, **_short({"host_s": call.host_end_s - call.host_start_s})}
    return Leaf(leaf.levels, Slice(call.name, "launch", start, end, args))


def _with_waits(leaves: Sequence[Leaf], begun_ns: int, idle_w: float | None) -> list[Leaf]:
    """Leaves with a slice for each wait of the device, in the levels that its neighbours share."""
    joined: list[Leaf] = []
    end = begun_ns
    for leaf in leaves:
        if leaf.slice.start_ns > end:
            seconds = (leaf.slice.start_ns - end) / 1e9
            args = _short({"idle_s": seconds, "energy_j": None if idle_w is None else idle_w * seconds})
            before = joined[-1].levels if joined else leaf.levels[:1]
            pairs = zip(before, leaf.levels, strict=False)  # the shorter ends it
            shared = tuple(level for level, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            joined.append(Leaf(shared, Slice(WAIT, "idle", end, leaf.slice.start_ns, args)))
        joined.append(leaf)
        end = leaf.slice.end_ns
    return joined


def nested(leaves: Sequence[Leaf], args: Mapping[Level, Mapping[str, Any]] | None = None) -> list[Slice]:
    """Leaves in order, within a slice for each run of neighbours that share a level; outer ones come first.

    `args` are those of known levels; other levels get sums over their calls.
    """
    slices: list[Slice] = []

    def walk(leaves_within: Sequence[Leaf], depth: int, outer: str) -> None:
        for level, group in itertools.groupby(leaves_within, key=lambda leaf: leaf.levels[depth : depth + 1]):
            inside = list(group)
            if not level:
                slices.extend(leaf.slice for leaf in inside)
                continue
            ((category, path),) = level
            known = (args or {}).get((category, path))
            name = path.removeprefix(outer + ".") if category == "module" and outer else path
            told = dict(known or _sums(inside))
            if category == "module":
                told["path"] = path
            span = inside[0].slice.start_ns, inside[-1].slice.end_ns
            slices.append(Slice(name, category.split()[0], *span, told))
            walk(inside, depth + 1, path if category == "module" else "")

    walk(leaves, 0, "")
    return slices


def _sums(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Args of a module or a part: sums over its calls, whose errors count as fully correlated."""
    calls = [leaf.call for leaf in leaves if leaf.call is not None]
    if not calls:
        return {}
    columns = {name: [getattr(call, name) for call in calls] for name in FIGURES}
    basis = max(columns.pop("basis"), key=BASES.index)
    sums = {name: None if None in values else sum(values) for name, values in columns.items()}
    return {"calls": len(calls), **_short(sums), "basis": basis}


def _whole(p: Prediction) -> dict[str, Any]:
    t = p.runtime_s
    figures: dict[str, Any] = {"runtime_s": t.value, "low_s": t.low, "high_s": t.high}
    figures |= {"energy_j": p.energy_j.value if p.energy_j else None, "flops": p.flops}
    figures |= {"bytes": sum(row.bytes for row in p.rows), "basis": p.basis}
    return _short(figures | {"power_w": p.power_w.value if p.power_w else None})


def _short(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for name, v in figures.items()}


def _changes(points: Sequence[Point]) -> list[Point]:
    """Points in the order of time, without those that repeat the value before them."""
    found: list[Point] = []
    for time, value in sorted(points, key=lambda point: point[0]):
        short = value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
        if not found or found[-1][1] != short:
            found.append((time, short))
    return found
