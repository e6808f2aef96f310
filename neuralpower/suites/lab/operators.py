"""Which operators take a network's time: by torch.profiler's events, by printed tables, and compared.

Events are nested: `conv2d` contains `convolution`, which contains `_convolution`, which contains the kernel.
An operator's *self* time excludes its calls; only self times add up. Its *total* includes its calls, once,
even if it calls itself. Shares are of the sum of all self times. The profiler's own events are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from neuralpower.errors import DeviceError, InputError
from neuralpower.files.paths import check_regular
from neuralpower.profiling.rows import total
from neuralpower.profiling.steps import clock_of
from neuralpower.report.number_format import quantity
from neuralpower.suites.lab.training import Split, normalised, written
from neuralpower.suites.steps import elapsed_s

OVERHEAD = {
    *("Activity Buffer Request", "Buffer Flush", "Resource", "Lazy Function Loading", "Command Buffer Full"),
    *("Instrumentation", "Instrumentation Overhead", "Activity Buffer Flush"),
    "Runtime Triggered Module Loading",
}
NOT_OPERATORS = ("[memory]", "profiler::", "[pytorch|profiler", "ProfilerStep")
TOP = 10
SUMMED = ("self_cpu_s", "cpu_s", "calls", "self_memory_bytes", "memory_bytes", "self_device_s", "device_s")
WARM_UP = 3  # warm-up batches
TRACED = 10  # batches in a Chrome trace
AT_ONCE = 1000  # batches under one profiler, whose events are objects in memory

Event = Any  # as in torch.profiler; times in microseconds


@dataclass(frozen=True)
class Operator:
    """All calls of one operator; seconds and bytes."""

    name: str
    self_cpu_s: float
    cpu_s: float  # including its calls
    calls: int
    self_memory_bytes: int | None = None  # allocated less freed
    memory_bytes: int | None = None
    self_device_s: float | None = None  # on a GPU; None without one
    device_s: float | None = None
    shapes: str = ""  # of the inputs, if calls are grouped by them

    @property
    def average_s(self) -> float:
        """Time of one call, including its calls."""
        return self.cpu_s / self.calls


@dataclass(frozen=True)
class OperatorTable:
    """One run of the network over a set of images."""

    batch_size: int
    operators: tuple[Operator, ...]
    self_total_s: float  # self times of all operators, also of unlisted ones
    images: int | None = None
    device: str = "cpu"
    wall_s: float | None = None  # of the run without profiler

    def top(self, count: int = TOP, by: str = "cpu_s") -> tuple[Operator, ...]:
        """The most expensive ones by a field of `Operator`."""
        ranked = sorted(self.operators, key=lambda operator: -(getattr(operator, by) or 0))
        return tuple(ranked[:count])

    def share(self, seconds: float) -> float:
        """Part of the sum of all self times."""
        return seconds / self.self_total_s if self.self_total_s else 0.0

    def named(self, name: str) -> Operator | None:
        """All calls of the operator of that name together; None if there are none."""
        found = summed(replace(operator, shapes="") for operator in self.operators if operator.name == name)
        return found[0] if found else None


def summed(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Rows by name and input shapes, in the order of their first call, summed over several runs."""
    groups: dict[tuple[str, str], list[Operator]] = {}
    for operator in operators:
        groups.setdefault((operator.name, operator.shapes), []).append(operator)
    return tuple(
        Operator(name, shapes=shapes, **{field: total(getattr(o, field) for o in some) for field in SUMMED})
        for (name, shapes), some in groups.items()
    )


def is_operator(event: Event) -> bool:
    """Whether an event is an operator of the network: not the profiler's, an allocation or a GPU kernel."""
    if event.name in OVERHEAD or event.name.startswith(NOT_OPERATORS) or getattr(event, "is_async", False):
        return False
    on_host = str(getattr(event, "device_type", "DeviceType.CPU")).endswith("CPU")
    return on_host and getattr(event, "activity_type", None) != "overhead"


def operators_of(
    events: Iterable[Event], *, by_shape: bool = False, device: bool = False
) -> tuple[Operator, ...]:
    """The events by operator, in the order of their first call.

    Args:
        events: of one thread or several, nested by `cpu_parent`.
        by_shape: whether each combination of input shapes has its own row.
        device: whether the events have times on a GPU.
    """

    def call(event: Event) -> Operator:
        outermost = not _inside_itself(event)  # else its caller includes its total
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

    return summed(call(event) for event in events if is_operator(event))


def _inside_itself(event: Event) -> bool:
    above = event.cpu_parent
    while above is not None and above.name != event.name:
        above = above.cpu_parent
    return above is not None


@torch.inference_mode()
def profile_inference(
    model: nn.Module,
    test: Split,
    batch_size: int,
    *,
    images: int | None = None,
    device: torch.device,
    by_shape: bool = False,
    trace_file: Path | None = None,
) -> OperatorTable:
    """Operators of the network in eval mode over `images` test images (all by default), repeated if too few.

    The images are on the device beforehand. A Chrome trace contains only the first ten batches.

    Raises:
        InputError: a batch size or number of images below 1.
        DeviceError: not enough memory.
    """
    count = len(test) if images is None else images
    if batch_size < 1 or count < 1:
        raise InputError(f"batch size {batch_size}, {count} images: both must be 1 or more")
    model, on_gpu = model.to(device).eval(), device.type == "cuda"
    chosen = torch.arange(count) % len(test)
    profiling = partial(profiler, activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu])
    parts: list[Operator] = []
    try:
        batches = [normalised(test.images[some]).to(device) for some in torch.split(chosen, batch_size)]
        for batch in (batches * WARM_UP)[:WARM_UP]:
            model(batch)
        wall_s = _run(model, batches, device)
        for first in range(0, len(batches), AT_ONCE):
            with profiling(record_shapes=by_shape, profile_memory=True) as profiled:
                _run(model, batches[first : first + AT_ONCE], device)
            parts += operators_of(profiled.events() or (), by_shape=by_shape, device=on_gpu)
        if trace_file is not None:
            with profiling() as traced:
                _run(model, batches[:TRACED], device)
            written(trace_file, lambda aside: traced.export_chrome_trace(str(aside)))
    except torch.OutOfMemoryError:
        text = f"batch size {batch_size} on {device}: not enough memory; choose smaller --profile-batches"
        raise DeviceError(text) from None
    found = summed(parts)
    return OperatorTable(batch_size, found, sum(o.self_cpu_s for o in found), count, str(device), wall_s)


def _run(model: nn.Module, batches: list[Tensor], device: torch.device) -> float:
    """Seconds of one pass over the batches, to the end of the last."""
    return elapsed_s(lambda: [model(batch) for batch in batches], clock_of(device))


# ---- Read tables printed by torch's profiler, of torch 1.x (`Number of Calls`) and later (`# of Calls`) ----


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30}
TIME = (re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns)"), "time such as 99.194ms")
SIZE = (re.compile(r"(-?\d+(?:\.\d+)?)\s*([kmg]?b)", re.I), "size such as 126.75 KB")
SPELLINGS = {  # of the columns
    "Name": "name",
    "Self CPU total %": "share",
    "Self CPU %": "share",
    "Self CPU total": "self_cpu",
    "Self CPU": "self_cpu",
    "CPU total": "cpu",
    "Number of Calls": "calls",
    "# of Calls": "calls",
    "CPU Mem": "memory",
    "Self CPU Mem": "self_memory",
}
NEEDED = {"name", "share", "self_cpu", "cpu", "calls"}
BATCH = re.compile(r"batch[ _-]?size\s*[=:]?\s*(\d+)", re.I)
WHOLE = re.compile(r"self cpu time total:\s*(\S+)", re.I)
GAP = re.compile(r"\s{2,}")
RULE = re.compile(r"[\s-]*-{3,}[\s-]*")


def read_tables(path: Path) -> tuple[OperatorTable, ...]:
    """All tables of a text file, each after a line that names its batch size (`batch size = 16`).

    Raises:
        InputError: the file cannot be read, has no such table, or one is damaged.
    """
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"cannot be read ({error}); give a text file with tables of torch's profiler"
        raise InputError(f"{path}: {text}") from None
    return parse_tables(text, str(path))


def parse_tables(text: str, name: str = "text") -> tuple[OperatorTable, ...]:
    """The same from a text; messages use `name`."""
    tables: list[OperatorTable] = []
    batch_size: int | None = None
    columns: dict[str, int] = {}
    rows: list[tuple[Operator, float]] = []
    whole_s: float | None = None

    def close() -> None:
        nonlocal rows, whole_s
        if rows:
            if batch_size is None:
                raise InputError(
                    f"{name}: a table without its batch size; write a line 'batch size = N' above it"
                )
            tables.append(_table(batch_size, rows, whole_s))
        rows, whole_s = [], None

    for number, line in enumerate(text.splitlines(), 1):
        cells, place = GAP.split(line.strip()), f"{name}:{number}"
        if header := _columns(cells):
            close()
            columns = header
        elif found := WHOLE.search(line):
            whole_s, columns = _amount(found.group(1), TIME, place), {}
        elif found := BATCH.search(line):
            close()
            batch_size, columns = int(found.group(1)), {}
        elif columns and not RULE.fullmatch(line):
            if len(cells) <= max(columns.values()):
                columns = {}  # an empty line, or a sentence below the table
            else:
                rows.append(_row({column: cells[i] for column, i in columns.items()}, place))
    close()
    if not tables:
        columns_needed = "Name, Self CPU, CPU total and # of Calls"
        raise InputError(f"{name}: not a table of torch's profiler; its header has {columns_needed}")
    return tuple(tables)


def _columns(cells: Sequence[str]) -> dict[str, int]:
    """Positions of the columns in a header; {} for another line."""
    found = {SPELLINGS[cell]: i for i, cell in reversed([*enumerate(cells)]) if cell in SPELLINGS}
    return found if found.keys() >= NEEDED else {}


def _row(texts: dict[str, str], place: str) -> tuple[Operator, float]:
    """An operator, and its share of all self times."""
    calls, share = texts["calls"], texts["share"]
    if not calls.isdigit() or not int(calls):
        raise InputError(f"{place}: {calls!r} calls; must be a positive whole number")
    if not re.fullmatch(r"\d+(\.\d+)?%", share):
        raise InputError(f"{place}: {share!r} is not a share such as 1.27%")
    self_s, all_s = (_amount(texts[column], TIME, place) for column in ("self_cpu", "cpu"))
    own, whole = (
        round(_amount(texts[column], SIZE, place)) if column in texts else None
        for column in ("self_memory", "memory")
    )
    return Operator(texts["name"], self_s, all_s, int(calls), own, whole), float(share[:-1]) / 100


def _table(batch_size: int, rows: Sequence[tuple[Operator, float]], whole_s: float | None) -> OperatorTable:
    """If torch did not print the total, it follows from the row whose share has the most digits."""
    operator, share = max(rows, key=lambda row: row[1])
    whole = whole_s if whole_s is not None else operator.self_cpu_s / share if share else 0.0
    return OperatorTable(batch_size, tuple(o for o, _ in rows), whole)


def _amount(text: str, sort: tuple[re.Pattern[str], str], place: str) -> float:
    """Seconds of a TIME, bytes of a SIZE."""
    pattern, what = sort
    found = pattern.fullmatch(text)
    if not found:
        raise InputError(f"{place}: {text!r} is no {what}")
    return float(found.group(1)) * UNITS[found.group(2).lower()]


# ---- How the batch size changes the most expensive operator ----


@dataclass(frozen=True)
class Entry:
    """The operator at one batch size; its total includes its calls."""

    batch_size: int
    calls: int
    total_s: float
    share: float  # of all self times
    images_per_s: float | None  # of the whole network, without profiler
    growth: float | None = None  # times of a call, in that of the batch size before

    @property
    def average_s(self) -> float:
        return self.total_s / self.calls


COLUMNS: Mapping[str, Callable[[Entry], str]] = {
    "batch size": lambda entry: str(entry.batch_size),
    "calls": lambda entry: f"{entry.calls:,}",
    "time of a call": lambda entry: quantity(entry.average_s, "s"),
    "to the one before": lambda entry: "-" if entry.growth is None else f"x{entry.growth:.1f}",
    "of all calls": lambda entry: quantity(entry.total_s, "s"),
    "share of self times": lambda entry: f"{entry.share:.1%}",
    "images/s": lambda entry: "-" if entry.images_per_s is None else f"{entry.images_per_s:,.0f}",
}


@dataclass(frozen=True)
class Comparison:
    """One operator at rising batch sizes."""

    operator: str
    device: str
    entries: tuple[Entry, ...]

    def rows(self) -> list[list[str]]:
        return [[cell(entry) for cell in COLUMNS.values()] for entry in self.entries]


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
    entries: list[Entry] = []
    for table in ordered:
        row = table.named(name)
        if row is None:
            raise InputError(
                f"{name}: not in the table of batch size {table.batch_size}; choose another operator"
            )
        speed = table.images / table.wall_s if table.images and table.wall_s else None
        total_s = (row.device_s or 0.0) if on_gpu else row.cpu_s
        whole_s = sum(o.self_device_s or 0.0 for o in table.operators) if on_gpu else table.self_total_s
        entry = Entry(table.batch_size, row.calls, total_s, total_s / whole_s if whole_s else 0.0, speed)
        before_s = entries[-1].average_s if entries else 0.0
        entries.append(replace(entry, growth=entry.average_s / before_s if before_s else None))
    return Comparison(name, ordered[0].device, tuple(entries))
