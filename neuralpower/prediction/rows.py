"""The rows of a prediction: equal calls together, with their times, powers and shares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from neuralpower.files.json_files import Declared
from neuralpower.layers import Layer
from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import BASES

BOUNDS = ("value", "low", "high")  # of an interval


@dataclass(frozen=True)
class Interval(Declared):
    """A value with its 90 % bounds."""

    in_json = "value low high"

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def rate(self, count: float) -> Interval:
        """How many are done in a second, where `count` of them take these seconds together."""
        return Interval(count / self.value, count / self.high, count / self.low)


class Column(NamedTuple):
    """A column of rows, such as a prediction's: one entry is part of every table, file and JSON object."""

    name: str  # in CSV and JSON, in the order of COLUMNS
    header: str = ""  # in tables for readers; "": not there
    unit: str = ""  # s, W, J, FLOP or another; %: a share; "": as it is
    seat: float = 0  # its place from the left in tables for readers
    of: Callable[[Any], Any] | None = None  # its value; None: the attribute of its name

    def value(self, row: Any) -> Any:
        """Its value of a row, in SI units."""
        return getattr(row, self.name) if self.of is None else self.of(row)


COLUMNS = (
    Column("path"),
    Column("kind"),
    Column("count", "calls", "", 1),
    Column("runtime_s", "latency", "s", 2),
    Column("low_s"),
    Column("high_s"),
    Column("flops", "FLOP", "FLOP", 6),
    Column("bytes"),
    Column("bound", "bound", "", 7),
    Column("share", "share", "%", 3),
    Column("basis", "basis", "", 8),
    Column("power_w", "power", "W", 4, lambda row: row.power_w and row.power_w.value),
    Column("energy_j", "energy", "J", 5),
    Column("step"),
)
SUMMED = ("count", "runtime_s", "low_s", "high_s", "flops", "bytes", "share")  # of rows that are merged


@dataclass(frozen=True)
class Row:
    """`count` equal calls together; `path` names their modules, ranges of repeated blocks in brackets.

    Times are the device's: what the host's launches add is `Prediction.launch_row`.
    """

    path: str
    kind: str
    count: int
    runtime_s: float
    low_s: float
    high_s: float
    flops: int
    bytes: int
    bound: str  # compute or memory: the side of the roofline that the calls lie on
    basis: str
    share: float = 0.0  # of the whole
    power_w: Interval | None = None
    power_trained: bool = False  # whether a regressor says the power, or it is carried from others
    step: str = FORWARD  # of a training step: forward, backward or optimizer
    layer: Layer | None = None  # None of what is not modelled, and of different ones together
    parts: tuple[str, ...] = ()  # names of the calls that a trace pass joined to this one, in order
    paths: tuple[str, ...] = field(default=(), repr=False)  # of each of its calls, which `path` sums up

    @property
    def energy_j(self) -> float | None:
        return None if self.power_w is None else self.power_w.value * self.runtime_s

    def cells(self) -> dict[str, Any]:
        """Its numbers and words by COLUMNS; of power the value alone."""
        return {column.name: column.value(self) for column in COLUMNS}

    def to_json(self) -> dict[str, object]:
        """As a JSON object, which calls the step a phase."""
        cells = self.cells()
        return {"phase": cells.pop("step"), **cells, "parts": list(self.parts)}


@dataclass(frozen=True)
class Unmodelled(Declared):
    """Calls that no regressor describes: their share is a roofline estimate."""

    in_json = "operator reason count runtime_s share"

    operator: str
    reason: str
    count: int
    runtime_s: float
    share: float


def with_shares(rows: Sequence[Row], whole: Interval) -> tuple[Row, ...]:
    """The rows, each with its share of the whole, and none with a bound above that of the whole."""
    shared = (replace(row, share=row.runtime_s / max(whole.value, 1e-12)) for row in rows)
    return tuple(within(shared, whole))


def within(rows: Iterable[Row], whole: Interval) -> list[Row]:
    """The rows with bounds that are at most those of the whole: no part takes longer than all."""
    low, high = whole.low, whole.high
    return [
        replace(row, low_s=min(row.low_s, low), high_s=max(min(row.high_s, high), row.runtime_s))
        for row in rows
    ]


def ranges(paths: Sequence[str]) -> str:
    """Equal paths as themselves, paths that differ in numbered blocks with their numbers in brackets."""
    if len(set(paths)) == 1:
        return paths[0]
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(names[0] if len(set(names)) == 1 else f"[{_runs(names)}]" for names in columns)


def _runs(names: Sequence[str]) -> str:
    numbers = sorted({int(name) for name in names})
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def merged(rows: Sequence[Row], key: Callable[[Row], tuple[str, str]]) -> list[Row]:
    """One row for each path and kind that `key` gives, as they first run; a kind of "" stands for all."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [
        Row(
            path,
            kind or ", ".join(sorted({r.kind for r in some})),
            bound=max(some, key=lambda r: r.runtime_s).bound,
            basis=_basis_of(some),
            power_w=_mean_power(some),
            power_trained=all(r.power_trained for r in some),
            **_sums(some),
        )
        for (path, kind), some in groups.items()
    ]


def _basis_of(rows: Sequence[Row]) -> str:
    """How most of the rows' time is known, and the worst known part where that is another."""
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row.basis] = seconds.get(row.basis, 0.0) + row.runtime_s
    most, worst = max(seconds, key=lambda basis: seconds[basis]), max(seconds, key=BASES.index)
    return most if worst == most else f"{most}; worst: {worst}"


def _sums(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: sum(getattr(row, name) for row in rows) for name in SUMMED}


def _mean_power(rows: Sequence[Row]) -> Interval | None:
    """Over the rows' time; None where one of them is not known."""
    known = [(row.power_w, row.runtime_s) for row in rows if row.power_w is not None]
    total = sum(seconds for _, seconds in known)
    if len(known) < len(rows) or total <= 0:
        return None
    return Interval(*(sum(getattr(p, bound) * s for p, s in known) / total for bound in BOUNDS))
