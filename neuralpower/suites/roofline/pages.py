"""The page of a report: sections, tables and charts of the gathered data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from neuralpower.report.charts import XY, Bars, BarSeries, Heatmap, Pie, Pies, Series
from neuralpower.report.page import Cell, Columns, Page, Part, Section, Share, Table
from neuralpower.suites.roofline import records
from neuralpower.suites.roofline.analysis import (
    DATA_CENTRE,
    FEWEST,
    MOBILE,
    Correlation,
    Method,
    Pair,
    Placement,
    View,
    chip_roofline,
    chip_sheets,
    chip_sources,
    chip_table,
    correlation,
    examples,
    gaps,
    verdicts,
)
from neuralpower.suites.roofline.records import (
    BUDGET,
    MEASURED,
    OK,
    Device,
    Network,
    Point,
    Training,
    Work,
)

PIES = 3  # most networks with times by kind
MINOR = 0.02  # share below which a kind is "other" in every pie
METHODS: tuple[Method, ...] = ("Spearman", "Kendall")
INTENSITY = "operational intensity, FLOP/B"


RIDGE = "The ridge is the number of FLOP per byte from which arithmetic is the limit."
METHOD = (
    "Networks have random weights and inputs; they run in eval mode, without gradients, warmed up, and the "
    "device is synchronised. A measured time is the 10th percentile of its runs on a CPU, since other load "
    "only makes it slower, and the median on a GPU. A predicted time adds up the layers; where no regressor "
    "was trained, it is a roofline estimate.",
    "FLOP and bytes are from traced layers; each batch size has its own trace. Bytes moved: inputs, weights "
    "and outputs of every layer, once each. Memory footprint: the most bytes of tensors that live at once, "
    "including weights.",
)
LATE = (
    "No backward pass was timed: the time budget was too short for one (the table has the estimates). "
    "Fix: run again in the same folder, with a longer --time-budget."
)


def page(view: View) -> Page:
    """The networks and their machine first, then times and utilisation; method and chips at the end."""
    missing = _missing(view)
    tables = (_devices(view), *((missing,) if missing.rows else ()))
    method = Section("How this was made", (*METHOD, *view.data.notes), tables)
    parts = (_networks, _benchmark, _utilisation, _training)
    sections = (*(section for part in parts for section in part(view)), method, _chips(view))
    lead = (
        f"{len(view.networks)} networks in {view.data.settings['dtype']} on "
        f"{' and '.join(device.label for device in view.data.devices)}: their work and traffic, the devices' "
        "peaks, and their times. 1 multiply-add = 2 FLOP; all tensors are random."
    )
    return Page("Rooflines and runtimes", lead, sections)


def _devices(view: View) -> Table:
    """How the times of each device came about."""

    def points(device: Device) -> list[Point]:
        return [point for point in view.data.points if point.device == device.name]

    def trained(device: Device) -> Cell:
        shares = [point.coverage for point in points(device) if point.coverage is not None]
        return f"{min(shares):.0%} to {max(shares):.0%}" if shares else None

    def runs(device: Device) -> Cell:
        counts = sorted({len(point.samples_s) for point in points(device) if point.samples_s})
        return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else None

    columns: Columns[Device] = {
        "device": lambda device: device.name,
        "times": lambda device: device.basis,
        "runs each": runs,
        "predictor": lambda device: device.predictor,
        "trained share of the time": trained,
        "not trained on": lambda device: ", ".join(device.unknown_kinds) or None,
    }
    return Table.of("Devices", view.data.devices, columns)


def _cases(view: View) -> list[tuple[Network, Point]]:
    """Every network with its points, by device and batch size."""
    every = product(view.networks, view.data.devices, view.batch_sizes)
    return [(n, p) for n, d, b in every if (p := view.point(n, d, b)) is not None]


def _missing(view: View) -> Table:
    late = [case for case in _cases(view) if case[1].status != OK]
    by_device = [case for device in view.data.devices for case in late if case[1].device == device.name]
    columns: Columns[tuple[Network, Point]] = {
        "network": lambda case: case[0].label,
        "device": lambda case: case[1].device,
        "batch": lambda case: str(case[1].batch_size),
        "status": lambda case: case[1].status,
        "reason": lambda case: case[1].reason,
    }
    return Table.of("Missing points", by_device, columns)


def _chips(view: View) -> Section:
    every = chip_sheets()
    known = {chip.slug: chip for chip in every}
    centre, mobile = ([known[s] for s in some if s in known] for some in (DATA_CENTRE, MOBILE))
    own = [r for r in view.data.roofs if r.samples]
    charts = (
        chip_roofline("Rooflines of data-centre chips", centre),
        chip_roofline("Rooflines of mobile, edge and consumer chips", mobile, own),
    )
    return Section("Appendix: chips", (RIDGE,), (*charts, chip_table(every), chip_sources(every)))


def _roofs(view: View) -> Section:
    """Roofs of the report's devices, measured and from their spec sheets."""
    table = Table.of(
        f"Roofs in {view.data.settings['dtype']}",
        [r for r in view.data.roofs if view.data.find(Device, r.device)],
        {
            "device": lambda r: r.device,
            "origin": lambda r: r.origin,
            "TFLOP/s": lambda r: r.flops_per_s / 1e12,
            "GB/s": lambda r: r.bytes_per_s / 1e9,
            "ridge, FLOP/B": lambda r: r.ridge,
            "samples": lambda r: r.samples or None,
            "how": lambda r: r.how,
        },
    )
    return Section("The roof of the machine", (), (table,), level=3)


def _networks(view: View) -> list[Section]:
    overlays = tuple(c for d in view.data.devices if (c := _overlay(view, d)) is not None)
    parts: tuple[Part, ...] = (_work_table(view), *_work_bars(view))
    placed = [v for batch in view.batch_sizes for v in verdicts(view, batch)]
    table = Table.of(
        "Bound by memory or by compute",
        placed,
        {
            "network": lambda v: v.network.label,
            "device": lambda v: v.device.name,
            "batch": lambda v: str(v.work.batch_size),
            "FLOP/B moved": lambda v: v.intensity,
            "ridge, FLOP/B": lambda v: v.roof.ridge,
            "bound by": lambda v: v.bound,
            "time on the roof in memory-bound layers, %": lambda v: v.memory_share * 100,
        },
        "Against the measured roof if there is one, else the data sheet's.",
    )
    return [
        Section("1 Networks: work and memory", (), parts),
        _roofs(view),
        Section("Networks on the rooflines", ("The roof above each network.",), overlays, level=3),
        Section("Bound by memory or by compute", (), (table,), level=3),
    ]


WORK: Mapping[str, Callable[[tuple[Network, Work]], float | None]] = {
    "GFLOP": lambda case: case[1].flops / 1e9,
    "parameters, 1e6": lambda case: case[0].parameters / 1e6,
    "weights, MB": lambda case: case[0].parameter_bytes / 1e6,
    "footprint, MB": lambda case: _scaled(case[1].peak_bytes, 1e6),
    "moved, MB": lambda case: case[1].bytes_moved / 1e6,
    "FLOP/B of footprint": lambda case: case[1].footprint_intensity,
    "FLOP/B moved": lambda case: case[1].intensity,
}


def _work_table(view: View) -> Table:
    columns: Columns[tuple[Network, Work]] = {
        "network": lambda case: case[0].label,
        "input": lambda case: case[0].input,
        "batch": lambda case: str(case[1].batch_size),
        **WORK,
        "layer calls": lambda case: case[1].call_count,
        "MODEL": lambda case: case[0].model,
    }
    cases = [(n, view.work(n, b)) for n, b in product(view.networks, view.batch_sizes)]
    return Table.of("FLOP, parameters, memory and intensity", cases, columns)


def _work_bars(view: View) -> list[Bars]:
    """Some columns of the table at the smallest batch: (title, unit) -> name of the bars -> column."""
    bars = {
        ("Work and parameters", "GFLOP, or 1e6 parameters"): {
            "FLOP, 1e9": "GFLOP",
            "parameters, 1e6": "parameters, 1e6",
        },
        ("Memory", "MB"): {"footprint": "footprint, MB", "bytes moved": "moved, MB"},
        ("Operational intensity", "FLOP/B"): {
            "on the memory footprint": "FLOP/B of footprint",
            "on the bytes moved": "FLOP/B moved",
        },
    }
    batch = view.batch_sizes[0]
    cases = [(network, view.work(network, batch)) for network in view.networks]
    labels = tuple(network.label for network in view.networks)
    charts = []
    for (title, unit), columns in bars.items():
        series = tuple(BarSeries(name, tuple(map(WORK[column], cases))) for name, column in columns.items())
        charts.append(Bars(f"{title}, batch {batch}", unit, labels, series, log_y=True))
    return charts


def _roof_lines(view: View, device: Device, series: Sequence[Series]) -> list[Series]:
    """Lines of a device's roofs over all intensities of some series."""
    lines = []
    known = [x for one in series for x in one.x if x]  # layers that only move data have no logarithm
    for roof in view.roofs(device):
        # far enough down and right that both axes are logarithmic: only there is a roof straight
        low, high = min([*known, roof.ridge]) / 10, max([*known, roof.ridge]) * 3
        what = f"{roof.flops_per_s / 1e12:.3g} TFLOP/s, {roof.bytes_per_s / 1e9:.4g} GB/s"
        points = [(x, roof.attainable(x), what) for x in (low, roof.ridge, high)]
        lines.append(Series.of(f"roof, {roof.origin}", points, mode="lines", dash=not roof.samples))
    return lines


def _overlay(view: View, device: Device) -> XY | None:
    roof = view.roof(device)
    if roof is None:
        return None
    series = []
    for batch in dict.fromkeys((view.batch_sizes[0], view.batch_sizes[-1])):
        some = [(n.label, w.intensity) for n in view.networks if (w := view.work(n, batch)).intensity]
        points = [(x, roof.attainable(x), name) for name, x in some]
        labels = tuple(name for name, _ in some) if batch == view.batch_sizes[0] else ()
        series.append(Series.of(f"batch {batch}, bytes moved", points, labels=labels))
    title = f"Operational intensity on the roofline of {device.name}"
    note = "Intensity on the bytes moved. " + ("" if roof.samples else "The roof is the data sheet's.")
    every = (*_roof_lines(view, device, series), *series)
    return XY(title, INTENSITY, "attainable FLOP/s", every, True, True, note=note)


def _benchmark(view: View) -> list[Section]:
    devices = view.data.devices
    scatter = [_scatter(view, d, what) for what in ("FLOP", "parameters") for d in devices]
    found = [correlation(view, b, m) for b in view.batch_sizes for m in METHODS]
    enough = [c for c in found if c.networks >= FEWEST]
    few = {
        c.batch_size: f"Batch {c.batch_size}: too few networks for a rank correlation. {c.networks} "
        f"{'has' if c.networks == 1 else 'have'} a time on every device; {FEWEST} are needed."
        for c in found
        if c not in enough
    }
    heat = [_heatmap(c) for c in enough]
    ranks = [_rank_table(enough)] if enough else []
    throughput = tuple(_throughput(view, d) for d in devices)
    legend = "Colour and symbol: batch size; name: network."
    shown = _pair_table(view)
    return [
        Section("2 Runtimes", (legend,), (*scatter, _time_table(view))),
        Section("Rank correlations", tuple(few.values()), (*heat, *ranks), level=3),
        Section(
            "Do FLOP or parameters predict a network's time?", (), (shown,) if shown.rows else (), level=3
        ),
        Section("Throughput", (), throughput, level=3),
    ]


def _scatter(view: View, device: Device, what: str) -> XY:
    per_sample = what == "FLOP"

    def point(network: Network, work: Work, runtime_s: float) -> tuple[float, float]:
        return (work.flops / work.batch_size if per_sample else network.parameters), runtime_s

    label = "FLOP of one sample" if per_sample else "parameters"
    note = f"A network's batches are above each other; its name is at the largest.{_strokes(device)}"
    title = f"Runtime against {what}, {device.label}"
    series = _by_batch(view, device, point)
    return XY(title, label, "runtime of a batch, s", series, True, True, note=note)


def _strokes(device: Device) -> str:
    return " Strokes: 90 % bounds." if device.basis == records.PREDICTED else ""


def _by_batch(
    view: View, device: Device, point: Callable[[Network, Work, float], tuple[float | None, float]]
) -> tuple[Series, ...]:
    """Per batch size, a point for each network that has a time; its name is at its largest batch."""
    largest = {n.model: b for b in view.batch_sizes for n in view.networks if view.runtime_s(n, device, b)}
    series = []
    for batch in view.batch_sizes:
        timed = [
            (n, *point(n, view.work(n, batch), t))
            for n in view.networks
            if (t := view.runtime_s(n, device, batch))
        ]
        labels = tuple(n.label if largest[n.model] == batch else "" for n, _, _ in timed)
        points = [(x, y, n.label) for n, x, y in timed]
        ends = [
            sorted(point(n, view.work(n, batch), s)[1] for s in view.bounds_s(n, device, batch))
            for n, _, _ in timed
        ]
        bounds = tuple((pair[0], pair[1]) if pair else None for pair in ends)
        series.append(Series.of(f"batch {batch}", points, labels=labels, bounds=bounds))
    return tuple(series)


def _time_table(view: View) -> Table:
    def achieved(case: tuple[Network, Point]) -> Cell:
        network, point = case
        work = view.work(network, point.batch_size)
        return work.flops / point.runtime_s / 1e9 if point.runtime_s else None

    columns: Columns[tuple[Network, Point]] = {
        "network": lambda case: case[0].label,
        "device": lambda case: case[1].device,
        "basis": lambda case: case[1].basis,
        "batch": lambda case: str(case[1].batch_size),
        "runtime, ms": lambda case: case[1].runtime_s and case[1].runtime_s * 1e3,
        "samples/s": lambda case: case[1].runtime_s and case[1].batch_size / case[1].runtime_s,
        "GFLOP/s": achieved,
        "runs": lambda case: len(case[1].samples_s) or None,
        "covered, %": lambda case: case[1].coverage and case[1].coverage * 100,
        "status": lambda case: case[1].status,
    }
    return Table.of("Runtimes and throughput", _cases(view), columns)


def _heatmap(found: Correlation) -> Heatmap:
    title = f"{found.method}'s rank correlation, batch {found.batch_size}"
    note = f"Over {found.networks} networks that have a time on every device."
    return Heatmap(title, "", "", found.names, found.names, found.values, found.method, note)


def _rank_table(found: Sequence[Correlation]) -> Table:
    rows = tuple(
        (str(c.batch_size), c.method, a, b, c.of(a, b), c.networks)
        for c in found
        for i, a in enumerate(c.names)
        for b in c.names[:i]
    )
    return Table("Rank correlations", ("batch", "method", "of", "and", "correlation", "networks"), rows)


def _pair_table(view: View) -> Table:
    """Pairs of networks whose times FLOP and parameters order correctly, or do not."""
    cases = [(device, *example) for device in view.data.devices for example in examples(view, device)]
    columns: Columns[tuple[Device, str, Pair, int]] = {
        "device": lambda case: case[0].name,
        "batch": lambda case: str(case[3]),
        "it shows": lambda case: case[1],
        "first": lambda case: case[2].first.label,
        "second": lambda case: case[2].second.label,
        "ratio of FLOP": lambda case: case[2].flops,
        "of parameters": lambda case: case[2].parameters,
        "of times": lambda case: case[2].runtime,
    }
    note = (
        "The pair nearest to its ratio of FLOP; those whose order FLOP and parameters get wrong by the most."
    )
    return Table.of("Pairs of networks", cases, columns, note)


def _throughput(view: View, device: Device) -> XY:
    series: list[Series] = []
    for network in view.networks:
        times = [(b, t) for b in view.batch_sizes if (t := view.runtime_s(network, device, b))]
        points = [(b, b / t, f"{network.label}, batch {b}") for b, t in times]
        if points:
            series.append(Series.of(network.label, points, mode="lines+markers", dash=len(series) % 2 == 1))
    title = f"Throughput against batch size, {device.label}"
    return XY(title, "batch size", "samples/s", tuple(series), True, True)


def _utilisation(view: View) -> list[Section]:
    under = [
        gap
        for device in view.data.devices
        if (roof := view.roof(device)) is not None
        for batch in view.batch_sizes
        for gap in gaps(view, device, batch, roof)
    ]
    columns: Columns[Placement] = {
        "network": lambda g: g.network.label,
        "device": lambda g: g.device.name,
        "time": lambda g: g.device.basis,
        "batch": lambda g: str(g.work.batch_size),
        "roof": lambda g: g.roof.origin,
        "achieved, GFLOP/s": lambda g: g.flops_per_s / 1e9,
        "attainable, GFLOP/s": lambda g: g.roof.attainable(g.intensity) / 1e9,
        "of the peak": lambda g: Share(g.of_peak),
        "of the attainable": lambda g: Share(g.of_attainable),
        "clipped": lambda g: "yes" if g.clipped else "",
    }
    note = (
        "Against the roof measured here if there is one, else the data sheet's; clipped at 100 %. Bytes are "
        "counted without caches: a network whose results stay in a cache can exceed the roof. A fitted roof "
        "is the average rate of layers, not a peak."
    )
    table = Table.of("Achieved against peak and against the attainable roof", under, columns, note)
    charts = (_achieved(view, device) for device in view.data.devices)
    return [Section("3 Utilisation", (), (*charts, table))]


def _achieved(view: View, device: Device) -> XY:
    series = _by_batch(view, device, lambda _, work, runtime_s: (work.intensity, work.flops / runtime_s))
    every = (*_roof_lines(view, device, series), *series)
    title = f"Achieved performance on the roofline, {device.label}"
    note = f"A name is at the largest batch.{_strokes(device)}"
    return XY(title, f"{INTENSITY} moved", "FLOP/s", every, True, True, note=note)


def _training(view: View) -> list[Section]:
    labels = {n.model: n.label for n in view.networks}
    every = product(view.data.devices, view.networks)
    steps = [t for d, n in every if (t := view.data.find(Training, n.model, d.name))]
    shown = [t for t in steps if t.basis == MEASURED] or steps
    columns: Columns[Training] = {
        "network": lambda t: labels[t.model],
        "device": lambda t: t.device,
        "batch": lambda t: str(t.batch_size),
        "forward, GFLOP": lambda t: _scaled(t.forward_flops, 1e9),
        "backward, GFLOP": lambda t: _scaled(t.backward_flops, 1e9),
        "ratio of FLOP": lambda t: t.flops_ratio,
        "forward, ms": lambda t: _scaled(t.forward_s, 1e-3),
        "backward, ms": lambda t: _scaled(t.backward_s, 1e-3),
        "ratio of time": lambda t: t.time_ratio,
        "runs": lambda t: t.samples or None,
        "status": lambda t: t.reason or t.status,
    }
    ratios = (
        BarSeries("FLOP", tuple(t.flops_ratio for t in shown)),
        BarSeries("time", tuple(t.time_ratio for t in shown)),
    )
    several = len({t.device for t in shown}) > 1
    names = tuple(f"{labels[t.model]}, {t.device}" if several else labels[t.model] for t in shown)
    bars = Bars("Backward over forward pass", "backward : forward", names, ratios)
    table = Table.of("Forward and backward pass", shown, columns)
    apart = _taken_apart(shown)
    pies = tuple(_pies(t, labels[t.model]) for t in apart)
    late = any(t.status == BUDGET for t in shown) and not any(t.time_ratio for t in shown)
    return [
        Section("4 Inference and training", (LATE,) if late else (), (bars, table)),
        Section("Time, FLOP and memory by layer kind", (), (*pies, _kind_table(shown, labels)), level=3),
    ]


def _scaled(value: float | int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _taken_apart(steps: Sequence[Training]) -> list[Training]:
    """Networks whose largest kinds differ first; timed ones before counted ones."""
    timed = [t for t in steps if t.status == OK and t.forward_s] or [t for t in steps if t.kinds]
    first: dict[tuple[str, ...], Training] = {}
    for step in timed:
        kinds = {k.kind: k.runtime_s or k.flops for k in step.kinds if k.phase == "forward"}
        first.setdefault(tuple(sorted(kinds, key=lambda kind: -kinds[kind])[:3]), step)
    chosen = [*first.values()]
    return [*chosen, *(t for t in timed if t not in chosen)][:PIES]


def _pies(step: Training, label: str) -> Pies:
    parts = {
        f"{phase}: {what}": sizes
        for (phase, what), sizes in step.by_kind.items()
        if what != "time" or any(sizes.values())
    }
    wholes = [(sizes, sum(sizes.values())) for sizes in parts.values()]
    major = {kind for sizes, whole in wholes for kind, v in sizes.items() if v and v / whole >= MINOR}
    pies = []
    for title, sizes in parts.items():
        merged: dict[str, float] = defaultdict(float)
        for kind, value in sizes.items():
            merged[kind if kind in major else "other"] += value
        pies.append(Pie(title, tuple(merged), tuple(merged.values())))
    note = f"Batch {step.batch_size}, {step.device}; kinds below {MINOR:.0%} in every pie are other."
    if step.forward_s is None:
        note += f" Times are missing: {step.reason}."
    return Pies(f"Layer kinds of {label} on {step.device}", tuple(pies), note)


def _kind_table(steps: Sequence[Training], labels: dict[str, str]) -> Table:
    rows = tuple(
        (labels[t.model], k.phase, k.kind, _scaled(k.runtime_s, 1e-3), k.flops / 1e9, k.memory_bytes / 1e6)
        for t in steps
        for k in t.kinds
    )
    header = ("network", "phase", "kind", "time, ms", "GFLOP", "memory, MB")
    return Table("By layer kind", header, rows, "Memory: bytes of the calls' results.")
