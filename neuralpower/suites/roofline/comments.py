"""Sentences that the figures make; where there are too few figures, they say so."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from neuralpower.devices.spec import DeviceSpec
from neuralpower.report.tables import quantity
from neuralpower.suites.roofline import analysis
from neuralpower.suites.roofline.analysis import FLOP, PARAMETERS, View
from neuralpower.suites.roofline.chips import bandwidth, best, ridge, short_name
from neuralpower.suites.roofline.records import BUDGET, MEASURED, OK, Device, Roof, Training

STRENGTHS = ((0.9, "closely"), (0.6, "roughly"), (0.3, "loosely"), (-0.3, "hardly"))  # of a rank correlation, from


def on_chips(centre: Sequence[DeviceSpec], mobile: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """How the chips of the two charts compare."""
    every = [*centre, *mobile]
    fastest, slowest = max(every, key=lambda c: best(c)[1]), min(every, key=lambda c: best(c)[1])
    widest, narrowest = max(every, key=bandwidth), min(every, key=bandwidth)
    steep, flat = max(every, key=ridge), min(every, key=ridge)
    found = [
        f"{short_name(fastest)} has the highest peak, {quantity(best(fastest)[1], 'FLOP/s')} in {best(fastest)[0]}, "
        f"{best(fastest)[1] / best(slowest)[1]:.0f} times that of {short_name(slowest)} in {best(slowest)[0]}; memory "
        f"bandwidth spans less, from {quantity(bandwidth(narrowest), 'B/s')} ({short_name(narrowest)}) to "
        f"{quantity(bandwidth(widest), 'B/s')} ({short_name(widest)}), a factor of "
        f"{bandwidth(widest) / bandwidth(narrowest):.0f}.",
        f"The ridge says how often each byte must be used before the arithmetic is what limits: {ridge(flat):.3g} FLOP/B on "
        f"{short_name(flat)}, {ridge(steep):.3g} on {short_name(steep)}. The higher it is, the more networks are bound by memory.",
    ]
    for name, key in (("CPUs", "cpu"), ("GPUs", "gpu"), ("TPUs", "tpu"), ("SoCs", "soc")):
        some = [ridge(c) for c in every if c.device_class == key]
        if some:
            found.append(f"- Ridges of the {len(some)} {name} here: {min(some):.3g} to {max(some):.3g} FLOP/B.")
    return tuple(found)


def on_roof(roofs: Sequence[Roof]) -> tuple[str, ...]:
    """Measured beside printed."""
    found = []
    for measured in (r for r in roofs if r.samples):
        sheet = next((r for r in roofs if r.device == measured.device and not r.samples), None)
        text = (
            f"{measured.device} reaches {quantity(measured.flops_per_s, 'FLOP/s')} and "
            f"{quantity(measured.bytes_per_s, 'B/s')}, measured here ({measured.how})"
        )
        if sheet is not None:
            text += (
                f": {measured.flops_per_s / sheet.flops_per_s:.0%} and {measured.bytes_per_s / sheet.bytes_per_s:.0%} of "
                "its data sheet"
            )
        found.append(text + ".")
    return tuple(found)


def on_networks(view: View) -> tuple[str, ...]:
    """Which have most and least of what."""
    batch = view.batch_sizes[0]
    works = [(n, w) for n in view.networks if (w := view.work(n, batch)) and w.intensity]
    if len(works) < 2:
        return ()
    works.sort(key=lambda item: item[1].intensity or 0.0)
    (low, low_work), (high, high_work) = works[0], works[-1]
    text = [
        f"At batch {batch}, {low.label} does the fewest FLOP per byte moved, {low_work.intensity:.3g}, and {high.label} the "
        f"most, {high_work.intensity:.3g}."
    ]
    last = view.batch_sizes[-1]
    grown = [
        (n, (view.work(n, last).intensity or 0) / w.intensity)  # type: ignore[union-attr]  # asked for below
        for n, w in works
        if view.work(n, last) is not None and w.intensity
    ]
    if last > batch and grown:
        most, factor = max(grown, key=lambda item: item[1])
        least, small = min(grown, key=lambda item: item[1])
        text.append(
            f"From batch {batch} to {last}, weights are read once for more samples: the intensity of {most.label} grows "
            f"{factor:.3g} times, that of {least.label} {small:.3g} times, as little of its traffic is weights."
        )
    return tuple(text)


def on_verdicts(view: View) -> tuple[str, ...]:
    """Who is bound by what, per device and batch size."""
    found = []
    for device in view.data.devices:
        for batch in view.batch_sizes:
            mine = [v for v in analysis.verdicts(view, batch) if v.device == device]
            if not mine:
                continue
            memory = [v.network.label for v in mine if v.bound == "memory"]
            compute = [v.network.label for v in mine if v.bound == "compute"]
            text = f"- {device.name}, batch {batch} (ridge {mine[0].ridge:.3g} FLOP/B): "
            if not compute:
                text += "every network is bound by memory."
            elif not memory:
                text += "every network is bound by compute as a whole."
            else:
                text += f"bound by memory: {', '.join(memory)}; by compute: {', '.join(compute)}."
            split = max(mine, key=lambda v: min(v.memory_share, 1 - v.memory_share))
            if 0.1 < split.memory_share < 0.9:
                text += (
                    f" One word hides the layers: {split.memory_share:.0%} of {split.network.label}'s time on the roof "
                    "goes to layers bound by memory."
                )
            found.append(text)
    return tuple(found)


def on_prediction(view: View) -> tuple[str, ...]:
    """When FLOP or parameters say how long a network takes, and when they do not, with examples."""
    found = []
    for batch in view.batch_sizes:
        c = analysis.correlation(view, batch, "Spearman")
        if c.networks < analysis.FEWEST:
            found.append(f"Batch {batch}: {c.networks} networks have a time on every device, too few for ranks.")
            continue
        for device in view.data.devices:
            flops, parameters = c.of(device.label, FLOP), c.of(device.label, PARAMETERS)
            if flops is None or parameters is None:
                continue
            better, worse = ("FLOP", "parameters") if flops >= parameters else ("parameters", "FLOP")
            found.append(
                f"- {device.name}, batch {batch}: runtime follows FLOP {_strength(flops)} (Spearman {flops:.2f}) and "
                f"parameters {_strength(parameters)} ({parameters:.2f}), over {c.networks} networks; {better} are the "
                f"better guide than {worse}."
            )
    for device in view.data.devices:
        found += _examples(view, device)
    return tuple(found)


def _strength(value: float) -> str:
    return next((word for least, word in STRENGTHS if value >= least), "inversely")


def _examples(view: View, device: Device) -> list[str]:
    known = [(b, p) for b in view.batch_sizes if (p := analysis.pairs(view, device, b))]
    if not known:
        return []
    found = []
    batch, _ = known[-1]
    alike = [(good, b) for b, p in known if (good := analysis.proportional(p)) is not None]
    if alike:
        good, batch = min(alike, key=lambda item: item[0].error)
        found.append(
            f"Where it works, on {device.name} at batch {batch}: {good.first.label} has {good.flops:.3g} times the FLOP of "
            f"{good.second.label} and takes {good.runtime:.3g} times as long{_intensities(view, good, batch)}."
            f"{_doubt(view, good, device, batch)}"
        )
    else:
        found.append(f"On {device.name} no two of these networks that differ threefold in FLOP differ alike in time.")
    candidates = [(bad, b) for b, p in known if (bad := analysis.inverted(p)) is not None]
    if candidates:
        bad, batch = max(candidates, key=lambda item: item[0].error)
        found.append(
            f"Where it fails, on {device.name} at batch {batch}: {bad.first.label} has {bad.flops:.3g} times the FLOP of "
            f"{bad.second.label}, yet takes only {bad.runtime:.3g} times as long{_intensities(view, bad, batch)}. "
            f"{_why(view, bad, device, batch)}{_doubt(view, bad, device, batch)}"
        )
    else:
        found.append(f"On {device.name} no two of these networks stand in the wrong order by FLOP.")
    fewer = _parameters_mislead(view, device, batch)
    return [*found, fewer] if fewer else found


def _intensities(view: View, pair: analysis.Pair, batch: int) -> str:
    a, b = view.work(pair.first, batch), view.work(pair.second, batch)
    if a is None or b is None or not a.intensity or not b.intensity:
        return ""
    return f" ({a.intensity:.3g} against {b.intensity:.3g} FLOP/B)"


def _doubt(view: View, pair: analysis.Pair, device: Device, batch: int) -> str:
    guess = analysis.is_guess(view, device, batch, pair.first, pair.second)
    return (
        " Most of this work is of kinds that the predictor never saw: roofline estimates, not evidence."
        if guess
        else ""
    )


def _why(view: View, pair: analysis.Pair, device: Device, batch: int) -> str:
    """What the figures give as reasons: bytes, then number of calls."""
    a, b, roof = view.work(pair.first, batch), view.work(pair.second, batch), view.roof(device)
    if a is None or b is None:
        return ""
    reasons = []
    if roof is not None and analysis.memory_share(b, roof) > analysis.memory_share(a, roof) + 0.1:
        reasons.append(
            f"{analysis.memory_share(b, roof):.0%} of {pair.second.label}'s time on the roof goes to layers bound by "
            f"memory, {analysis.memory_share(a, roof):.0%} of {pair.first.label}'s"
        )
    calls = (sum(c.count for c in a.calls), sum(c.count for c in b.calls))
    if calls[1] > 1.5 * calls[0]:
        reasons.append(f"it calls {calls[1]} layers, the other {calls[0]}, and every call costs something")
    if b.bytes_moved > a.bytes_moved:
        reasons.append(f"it moves {b.bytes_moved / a.bytes_moved:.2g} times the bytes")
    return f"The figures that explain it: {'; '.join(reasons)}." if reasons else "Its kernels reach less of the peak."


def _parameters_mislead(view: View, device: Device, batch: int) -> str:
    """The pair in which parameters mislead most."""
    worst, error = "", 1.0
    for pair in analysis.pairs(view, device, batch):
        ratio = pair.first.parameters / max(pair.second.parameters, 1)
        wrong = max(pair.runtime / ratio, ratio / pair.runtime)
        if (ratio - 1) * (pair.runtime - 1) < 0 and wrong > error:
            error = wrong
            worst = (
                f"Parameters mislead most there between {pair.first.label} and {pair.second.label}: {ratio:.3g} times the "
                f"parameters, {pair.runtime:.3g} times the time. A weight of a convolution is used at every position, one "
                "of a linear layer or an embedding once per sample or token."
            )
    return worst


def on_throughput(view: View) -> tuple[str, ...]:
    """What a larger batch gains."""
    found = []
    first, *_, last = (*view.batch_sizes, view.batch_sizes[-1])
    for device in view.data.devices:
        gains = []
        for network in view.networks:
            small, large = (view.runtime_s(network, device, b) for b in (first, last))
            if small and large and last > first:
                gains.append((network.label, (last / large) / (first / small)))
        if gains:
            best_gain, worst_gain = max(gains, key=lambda g: g[1]), min(gains, key=lambda g: g[1])
            found.append(
                f"- {device.name}: from batch {first} to {last}, throughput grows most for {best_gain[0]} "
                f"({best_gain[1]:.3g} times) and least for {worst_gain[0]} ({worst_gain[1]:.3g} times), over "
                f"{len(gains)} networks that have both."
            )
    return tuple(found) or ("No network has a time at both the smallest and the largest batch.",)


def on_gaps(view: View) -> tuple[str, ...]:
    """How far from the roof networks stay."""
    found, every = [], []
    for device in view.data.devices:
        roof = view.roof(device)
        if roof is None:
            continue
        for batch in view.batch_sizes:
            some = analysis.gaps(view, device, batch, roof)
            if not some:
                continue
            every += some
            top, low = max(some, key=lambda g: g.of_attainable), min(some, key=lambda g: g.of_attainable)
            middle = statistics.median(g.of_attainable for g in some)
            found.append(
                f"- {device.name}, batch {batch}: half of {len(some)} networks reach more than {middle:.0%} of what the "
                f"roof ({roof.origin}) allows; best {top.network.label} with {top.of_attainable:.0%}, last "
                f"{low.network.label} with {low.of_attainable:.1%} ({low.of_peak:.1%} of the peak)."
            )
    above = [gap for gap in every if gap.of_attainable > 1]
    if any(gap.roof.origin == "fitted" for gap in above):
        found.append("A fitted roof is what layers reach on the whole, not a peak: networks may lie above it.")
    if any(gap.roof.origin != "fitted" for gap in above):
        found.append(
            "More than 100 % of the roof: the bytes counted are those that must cross memory if no cache keeps results; "
            "where a cache does, a network passes the slope of the roof."
        )
    return tuple(found)


def on_training(steps: Sequence[Training], labels: dict[str, str]) -> tuple[str, ...]:
    """Ratios of backward to forward."""
    found = []
    work = [(labels[t.model], t.flops_ratio) for t in steps if t.flops_ratio]
    if work:
        low, high = min(work, key=lambda w: w[1] or 0), max(work, key=lambda w: w[1] or 0)
        found.append(
            f"In FLOP the backward pass is {low[1]:.2f} ({low[0]}) to {high[1]:.2f} ({high[0]}) times the forward pass: two "
            "products for each one, a gradient of the input and one of the weights, less the first layer's, whose input "
            "needs no gradient."
        )
    times = [(labels[t.model], t.time_ratio, t.flops_ratio) for t in steps if t.time_ratio and t.status == OK]
    if times:
        low_t, high_t = min(times, key=lambda t: t[1] or 0), max(times, key=lambda t: t[1] or 0)
        found.append(
            f"In time it is {low_t[1]:.2f} ({low_t[0]}) to {high_t[1]:.2f} ({high_t[0]}) times, over {len(times)} measured "
            "networks."
        )
        off = max(times, key=lambda t: abs((t[1] or 0) - (t[2] or 0)))
        if off[1] and off[2]:
            word = "more" if off[1] > off[2] else "less"
            found.append(
                f"{off[0]} lies farthest from its FLOP: {off[1]:.2f} in time against {off[2]:.2f} in FLOP, {word} than its "
                "work says."
            )
    elif work:
        late = any(t.status == BUDGET for t in steps)
        found.append(
            "No backward pass was timed: the time budget was too short for one (the table says what each would take); another "
            "run in the same folder goes on, with a longer --time-budget."
            if late
            else "No backward pass is shown: a report predicts forward passes only."
        )
    return tuple(found)


def on_kinds(step: Training, label: str) -> str:
    """What the largest slices of the pies are."""
    texts = []
    for phase in ("forward", "backward"):
        some = [k for k in step.kinds if k.phase == phase]
        for what, values in (
            ("time", [(k.kind, k.runtime_s or 0.0) for k in some]),
            ("FLOP", [(k.kind, float(k.flops)) for k in some]),
            ("memory", [(k.kind, float(k.memory_bytes)) for k in some]),
        ):
            whole = sum(v for _, v in values)
            if whole:
                kind, value = max(values, key=lambda item: item[1])
                texts.append(f"{phase} {what}: {kind} {value / whole:.0%}")
    return f"- {label}: {'; '.join(texts)}."


def on_samples(view: View) -> str:
    """How many runs stand behind a measured time."""
    counts = [len(p.samples_s) for p in view.data.points if p.basis == MEASURED and p.samples_s]
    if not counts:
        return "none measured"
    least, most = min(counts), max(counts)
    return f"{least} runs each" if least == most else f"{least} to {most} runs each"
