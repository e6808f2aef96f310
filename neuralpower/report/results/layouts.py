"""The table of `neuralpower parallel`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace

from neuralpower.ask.options import Options, options_of
from neuralpower.files.terminal import styled, visible
from neuralpower.prediction.costs.images import noun_of
from neuralpower.prediction.explore.layouts import Laid, Layouts
from neuralpower.report.grid import as_asked, listed, note_lines, percent
from neuralpower.report.number_format import binary, counted, plain, quantity, rate
from neuralpower.trace.recipe import TRAINING

SPARED = ("bubble", "exposed", "memory", "samples", "micro-batches", "90 %")
"""Columns that narrow tables do without, in this order."""


def layouts_table(ranked: Layouts, top: int = 0, *, marked: bool = False) -> str:
    """The best, the command with its details, the others, and why some do not fit."""
    fitting = ranked.fitting
    shown = fitting[: top or None]
    columns: dict[str, Callable[[Laid], str]] = {
        "layout": lambda one: one.layout.short,
        "batch": lambda one: str(one.batch_size),
        "micro-batches": lambda one: str(one.micro_batches),
        "latency": lambda one: quantity(one.runtime_s.value if one.runtime_s else None, "s"),
        "90 %": _bounds,
        **_rates(ranked),
        "exposed": lambda one: percent(one.exposed_share),
        "bubble": lambda one: percent(one.bubble_share),
        "memory": lambda one: binary(one.memory_bytes),
        "up to": lambda one: binary(one.memory_high_bytes),
    }
    if ranked.wanted.price is not None:
        columns[f"{ranked.wanted.price.currency} per 1M"] = lambda one: (
            "-" if one.cost is None else plain(one.cost)
        )
    if any(one.energy_j for one in shown):
        made = "token" if any(one.tokens_per_s for one in shown) else "sample"
        columns[f"energy per {made}"] = lambda one: quantity(
            one.energy_j.value if one.energy_j else None, "J"
        )
    if ranked.wanted.terms.intensity is not None:
        columns["CO2e per 1M"] = lambda one: quantity(one.carbon_g, "g")
    table = [listed(shown, columns, spared=SPARED)] if shown else []
    foot = [*_foot(ranked, len(shown)), *note_lines([*_skipped(ranked), *ranked.notes])]
    return as_asked([*_head(ranked), "", *table, *foot], marked)


def _head(ranked: Layouts) -> Iterator[str]:
    """The request; the best layout, and its command."""
    wanted = ranked.wanted
    trains, request = wanted.request.trains, wanted.request
    phase = f"{TRAINING}, {wanted.samples} samples a step" if trains else request.phase.label
    asked = f"{request.called}, {request.dtype}, {phase}, {ranked.run}, on {wanted.cluster}"
    if not ranked.fitting:
        yield styled("no layout fits", "bad")
    else:
        best = ranked.fitting[0]
        rate = best.images_per_hour or best.tokens_per_s or best.samples_per_s or 0.0
        time = quantity(best.runtime_s.value if best.runtime_s else None, "s")
        unit = "tokens/s" if best.tokens_per_s else "samples/s"
        unit = unit if ranked.picture is None else f"{noun_of(ranked.picture.task)}s/h"
        yield styled(
            f"best by {wanted.by}: {best.layout}, {time}, {plain(rate)} {unit}",
            "bold",
        )
        yield visible(f"details: {command(ranked, best)}")
    yield visible(asked)


def command(ranked: Layouts, laid: Laid) -> str:
    request = ranked.wanted.request
    recipe = replace(request.recipe, accumulation=laid.micro_batches)
    given = replace(request, layout=laid.layout, batch_size=laid.batch_size, recipe=recipe).options
    shown = {name: given.pop(name) for name in ("phase", "batch_size", "dtype")}
    usual = options_of(Options)
    shown |= {name: value for name, value in given.items() if value != usual[name].default}
    words = (
        f"--{name.replace('_', '-')}{'' if value is True else f' {shlex.quote(str(value))}'}"
        for name, value in shown.items()
    )
    return " ".join(["neuralpower predict", shlex.quote(request.called), *words])


def _foot(ranked: Layouts, shown: int) -> Iterator[str]:
    """How many there are."""
    fitting = len(ranked.fitting)
    more = f" ({fitting - shown} not shown: --top 0)" if shown < fitting else ""
    every = counted(len(ranked.found), "layout")
    yield f"{fitting} of {every} fit{more}, from {counted(ranked.traces, 'trace')}"


def _skipped(ranked: Layouts) -> Iterator[str]:
    """Why layouts do not fit."""
    for sort, count in ranked.reasons.items():
        first = next(one for one in ranked.found if one.sort == sort)
        example = f", as {first.layout.short} {first.reason}" if first.reason != sort else ""
        yield f"{counted(count, 'layout')} skipped: {sort}{example}"


def _rates(ranked: Layouts) -> dict[str, Callable[[Laid], str]]:
    """Columns of what is made in a second, or of images in an hour."""
    if ranked.picture is None:
        return {"samples": lambda one: rate(one.samples_per_s), "tokens": lambda one: rate(one.tokens_per_s)}
    return {
        f"{noun_of(ranked.picture.task)}s/h": lambda one: (
            "-" if one.images_per_hour is None else plain(one.images_per_hour)
        )
    }


def _bounds(laid: Laid) -> str:
    time = laid.runtime_s
    return "-" if time is None else f"{quantity(time.low, 's')} to {quantity(time.high, 's')}"


def _energy(laid: Laid) -> str:
    return "-" if laid.energy_j is None else quantity(laid.energy_j.value, "J")
