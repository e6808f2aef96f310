"""How the batch size changes the most expensive operator, as numbers and as sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from neuralpower.errors import InputError
from neuralpower.report.number_format import quantity
from neuralpower.suites.lab.operators import OperatorTable

ALIKE = 0.05  # relative difference of times that still count as about the same


@dataclass(frozen=True)
class Entry:
    """The operator at one batch size; its total includes its calls."""

    batch_size: int
    calls: int
    total_s: float
    share: float  # of all self times
    images_per_s: float | None  # of the whole network, without profiler

    @property
    def average_s(self) -> float:
        """Time of one call."""
        return self.total_s / self.calls


COLUMNS: Mapping[str, Callable[[Entry], str]] = {
    "batch size": lambda entry: str(entry.batch_size),
    "calls": lambda entry: f"{entry.calls:,}",
    "time of a call": lambda entry: quantity(entry.average_s, "s"),
    "of all calls": lambda entry: quantity(entry.total_s, "s"),
    "share of self times": lambda entry: f"{entry.share:.1%}",
    "images/s": lambda entry: "-" if entry.images_per_s is None else f"{entry.images_per_s:,.0f}",
}
HEADER = tuple(COLUMNS)


@dataclass(frozen=True)
class Comparison:
    """One operator at rising batch sizes."""

    operator: str
    device: str
    entries: tuple[Entry, ...]
    chosen: bool = False  # chosen by name, not because it takes the most time

    def rows(self) -> list[list[str]]:
        """Cells under `HEADER`."""
        return [[cell(entry) for cell in COLUMNS.values()] for entry in self.entries]

    def sentences(self) -> tuple[str, ...]:
        """The numbers as sentences."""
        first, *others = self.entries
        whose = self.operator if self.chosen else f"{self.operator}, the most expensive operator,"
        text = (
            f"{whose} at batch {first.batch_size} on {self.device}: {first.calls:,} calls of "
            f"{quantity(first.average_s, 's')}, {quantity(first.total_s, 's')} in all."
        )
        return (text, self._growth(), self._totals()) if others else (text,)

    def _growth(self) -> str:
        """A sentence on the time of a call over its work."""
        steps = []
        for a, b in pairwise(self.entries):
            factor = b.batch_size / a.batch_size
            times = f"{factor:.0f}" if factor == round(factor) else f"{factor:.1f}"
            steps.append(f"x{_ratio(b.average_s, a.average_s):.1f} for {times} times")
        steps[0] += " the work"
        averages = " -> ".join(quantity(e.average_s, "s") for e in self.entries)
        return f"A call takes {', then '.join(steps)} ({averages})."

    def _totals(self) -> str:
        """A sentence on the time of all calls, and its meaning."""
        totals = " -> ".join(quantity(e.total_s, "s") for e in self.entries)
        changes = [_change(a.total_s, b.total_s) for a, b in pairwise(self.entries)]
        alike = len(set(changes)) == 1
        if "falls" in changes:
            meaning = "larger batches spread the fixed cost of a call over more images"
            meaning = meaning if alike else f"up to a point {meaning}"
        elif "rises" in changes:
            meaning = "larger batches do not help here"
        else:
            meaning = "the fixed cost of a call does not matter here"
        steps = [f"{c} to batch {e.batch_size}" for c, e in zip(changes, self.entries[1:], strict=True)]
        told = changes[0] if alike else ", then ".join(steps)
        return f"The time of all calls {told} ({totals}): {meaning}."


def compare(tables: Sequence[OperatorTable], operator: str | None = None) -> Comparison:
    """The operator at rising batch sizes; without a name, that with the largest total at the smallest batch.

    Times are the GPU's where the tables have them, the CPU's otherwise.

    Raises:
        InputError: no table, two of one batch size or of several devices, or one without the operator.
    """
    ordered = sorted(tables, key=lambda table: table.batch_size)
    if not ordered:
        raise InputError("no table of operators: one or more needed; run `neuralpower lab profile` first")
    for a, b in pairwise(ordered):
        if a.batch_size == b.batch_size:
            raise InputError(f"batch size {a.batch_size}: two tables; give one of each batch size")
    devices = sorted({table.device for table in ordered})
    if len(devices) > 1:
        raise InputError(f"tables of {' and '.join(devices)}: give tables of one device")
    on_gpu = any(o.device_s is not None for table in ordered for o in table.operators)
    name = operator or ordered[0].top(1, "device_s" if on_gpu else "cpu_s")[0].name
    entries = []
    for table in ordered:
        found = table.named(name)
        if found is None:
            raise InputError(
                f"{name}: not in the table of batch size {table.batch_size}; choose another operator"
            )
        speed = table.images / table.wall_s if table.images and table.wall_s else None
        total_s = (found.device_s or 0.0) if on_gpu else found.cpu_s
        whole_s = sum(o.self_device_s or 0.0 for o in table.operators) if on_gpu else table.self_total_s
        entries.append(
            Entry(table.batch_size, found.calls, total_s, total_s / whole_s if whole_s else 0.0, speed)
        )
    return Comparison(name, ordered[0].device, tuple(entries), chosen=operator is not None)


def _change(before: float, after: float) -> str:
    if abs(_ratio(after, before) - 1) < ALIKE:
        return "stays about the same"
    return "falls" if after < before else "rises"


def _ratio(after: float, before: float) -> float:
    return after / before if before else float("inf") if after else 1.0
