"""Which operators take a network's time, from the events of torch.profiler.

Events are nested: `conv2d` contains `convolution`, that `_convolution`, that the library's kernel. An operator's *self*
time is its own without what it calls, and only self times add up; its *total* contains what it calls, once, also where
it calls itself. Shares are of the sum of all self times. What the profiler does for itself is no operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from neuralpower.profiling.rows import total

OVERHEAD = frozenset(
    (
        *("Activity Buffer Request", "Buffer Flush", "Resource", "Lazy Function Loading", "Command Buffer Full"),
        *("Instrumentation", "Instrumentation Overhead", "Activity Buffer Flush", "Runtime Triggered Module Loading"),
    )
)
NOT_OPERATORS = ("[memory]", "profiler::", "[pytorch|profiler", "ProfilerStep")
TOP = 10
SUMMED = ("self_cpu_s", "cpu_s", "calls", "self_memory_bytes", "memory_bytes", "self_device_s", "device_s")


class Event(Protocol):
    """What is asked of one event of torch.profiler; times in microseconds."""

    name: str
    cpu_parent: Any
    cpu_time_total: float
    self_cpu_time_total: float
    cpu_memory_usage: int
    self_cpu_memory_usage: int


@dataclass(frozen=True)
class Operator:
    """All calls of one operator; seconds and bytes."""

    name: str
    self_cpu_s: float
    cpu_s: float  # with what it calls
    calls: int
    self_memory_bytes: int | None = None  # allocated less freed
    memory_bytes: int | None = None
    self_device_s: float | None = None  # on a GPU; None where there was none
    device_s: float | None = None
    shapes: str = ""  # of the inputs, where they tell calls apart

    @property
    def average_s(self) -> float:
        """Of one call, with what it calls."""
        return self.cpu_s / self.calls


@dataclass(frozen=True)
class OperatorTable:
    """One run of the network over a set of images."""

    batch_size: int
    operators: tuple[Operator, ...]
    self_total_s: float  # self times of all operators, also of those that are not listed
    images: int | None = None
    device: str = "cpu"
    wall_s: float | None = None  # of the run without profiler

    def top(self, count: int = TOP, by: str = "cpu_s") -> tuple[Operator, ...]:
        """The most expensive ones by a field of `Operator`."""
        ranked = sorted(self.operators, key=lambda operator: -(getattr(operator, by) or 0))
        return tuple(ranked[:count])

    def share(self, seconds: float) -> float:
        """Of all self times."""
        return seconds / self.self_total_s if self.self_total_s else 0.0

    def named(self, name: str) -> Operator | None:
        """All calls of the operator of that name together; None where there are none."""
        found = [operator for operator in self.operators if operator.name == name]
        return merged(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """All fields, SI units."""
        return {"schema": 1, **asdict(self), "operators": [asdict(operator) for operator in self.operators]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OperatorTable:
        """There and back; raises KeyError and TypeError for what is no such table."""
        fields = {name: value for name, value in data.items() if name != "schema"}
        return cls(**{**fields, "operators": tuple(Operator(**row) for row in data["operators"])})


def summed(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """One of each name and input shapes, in the order of their first call: of several runs together."""
    groups: dict[tuple[str, str], list[Operator]] = {}
    for operator in operators:
        groups.setdefault((operator.name, operator.shapes), []).append(operator)
    return tuple(replace(merged(some), shapes=shapes) for (_, shapes), some in groups.items())


def merged(operators: Sequence[Operator]) -> Operator:
    """Operators of one name as one."""
    return Operator(operators[0].name, **{name: total(getattr(o, name) for o in operators) for name in SUMMED})


def is_operator(event: Event) -> bool:
    """Whether an event is work of the network: neither the profiler's own, nor a bare allocation, nor a GPU kernel."""
    if event.name in OVERHEAD or event.name.startswith(NOT_OPERATORS) or getattr(event, "is_async", False):
        return False
    if getattr(event, "activity_type", None) == "overhead":
        return False
    return str(getattr(event, "device_type", "DeviceType.CPU")).endswith("CPU")


def operators_of(events: Iterable[Event], *, by_shape: bool = False, device: bool = False) -> tuple[Operator, ...]:
    """The events by operator (and by input shapes, where asked for), in the order of their first call.

    Args:
        events: of one thread or several, nested by `cpu_parent`.
        by_shape: whether calls with other input shapes are another row.
        device: whether the events have times on a GPU.
    """

    def call(event: Event) -> Operator:
        outermost = not _inside_itself(event)  # else what calls it has its total
        return Operator(
            event.name,
            self_cpu_s=event.self_cpu_time_total * 1e-6,
            cpu_s=outermost * event.cpu_time_total * 1e-6,
            calls=1,
            self_memory_bytes=event.self_cpu_memory_usage,
            memory_bytes=outermost * event.cpu_memory_usage,
            self_device_s=getattr(event, "self_device_time_total", 0.0) * 1e-6 if device else None,
            device_s=outermost * getattr(event, "device_time_total", 0.0) * 1e-6 if device else None,
            shapes=str(getattr(event, "input_shapes", "")) if by_shape else "",
        )

    return summed([call(event) for event in events if is_operator(event)])


def _inside_itself(event: Event) -> bool:
    above = event.cpu_parent
    while above is not None:
        if above.name == event.name:
            return True
        above = above.cpu_parent
    return False
