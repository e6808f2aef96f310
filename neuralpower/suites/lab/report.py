"""A lab's folder, in which each step reads and writes its files and can resume, and the report of it.

settings.json   inputs of the curves            curves.csv        points, written as they come
checkpoint.pt   after each epoch               environment.json  machine and software
operators_DEVICE_batch_N.json and .csv         trace_DEVICE_batch_N.json, images.png, report.md, report.html
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import msgspec
import torch

from neuralpower.errors import InputError, writing
from neuralpower.files import json_files
from neuralpower.files.csv_files import csv_text
from neuralpower.networks.zoo.plain import MnistCnn
from neuralpower.profiling import profile
from neuralpower.report.charts import XY, Bars, BarSeries, Series
from neuralpower.report.page import (
    Cell,
    Columns,
    Page,
    Part,
    Picture,
    Section,
    Table,
    write_html,
    write_markdown,
)
from neuralpower.suites.lab.operators import COLUMNS as COMPARED
from neuralpower.suites.lab.operators import TOP, Operator, OperatorTable, compare
from neuralpower.suites.lab.training import Digits, Point, Settings, written

COLUMNS = tuple(field.name for field in fields(Point))
OPERATOR_HEADER = (
    *("name", "shapes", "self_cpu_share", "self_cpu_s", "cpu_share", "cpu_s", "average_s", "calls"),
    *("self_memory_bytes", "memory_bytes", "self_device_s", "device_s"),
)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.pt"  # of the last complete epoch
        self.curves = path / "curves.csv"
        self.images = path / "images.png"  # the first training images, as one picture

    def make(self) -> None:
        with writing(self.path, "--out"):
            self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, settings: Settings, digits: Digits) -> None:
        """Keep the settings; raises InputError if the folder has a training with other settings.

        More epochs can follow later, so the number of epochs can differ.
        """
        self.make()
        sizes = {"train": len(digits.train), "test": len(digits.test)}
        wanted = {**asdict(settings), "data": digits.name, **sizes}
        found = self.read_json("settings.json")
        if found is not None:
            other = [f"{k} {found.get(k)}" for k, v in wanted.items() if k != "epochs" and found.get(k) != v]
            if other:
                text = f"has a training with {', '.join(other)}; choose another --out"
                raise InputError(f"{self.path}: {text}")
        self.write_json("settings.json", wanted)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        text = json_files.json_text(data, indent=1) + "\n"
        written(self.path / name, lambda aside: aside.write_text(text, encoding="utf-8"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None if it is missing; raises InputError for a damaged one."""
        path = self.path / name
        try:
            content = json_files.read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it") from None
        if not isinstance(content, dict):
            raise InputError(f"{path}: contains a {type(content).__name__}, not a mapping; remove it")
        return content

    # ---- curves ----

    def points(self) -> list[Point]:
        """The curves so far, by step; a last line that was cut off is skipped. Raises InputError."""
        try:
            lines = self.curves.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.curves}: cannot be read ({error}); remove it") from None
        points = []
        for number, row in enumerate(csv.DictReader(line for line in lines if line.endswith("\n")), 2):
            try:
                points.append(msgspec.convert(row, Point, strict=False))
            except msgspec.ValidationError:
                wanted = ", ".join(COLUMNS)
                raise InputError(
                    f"{self.curves}:{number}: not a point with {wanted}; remove the line"
                ) from None
        return points

    @contextmanager
    def recorder(self, epochs: int) -> Iterator[Callable[[Point], None]]:
        """A function that appends a point to the curves' file; points after `epochs` are removed first."""
        kept = [COLUMNS, *(astuple(point) for point in self.points() if point.epoch <= epochs)]
        written(self.curves, lambda aside: _write_rows(aside, kept))
        with self.curves.open("a", encoding="utf-8", buffering=1) as file:

            def add(point: Point) -> None:
                file.write(csv_text([astuple(point)]))

            yield add

    # ---- operators ----

    def keep_table(self, table: OperatorTable) -> None:
        """Write a table of operators as JSON and CSV."""
        shares = {"self_cpu_share": "self_cpu_s", "cpu_share": "cpu_s"}
        rows = [
            [table.share(getattr(o, shares[n])) if n in shares else getattr(o, n) for n in OPERATOR_HEADER]
            for o in table.top(len(table.operators))
        ]
        file = self.file_of("operators", table.device, table.batch_size)
        written(file.with_suffix(".csv"), lambda aside: _write_rows(aside, [OPERATOR_HEADER, *rows]))
        self.write_json(file.name, {"schema": 1, **asdict(table)})

    def file_of(self, what: str, device: str, batch_size: int) -> Path:
        """The JSON file of operators or of a trace, at a batch size on a device."""
        return self.path / f"{what}_{device.replace(':', '')}_batch_{batch_size}.json"

    def tables(self) -> list[OperatorTable]:
        """All tables of operators, by device and batch size; raises InputError for a damaged one."""
        tables = []
        for path in self.path.glob("operators_*_batch_*.json"):
            try:
                tables.append(msgspec.convert(self.read_json(path.name), OperatorTable))
            except msgspec.ValidationError:
                raise InputError(f"{path}: not a table of operators; remove it and profile again") from None
        return sorted(tables, key=lambda table: (table.device, table.batch_size))


def _write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text(csv_text(rows), encoding="utf-8", newline="")


# ---- The lab's report from its folder: environment, network, curves, operators, comparison ----


TITLE = "A network that reads digits: its training and its time"
NOTE = (
    "Operators contain each other, so only self times add up to 100 %. "
    "Times include the profiler's overhead, but not its own events."
)


def write_report(folder: Folder) -> tuple[Path, ...]:
    """Write `report.md` with pictures, and `report.html`; the paths. Raises InputError without data."""
    page = report(folder)
    markdown, html = folder.path / "report.md", folder.path / "report.html"
    write_markdown(page, markdown, folder.path / "figures")
    write_html(page, html)
    return markdown, html


def report(folder: Folder) -> Page:
    """The page; it names the parts that are missing."""
    points, tables = folder.points(), folder.tables()
    machine, settings = (folder.read_json(f"{name}.json") for name in ("environment", "settings"))
    if machine is None or not (points or tables):
        text = "has neither curves nor operators; run `neuralpower lab --out` first"
        raise InputError(f"{folder.path}: {text}")
    about = Table("Hardware and software", ("what", "value"), _machine(machine))
    sections = [Section("Environment", (), (about,)), _network(), _curves(folder, points, settings)]
    for device in dict.fromkeys(table.device for table in tables):
        sections += _operators([table for table in tables if table.device == device], device)
    if not tables:
        sections.append(Section("Operators", ("Not profiled yet: run `neuralpower lab profile`.",)))
    data = f"Data: {settings['data']}." if settings else "Not trained: the network has random weights."
    return Page(TITLE, data, (*sections, *_devices(tables)))


def _machine(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    names = facts["gpus"]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version)
    virtual = " (virtual)" if facts["virtual"] else ""
    cpu = f"{facts['cpu']}, {facts['vcpus']} vCPUs on {facts['cores']} cores{virtual}"
    return (
        ("CPU", cpu),
        ("GPU", gpus or "none"),
        ("operating system", facts["system"]),
        (
            "Python and packages",
            f"Python {facts['python']}, neuralpower {facts['neuralpower']}, {packages}",
        ),
        ("CUDA", facts["cuda"] or "none (torch was built without)"),
        ("threads", str(facts["threads"])),
    )


def _network() -> Section:
    """The data-flow graph as a table, counted on meta tensors: parameters and FLOP of one image."""
    with torch.device("meta"):
        model, image = MnistCnn().eval(), torch.empty(1, 1, 28, 28)
    profiled = profile(model, image, runtime=False, convention="matmul")
    table = Table.of(
        "Data-flow graph",
        [row for row in profiled.rows if row.explains and row.count],
        {
            "module": lambda row: row.path or "(function)",
            "operator": lambda row: row.operator or row.kind,
            "inputs": lambda row: _shape(row.inputs),
            "outputs": lambda row: _shape(row.outputs),
            "parameters": lambda row: row.parameters,
            "FLOP": lambda row: row.flops,
        },
    )
    text = (
        f"{profiled.total.parameters:,} parameters; {profiled.total.flops:,} FLOP forward for one image "
        "(2 per multiply-add, products only). Calls in the order of the data flow:"
    )
    return Section("Network", (text,), (table,))


def _shape(shapes: Any) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes or ()) or "-"


def _curves(folder: Folder, points: Sequence[Point], settings: dict[str, Any] | None) -> Section:
    if not points or settings is None:
        return Section("Training", ("Not trained yet: run `neuralpower lab train`.",))
    tests = [point for point in points if point.part == "test"]
    text = [
        f"Adadelta, learning rate {settings['lr']:g} x {settings['gamma']:g} per epoch, batch "
        f"{settings['batch_size']}, seed {settings['seed']}: {len(tests)} of {settings['epochs']} epochs on "
        f"{settings['train']:,} images."
    ]
    if len(tests) < settings["epochs"]:
        goes_on = "the same command resumes it after the last complete epoch"
        text.append(f"The training was interrupted; {goes_on}.")
    if tests:
        last = tests[-1]
        results = f"loss {last.loss:.4f} and accuracy {last.accuracy:.2%} on {last.images:,} test images"
        text.append(f"After epoch {last.epoch}: {results}.")
    text.append("`curves.csv` contains the points of the curves.")
    parts: list[Part] = [
        _curve("Loss", "negative log-likelihood per image", points, lambda point: point.loss),
        _curve("Accuracy", "images recognised (%)", points, lambda point: 100.0 * point.accuracy),
    ]
    if folder.images.is_file():
        parts.insert(0, Picture("The first 64 training images", folder.images.read_bytes()))
    return Section("Training", tuple(text), tuple(parts))


def _curve(title: str, label: str, points: Sequence[Point], figure: Callable[[Point], float]) -> XY:
    modes = {"train": "lines", "test": "lines+markers"}
    some = {part: [(p.step, figure(p)) for p in points if p.part == part] for part in modes}
    series = tuple(Series.of(part, some[part], mode=mode) for part, mode in modes.items() if some[part])
    note = "Training: mean since the last point, with dropout."
    return XY(title, "step (batches)", label, series, note=note)


def _operators(tables: Sequence[OperatorTable], device: str) -> list[Section]:
    """Top ten at each batch size, then the comparison."""
    sections = []
    for table in tables:
        images = "" if table.images is None else f", {table.images:,} images"
        name = f"batch {table.batch_size} on {device}"
        most, own = _columns(table), _columns(table, memory=True, gpu=device != "cpu")
        parts = (
            Table.of(f"Ten most expensive operators, {name}", table.top(TOP), most, NOTE),
            Table.of(f"By self time, {name}", table.top(TOP, "self_cpu_s"), own),
        )
        sections.append(Section(f"Operators: {name}{images}", (), parts))
    found = compare(tables)
    compared = Table.of(f"{found.operator} on {device}", found.entries, COMPARED)
    bars = _parts([table for table in tables if table.images], device)
    return [*sections, Section(f"Batch sizes compared on {device}", (), (compared, *bars))]


def _parts(tables: Sequence[OperatorTable], device: str) -> tuple[Bars, ...]:
    """Stacked self times of an image: they add up."""
    if not tables:
        return ()
    field = "self_cpu_s" if device == "cpu" else "self_device_s"
    names = list(dict.fromkeys(o.name for table in tables for o in table.top(4, field)))
    rest = {o.name for table in tables for o in table.operators} - set(names)

    def series(name: str, *operators: str) -> BarSeries:
        seconds = [sum(getattr(t.named(one), field, None) or 0.0 for one in operators) for t in tables]
        return BarSeries(name, tuple(s * 1e6 / (t.images or 1) for s, t in zip(seconds, tables, strict=True)))

    every = (*(series(name, name) for name in names), series("the others", *rest))
    batches = tuple(f"batch {table.batch_size}" for table in tables)
    note = "Self times add up to the whole; times that include an operator's calls do not."
    title = f"Self time of an image on {device}"
    return (Bars(title, "us per image", batches, every, stacked=True, note=note),)


def _columns(table: OperatorTable, memory: bool = False, gpu: bool = False) -> Columns[Operator]:

    def scaled(name: str, factor: float) -> Callable[[Operator], Cell]:
        return lambda o: None if (value := getattr(o, name)) is None else f"{value * factor:,.3f}"

    columns: Columns[Operator] = {
        "Name": lambda o: f"{o.name} {o.shapes}".strip(),
        "Self CPU total %": lambda o: f"{table.share(o.self_cpu_s):.2%}",
        "Self CPU total (ms)": scaled("self_cpu_s", 1e3),
        "CPU total %": lambda o: f"{table.share(o.cpu_s):.2%}",
        "CPU total (ms)": scaled("cpu_s", 1e3),
        "CPU time avg (us)": scaled("average_s", 1e6),
        "Number of Calls": lambda o: o.calls,
    }
    more = {"Self CPU mem (MB)": ("self_memory_bytes", 1e-6), "CPU mem (MB)": ("memory_bytes", 1e-6)}
    on_gpu = {"Self CUDA total (ms)": ("self_device_s", 1e3), "CUDA total (ms)": ("device_s", 1e3)}
    shown = {**(more if memory else {}), **(on_gpu if gpu else {})}
    return {**columns, **{header: scaled(*figure) for header, figure in shown.items()}}


def _devices(tables: Sequence[OperatorTable]) -> list[Section]:
    """CPU and GPU side by side, if both were profiled."""
    names = list(dict.fromkeys(table.device for table in tables))
    if len(names) < 2:
        return []
    speeds = {(t.device, t.batch_size): t.images / t.wall_s for t in tables if t.images and t.wall_s}
    batches = sorted({batch for _, batch in speeds})
    rows = tuple((batch, *(speeds.get((name, batch)) for name in names)) for batch in batches)
    header = ("batch size", *(f"{name} (images/s)" for name in names))
    table = Table("Images per second, without profiler", header, rows)
    bars = Bars(
        "Images per second without profiler",
        "images/s",
        tuple(f"batch {batch}" for batch in batches),
        tuple(BarSeries(name, tuple(speeds.get((name, batch)) for batch in batches)) for name in names),
        log_y=True,
    )
    return [Section("CPU against GPU", (), (table, bars))]
