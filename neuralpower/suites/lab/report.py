"""The lab's report, from what its folder holds: environment, network, curves, operators, comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from neuralpower.errors import InputError
from neuralpower.networks.zoo.mnist import MnistCnn
from neuralpower.profiling import profile
from neuralpower.report.charts import XY, Bars, BarSeries, Chart, Series
from neuralpower.report.page import Page, Part, Picture, Section, Table, write_html, write_markdown
from neuralpower.suites.lab import comparison, environment
from neuralpower.suites.lab.folder import Folder
from neuralpower.suites.lab.operators import TOP, Operator, OperatorTable
from neuralpower.suites.lab.training import Point

TITLE = "A network that reads digits: training, and where its time goes"
TOP_HEADER = (
    *("Name", "Self CPU total %", "Self CPU total (ms)", "CPU total %", "CPU total (ms)"),
    *("CPU time avg (us)", "Number of Calls"),
)
MEMORY_HEADER = ("Self CPU mem (MB)", "CPU mem (MB)")
DEVICE_HEADER = ("Self CUDA total (ms)", "CUDA total (ms)")


def write_report(folder: Folder) -> tuple[Path, ...]:
    """`report.md` with its figures and `report.html`; the paths. Raises InputError where there is nothing to tell."""
    page = report(folder)
    markdown, html = folder.path / "report.md", folder.path / "report.html"
    write_markdown(page, markdown, folder.path / "figures")
    write_html(page, html)
    return markdown, html


def report(folder: Folder) -> Page:
    """The page; parts that were not done are said to be missing."""
    points, tables, machine, settings = folder.points(), folder.tables(), folder.environment(), folder.settings()
    if machine is None or not (points or tables):
        raise InputError(f"{folder.path}: neither curves nor operators to tell of; run `neuralpower lab --out` first")
    sections = [_machine(machine), _network(), _curves(folder, points, settings)]
    for device in dict.fromkeys(table.device for table in tables):
        sections += _operators([table for table in tables if table.device == device], device)
    if not tables:
        sections.append(Section("Operators", ("Not profiled yet: `neuralpower lab profile` does it.",)))
    sections += _devices(tables)
    data = f"Data: {settings['data']}." if settings else "Not trained: the network has random weights."
    return Page(TITLE, data, tuple(sections))


def _machine(found: dict[str, Any]) -> Section:
    return Section("Environment", parts=(Table("Hardware and software", ("what", "value"), environment.rows(found)),))


def _network() -> Section:
    """The data-flow graph as a table, counted on meta tensors: parameters and FLOP of one image."""
    with torch.device("meta"):
        model, image = MnistCnn().eval(), torch.empty(1, 1, 28, 28)
    found = profile(model, image, runtime=False)
    rows = tuple(
        (
            row.path or "(function)",
            row.operator or row.kind,
            _shape(row.inputs),
            _shape(row.outputs),
            row.parameters,
            row.flops,
        )
        for row in found.rows
        if row.explains and row.count
    )
    text = (
        f"{found.total.parameters:,} parameters; {found.total.flops:,} FLOP forward for one image "
        "(2 per multiply-add, products only). Calls in the order of the data flow:"
    )
    header = ("module", "operator", "inputs", "outputs", "parameters", "FLOP")
    return Section("Network", (text,), (Table("Data-flow graph", header, rows),))


def _shape(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes or ()) or "-"


def _curves(folder: Folder, points: Sequence[Point], settings: dict[str, Any] | None) -> Section:
    if not points or settings is None:
        return Section("Training", ("Not trained yet: `neuralpower lab train` does it.",))
    tests = [point for point in points if point.part == "test"]
    learnt = len(tests)
    text = [
        f"Adadelta, learning rate {settings['lr']:g} x {settings['gamma']:g} per epoch, batch {settings['batch_size']}, "
        f"seed {settings['seed']}: {learnt} of {settings['epochs']} epochs on {settings['train']:,} images."
    ]
    if learnt < settings["epochs"]:
        text.append("The training was interrupted; the same command continues it after the last complete epoch.")
    if tests:
        last = tests[-1]
        text.append(
            f"After epoch {last.epoch}: loss {last.loss:.4f} and accuracy {last.accuracy:.2%} on {last.images:,} test images."
        )
    text.append("`curves.csv` holds the points of the curves.")
    parts: list[Part] = [
        _curve("Loss", "negative log-likelihood per image", points, "loss", 1.0),
        _curve("Accuracy", "images recognised (%)", points, "accuracy", 100.0),
    ]
    if folder.images.is_file():
        parts.insert(0, Picture("The first 64 training images", folder.images.read_bytes()))
    return Section("Training", tuple(text), tuple(parts))


def _curve(title: str, label: str, points: Sequence[Point], field: str, factor: float) -> XY:
    series = []
    for part in ("train", "test"):
        some = [point for point in points if point.part == part]
        if some:
            x, y = tuple(p.step for p in some), tuple(factor * getattr(p, field) for p in some)
            series.append(Series(part, x, y, mode="lines" if part == "train" else "lines+markers"))
    return XY(title, "step (batches)", label, tuple(series), note="Training: mean since the last point, with dropout.")


def _operators(tables: Sequence[OperatorTable], device: str) -> list[Section]:
    """Top ten at each batch size, then the comparison."""
    on_gpu = device != "cpu"
    sections = []
    for table in tables:
        images = "" if table.images is None else f", {table.images:,} images"
        name = f"batch {table.batch_size} on {device}"
        parts = [
            Table(f"Ten most expensive operators, {name}", *_cells(table, table.top(TOP)), NOTE),
            Table(f"By self time, {name}", *_cells(table, table.top(TOP, "self_cpu_s"), memory=True, gpu=on_gpu)),
        ]
        sections.append(Section(f"Operators: {name}{images}", (), tuple(parts)))
    found = comparison.compare(tables)
    rows = tuple(tuple(row) for row in found.rows())
    parts_: tuple[Chart | Table, ...] = (
        Table(f"{found.operator} on {device}", comparison.HEADER, rows),
        *_parts(tables, device),
    )
    return [*sections, Section(f"Batch sizes compared on {device}", found.sentences(), parts_)]


def _parts(tables: Sequence[OperatorTable], device: str) -> tuple[Bars, ...]:
    """Self times of an image, one on the other: they add up."""
    field = "self_cpu_s" if device == "cpu" else "self_device_s"
    known = [table for table in tables if table.images]
    if not known:
        return ()
    names = list(dict.fromkeys(o.name for table in known for o in table.top(4, field)))

    def of(table: OperatorTable, name: str) -> float:
        found = table.named(name)
        return float(getattr(found, field, None) or 0.0) * 1e6 / (table.images or 1)

    series = [BarSeries(name, tuple(of(table, name) for table in known)) for name in names]
    rest = {o.name for table in known for o in table.operators} - set(names)
    series.append(BarSeries("the others", tuple(sum(of(table, name) for name in rest) for table in known)))
    return (
        Bars(
            f"Self time of an image on {device}",
            "us per image",
            tuple(f"batch {table.batch_size}" for table in known),
            tuple(series),
            stacked=True,
            note="Self times add up to the whole; times with what an operator calls do not.",
        ),
    )


NOTE = (
    "Operators contain each other, so only self times add up to 100 %. Time with profiler attached; "
    "what the profiler does for itself is left out."
)


def _cells(
    table: OperatorTable, operators: Sequence[Operator], memory: bool = False, gpu: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """(header, rows) of a table."""
    header = (*TOP_HEADER, *(MEMORY_HEADER if memory else ()), *(DEVICE_HEADER if gpu else ()))
    rows = []
    for o in operators:
        cells: list[Any] = [
            f"{o.name} {o.shapes}".strip(),
            f"{table.share(o.self_cpu_s):.2%}",
            _scaled(o.self_cpu_s, 1e3),
            f"{table.share(o.cpu_s):.2%}",
            _scaled(o.cpu_s, 1e3),
            _scaled(o.average_s, 1e6),
            o.calls,
        ]
        if memory:
            cells += [_scaled(o.self_memory_bytes, 1e-6), _scaled(o.memory_bytes, 1e-6)]
        if gpu:
            cells += [_scaled(o.self_device_s, 1e3), _scaled(o.device_s, 1e3)]
        rows.append(tuple(cells))
    return header, tuple(rows)


def _scaled(value: float | None, factor: float) -> str | None:
    return None if value is None else f"{value * factor:,.3f}"


def _devices(tables: Sequence[OperatorTable]) -> list[Section]:
    """CPU and GPU beside each other, where both were profiled."""
    names = list(dict.fromkeys(table.device for table in tables))
    if len(names) < 2:
        return []
    speeds = {(t.device, t.batch_size): t.images / t.wall_s for t in tables if t.images and t.wall_s}
    batches = sorted({batch for _, batch in speeds})
    rows = tuple((batch, *(speeds.get((name, batch)) for name in names)) for batch in batches)
    header = ("batch size", *(f"{name} (images/s)" for name in names))
    bars = Bars(
        "Images per second without profiler",
        "images/s",
        tuple(f"batch {batch}" for batch in batches),
        tuple(BarSeries(name, tuple(speeds.get((name, batch)) for batch in batches)) for name in names),
        log_y=True,
    )
    return [Section("CPU against GPU", (), (Table("Images per second, without profiler", header, rows), bars))]
