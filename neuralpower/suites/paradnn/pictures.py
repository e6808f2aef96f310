"""Charts of sweeps: heat maps, regression weights, speed-ups, rooflines, throughput over the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neuralpower.report.charts import XY, Bars, BarSeries, Heatmap, Series
from neuralpower.suites.paradnn.analysis import (
    Faster,
    Weights,
    chosen_widths,
    hyper_parameters,
    one_family,
    pivot,
    utilisation,
)
from neuralpower.suites.paradnn.operators import OperatorTimes
from neuralpower.suites.paradnn.points import BATCH, family_named
from neuralpower.suites.paradnn.roof import Roof

if TYPE_CHECKING:
    import pandas as pd

TERA = 1e12


def heatmap(frame: pd.DataFrame, what: str, peaks: Mapping[str, float] | None = None) -> Heatmap:
    """Width by batch of one device and dtype: `what` is TFLOP/s, % of best or % of peak."""
    family = family_named(one_family(frame))
    values = frame["flops_per_s"] / TERA if what == "TFLOP/s" else utilisation(frame, peaks)
    table = pivot(frame, values, family.width, BATCH)
    others = [name for name in hyper_parameters(frame) if name not in (family.width, BATCH)]
    return Heatmap(
        title=f"{what}: {_of(frame)}",
        x_label="batch size",
        y_label=family.width,
        columns=tuple(power_of_two(int(size)) for size in table.columns),
        rows=tuple(power_of_two(int(size)) for size in table.index),
        values=tuple(tuple(_known(cell) for cell in row) for row in table.to_numpy(float)),
        value_label=what,
        note=f"Mean over {', '.join(others)}." if others else "",
    )


def weight_bars(models: Mapping[str, Weights], order: int) -> Bars:
    """Regression weights, devices side by side."""
    terms = tuple(dict.fromkeys(term for model in models.values() for term in model.weights))
    return Bars(
        title=f"What makes FLOP/s: linear weights, order {order}",
        y_label="% of the best FLOP/s per standard deviation",
        categories=terms,
        series=tuple(BarSeries(name, tuple(model.weights.get(t) for t in terms)) for name, model in models.items()),
        note="; ".join(f"{name}: R2 {model.r2:.2f}, {model.points} points" for name, model in models.items()),
    )


def faster_bars(model: Faster, a: str, b: str) -> Bars:
    """Weights of the logistic model."""
    return Bars(
        title=f"When {a} is faster than {b}",
        y_label="log-odds per standard deviation",
        categories=tuple(model.weights),
        series=(BarSeries("weight", tuple(model.weights.values())),),
        note=f"{a} is faster at {model.share:.0%} of {model.points} points; the model says so rightly at {model.accuracy:.0%}.",
    )


def speedups(pairs: pd.DataFrame, a: str, b: str, coloured: str) -> XY:
    """Speed-up of A over B against parameters, coloured by a hyper-parameter."""
    points = _series(pairs, f"{a} / {b}", pairs["parameters"], pairs["speedup"], coloured)
    ends = (float(pairs["parameters"].min()), float(pairs["parameters"].max()))
    even = Series("as fast", ends, (1.0, 1.0), mode="lines", dash=True)
    return XY(
        title=f"Speed-up of {a} over {b}, coloured by {coloured}",
        x_label="parameters",
        y_label="speed-up",
        series=(points, even),
        log_x=True,
        log_y=True,
        value_label=f"log2 {coloured}",
    )


def roofline(frame: pd.DataFrame, roof: Roof | None, coloured: str, relative: bool = False) -> XY:
    """FLOP/s over FLOP per byte of parameters, coloured by a hyper-parameter or, for "kind", a series each."""
    top = float(frame["flops_per_s"].max()) if roof is None else roof.flops_per_s
    scale = 100 / top if relative else 1 / TERA
    groups = frame.groupby(["family", "kind"]) if coloured == "kind" else [(("", "points"), frame)]
    lines = () if roof is None else (_roof_line(frame, roof, scale),)
    return XY(
        title=f"Roofline by {coloured}{', relative' if relative else ''}: {_of(frame)}",
        x_label="FLOP per byte of parameters",
        y_label=("% of peak" if roof else "% of the best") if relative else "TFLOP/s",
        series=(
            *(
                _series(
                    some,
                    " ".join(dict.fromkeys(map(str, filter(None, names)))),
                    some["intensity"],
                    some["flops_per_s"] * scale,
                    None if coloured == "kind" else coloured,
                )
                for names, some in groups
            ),
            *lines,
        ),
        log_x=True,
        log_y=True,
        value_label="" if coloured == "kind" else f"log2 {coloured}",
        note="" if roof is None else roof.source,
    )


def over_batch(frame: pd.DataFrame) -> list[XY]:
    """FLOP/s over the batch, a line for each depth, a chart for each of up to three widths."""
    family = family_named(one_family(frame))
    charts = []
    for width in chosen_widths(frame):
        some = frame[frame[family.width] == width]
        lines = []
        for depth, part in some.groupby(family.depth):
            means = part.groupby(BATCH)["flops_per_s"].mean() / TERA
            lines.append(
                Series(
                    f"{family.depth} {depth}",
                    tuple(map(int, means.index)),
                    tuple(map(float, means)),
                    mode="lines+markers",
                )
            )
        charts.append(
            XY(
                title=f"TFLOP/s over batch, {family.width} {width}: {_of(frame)}",
                x_label="batch size",
                y_label="TFLOP/s",
                series=tuple(lines),
                log_x=True,
                log_y=True,
            )
        )
    return charts


def operator_bars(times: Sequence[OperatorTimes]) -> Bars:
    """Shares of a step by kind, one bar for each network."""
    kinds = tuple(dict.fromkeys(kind for one in times for kind in one.seconds))
    return Bars(
        title="Operator times",
        y_label="share of a step (%)",
        categories=tuple(one.label for one in times),
        series=tuple(BarSeries(kind, tuple(100 * one.shares.get(kind, 0.0) for one in times)) for kind in kinds),
        stacked=True,
    )


def power_of_two(size: int) -> str:
    """2^5 for 32, other sizes as they are."""
    return f"2^{size.bit_length() - 1}" if size > 0 and size & (size - 1) == 0 else str(size)


def _series(frame: pd.DataFrame, name: str, x: pd.Series[float], y: pd.Series[float], coloured: str | None) -> Series:
    words = family_named(one_family(frame)).words if frame["family"].nunique() == 1 else {BATCH: "bs"}
    text = [", ".join(f"{word} {row[key]}" for key, word in words.items()) for row in frame.to_dict("records")]
    colours = () if coloured is None else tuple(float(np.log2(value)) for value in frame[coloured])
    return Series(name, tuple(map(_known, x)), tuple(map(_known, y)), text=tuple(text), values=colours)


def _roof_line(frame: pd.DataFrame, roof: Roof, scale: float) -> Series:
    known = frame["intensity"].dropna()
    corner = roof.flops_per_s / roof.bytes_per_s
    low = min([corner / 10, *known])
    high = max([corner * 10, *known])
    x = (low, corner, high)
    return Series(roof.name, x, tuple(scale * roof.attainable(value) for value in x), mode="lines", dash=True)


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _of(frame: pd.DataFrame) -> str:
    """Device, family and dtype, where they are one."""
    parts = []
    for column, several in (("device", "devices"), ("family", "families"), ("dtype", "dtypes")):
        values = frame[column].unique()
        parts.append(str(values[0]) if len(values) == 1 else f"{len(values)} {several}")
    return ", ".join(parts)
