"""Rows of a profile: work, traffic, memory and time of each layer call, of each module, of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor

from neuralpower.prediction.rows import ranges
from neuralpower.profiling.steps import Runs, Spread
from neuralpower.trace.paths import pattern
from neuralpower.trace.records import Shapes

REMAINDER = "(between operators)"  # Python, dispatch and instrumentation during the timed runs
OVERHEAD = "(instrumentation)"  # by how much the timed runs took longer than the clean ones: negative
VIEW = "view"
WEIGHTS = "weights"  # a module that has parameters and calls no operator
T = TypeVar("T")


def multiply_adds(self: Any) -> float | None:
    """Multiply-adds: half the FLOP."""
    return None if self.flops is None else self.flops / 2


@dataclass(frozen=True)
class Row:
    """`count` equal calls of one layer in one phase, with the sums of their numbers; None where not known."""

    path: str
    kind: str
    operator: str
    phase: str
    count: int
    flops: int | None = 0  # by the profile's convention
    matmul_flops: int | None = 0
    elementwise_flops: int | None = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    runtime_s: float | None = None
    q25_s: float | None = None
    q75_s: float | None = None
    host_s: float | None = None  # on the CPU, where another device does the work
    share: float | None = None  # of the whole's time
    activation_bytes: int | None = None  # of returned tensors that take memory of their own
    peak_memory_bytes: int | None = None  # of all live tensors, also weights and inputs, during these calls
    parameters: int = 0
    trainable_parameters: int = 0
    bound: str | None = None  # compute or memory by the data sheet; launch: the host took longest
    share_of_peak: float | None = None
    type: str = ""  # class of the module
    dtype: str = ""
    inputs: Shapes = ()
    outputs: Shapes = ()
    config: Mapping[str, Any] = field(default_factory=dict)  # the layer's fields
    macs = property(multiply_adds)

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.runtime_s if self.flops and self.runtime_s and self.runtime_s > 0 else None

    @property
    def intensity(self) -> float | None:
        if self.flops is None or self.bytes_read is None or self.bytes_written is None:
            return None
        moved = self.bytes_read + self.bytes_written
        return self.flops / moved if moved else None

    @property
    def explains(self) -> bool:
        """Whether the row stands for work, not for the time between operators."""
        return self.path not in (REMAINDER, OVERHEAD)


@dataclass(frozen=True)
class ModuleRow:
    """A module with all that runs inside it; `self_s` leaves out what runs in modules below it."""

    path: str
    type: str
    depth: int
    count: int  # calls of its forward; 0: never called
    flops: int | None
    runtime_s: float | None
    self_s: float | None
    share: float | None
    parameters: int
    trainable_parameters: int
    bytes_read: int | None
    bytes_written: int | None
    activation_bytes: int | None
    peak_memory_bytes: int | None
    macs = property(multiply_adds)


def total(values: Iterable[float | int | None]) -> Any:
    """The sum of the known values; None where there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def most(values: Iterable[int | None]) -> int | None:
    """The largest known value; None where there is none."""
    return max((value for value in values if value is not None), default=None)


def sums(rows: Sequence[Any], *names: str) -> dict[str, Any]:
    return {name: total(getattr(row, name) for row in rows) for name in names}


def grouped(some: Iterable[T], key: Callable[[T], Any]) -> Iterable[list[T]]:
    """Lists of what shares a key, in the order of their first."""
    groups: dict[Any, list[T]] = {}
    for one in some:
        groups.setdefault(key(one), []).append(one)
    return groups.values()


def summed(rows: Sequence[Row], **named: Any) -> Row:
    """One row for several; what they do not share is left open."""
    first, known = rows[0], [row for row in rows if row.explains]
    fields = sums(rows, "matmul_flops", "elementwise_flops", "bytes_read", "bytes_written", "runtime_s")
    fields |= sums(rows, "host_s", "share", "activation_bytes", "count", "flops")
    fields |= sums(rows, "parameters", "trainable_parameters")
    words = dict.fromkeys(("path", "kind", "operator", "phase", "type", "dtype"), "")
    for name, otherwise in {**words, "inputs": (), "outputs": (), "config": {}}.items():
        shared = all(getattr(row, name) == getattr(first, name) for row in rows)
        fields[name] = getattr(first, name) if shared else otherwise
    if len(rows) > 1:
        fields |= {"q25_s": None, "q75_s": None, "share_of_peak": None}
    if len(known) == 1 and known[0].flops is None:
        fields["flops"] = None
    longest = max((row for row in rows if row.bound), key=lambda row: row.runtime_s or 0, default=None)
    fields["bound"] = longest and longest.bound
    fields["peak_memory_bytes"] = most(row.peak_memory_bytes for row in rows)
    return replace(first, **fields | named)


def merged(rows: Sequence[Row], key: Callable[[Row], Any]) -> list[Row]:
    """One row per value of `key`, in the order of their first."""
    return [summed(some) for some in grouped(rows, key)]


def folded(rows: Sequence[Row]) -> list[Row]:
    """Equal calls in repeated blocks as one row; its path has the blocks' numbers in brackets."""

    def key(row: Row) -> Any:
        about = (row.type, row.kind, row.operator, row.phase, row.inputs, row.outputs, row.count > 0)
        return pattern(row.path), *about, tuple(sorted(row.config.items()))

    return [summed(some, path=ranges([row.path for row in some])) for some in grouped(rows, key)]


def module_rows(
    rows: Sequence[Row], model_types: Mapping[str, str], calls: Mapping[str, int], depth: int | None
) -> list[ModuleRow]:
    """A row per module down to `depth` names, with all that runs inside; then what runs in no module."""
    inside: dict[str, list[Row]] = {path: [] for path in model_types}
    apart: dict[str, list[Row]] = {}
    for row in rows:
        if row.path not in model_types:
            apart.setdefault(row.path, []).append(row)
            continue
        parts = row.path.split(".") if row.path else []
        for end in range(len(parts) + 1):
            inside.setdefault(".".join(parts[:end]), []).append(row)
    made = []
    for path, some in inside.items():
        level = len(path.split(".")) if path else 0
        if depth is None or level <= depth:
            made.append(_of_module(path, model_types.get(path, ""), level, calls.get(path, 0), some))
    return made + [_of_module(path, "", 0, sum(r.count for r in some), some) for path, some in apart.items()]


def _of_module(path: str, type_: str, depth: int, count: int, rows: Sequence[Row]) -> ModuleRow:
    sums_of_rows = sums(rows, "runtime_s", "share", "bytes_read", "bytes_written", "activation_bytes")
    own_s = total(row.runtime_s for row in rows if row.path == path)
    return ModuleRow(
        path=path,
        type=type_,
        depth=depth,
        count=count,
        flops=total(row.flops for row in rows) if rows else 0,
        self_s=None if sums_of_rows["runtime_s"] is None else own_s or 0.0,
        parameters=sum(row.parameters for row in rows),
        trainable_parameters=sum(row.trainable_parameters for row in rows),
        peak_memory_bytes=most(row.peak_memory_bytes for row in rows),
        **sums_of_rows,
    )


# ---- The whole of a profile: the sums of its rows, and the times of clean runs ----


@dataclass(frozen=True)
class Total:
    runtime_s: float | None  # of clean runs, without instrumentation
    phases_s: Mapping[str, float]  # the same by phase
    spread: Spread | None
    flops: int | None
    matmul_flops: int | None
    elementwise_flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    peak_memory_bytes: int | None
    power_w: float | None = None
    energy_j: float | None = None
    macs = property(multiply_adds)

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.runtime_s if self.flops is not None and self.runtime_s else None


def whole(rows: Sequence[Row], runs: Runs | None, parameters: Sequence[Tensor], count: int) -> Total:
    """The total of all rows; `count`: of the trace's parameters."""
    clean = dict(runs.clean) if runs else {}
    spread = clean.pop("", None)
    peak = runs.peak_memory_bytes if runs else None
    names = ("flops", "matmul_flops", "elementwise_flops", "bytes_read", "bytes_written")
    work = sums(rows, *names) if rows else dict.fromkeys(names, 0)  # without operators a network does nothing
    return Total(
        runtime_s=spread.runtime_s if spread else None,
        phases_s={phase: times.mean_of(spread.middle) for phase, times in clean.items()} if spread else {},
        spread=spread,
        **work,
        parameters=count,
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        peak_memory_bytes=peak if peak is not None else most(row.peak_memory_bytes for row in rows),
        power_w=runs.window.power_w if runs else None,
        energy_j=runs.window.energy_j if runs else None,
    )
