"""The report's page: sections, tables and charts of what was gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from neuralpower.report.charts import XY, Bars, BarSeries, Heatmap, Pie, Pies, Series
from neuralpower.report.page import Cell, Columns, Page, Part, Section, Table
from neuralpower.suites.roofline import analysis, chips, comments
from neuralpower.suites.roofline.analysis import Gap, View
from neuralpower.suites.roofline.records import MEASURED, OK, Device, Network, Point, Training, Work

PIES = 3  # networks that are taken apart into kinds
MINOR = 0.02  # share below which a kind is "other" in every pie
METHODS: tuple[analysis.Method, ...] = ("Spearman", "Kendall")
INTENSITY = "operational intensity, FLOP/B"


def page(view: View) -> Page:
    """Everything."""
    devices = " and ".join(d.label for d in view.data.devices)
    lead = (
        f"{len(view.networks)} networks in {view.data.settings['dtype']} on {devices}: what they work and "
        "move, what the devices could do, and what they take. 1 multiply-add = 2 FLOP; nothing but random "
        "tensors runs."
    )
    parts = (_chips, _networks, _benchmark, _utilisation, _training)
    sections = (_method(view), *(section for part in parts for section in part(view)))
    return Page("Rooflines and runtimes", lead, sections)


def _method(view: View) -> Section:
    ordered = sorted(view.data.devices, key=lambda device: device.basis != MEASURED)
    text = [(_measured if device.basis == MEASURED else _predicted)(view, device) for device in ordered]
    text.append(
        "FLOP and bytes are those of the traced layers, each batch size traced for itself. Bytes moved: "
        "inputs, weights and outputs of every layer, once each. Memory footprint: the most bytes of tensors "
        "that live at once, weights among them."
    )
    missing = _missing(view)
    return Section("How this was made", (*text, *view.data.notes), (missing,) if missing.rows else ())


def _measured(view: View, device: Device) -> str:
    return (
        f"Measured on {device.name}: networks with random weights and inputs in eval mode, without "
        f"gradients; warmed up, then timed ({comments.on_samples(view)}), the device synchronised. A time is the "
        "10th percentile of its runs on a CPU, whose neighbours only make it slower, and the median on a GPU."
    )


def _predicted(view: View, device: Device) -> str:
    coverage = [p.coverage for p in view.data.points if p.device == device.name and p.coverage is not None]
    text = (
        f"Predicted for {device.name}: no figure of it is measured here; the predictor `{device.predictor}` "
        "adds up the layers."
    )
    if coverage:
        shares = f"{min(coverage):.0%} to {max(coverage):.0%}"
        text += f" Its regressors account for {shares} of a network's time"
        text += "; the rest is an estimate by roofline"
    unknown = f": it never saw {', '.join(device.unknown_kinds)}" if device.unknown_kinds else ""
    return f"{text}{unknown}."


def _cases(view: View) -> list[tuple[Network, Point]]:
    """Of every network on every device at every batch size, as far as there is a point."""
    every = product(view.networks, view.data.devices, view.batch_sizes)
    return [(n, p) for n, d, b in every if (p := view.data.point(n.model, d.name, b)) is not None]


def _missing(view: View) -> Table:
    """Points that have no time, with the reason."""
    order = [device.name for device in view.data.devices]
    late = [case for case in _cases(view) if case[1].status != OK]
    late.sort(key=lambda case: order.index(case[1].device))
    columns: Columns[tuple[Network, Point]] = {
        "network": lambda case: case[0].label,
        "device": lambda case: case[1].device,
        "batch": lambda case: str(case[1].batch_size),
        "status": lambda case: case[1].status,
        "reason": lambda case: case[1].reason,
    }
    return Table.of("Points that are not there", late, columns)


# ---- 1 ----


def _chips(view: View) -> list[Section]:
    every = chips.sheets()
    known = {chip.slug: chip for chip in every}
    centre, mobile = ([known[s] for s in some if s in known] for some in (chips.DATA_CENTRE, chips.MOBILE))
    own = [r for r in view.data.roofs if r.samples]
    charts = (
        chips.roofline("Rooflines of data-centre chips", centre),
        chips.roofline("Rooflines of mobile, edge and consumer chips", mobile, own),
    )
    tables = (chips.table(every), chips.sources(every))
    roofs = [r for r in view.data.roofs if r.device in {d.name for d in view.data.devices}]
    table = Table.of(
        f"Roofs in {view.data.settings['dtype']}",
        roofs,
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
    return [
        Section("1 Chips", comments.on_chips(centre, mobile), (*charts, *tables)),
        Section("Theoretical and measured roofs", comments.on_roof(view.data.roofs), (table,), level=3),
    ]


# ---- 2 ----


def _networks(view: View) -> list[Section]:
    overlays = tuple(c for d in view.data.devices if (c := _overlay(view, d)) is not None)
    parts: tuple[Part, ...] = (_work_table(view), *_work_bars(view))
    verdicts = [v for batch in view.batch_sizes for v in analysis.verdicts(view, batch)]
    table = Table.of(
        "Bound by memory or by compute",
        verdicts,
        {
            "network": lambda v: v.network.label,
            "device": lambda v: v.device.name,
            "batch": lambda v: str(v.batch_size),
            "FLOP/B moved": lambda v: v.intensity,
            "ridge, FLOP/B": lambda v: v.ridge,
            "bound by": lambda v: v.bound,
            "time on the roof in memory-bound layers, %": lambda v: v.memory_share * 100,
        },
        "Against the measured roof where there is one, else the data sheet's.",
    )
    return [
        Section("2 Networks: work and memory", comments.on_networks(view), parts),
        Section("Networks on the rooflines", ("Where the roof ends above each network.",), overlays, level=3),
        Section("Bound by memory or by compute", comments.on_verdicts(view), (table,), level=3),
    ]


def _work_table(view: View) -> Table:
    columns: Columns[tuple[Network, Work]] = {
        "network": lambda case: case[0].label,
        "input": lambda case: case[0].input,
        "batch": lambda case: str(case[1].batch_size),
        "GFLOP": lambda case: case[1].flops / 1e9,
        "parameters, 1e6": lambda case: case[0].parameters / 1e6,
        "weights, MB": lambda case: case[0].parameter_bytes / 1e6,
        "footprint, MB": lambda case: _scaled(case[1].peak_bytes, 1e6),
        "moved, MB": lambda case: case[1].bytes_moved / 1e6,
        "FLOP/B of footprint": lambda case: case[1].footprint_intensity,
        "FLOP/B moved": lambda case: case[1].intensity,
        "layer calls": lambda case: sum(c.count for c in case[1].calls),
        "MODEL": lambda case: case[0].model,
    }
    every = product(view.networks, view.batch_sizes)
    cases = [(n, w) for n, b in every if (w := view.work(n, b)) is not None]
    return Table.of("FLOP, parameters, memory and intensity", cases, columns)


def _work_bars(view: View) -> list[Bars]:
    first = view.batch_sizes[0]
    labels = tuple(n.label for n in view.networks)

    def of(name: str, figure: Callable[[Work], float | None]) -> BarSeries:
        works = [view.work(network, first) for network in view.networks]
        return BarSeries(name, tuple(None if work is None else figure(work) for work in works))

    parameters = BarSeries("parameters, 1e6", tuple(n.parameters / 1e6 for n in view.networks))
    work = of("FLOP, 1e9", lambda w: w.flops / 1e9)
    footprint = of("footprint", lambda w: _scaled(w.peak_bytes, 1e6))
    moved = of("bytes moved", lambda w: w.bytes_moved / 1e6)
    intensity = (
        of("on the memory footprint", lambda w: w.footprint_intensity),
        of("on the bytes moved", lambda w: w.intensity),
    )
    charts = (
        ("Work and parameters", "GFLOP, or 1e6 parameters", (work, parameters)),
        ("Memory", "MB", (footprint, moved)),
        ("Operational intensity", "FLOP/B", intensity),
    )
    return [Bars(f"{title}, batch {first}", unit, labels, some, log_y=True) for title, unit, some in charts]


def _roof_lines(view: View, device: Device, series: Sequence[Series]) -> list[Series]:
    """Lines of a device's roofs over all intensities of some series."""
    lines = []
    known = [x for one in series for x in one.x if x]  # what only moves data has no logarithm
    for roof in view.roofs(device):
        low, high = min([*known, roof.ridge]) / 3, max([*known, roof.ridge]) * 3
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
        some = [(n.label, w.intensity) for n in view.networks if (w := view.work(n, batch)) and w.intensity]
        points = [(x, roof.attainable(x), name) for name, x in some]
        labels = tuple(name for name, _ in some) if batch == view.batch_sizes[0] else ()
        series.append(Series.of(f"batch {batch}, bytes moved", points, labels=labels))
    title = f"Operational intensity on the roofline of {device.name}"
    note = "Intensity on the bytes moved. " + ("" if roof.samples else "The roof is the data sheet's.")
    every = (*_roof_lines(view, device, series), *series)
    return XY(title, INTENSITY, "attainable FLOP/s", every, True, True, note=note)


# ---- 3 ----


def _benchmark(view: View) -> list[Section]:
    devices = view.data.devices
    scatter = [_scatter(view, d, what) for what in ("FLOP", "parameters") for d in devices]
    found = [analysis.correlation(view, b, m) for b in view.batch_sizes for m in METHODS]
    heat = [_heatmap(view, c) for c in found]
    ranks = _rank_table(view, found)
    throughput = tuple(_throughput(view, d) for d in devices)
    legend = "Colour and symbol: batch size; name: network."
    question = "Do FLOP or parameters say how long a network takes?"
    return [
        Section("3 Runtimes", (legend,), (*scatter, _time_table(view))),
        Section("Rank correlations", (), (*heat, ranks), level=3),
        Section(question, comments.on_prediction(view), (), level=3),
        Section("Throughput", comments.on_throughput(view), throughput, level=3),
    ]


def _scatter(view: View, device: Device, what: str) -> XY:
    def size(network: Network, work: Work) -> float:
        return work.flops / work.batch_size if what == "FLOP" else network.parameters

    label = "FLOP of one sample" if what == "FLOP" else "parameters"
    series = _by_batch(view, device, lambda network, work, runtime_s: (size(network, work), runtime_s))
    note = "A network's batches stand above each other; its name stands at the largest."
    title = f"Runtime against {what}, {device.label}"
    return XY(title, label, "runtime of a batch, s", series, True, True, note=note)


def _by_batch(
    view: View, device: Device, point: Callable[[Network, Work, float], tuple[float | None, float]]
) -> tuple[Series, ...]:
    """Per batch size, a point for each network that has a time; its name stands at its largest batch."""
    largest = {n.model: b for b in view.batch_sizes for n in view.networks if view.runtime_s(n, device, b)}
    series = []
    for batch in view.batch_sizes:
        some = [
            (n, *point(n, w, t))
            for n in view.networks
            if (w := view.work(n, batch)) and (t := view.runtime_s(n, device, batch))
        ]
        labels = tuple(n.label if largest[n.model] == batch else "" for n, _, _ in some)
        series.append(Series.of(f"batch {batch}", [(x, y, n.label) for n, x, y in some], labels=labels))
    return tuple(series)


def _time_table(view: View) -> Table:
    works = {(n.model, b): w for n, b in product(view.networks, view.batch_sizes) if (w := view.work(n, b))}

    def achieved(case: tuple[Network, Point]) -> Cell:
        work = works.get((case[1].model, case[1].batch_size))
        return work.flops / case[1].runtime_s / 1e9 if work and case[1].runtime_s else None

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


def _runtime_name(view: View, name: str) -> str:
    return next((f"runtime, {d.name}" for d in view.data.devices if d.label == name), name)


def _heatmap(view: View, found: analysis.Correlation) -> Heatmap:
    names = tuple(_runtime_name(view, name) for name in found.names)
    title = f"{found.method}'s rank correlation, batch {found.batch_size}"
    note = f"Over {found.networks} networks that have a time on every device."
    return Heatmap(title, "", "", names, names, found.values, found.method, note)


def _rank_table(view: View, found: Sequence[analysis.Correlation]) -> Table:
    rows = tuple(
        (str(c.batch_size), c.method, _runtime_name(view, a), _runtime_name(view, b), c.of(a, b), c.networks)
        for c in found
        for i, a in enumerate(c.names)
        for b in c.names[:i]
    )
    return Table("Rank correlations", ("batch", "method", "of", "and", "correlation", "networks"), rows)


def _throughput(view: View, device: Device) -> XY:
    series: list[Series] = []
    for network in view.networks:
        times = [(b, t) for b in view.batch_sizes if (t := view.runtime_s(network, device, b))]
        points = [(b, b / t, f"{network.label}, batch {b}") for b, t in times]
        if points:
            series.append(Series.of(network.label, points, mode="lines+markers", dash=len(series) % 2 == 1))
    title = f"Throughput against batch size, {device.label}"
    return XY(title, "batch size", "samples/s", tuple(series), True, True)


# ---- 4 ----


def _utilisation(view: View) -> list[Section]:
    gaps = [
        gap
        for device in view.data.devices
        for roof in view.roofs(device)
        for batch in view.batch_sizes
        for gap in analysis.gaps(view, device, batch, roof)
    ]
    columns: Columns[Gap] = {
        "network": lambda g: g.network.label,
        "device": lambda g: g.device.name,
        "time": lambda g: g.device.basis,
        "batch": lambda g: str(g.batch_size),
        "roof": lambda g: g.roof.origin,
        "achieved, GFLOP/s": lambda g: g.flops_per_s / 1e9,
        "attainable, GFLOP/s": lambda g: g.roof.attainable(g.intensity) / 1e9,
        "of the peak, %": lambda g: g.of_peak * 100,
        "of the attainable, %": lambda g: g.of_attainable * 100,
    }
    table = Table.of("Achieved against peak and against the attainable roof", gaps, columns)
    charts = (_achieved(view, device) for device in view.data.devices)
    return [Section("4 Utilisation", comments.on_gaps(view), (*charts, table))]


def _achieved(view: View, device: Device) -> XY:
    series = _by_batch(view, device, lambda _, work, runtime_s: (work.intensity, work.flops / runtime_s))
    every = (*_roof_lines(view, device, series), *series)
    title = f"Achieved performance on the roofline, {device.label}"
    return XY(title, f"{INTENSITY} moved", "FLOP/s", every, True, True)


# ---- 5 ----


def _training(view: View) -> list[Section]:
    labels = {n.model: n.label for n in view.networks}
    every = product(view.data.devices, view.networks)
    steps = [t for d, n in every if (t := view.data.training(n.model, d.name))]
    own = [t for t in steps if t.basis == MEASURED] or steps
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
        BarSeries("FLOP", tuple(t.flops_ratio for t in own)),
        BarSeries("time", tuple(t.time_ratio for t in own)),
    )
    names = tuple(labels[t.model] for t in own)
    bars = Bars("Backward over forward pass", "backward : forward", names, ratios)
    table = Table.of("Forward and backward pass", own, columns)
    apart = _taken_apart(own)
    pies = tuple(_pies(t, labels[t.model]) for t in apart)
    kinds = tuple(comments.on_kinds(t, labels[t.model]) for t in apart)
    kinds = (*kinds, "Memory: what the results of the calls take.") if apart else ()
    return [
        Section("5 Inference and training", comments.on_training(own, labels), (bars, table)),
        Section("Time, FLOP and memory by layer kind", kinds, (*pies, _kind_table(own, labels)), level=3),
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
    parts: list[tuple[str, dict[str, float]]] = []
    for phase in ("forward", "backward"):
        some = [k for k in step.kinds if k.phase == phase]
        if any(k.runtime_s for k in some):
            parts.append((f"{phase}: time", {k.kind: k.runtime_s or 0.0 for k in some}))
        parts.append((f"{phase}: FLOP", {k.kind: float(k.flops) for k in some}))
        parts.append((f"{phase}: memory", {k.kind: float(k.memory_bytes) for k in some}))
    wholes = [(sizes, sum(sizes.values())) for _, sizes in parts]
    major = {kind for sizes, whole in wholes for kind, v in sizes.items() if v and v / whole >= MINOR}
    pies = []
    for title, sizes in parts:
        merged: dict[str, float] = {}
        for kind, value in sizes.items():
            name = kind if kind in major else "other"
            merged[name] = merged.get(name, 0.0) + value
        pies.append(Pie(title, tuple(merged), tuple(merged.values())))
    note = f"Batch {step.batch_size}, {step.device}; kinds below {MINOR:.0%} in every pie are other."
    if step.forward_s is None:
        note += f" Times are missing: {step.reason}."
    return Pies(f"Layer kinds of {label}", tuple(pies), note)


def _kind_table(steps: Sequence[Training], labels: dict[str, str]) -> Table:
    rows = tuple(
        (labels[t.model], k.phase, k.kind, _scaled(k.runtime_s, 1e-3), k.flops / 1e9, k.memory_bytes / 1e6)
        for t in steps
        for k in t.kinds
    )
    return Table("By layer kind", ("network", "phase", "kind", "time, ms", "GFLOP", "memory, MB"), rows)
