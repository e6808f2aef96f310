"""Charts of sweeps: heat maps, regression weights, speed-ups, rooflines, throughput over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from neuralpower.report.charts import XY, Bars, BarSeries, Heatmap, Series
from neuralpower.suites.paradnn import analysis
from neuralpower.suites.paradnn.analysis import Faster, Weights, family_of
from neuralpower.suites.paradnn.points import BATCH
from neuralpower.suites.paradnn.roof import Roof
from neuralpower.suites.paradnn.run import OperatorTimes

if TYPE_CHECKING:
    import pandas as pd

Figures = Iterable[float]
TERA = 1e12


def heatmap(frame: pd.DataFrame, what: str, peaks: Mapping[str, float] | None = None) -> Heatmap:
    """Width by batch of one device and dtype: `what` is TFLOP/s, % of best or % of peak."""
    width = family_of(frame).width
    values = frame["flops_per_s"] / TERA if what == "TFLOP/s" else analysis.utilisation(frame, peaks)
    table = frame[[width, BATCH]].assign(value=values)
    table = table.pivot_table(index=width, columns=BATCH, values="value").sort_index(ascending=False)
    columns, rows = (tuple(power_of_two(int(size)) for size in axis) for axis in (table.columns, table.index))
    cells = tuple(_known(row) for row in table.to_numpy(float))
    others = ", ".join(name for name in analysis.hyper_parameters(frame) if name not in (width, BATCH))
    note = f"Mean over {others}." if others else ""
    return Heatmap(f"{what}: {_of(frame)}", "batch size", width, columns, rows, cells, what, note)


def weight_bars(models: Mapping[str, Weights], order: int) -> Bars:
    """Regression weights, devices side by side."""
    terms = tuple(dict.fromkeys(term for model in models.values() for term in model.weights))
    bars = [BarSeries(name, tuple(model.weights.get(t) for t in terms)) for name, model in models.items()]
    note = "; ".join(f"{name}: R2 {model.r2:.2f}, {model.points} points" for name, model in models.items())
    title, axis = "Effects on FLOP/s: linear weights", "% of the best FLOP/s per standard deviation"
    return Bars(f"{title}, order {order}", axis, terms, tuple(bars), note=note)


def faster_bars(model: Faster, a: str, b: str) -> Bars:
    """Weights of the logistic model."""
    weights = BarSeries("weight", tuple(model.weights.values()))
    right = f"the model is right at {model.accuracy:.0%}"
    note = f"{a} is faster at {model.share:.0%} of {model.points} points; {right}."
    title = f"When {a} is faster than {b}"
    return Bars(title, "log-odds per standard deviation", tuple(model.weights), (weights,), note=note)


def speedups(pairs: pd.DataFrame, a: str, b: str, coloured: str) -> XY:
    """Speed-up of A over B against parameters, coloured by a hyper-parameter."""
    sizes = pairs["parameters"]
    points = _series(pairs, f"{a} / {b}", sizes, pairs["speedup"], coloured)
    ends = [(float(end), 1.0) for end in (sizes.min(), sizes.max())]
    even = Series.of("as fast", ends, mode="lines", dash=True)
    title, shade = f"Speed-up of {a} over {b}, coloured by {coloured}", f"log2 {coloured}"
    return XY(title, "parameters", "speed-up", (points, even), True, True, shade)


def roofline(frame: pd.DataFrame, roof: Roof | None, coloured: str, relative: bool = False) -> XY:
    """FLOP/s over FLOP per byte of parameters, coloured by a hyper-parameter; for "kind", a series each."""
    top = float(frame["flops_per_s"].max()) if roof is None else roof.flops_per_s
    scale = 100 / top if relative else 1 / TERA
    by_kind = coloured == "kind"
    series = []
    for names, some in frame.groupby(["family", "kind"]) if by_kind else [(("points",), frame)]:
        name = " ".join(dict.fromkeys(map(str, filter(None, names))))
        heights = some["flops_per_s"] * scale
        series.append(_series(some, name, some["intensity"], heights, None if by_kind else coloured))
    if roof is not None:
        known, corner = frame["intensity"].dropna(), roof.flops_per_s / roof.bytes_per_s
        ends = (min([corner / 10, *known]), corner, max([corner * 10, *known]))
        line = [(x, scale * roof.attainable(x)) for x in ends]
        series.append(Series.of(roof.name, line, mode="lines", dash=True))
    title = f"Roofline by {coloured}{', relative' if relative else ''}: {_of(frame)}"
    height = ("% of peak" if roof else "% of the best") if relative else "TFLOP/s"
    shade, note = "" if by_kind else f"log2 {coloured}", "" if roof is None else roof.source
    return XY(title, "FLOP per byte of parameters", height, tuple(series), True, True, shade, note)


def over_batch(frame: pd.DataFrame) -> list[XY]:
    """FLOP/s over the batch, a line for each depth, a chart for each of up to three widths."""
    family = family_of(frame)
    charts = []
    for width in analysis.chosen_widths(frame):
        lines = []
        for depth, part in frame[frame[family.width] == width].groupby(family.depth):
            means = part.groupby(BATCH)["flops_per_s"].mean() / TERA
            points = [(int(batch), float(mean)) for batch, mean in zip(means.index, means, strict=True)]
            lines.append(Series.of(f"{family.depth} {depth}", points, mode="lines+markers"))
        title = f"TFLOP/s over batch, {family.width} {width}: {_of(frame)}"
        charts.append(XY(title, "batch size", "TFLOP/s", tuple(lines), True, True))
    return charts


def operator_bars(times: Sequence[OperatorTimes]) -> Bars:
    """Shares of a step by kind, one bar for each network."""
    kinds = dict.fromkeys(kind for one in times for kind in one.seconds)
    series = tuple(BarSeries(kind, tuple(100 * one.shares.get(kind, 0.0) for one in times)) for kind in kinds)
    names = tuple(one.label for one in times)
    return Bars("Operator times", "share of a step (%)", names, series, stacked=True)


def power_of_two(size: int) -> str:
    """A power of two as "2^5", other sizes in digits."""
    return f"2^{size.bit_length() - 1}" if size > 0 and size & (size - 1) == 0 else str(size)


def _series(frame: pd.DataFrame, name: str, x: Figures, y: Figures, coloured: str | None) -> Series:
    words = family_of(frame).words if frame["family"].nunique() == 1 else {BATCH: "bs"}
    rows = frame.to_dict("records")
    text = tuple(", ".join(f"{word} {row[key]}" for key, word in words.items()) for row in rows)
    colours = () if coloured is None else tuple(float(np.log2(value)) for value in frame[coloured])
    return Series(name, _known(x), _known(y), text, colours)


def _known(values: Figures) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def _of(frame: pd.DataFrame) -> str:
    """Device, family and dtype, or their number."""
    names = {"device": "devices", "family": "families", "dtype": "dtypes"}
    found = {several: frame[column].unique() for column, several in names.items()}
    return ", ".join(str(v[0]) if len(v) == 1 else f"{len(v)} {several}" for several, v in found.items())
