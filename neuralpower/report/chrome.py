"""Chrome's trace event format, for ui.perfetto.dev and chrome://tracing: rows of nested slices, and counters.

    {"ph": "X"}   a complete slice: name, ts and dur in microseconds, process, thread, args
    {"ph": "C"}   a counter's value from a time on
    {"ph": "M"}   names and order of processes and threads

After "Trace Event Format" (Google, 2016). Slices of a row nest or follow each other; Perfetto drops one that
crosses another's end. Perfetto truncates times to nanoseconds, so they are whole nanoseconds here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text

Event = dict[str, Any]


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
