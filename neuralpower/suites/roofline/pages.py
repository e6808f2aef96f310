"""The report's page: sections, tables and charts of what was gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuralpower.report.charts import XY, Bars, BarSeries, Heatmap, Pie, Pies, Series
from neuralpower.report.page import Cell, Page, Section, Table
from neuralpower.suites.roofline import analysis, chips, comments
from neuralpower.suites.roofline.analysis import View
from neuralpower.suites.roofline.records import MEASURED, OK, Device, Network, Training, Work

PIES = 3  # networks that are taken apart into kinds
MINOR = 0.02  # share below which a kind is "other" in every pie


def page(view: View) -> Page:
    """Everything."""
    devices = " and ".join(d.label for d in view.data.devices)
    lead = (
        f"{len(view.networks)} networks in {view.data.settings['dtype']} on {devices}: what they work and move, what the "
        "devices could do, and what they take. 1 multiply-add = 2 FLOP; nothing but random tensors runs."
    )
    sections = (
        _method(view),
        *_chips(view),
        *_networks(view),
        *_benchmark(view),
        *_utilisation(view),
        *_training(view),
    )
    return Page("Rooflines and runtimes", lead, sections)


def _method(view: View) -> Section:
    measured = [d for d in view.data.devices if d.basis == MEASURED]
    predicted = [d for d in view.data.devices if d.basis != MEASURED]
    text = []
    for device in measured:
        text.append(
            f"Measured on {device.name}: networks with random weights and inputs in eval mode, without gradients; warmed up, "
            f"then timed ({comments.on_samples(view)}), the device synchronised. A time is the 10th percentile of its runs on "
            "a CPU, whose neighbours only make it slower, and the median on a GPU."
        )
    for device in predicted:
        coverage = [p.coverage for p in view.data.points if p.device == device.name and p.coverage is not None]
        known = (
            f" Its regressors account for {min(coverage):.0%} to {max(coverage):.0%} of a network's time"
            if coverage
            else ""
        )
        text.append(
            f"Predicted for {device.name}: no figure of it is measured here; the predictor `{device.predictor}` adds up the "
            f"layers.{known}{'; the rest is an estimate by roofline' if known else ''}"
            f"{': it never saw ' + ', '.join(device.unknown_kinds) if device.unknown_kinds else ''}."
        )
    text.append(
        "FLOP and bytes are those of the traced layers, each batch size traced for itself. Bytes moved: inputs, weights and "
        "outputs of every layer, once each. Memory footprint: the most bytes of tensors that live at once, weights among them."
    )
    text += view.data.notes
    missing = _missing(view)
    return Section("How this was made", tuple(text), (missing,) if missing.rows else ())


def _missing(view: View) -> Table:
    """Points that have no time, with the reason."""
    rows = [
        (n.label, d.name, str(b), p.status, p.reason)
        for d in view.data.devices
        for n in view.networks
        for b in view.batch_sizes
        if (p := view.data.point(n.model, d.name, b)) is not None and p.status != OK
    ]
    return Table("Points that are not there", ("network", "device", "batch", "status", "reason"), tuple(rows))


# ---- 1 ----


def _chips(view: View) -> list[Section]:
    every = {chip.slug: chip for chip in chips.sheets()}
    centre = [every[slug] for slug in chips.DATA_CENTRE if slug in every]
    mobile = [every[slug] for slug in chips.MOBILE if slug in every]
    own = [r for r in view.data.roofs if r.samples]
    charts = (
        chips.roofline("Rooflines of data-centre chips", centre),
        chips.roofline("Rooflines of mobile, edge and consumer chips", mobile, own),
    )
    tables = (chips.table(list(every.values())), chips.sources(list(every.values())))
    roofs = _roof_table(view)
    return [
        Section("1 Chips", comments.on_chips(centre, mobile), (*charts, *tables)),
        Section("Theoretical and measured roofs", comments.on_roof(view.data.roofs), (roofs,), level=3),
    ]


def _roof_table(view: View) -> Table:
    names = {d.name for d in view.data.devices}
    rows = [
        (r.device, r.origin, r.flops_per_s / 1e12, r.bytes_per_s / 1e9, r.ridge, r.samples or None, r.how)
        for r in view.data.roofs
        if r.device in names
    ]
    header = ("device", "origin", "TFLOP/s", "GB/s", "ridge, FLOP/B", "samples", "how")
    return Table(f"Roofs in {view.data.settings['dtype']}", header, tuple(rows))


# ---- 2 ----


def _networks(view: View) -> list[Section]:
    first = view.batch_sizes[0]
    labels = tuple(n.label for n in view.networks)
    works = [view.work(n, first) for n in view.networks]
    rows: list[tuple[Cell, ...]] = []
    for network in view.networks:
        for batch in view.batch_sizes:
            work = view.work(network, batch)
            if work is not None:
                peak = None if work.peak_bytes is None else work.peak_bytes / 1e6
                rows.append(
                    (
                        network.label, network.input, str(batch), work.flops / 1e9, network.parameters / 1e6,
                        network.parameter_bytes / 1e6, peak, work.bytes_moved / 1e6, work.footprint_intensity,
                        work.intensity, sum(c.count for c in work.calls), network.model,
                    )
                )  # fmt: skip
    header = (
        *("network", "input", "batch", "GFLOP", "parameters, 1e6", "weights, MB", "footprint, MB", "moved, MB"),
        *("FLOP/B of footprint", "FLOP/B moved", "layer calls", "MODEL"),
    )

    def of(figure: Callable[[Work], float | None]) -> tuple[float | None, ...]:
        return tuple(None if work is None else figure(work) for work in works)

    size = {
        "FLOP, 1e9": of(lambda w: w.flops / 1e9),
        "parameters, 1e6": tuple(n.parameters / 1e6 for n in view.networks),
    }
    memory = {"footprint": of(lambda w: _scaled(w.peak_bytes, 1e6)), "bytes moved": of(lambda w: w.bytes_moved / 1e6)}
    use = {
        "on the memory footprint": of(lambda w: w.footprint_intensity),
        "on the bytes moved": of(lambda w: w.intensity),
    }
    charts = (
        Bars(f"{title}, batch {first}", unit, labels, tuple(BarSeries(*one) for one in values.items()), log_y=True)
        for title, unit, values in (
            ("Work and parameters", "GFLOP, or 1e6 parameters", size),
            ("Memory", "MB", memory),
            ("Operational intensity", "FLOP/B", use),
        )
    )
    overlays = tuple(c for d in view.data.devices if (c := _overlay(view, d)) is not None)
    return [
        Section(
            "2 Networks: work and memory",
            comments.on_networks(view),
            (Table("FLOP, parameters, memory and intensity", header, tuple(rows)), *charts),
        ),
        Section("Networks on the rooflines", ("Where the roof ends above each network.",), overlays, level=3),
        Section("Bound by memory or by compute", comments.on_verdicts(view), (_verdict_table(view),), level=3),
    ]


def _roof_lines(view: View, device: Device, intensities: Sequence[float]) -> list[Series]:
    """Lines of a device's roofs over all intensities."""
    lines = []
    for roof in view.roofs(device):
        low = min([*intensities, roof.ridge]) / 3
        high = max([*intensities, roof.ridge]) * 3
        what = f"{roof.flops_per_s / 1e12:.3g} TFLOP/s, {roof.bytes_per_s / 1e9:.4g} GB/s"
        lines.append(
            Series(
                f"roof, {roof.origin}", (low, roof.ridge, high),
                (low * roof.bytes_per_s, roof.flops_per_s, roof.flops_per_s),
                text=(what, what, what), mode="lines", dash=not roof.samples,
            )
        )  # fmt: skip
    return lines


def _overlay(view: View, device: Device) -> XY | None:
    roof = view.roof(device)
    if roof is None:
        return None
    series = []
    for batch in (view.batch_sizes[0], view.batch_sizes[-1]):
        some = [(n.label, w.intensity) for n in view.networks if (w := view.work(n, batch)) and w.intensity]
        x = tuple(i for _, i in some)
        names = tuple(n for n, _ in some)
        shown = names if batch == view.batch_sizes[0] else ()
        y = tuple(roof.attainable(i) for i in x)
        series.append(Series(f"batch {batch}, bytes moved", x, y, text=names, labels=shown))
    series = series[:1] if len(view.batch_sizes) == 1 else series
    every = [x for s in series for x in s.x if x is not None]
    note = "Intensity on the bytes moved. " + ("" if roof.samples else "The roof is the data sheet's.")
    return XY(
        f"Operational intensity on the roofline of {device.name}", "operational intensity, FLOP/B",
        "attainable FLOP/s", (*_roof_lines(view, device, every), *series), True, True, note=note,
    )  # fmt: skip


def _verdict_table(view: View) -> Table:
    rows = [
        (v.network.label, v.device.name, str(v.batch_size), v.intensity, v.ridge, v.bound, v.memory_share * 100)
        for batch in view.batch_sizes
        for v in analysis.verdicts(view, batch)
    ]
    header = (
        *("network", "device", "batch", "FLOP/B moved", "ridge, FLOP/B", "bound by"),
        "time on the roof in memory-bound layers, %",
    )
    note = "Against the measured roof where there is one, else the data sheet's."
    return Table("Bound by memory or by compute", header, tuple(rows), note)


# ---- 3 ----


def _benchmark(view: View) -> list[Section]:
    scatter = [_scatter(view, d, what) for what in ("FLOP", "parameters") for d in view.data.devices]
    heat = [c for b in view.batch_sizes for c in _heatmaps(view, b)]
    return [
        Section("3 Runtimes", ("Colour and symbol: batch size; name: network.",), (*scatter, _time_table(view))),
        Section("Rank correlations", (), (*heat, _rank_table(view)), level=3),
        Section("Do FLOP or parameters say how long a network takes?", comments.on_prediction(view), (), level=3),
        Section(
            "Throughput", comments.on_throughput(view), tuple(_throughput(view, d) for d in view.data.devices), level=3
        ),
    ]


def _scatter(view: View, device: Device, what: str) -> XY:
    def point(network: Network, work: Work, runtime_s: float) -> tuple[float, float]:
        return (work.flops / work.batch_size if what == "FLOP" else network.parameters), runtime_s

    label = "FLOP of one sample" if what == "FLOP" else "parameters"
    return XY(
        f"Runtime against {what}, {device.label}", label, "runtime of a batch, s", _by_batch(view, device, point), True,
        True, note="A network's batches stand above each other; its name stands at the largest.",
    )  # fmt: skip


def _by_batch(
    view: View, device: Device, point: Callable[[Network, Work, float], tuple[float | None, float]]
) -> tuple[Series, ...]:
    """For each batch size, a point for each network that has a time; a network's name stands at its largest batch."""
    series = []
    for batch in view.batch_sizes:
        some = [
            (n, *point(n, w, t))
            for n in view.networks
            if (w := view.work(n, batch)) and (t := view.runtime_s(n, device, batch))
        ]
        series.append(
            Series(
                f"batch {batch}",
                tuple(x for _, x, _ in some),
                tuple(y for _, _, y in some),
                text=tuple(n.label for n, _, _ in some),
                labels=tuple(n.label if _largest(view, n, device) == batch else "" for n, _, _ in some),
            )
        )
    return tuple(series)


def _largest(view: View, network: Network, device: Device) -> int | None:
    """The largest batch that has a time."""
    return max((b for b in view.batch_sizes if view.runtime_s(network, device, b)), default=None)


def _time_table(view: View) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for network in view.networks:
        for device in view.data.devices:
            for batch in view.batch_sizes:
                point, work = view.data.point(network.model, device.name, batch), view.work(network, batch)
                if point is None:
                    continue
                seconds = point.runtime_s
                achieved = work.flops / seconds / 1e9 if work and seconds else None
                rows.append(
                    (
                        network.label, device.name, point.basis, str(batch), None if seconds is None else seconds * 1e3,
                        None if seconds is None else batch / seconds, achieved, len(point.samples_s) or None,
                        None if point.coverage is None else point.coverage * 100, point.status,
                    )
                )  # fmt: skip
    header = (
        *("network", "device", "basis", "batch", "runtime, ms", "samples/s", "GFLOP/s", "runs", "covered, %", "status"),
    )
    return Table("Runtimes and throughput", header, tuple(rows))


def _heatmaps(view: View, batch: int) -> list[Heatmap]:
    found = []
    for method in ("Spearman", "Kendall"):
        c = analysis.correlation(view, batch, method)
        names = tuple(_runtime_name(view, name) for name in c.names)
        found.append(
            Heatmap(
                f"{method}'s rank correlation, batch {batch}", "", "", names, names, c.values, method,
                note=f"Over {c.networks} networks that have a time on every device.",
            )
        )  # fmt: skip
    return found


def _runtime_name(view: View, name: str) -> str:
    device = next((d for d in view.data.devices if d.label == name), None)
    return name if device is None else f"runtime, {device.name}"


def _rank_table(view: View) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for batch in view.batch_sizes:
        for method in ("Spearman", "Kendall"):
            c = analysis.correlation(view, batch, method)
            for i, a in enumerate(c.names):
                for j, b in enumerate(c.names[:i]):
                    names = (_runtime_name(view, a), _runtime_name(view, b))
                    rows.append((str(batch), method, *names, c.values[i][j], c.networks))
    return Table("Rank correlations", ("batch", "method", "of", "and", "correlation", "networks"), tuple(rows))


def _throughput(view: View, device: Device) -> XY:
    series: list[Series] = []
    for network in view.networks:
        some = [(b, b / t) for b in view.batch_sizes if (t := view.runtime_s(network, device, b))]
        if some:
            x, y = tuple(b for b, _ in some), tuple(v for _, v in some)
            text = tuple(f"{network.label}, batch {b}" for b in x)
            series.append(Series(network.label, x, y, text=text, mode="lines+markers", dash=len(series) % 2 == 1))
    return XY(f"Throughput against batch size, {device.label}", "batch size", "samples/s", tuple(series), True, True)


# ---- 4 ----


def _utilisation(view: View) -> list[Section]:
    charts = tuple(_achieved(view, d) for d in view.data.devices)
    rows: list[tuple[Cell, ...]] = []
    for device in view.data.devices:
        for roof in view.roofs(device):
            for batch in view.batch_sizes:
                for g in analysis.gaps(view, device, batch, roof):
                    rows.append(
                        (
                            g.network.label, device.name, device.basis, str(batch), roof.origin, g.flops_per_s / 1e9,
                            roof.attainable(g.intensity) / 1e9, g.of_peak * 100, g.of_attainable * 100,
                        )
                    )  # fmt: skip
    header = (
        *("network", "device", "time", "batch", "roof", "achieved, GFLOP/s", "attainable, GFLOP/s"),
        *("of the peak, %", "of the attainable, %"),
    )
    gap = Table("Achieved against peak and against the attainable roof", header, tuple(rows))
    return [Section("4 Utilisation", comments.on_gaps(view), (*charts, gap))]


def _achieved(view: View, device: Device) -> XY:
    series = _by_batch(view, device, lambda network, work, runtime_s: (work.intensity, work.flops / runtime_s))
    every = [x for s in series for x in s.x if x]  # what only moves data has no place on a logarithmic axis
    return XY(
        f"Achieved performance on the roofline, {device.label}", "operational intensity, FLOP/B moved",
        "FLOP/s", (*_roof_lines(view, device, every), *series), True, True,
    )  # fmt: skip


# ---- 5 ----


def _training(view: View) -> list[Section]:
    labels = {n.model: n.label for n in view.networks}
    steps = [t for d in view.data.devices for n in view.networks if (t := view.data.training(n.model, d.name))]
    own = [t for t in steps if t.basis == MEASURED] or steps
    rows: list[tuple[Cell, ...]] = [
        (
            labels[t.model], t.device, str(t.batch_size), _scaled(t.forward_flops, 1e9), _scaled(t.backward_flops, 1e9),
            t.flops_ratio, _scaled(t.forward_s, 1e-3), _scaled(t.backward_s, 1e-3), t.time_ratio, t.samples or None,
            t.reason or t.status,
        )
        for t in own
    ]  # fmt: skip
    header = (
        *("network", "device", "batch", "forward, GFLOP", "backward, GFLOP", "ratio of FLOP"),
        *("forward, ms", "backward, ms", "ratio of time", "runs", "status"),
    )
    names = tuple(labels[t.model] for t in own)
    bars = Bars(
        "Backward over forward pass", "backward : forward", names,
        (
            BarSeries("FLOP", tuple(t.flops_ratio for t in own)),
            BarSeries("time", tuple(t.time_ratio for t in own)),
        ),
    )  # fmt: skip
    apart = _taken_apart(own)
    pies = tuple(_pies(t, labels[t.model]) for t in apart)
    text = comments.on_training(own, labels)
    kinds = tuple(comments.on_kinds(t, labels[t.model]) for t in apart)
    kinds = (*kinds, "Memory: what the results of the calls take.") if apart else ()
    return [
        Section("5 Inference and training", text, (bars, Table("Forward and backward pass", header, tuple(rows)))),
        Section("Time, FLOP and memory by layer kind", kinds, (*pies, _kind_table(own, labels)), level=3),
    ]


def _scaled(value: float | int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _taken_apart(steps: Sequence[Training]) -> list[Training]:
    """Networks whose largest kinds differ first; timed ones before counted ones."""
    timed = [t for t in steps if t.status == OK and t.forward_s] or [t for t in steps if t.kinds]
    chosen: list[Training] = []
    seen: set[tuple[str, ...]] = set()
    for step in timed:
        kinds = {k.kind: k.runtime_s or k.flops for k in step.kinds if k.phase == "forward"}
        signature = tuple(sorted(kinds, key=lambda kind: -kinds[kind])[:3])
        if signature not in seen:
            seen.add(signature)
            chosen.append(step)
    return [*chosen, *(t for t in timed if t not in chosen)][:PIES]


def _pies(step: Training, label: str) -> Pies:
    parts: list[tuple[str, dict[str, float]]] = []
    for phase in ("forward", "backward"):
        some = [k for k in step.kinds if k.phase == phase]
        if any(k.runtime_s for k in some):
            parts.append((f"{phase}: time", {k.kind: k.runtime_s or 0.0 for k in some}))
        parts.append((f"{phase}: FLOP", {k.kind: float(k.flops) for k in some}))
        parts.append((f"{phase}: memory", {k.kind: float(k.memory_bytes) for k in some}))
    major = {
        kind
        for _, values in parts
        for kind, v in values.items()
        if sum(values.values()) and v / sum(values.values()) >= MINOR
    }
    pies = []
    for title, values in parts:
        merged: dict[str, float] = {}
        for kind, value in values.items():
            name = kind if kind in major else "other"
            merged[name] = merged.get(name, 0.0) + value
        pies.append(Pie(title, tuple(merged), tuple(merged.values())))
    note = f"Batch {step.batch_size}, {step.device}; kinds below {MINOR:.0%} in every pie are other."
    if step.forward_s is None:
        note += f" Times are missing: {step.reason}."
    return Pies(f"Layer kinds of {label}", tuple(pies), note)


def _kind_table(steps: Sequence[Training], labels: dict[str, str]) -> Table:
    rows = [
        (labels[t.model], k.phase, k.kind, _scaled(k.runtime_s, 1e-3), k.flops / 1e9, k.memory_bytes / 1e6)
        for t in steps
        for k in t.kinds
    ]
    return Table("By layer kind", ("network", "phase", "kind", "time, ms", "GFLOP", "memory, MB"), tuple(rows))
