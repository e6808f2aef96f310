"""Sentences that the figures make; where there are too few figures, they say so.

The words stand in `comments.jinja`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from neuralpower.devices.spec import DeviceSpec
from neuralpower.suites.roofline import analysis
from neuralpower.suites.roofline.analysis import View
from neuralpower.suites.roofline.chips import bandwidth, best, ridge, short_name
from neuralpower.suites.roofline.records import MEASURED, Roof, Training
from neuralpower.suites.words import template

# of a rank correlation, from
STRENGTHS = ((0.9, "closely"), (0.6, "roughly"), (0.3, "loosely"), (-0.3, "hardly"))


def _strength(value: float) -> str:
    return next((word for least, word in STRENGTHS if value >= least), "inversely")


FILTERS = {"strength": _strength, "median": statistics.median}
TEMPLATE = template("neuralpower.suites.roofline", "comments.jinja", **FILTERS)
WORDS: Any = TEMPLATE.make_module({"analysis": analysis})


def _paragraphs(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def on_chips(centre: Sequence[DeviceSpec], mobile: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """How the chips of the two charts compare."""
    chips = [
        {
            "name": short_name(chip),
            "of": chip.device_class,
            "dtype": best(chip)[0],
            "peak": best(chip)[1],
            "speed": bandwidth(chip),
            "ridge": ridge(chip),
        }
        for chip in (*centre, *mobile)
    ]
    return _paragraphs(WORDS.on_chips(chips))


def on_roof(roofs: Sequence[Roof]) -> tuple[str, ...]:
    """Measured beside printed."""
    return _paragraphs(WORDS.on_roof(roofs))


def on_networks(view: View) -> tuple[str, ...]:
    """Which have most and least of what."""
    first, last = view.batch_sizes[0], view.batch_sizes[-1]
    found: list[dict[str, Any]] = []
    for network in view.networks:
        work, large = view.work(network, first), view.work(network, last)
        if work and work.intensity:
            growth = (large.intensity or 0) / work.intensity if large else None
            found.append({"label": network.label, "intensity": work.intensity, "growth": growth})
    found.sort(key=lambda one: one["intensity"])
    return _paragraphs(WORDS.on_networks(found, first, last))


def on_verdicts(view: View) -> tuple[str, ...]:
    """Who is bound by what, per device and batch size."""
    return _paragraphs(WORDS.on_verdicts(view))


def on_prediction(view: View) -> tuple[str, ...]:
    """When FLOP or parameters say how long a network takes, and when they do not, with examples."""
    return _paragraphs(WORDS.on_prediction(view))


def on_throughput(view: View) -> tuple[str, ...]:
    """What a larger batch gains."""
    gains = [(device, found) for device in view.data.devices if (found := analysis.gains(view, device))]
    return _paragraphs(WORDS.on_throughput(view, gains))


def on_gaps(view: View) -> tuple[str, ...]:
    """How far from the roof networks stay."""
    return _paragraphs(WORDS.on_gaps(view))


def on_training(steps: Sequence[Training], labels: dict[str, str]) -> tuple[str, ...]:
    """Ratios of backward to forward."""
    return _paragraphs(WORDS.on_training(steps, labels))


def on_kinds(step: Training, label: str) -> str:
    """What the largest slices of the pies are."""
    texts = []
    for phase in ("forward", "backward"):
        some = [k for k in step.kinds if k.phase == phase]
        for what, name in (("time", "runtime_s"), ("FLOP", "flops"), ("memory", "memory_bytes")):
            values = {k.kind: float(getattr(k, name) or 0) for k in some}
            if whole := sum(values.values()):
                kind = max(values, key=values.__getitem__)
                texts.append(f"{phase} {what}: {kind} {values[kind] / whole:.0%}")
    return f"- {label}: {'; '.join(texts)}."


def on_samples(view: View) -> str:
    """How many runs stand behind a measured time."""
    counts = [len(p.samples_s) for p in view.data.points if p.basis == MEASURED and p.samples_s]
    if not counts:
        return "none measured"
    least, most = min(counts), max(counts)
    return f"{least} runs each" if least == most else f"{least} to {most} runs each"
