"""A profile: views of its rows, tables, files, and its own check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError, unknown, writing
from neuralpower.files import markdown
from neuralpower.files.atomic import aside
from neuralpower.files.csv_files import csv_text
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import styled, visible
from neuralpower.profiling.conventions import UNITS
from neuralpower.profiling.rows import (
    OVERHEAD,
    REMAINDER,
    VIEW,
    WEIGHTS,
    ModuleRow,
    Row,
    Total,
    folded,
    merged,
    module_rows,
    sums,
    total,
)
from neuralpower.profiling.steps import Runs, process
from neuralpower.report.grid import as_asked, grid, head_lines, percent, with_bar
from neuralpower.report.number_format import binary, many, quantity, share
from neuralpower.report.perfetto import Process, document, write
from neuralpower.report.shown import Figure, Line, Panel, drawn

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
VIEWS = ("layer", "module", "kind", "operator")
SORTS = ("runtime_s", "flops", "bytes", "parameters", "memory", "calls", "order")
ENDS = (REMAINDER, OVERHEAD)
TOP = 15  # rows that `print` shows
NOISY = 0.25  # of the median: from here on quartiles of runs this far apart are a busy machine's
WITHIN = 0.1  # share of the whole that rows may leave unexplained
COLUMNS = """
    path type kind operator phase count dtype runtime_s q25_s q75_s host_s share
    matmul_flops elementwise_flops bytes_read bytes_written intensity flops_per_s share_of_peak
    bound activation_bytes peak_memory_bytes parameters trainable_parameters inputs outputs config
""".split()
# Keys of a profile's JSON that are names of its total's fields.
WORK = "flops macs matmul_flops elementwise_flops bytes_read bytes_written flops_per_s".split()
SIZES = "parameters trainable_parameters parameter_bytes peak_memory_bytes power_w energy_j".split()


@dataclass(frozen=True)
class Unmodelled:
    operator: str
    reason: str
    count: int
    runtime_s: float | None
    share: float | None


@dataclass(frozen=True)
class Check:
    """Whether a profile is sound; `problems` is empty when it is."""

    problems: tuple[str, ...]
    shares: float | None  # sum over all rows, also remainder and overhead: 1
    remainder: float | None  # share of the timed runs that neither a layer's row nor instrumentation explains
    flops: int  # products of the forward pass, without recurrent layers
    flop_counter: int | None  # the same by torch.utils.flop_counter; None where it cannot run

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, repr=False)
class NetworkProfile:
    """One network on one device; times in seconds, FLOP by `convention`, 1 multiply-add = 2 FLOP.

    `print` gives the table of `neuralpower profile`.
    """

    model: str
    device: str
    dtype: str
    phase: str
    convention: str
    flop_unit: str
    total: Total
    rows: tuple[Row, ...]
    unmodelled: tuple[Unmodelled, ...]
    types: Mapping[str, str]  # class of every module by path
    calls: Mapping[str, int]  # calls of every module's forward by path
    environment: Mapping[str, Any]
    input_shape: tuple[int, ...] = ()  # of the first tensor that it is called with, batch first
    notes: tuple[str, ...] = ()
    power_reason: str = ""  # why there is no power
    runs: Runs | None = field(default=None, repr=False)
    recount: Callable[[], tuple[int, int | None]] | None = field(default=None, repr=False, compare=False)

    # ---- views ----

    def by_layer(self) -> list[Row]:
        """Equal calls in repeated blocks folded, in the order in which they first run."""
        return folded(self.rows)

    def by_kind(self) -> list[Row]:
        """One row per kind (and phase), the slowest first."""
        return _ranked(merged(self.rows, lambda row: (row.kind, row.phase)))

    def by_operator(self) -> list[Row]:
        """One row per operator (and phase), the slowest first."""
        return _ranked(merged(self.rows, lambda row: (row.operator or row.kind, row.phase)))

    def by_module(self, depth: int | None = None) -> list[ModuleRow]:
        """One row per module down to `depth` names, with all that runs inside; "" is the model itself."""
        order = {path: number for number, path in enumerate(self.types)}
        rows = module_rows(self.rows, self.types, self.calls, depth)
        return sorted(rows, key=lambda row: order.get(row.path, len(order)))

    @property
    def coverage(self) -> float:
        """Share of the operators' time (of the calls, where nothing was timed) whose work is counted."""
        rows = [row for row in self.rows if row.explains and row.count]
        weight = "runtime_s" if self.runs else "count"
        everything = sums(rows, weight)[weight] or 0
        known = sums([row for row in rows if row.flops is not None], weight)[weight] or 0
        return float(known / everything) if everything else 1.0

    @property
    def overhead_s(self) -> float | None:
        row = next((row for row in self.rows if row.path == OVERHEAD), None)
        return None if row is None or row.runtime_s is None else -row.runtime_s

    # ---- check ----

    def check(self) -> Check:
        """Whether rows add up to the whole, and FLOP agree with PyTorch's own counter on meta tensors."""
        problems = []
        shares = remainder = None
        if self.runs is not None:
            shares = float(total(row.share for row in self.rows) or 0.0)
            timed = self.runs.timed.runtime_s
            unexplained = timed - float(total(row.runtime_s for row in self.rows if row.explains) or 0.0)
            remainder = (unexplained - max(self.runs.instrumentation_s, 0.0)) / timed
            if abs(shares - 1) > 1e-6:
                problems.append(f"the rows' shares add up to {shares:.4f}, not to 1")
            if remainder > WITHIN:
                text = f"layers explain {1 - remainder:.1%} of the measured time"
                problems.append(f"{text}; {1 - WITHIN:.0%} is expected")
        counted, held = sum(row.parameters for row in self.rows), self.total.parameters
        if counted != held:
            problems.append(f"the rows' parameters add up to {counted}, the model has {held}")
        flops, counter = self.recount() if self.recount else (0, None)
        if counter is not None and flops != counter:
            problems.append(f"products take {flops} FLOP, PyTorch's counter gives {counter}")
        return Check(tuple(problems), shares, remainder, flops, counter)

    # ---- tables and files ----

    @property
    def unit(self) -> str:
        return self.flop_unit.upper()

    def work(self, flops: int | None) -> float | None:
        if flops is None:
            return None
        whole, rest = divmod(flops, UNITS[self.flop_unit])
        return whole if not rest else flops / UNITS[self.flop_unit]

    def view(self, by: str = "layer", depth: int | None = None) -> Sequence[Row | ModuleRow]:
        """The rows of a view; raises InputError for an unknown one."""
        if by not in VIEWS:
            raise unknown("view", by, VIEWS)
        if by == "module":
            return self.by_module(depth)
        return {"layer": self.by_layer, "kind": self.by_kind, "operator": self.by_operator}[by]()

    def table(
        self,
        sort: str = "runtime_s",
        top: int | None = None,
        *,
        by: str = "layer",
        depth: int | None = None,
        marked: bool = False,
    ) -> str:
        """A narrow table: the total, `top` rows of a view, what is left, what is not counted.

        `marked` with styles for `cli.output.say`.
        """
        header, cells = _cells(self, sort, top, by, depth, with_bar)
        about, *totals = self.headline().splitlines()
        head = [
            *head_lines(self.warnings, ()),
            about,
            *(styled(line, "bold") for line in totals[:1]),
            *totals[1:],
        ]
        return as_asked([*head, "", grid(header, cells, left=2), *map(visible, _foot(self))], marked)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings: why its times are less certain than they look."""
        if self.total.spread is None:
            return ()
        low, middle, high = map(self.total.spread.quantile, (0.25, 0.5, 0.75))
        apart = (high - low) / middle if middle else 0.0
        if apart <= NOISY:
            return ()
        return (
            f"this machine is busy: half of the runs lie {apart:.0%} apart. Fix: stop other work and repeat",
        )

    def to_markdown(
        self, sort: str = "runtime_s", top: int | None = None, *, by: str = "layer", depth: int | None = None
    ) -> str:
        header, cells = _cells(self, sort, top, by, depth)
        lines = markdown.table(header, cells, [i > 1 for i in range(len(header))])
        head = "  \n".join(map(markdown.inline, self.headline().splitlines()))
        return "\n".join([head, "", *lines, "", *map(markdown.inline, _foot(self))])

    def headline(self) -> str:
        t = self.total
        taken = "not timed"
        if t.runtime_s is not None and t.spread is not None:
            time, low, high = (quantity(s, "s") for s in (t.runtime_s, *map(t.spread.quantile, (0.25, 0.75))))
            taken = f"{time} (quartiles {low} to {high}, {len(t.spread.samples_s)} runs)"
            if len(t.phases_s) > 1:
                taken += " = " + " + ".join(f"{name} {quantity(v, 's')}" for name, v in t.phases_s.items())
        memory = "" if t.peak_memory_bytes is None else f", peak memory {binary(t.peak_memory_bytes)}"
        power = "" if t.power_w is None else f", {quantity(t.power_w, 'W')}"
        batch, *sample = self.input_shape or ("-",)
        sizes = f"batch {batch}" + (f" of {'x'.join(map(str, sample))}" if sample else "")
        about = f"{visible(self.model)}, {sizes}, {self.dtype}, {self.phase}, on {visible(self.device)}"
        work = f"{_quantity(self, t.flops)} ({self.convention}), {many(t.parameters, 'parameters')}"
        return f"{about}\nlatency {taken}{power}\n{work}{memory}, coverage {share(self.coverage)}"

    def __str__(self) -> str:
        return self.table(top=TOP)

    def __repr__(self) -> str:
        """One line: the network, the device and the time."""
        about = f"{visible(self.model)}, {self.dtype}, {self.phase}, on {visible(self.device)}"
        return f"NetworkProfile({about}: {_time(self.total.runtime_s)})"

    def _repr_html_(self) -> str:
        """A panel for notebooks: the kinds with their shares; no scripts."""
        t = self.total
        peak = binary(t.peak_memory_bytes)
        figures: tuple[Figure, ...] = (
            Figure("time", _time(t.runtime_s)),
            Figure("work", _quantity(self, t.flops)),
        )
        lines = [
            Line(
                row.kind,
                None if row.share is None else min(max(row.share, 0.0), 1.0),
                (
                    str(row.count),
                    quantity(row.runtime_s, "s"),
                    percent(row.share),
                    _quantity(self, row.flops),
                ),
            )
            for row in self.by_kind()
            if not _idle(row)
        ]
        header = ("kind", "", "calls", "time", "share", self.unit)
        about = f"{self.dtype}, {self.phase}, on {self.device}"
        figures = (*figures, Figure("peak memory", peak))
        return drawn(Panel(self.model, about, figures, header, tuple(lines), self.notes, self.warnings))

    def __getstate__(self) -> dict[str, Any]:
        """The state for a pickle: all but the function that counts again, which needs the network."""
        return {**vars(self), "recount": None}

    def records(self, by: str = "layer", depth: int | None = None) -> list[dict[str, Any]]:
        """The rows of a view as mappings, in SI units; the work is under `flops` or `macs`."""
        rows = []
        for row in self.view(by, depth):
            names = COLUMNS if isinstance(row, Row) else [f.name for f in dataclasses.fields(row)]
            record = {name: getattr(row, name) for name in names if name != "flops"}
            if isinstance(row, Row):
                record["config"] = dict(row.config)
            rows.append(record | {f"{self.flop_unit}s": self.work(row.flops)})
        return rows

    def to_pandas(self, by: str = "layer", depth: int | None = None) -> pd.DataFrame:
        """The rows of a view as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.records(by, depth))

    def to_csv(self, path: str | Path | None = None, *, by: str = "layer", depth: int | None = None) -> str:
        """The rows of a view as CSV, also written to a given `path`; raises InputError where it cannot be."""
        records = self.records(by, depth)
        rows = [[json_text(v) if isinstance(v, (tuple, dict)) else v for v in r.values()] for r in records]
        return written(csv_text([[*records[0]] if records else [], *rows]), path)

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Everything, under a schema version; also written to a given `path`."""
        t = self.total
        data = {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device,
            "input_shape": list(self.input_shape),
            **{name: getattr(self, name) for name in ("dtype", "phase", "convention", "flop_unit")},
            "runtime_s": t.runtime_s,
            "phases_s": dict(t.phases_s),
            "spread": t.spread.to_json() if t.spread else None,
            "overhead_s": self.overhead_s,
            **{name: getattr(t, name) for name in (*WORK, *SIZES)},
            "power_reason": self.power_reason or None,
            "coverage": self.coverage,
            "unmodelled": [dataclasses.asdict(u) for u in self.unmodelled],
            "environment": dict(self.environment),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "layers": self.records(),
            "modules": self.records("module"),
        }
        if path is not None:
            written(json_text(data, indent=1), path)
        return data

    def to_chrome_trace(self, path: str | Path | None = None) -> dict[str, Any]:
        """The timed run of median time for Perfetto: modules and operators on the host, and memory.

        Times are microseconds (the format's unit) and include the instrumentation's cost. Raises InputError:
        nothing was timed, or the file cannot be written.
        """
        data = document([self.timeline()])
        if path is not None:
            write(path, data)
        return data

    def timeline(self) -> Process:
        """The same as rows and counters, to be combined with others; raises InputError."""
        if self.runs is None or not self.runs.repeats:
            raise InputError("there is no timed run to draw; profile with runtime=True")
        return process(self.model, self.device, self.runs)


def _idle(row: Row | ModuleRow) -> bool:
    """Whether a row would be blank in a table, such as a view's that was not timed."""
    return isinstance(row, Row) and row.kind in (VIEW, WEIGHTS) and not row.runtime_s and not row.parameters


def _moved(row: Row | ModuleRow | Total) -> int | None:
    return None if row.bytes_read is None else row.bytes_read + (row.bytes_written or 0)


def _place(row: Row | ModuleRow, sort: str) -> tuple[bool, float]:
    """The largest first, and the remainder last."""
    if row.path in ENDS or sort == "order":
        return row.path in ENDS, 0
    names = {"memory": "activation_bytes", "calls": "count"}
    return False, -((_moved(row) if sort == "bytes" else getattr(row, names.get(sort, sort))) or 0)


def _count(value: int) -> str:
    return quantity(value, "").strip() if value else ""


def _time(seconds: float | None) -> str:
    return "not timed" if seconds is None else quantity(seconds, "s")


def _bytes(value: int | None) -> str:
    return "" if value == 0 else quantity(value, "B")


def _size(value: int | None) -> str:
    return "" if value == 0 else binary(value)


def _share(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)


def written(text: str, path: str | Path | None) -> str:
    """The text, also written to a given `path`; raises InputError where it cannot be."""
    if path is not None:
        with writing(path, "file"), aside(Path(path)) as new:
            new.write_text(text, encoding="utf-8")
    return text


def _ranked(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (not row.explains, -(row.runtime_s or 0), -(row.flops or 0)))


def _foot(profile: NetworkProfile) -> list[str]:
    shares = ["" if u.share is None else f", {u.share:.1%}" for u in profile.unmodelled]
    listed = zip(profile.unmodelled, shares, strict=True)
    foot = [f"unmodelled: {u.operator} x{u.count}{share} ({u.reason})" for u, share in listed]
    foot += [f"Note: no power: {profile.power_reason}"] if profile.power_reason else []
    return foot + [f"Note: {note}" for note in profile.notes]


def _quantity(profile: NetworkProfile, flops: int | None) -> str:
    return quantity(None if flops is None else flops / UNITS[profile.flop_unit], profile.unit)


def _cells(
    profile: NetworkProfile,
    sort: str,
    top: int | None,
    by: str,
    depth: int | None,
    shown: Callable[[float], str] = percent,
) -> tuple[list[str], list[list[str]]]:
    if sort not in SORTS:
        raise unknown("order", sort, SORTS)
    if sort == "runtime_s" and profile.runs is None:
        sort = "flops"
    rows = [row for row in profile.view(by, depth) if not _idle(row)]
    if by != "module" or sort != "order":
        rows.sort(key=lambda row: _place(row, sort))
    if by == "module":
        header = [
            "module",
            "type",
            "calls",
            "total",
            "self",
            "share",
            profile.unit,
            "parameters",
            "memory",
        ]
        modules = [row for row in rows if isinstance(row, ModuleRow)]
        cells = [_module_cells(profile, row, sort == "order", shown) for row in modules]
    else:
        header = [by, "kind" if by == "layer" else "phase", "calls", "time", "share", profile.unit]
        header += ["bytes", "parameters", "memory", "bound"]
        cells = [_row_cells(profile, row, by, shown) for row in rows if isinstance(row, Row)]
    end = len(rows) - sum(row.path in ENDS for row in rows)
    if top and end > top:
        hidden = rows[top:end]
        rest = [f"({len(hidden)} more)", "", str(sum(row.count for row in hidden))]
        if by != "module":  # modules contain each other
            left = sums(hidden, "runtime_s", "share")
            rest += [quantity(left["runtime_s"], "s"), _share(left["share"], shown)]
        cells[top:end] = [[*rest, *[""] * (len(header) - len(rest))]]
    if by != "module":
        t = profile.total
        times = [quantity(t.runtime_s, "s"), _share(None if t.runtime_s is None else 1.0, shown)]
        work = [_quantity(profile, t.flops), _bytes(_moved(t)), quantity(t.parameters, "").strip()]
        cells.append(["total", "", "", *times, *work, _size(t.peak_memory_bytes), ""])
    return header, cells


def _row_cells(profile: NetworkProfile, row: Row, by: str, shown: Callable[[float], str]) -> list[str]:
    name = {"layer": row.path or "(model)", "kind": row.kind, "operator": row.operator or row.kind}[by]
    second = row.phase
    if by == "layer":
        second = row.kind if row.phase in ("forward", "", row.kind) else f"{row.kind} {row.phase}"
    times = [quantity(row.runtime_s, "s"), _share(row.share, shown)]
    sizes = [_count(row.parameters), _size(row.activation_bytes), row.bound or ""]
    if not row.explains:
        return [row.path, "", "", *times, "", "", *sizes]
    return [name, second, str(row.count), *times, _quantity(profile, row.flops), _bytes(_moved(row)), *sizes]


def _module_cells(
    profile: NetworkProfile, row: ModuleRow, indented: bool, shown: Callable[[float], str]
) -> list[str]:
    apart = row.path.startswith("(")
    name = row.path or "(model)"
    if indented and row.path and not apart:
        name = "  " * row.depth + row.path.rpartition(".")[2]
    count, work = ("", "") if apart else (str(row.count), _quantity(profile, row.flops))
    times = [quantity(row.runtime_s, "s"), quantity(row.self_s, "s"), _share(row.share, shown)]
    return [name, row.type, count, *times, work, _count(row.parameters), _size(row.activation_bytes)]
