"""Which operators take a network's time, from the events of torch.profiler.

Events are nested: `conv2d` contains `convolution`, that `_convolution`, that the library's kernel. An operator's *self*
time is its own without what it calls, and only self times add up; its *total* contains what it calls, once, also where
it calls itself. Shares are of the sum of all self times. What the profiler does for itself is no operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

OVERHEAD = frozenset(
    (
        *("Activity Buffer Request", "Buffer Flush", "Resource", "Lazy Function Loading", "Command Buffer Full"),
        *("Instrumentation", "Instrumentation Overhead", "Activity Buffer Flush", "Runtime Triggered Module Loading"),
    )
)
NOT_OPERATORS = ("[memory]", "profiler::", "[pytorch|profiler", "ProfilerStep")
TOP = 10


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

    def total(name: str) -> Any:
        values = [getattr(o, name) for o in operators if getattr(o, name) is not None]
        return sum(values) if values else None

    return Operator(
        operators[0].name,
        total("self_cpu_s"),
        total("cpu_s"),
        total("calls"),
        total("self_memory_bytes"),
        total("memory_bytes"),
        total("self_device_s"),
        total("device_s"),
    )


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
    found: dict[tuple[str, str], list[Any]] = {}
    for event in events:
        if not is_operator(event):
            continue
        shapes = str(getattr(event, "input_shapes", "")) if by_shape else ""
        sums = found.setdefault((event.name, shapes), [0.0, 0.0, 0, 0, 0, 0.0, 0.0])
        outermost = not _inside_itself(event)
        sums[0] += event.self_cpu_time_total
        sums[2] += 1
        sums[3] += event.self_cpu_memory_usage
        sums[5] += getattr(event, "self_device_time_total", 0.0)
        if outermost:
            sums[1] += event.cpu_time_total
            sums[4] += event.cpu_memory_usage
            sums[6] += getattr(event, "device_time_total", 0.0)
    return tuple(
        Operator(
            name,
            self_cpu_s=own * 1e-6,
            cpu_s=whole * 1e-6,
            calls=calls,
            self_memory_bytes=int(own_bytes),
            memory_bytes=int(whole_bytes),
            self_device_s=own_device * 1e-6 if device else None,
            device_s=whole_device * 1e-6 if device else None,
            shapes=shapes,
        )
        for (name, shapes), (own, whole, calls, own_bytes, whole_bytes, own_device, whole_device) in found.items()
    )


def _inside_itself(event: Event) -> bool:
    above = event.cpu_parent
    while above is not None:
        if above.name == event.name:
            return True
        above = above.cpu_parent
    return False
