"""A profile's typical run as a timeline: modules and operators on the host, with memory and power."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuralpower.prediction.memory.peak import alive
from neuralpower.profiling.steps import Repeat, Runs
from neuralpower.report.perfetto import Counter, Process, Row, Slice


def typical(runs: Runs) -> Repeat:
    """The timed run of median time (the lower one of two)."""
    order = np.argsort(runs.timed.samples_s, kind="stable")
    return runs.repeats[int(order[(len(order) - 1) // 2])]


def process(model: str, device: str, runs: Runs) -> Process:
    """The typical run, from 0; its times include the instrumentation's cost."""
    one = typical(runs)
    start = min([e.host_start_ns for e in one.events] + [s.start_ns for s in one.spans], default=0)
    rows = [Row("host: modules and operators", slices(one, start, model))]
    counters = []
    sizes = memory_bytes(runs)
    if len(sizes) == len(one.events):
        points = [(event.host_start_ns - start, size) for event, size in zip(one.events, sizes, strict=True)]
        counters.append(Counter("memory", "bytes", points))
    if runs.window.power_w is not None:  # the mean of all runs
        counters.insert(0, Counter("power", "W", [(0, runs.window.power_w)]))
    return Process(f"measured: {model} on {device}", rows, counters)


def slices(one: Repeat, start_ns: int, model: str) -> list[Slice]:
    """A run's phases (where there are several), modules and operators; outer ones before those inside."""
    found = []
    phases = dict.fromkeys(event.phase for event in one.events)
    for phase in phases if len(phases) > 1 else ():
        inside = [event for event in one.events if event.phase == phase]
        begins, ends = [event.host_start_ns for event in inside], [event.host_end_ns for event in inside]
        if phase == "forward":
            begins += [span.start_ns for span in one.spans]
            ends += [span.end_ns for span in one.spans]
        found.append(Slice(phase, "phase", min(begins) - start_ns, max(ends) - start_ns))
    found += [
        Slice(span.path or model, "module", span.start_ns - start_ns, span.end_ns - start_ns)
        for span in reversed(one.spans)  # in the order in which they ended: the inner ones first
    ]
    for event, seconds in zip(one.events, one.seconds, strict=True):
        times = (event.host_start_ns - start_ns, event.host_end_ns - start_ns)
        args = {"path": event.path, "runtime_s": seconds}
        found.append(Slice(event.operator, event.phase, *times, args))
    return found


def memory_bytes(runs: Runs) -> Sequence[int]:
    """Bytes of tensors alive during each operator call of the accounted run, if there was one."""
    if runs.account is None:
        return ()
    lifetimes = runs.account.lifetimes
    total = alive(lifetimes.storages(), lifetimes.calls + 1)
    return [int(size) for size in total[1 : lifetimes.calls + 1]]
