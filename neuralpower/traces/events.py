"""Read a profiler's trace: its outermost aten operators, and the kernels that each launched.

Kernels know their launch by a correlation number, and the launch lies within an operator on its thread.
"""

from __future__ import annotations

import bisect
import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from neuralpower.errors import InputError
from neuralpower.files.paths import why_irregular

MOST_BYTES = 2**30  # of a trace, unpacked: half a million events take some 0.2 GB
PACKED = b"\x1f\x8b"  # the first bytes of a gzip file
ATEN = "aten::"
ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))  # categories of what runs on a device
LAUNCHES = frozenset(("cuda_runtime", "cuda_driver"))  # HIP's launches have these names, too
OVER_BUS = ("HtoD", "DtoH")  # in names of copies over the bus


@dataclass(frozen=True)
class Operator:
    """An outermost aten operator as it was recorded."""

    name: str  # without "aten::"
    inputs: Mapping[str, Sequence[Any]]  # "Input type", "Input Dims", "Input Strides", "Concrete Inputs"
    kernels: tuple[str, ...]  # names of what it launched
    device_s: float  # their time


@dataclass(frozen=True)
class Events:
    """A trace's operators, and the time of kernels that none of them launched."""

    device: str  # the first device's name; "" where the trace does not say it
    operators: tuple[Operator, ...]
    elsewhere_s: float  # of launches before the trace begins, of graphs, and of other operators


def read_events(path: Path) -> Events:
    """The operators of a trace, packed by gzip or not.

    Raises InputError: no regular file, too large, no JSON, or without a list of events.
    """
    trace = _decoded(path)
    events = [one for one in trace["traceEvents"] if isinstance(one, dict) and _times(one)]
    operators: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    launches: dict[Any, dict[str, Any]] = {}
    kernels = []
    for one in events:
        category, number = str(one.get("cat")), _said(one).get("correlation")
        if category == "cpu_op" and str(one.get("name")).startswith(ATEN):
            operators[_thread(one)].append(one)
        elif category in LAUNCHES and isinstance(number, int):
            launches[number] = one
        elif category in ON_DEVICE:
            kernels.append(one)
    outermost = {thread: _outermost(some) for thread, some in operators.items()}
    launched: dict[int, list[dict[str, Any]]] = defaultdict(list)
    elsewhere_s = 0.0
    for kernel in kernels:
        number = _said(kernel).get("correlation")
        owner = _around(outermost, launches.get(number) if isinstance(number, int) else None)
        if owner is None:
            elsewhere_s += kernel["dur"] / 1e6
        else:
            launched[id(owner)].append(kernel)
    in_order = sorted((one for some in outermost.values() for one in some), key=lambda one: float(one["ts"]))
    return Events(_device(trace), tuple(_operator(one, launched[id(one)]) for one in in_order), elsewhere_s)


def _decoded(path: Path) -> dict[str, Any]:
    if reason := why_irregular(path):
        raise InputError(f"{path}: {reason}; give a trace that torch.profiler exported")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == PACKED
        with gzip.open(path) if packed else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputError(
                f"{path}: has more than the {MOST_BYTES:,} bytes that are read; record fewer steps"
            )
        trace = msgspec.json.decode(data)
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not a trace of torch.profiler ({error}); export it again") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise InputError(f"{path}: has no list traceEvents; give a trace that torch.profiler exported")
    return trace


def _times(event: Mapping[str, Any]) -> bool:
    """Whether an event has a beginning and a duration."""
    return all(type(event.get(name)) in (int, float) for name in ("ts", "dur")) and event["dur"] >= 0


def _said(event: Mapping[str, Any]) -> Mapping[str, Any]:
    said = event.get("args")
    return said if isinstance(said, dict) else {}


def _thread(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _outermost(operators: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operators of a thread that lie in no other, in order."""
    found: list[dict[str, Any]] = []
    for one in sorted(operators, key=lambda one: (one["ts"], -one["dur"])):
        if not found or one["ts"] >= found[-1]["ts"] + found[-1]["dur"]:
            found.append(one)
    return found


def _around(
    outermost: Mapping[Any, Sequence[dict[str, Any]]], launch: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The operator during which its thread launched something."""
    some = outermost.get(_thread(launch), ()) if launch is not None else ()
    at = bisect.bisect_right(some, launch["ts"], key=lambda one: one["ts"]) - 1 if launch and some else -1
    return some[at] if at >= 0 and launch and launch["ts"] <= some[at]["ts"] + some[at]["dur"] else None


def _operator(event: dict[str, Any], kernels: Sequence[dict[str, Any]]) -> Operator:
    said = _said(event)
    names = ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")
    inputs = {name: said[name] for name in names if isinstance(said.get(name), list)}
    took = sum(one["dur"] for one in kernels) / 1e6
    return Operator(
        str(event["name"]).removeprefix(ATEN), inputs, tuple(str(one.get("name")) for one in kernels), took
    )


def _device(trace: Mapping[str, Any]) -> str:
    devices = trace.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    return str(first.get("name") or "")
