"""Charts as files, drawn by matplotlib, which `pip install 'neuralpower[report]'` brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, writing
from neuralpower.files.atomic import aside
from neuralpower.files.terminal import visible_lines
from neuralpower.report.charts import XY, Bars, Chart, Heatmap, Number, Pies, cell, colour, limits, room, symbol
from neuralpower.report.labels import is_far, on_lines, place

MARKERS = "osD^vPX<>*"
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++")
SMALL = 0.04  # share of a pie below which there is no room for digits
NAMED = 0.12  # from which on there is room for the name, too
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "neuralpower",  # the same picture is the same file
}


def save(chart: Chart, folder: Path, stem: str, formats: Sequence[str] = ("png", "svg")) -> tuple[Path, ...]:
    """Draw a chart into `folder/stem.FORMAT`; the paths. Raises InputError: no matplotlib, or not writable."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("charts as files need matplotlib: pip install 'neuralpower[report]'") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_size(chart), dpi=110, layout="constrained")
        figure.suptitle(_plain(chart.title), fontsize=12, fontweight="bold", x=0.01, ha="left")
        {XY: _xy, Bars: _bars, Heatmap: _heatmap, Pies: _pies}[type(chart)](figure, chart)  # type: ignore[operator]  # by type
        paths = tuple(Path(folder) / f"{stem}.{kind}" for kind in formats)
        with writing(folder, "folder"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            for path in paths:
                kind = path.suffix[1:]
                with aside(path) as new:
                    figure.savefig(new, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _size(chart: Chart) -> tuple[float, float]:
    """Inches."""
    if isinstance(chart, Pies):
        return 9.0, 0.9 + 2.7 * math.ceil(len(chart.pies) / _columns(chart))
    if isinstance(chart, Heatmap):
        return min(4 + 0.8 * len(chart.columns), 14), min(2.2 + 0.45 * len(chart.rows), 14)
    if isinstance(chart, Bars):
        return min(max(9.0, 2 + 0.28 * len(chart.categories) * max(1, len(chart.series))), 16), 5.2
    return 9.5, 5.6


def _columns(chart: Pies) -> int:
    return 2 if len(chart.pies) == 4 else min(3, max(1, len(chart.pies)))


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes what is between two dollar signs for a formula."""
    return visible_lines(text).replace("$", r"\$")


def _xy(figure: Any, chart: XY) -> None:
    axes = figure.subplots()
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    scale = None
    known = [v for s in chart.series for v in s.values if v is not None]
    for i, series in enumerate(chart.series):
        points = chart.points(series)
        x, y = ([values[j] for j in points] for values in (series.x, series.y))
        lines, markers = "lines" in series.mode, "markers" in series.mode
        if lines:
            style = "--" if series.dash else "-"
            axes.plot(x, y, style, color=colour(i), linewidth=1.6, zorder=2, label=None if markers else series.name)
        if markers:
            shade: dict[str, Any] = {"color": colour(i)}
            if series.values:
                shade = {"c": [series.values[j] for j in points], "vmin": min(known), "vmax": max(known)}
            drawn = axes.scatter(
                x, y, s=38, marker=MARKERS[symbol(i)], edgecolors="white", linewidths=0.6, zorder=3,
                cmap="cividis" if series.values else None, label=series.name, **shade,
            )  # fmt: skip
            scale = drawn if series.values else scale
    if scale is not None:
        figure.colorbar(scale, ax=axes, label=_plain(chart.value_label))
    if len(chart.series) > 1 and scale is None:
        figure.legend(loc="outside right upper", fontsize=8)
    _name_points(figure, axes, chart)


def _name_points(figure: Any, axes: Any, chart: XY) -> None:
    every, names = chart.named()
    if not any(names):
        return
    x, y = [float(s.x[i] or 0) for s, i in every], [float(s.y[i] or 0) for s, i in every]
    for log, ends, bounds in (
        (chart.log_x, room(x, names, limits(x, chart.log_x), chart.log_x), axes.set_xlim),
        (chart.log_y, limits(y, chart.log_y), axes.set_ylim),
    ):
        bounds(*(10**end if log else end for end in ends))
    figure.draw_without_rendering()  # only then is it known where the plot lies
    frame = axes.get_window_extent()
    at = [tuple(axes.transData.transform((s.x[i], s.y[i]))) for s, i in every]
    pixels = [(x - frame.x0, y - frame.y0) for x, y in at]
    others = on_lines(every, pixels)
    offsets = place(pixels, names, frame.width, frame.height, others=others, letter=7.0, line=14)
    for (series, i), name, offset in zip(every, names, offsets, strict=True):
        if name and offset is not None:
            far = is_far(offset, name, 7.0)
            axes.annotate(
                _plain(name), (series.x[i], series.y[i]), offset, textcoords="offset pixels", fontsize=7.5,
                ha="center", va="center", zorder=4, annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6} if far else None,
            )  # fmt: skip


def _nan(value: Number) -> float:
    return math.nan if value is None else float(value)


def _bars(figure: Any, chart: Bars) -> None:
    axes = figure.subplots()
    axes.set_ylabel(_plain(chart.y_label))
    axes.grid(visible=False, axis="x")
    count = len(chart.categories)
    width = 0.8 if chart.stacked else 0.8 / max(1, len(chart.series))
    base = [0.0] * count
    for i, series in enumerate(chart.series):
        shift = 0.0 if chart.stacked else (i - (len(chart.series) - 1) / 2) * width
        heights = [_nan(value) for value in series.values]
        axes.bar(
            [c + shift for c in range(count)], heights, width, bottom=base if chart.stacked else None,
            color=colour(i), hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0.5, label=series.name,
        )  # fmt: skip
        if chart.stacked:
            base = [b + (0.0 if math.isnan(h) else h) for b, h in zip(base, heights, strict=True)]
    slanted = count > 6 or any(len(name) > 12 for name in chart.categories)
    axes.set_xticks(
        range(count), [_plain(c) for c in chart.categories], rotation=35 if slanted else 0,
        ha="right" if slanted else "center", rotation_mode="anchor",
    )  # fmt: skip
    if chart.log_y and any(v for s in chart.series for v in s.values):
        axes.set_yscale("log")
    if len(chart.series) > 1:
        figure.legend(loc="outside right upper", fontsize=8)


def _heatmap(figure: Any, chart: Heatmap) -> None:
    axes = figure.subplots()
    axes.grid(visible=False)
    numbers = [[_nan(value) for value in row] for row in chart.values]
    image = axes.imshow(numbers, cmap="cividis", aspect="auto")
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    slanted = any(len(name) > 8 for name in chart.columns)
    axes.set_xticks(
        range(len(chart.columns)), [_plain(c) for c in chart.columns], rotation=35 if slanted else 0,
        ha="right" if slanted else "center", rotation_mode="anchor",
    )  # fmt: skip
    axes.set_yticks(range(len(chart.rows)), [_plain(r) for r in chart.rows])
    figure.colorbar(image, ax=axes, label=_plain(chart.value_label))
    for r, row in enumerate(chart.values):
        for c, value in enumerate(row):
            dark = value is not None and image.norm(value) < 0.55
            axes.text(
                c, r, cell(value), ha="center", va="center", fontsize=8,
                color="white" if dark else "black",
            )  # fmt: skip


def _pies(figure: Any, chart: Pies) -> None:
    columns = _columns(chart)
    grid = figure.subplots(math.ceil(len(chart.pies) / columns), columns, squeeze=False)
    colours = {label: colour(i) for i, label in enumerate(chart.labels)}
    wedges: dict[str, Any] = {}
    for axes in grid.flat[len(chart.pies) :]:
        axes.set_visible(False)
    for axes, pie in zip(grid.flat, chart.pies, strict=False):
        axes.set_title(_plain(pie.title), fontsize=9.5)
        if not sum(pie.values):
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes)
            continue
        parts = axes.pie(
            pie.values, colors=[colours[label] for label in pie.labels], startangle=90, counterclock=False,
            wedgeprops={"edgecolor": "white", "linewidth": 0.8},
        )[0]  # fmt: skip
        whole = sum(pie.values)
        for part, label, value in zip(parts, pie.labels, pie.values, strict=True):
            wedges.setdefault(label, part)
            if value / whole >= SMALL:
                angle = math.radians((part.theta1 + part.theta2) / 2)
                axes.text(
                    0.68 * math.cos(angle), 0.68 * math.sin(angle),
                    f"{label}\n{value / whole:.0%}" if value / whole >= NAMED else f"{value / whole:.0%}",
                    color="white", fontsize=7.5,
                    ha="center", va="center", fontweight="bold",
                )  # fmt: skip
    shown = [label for label in chart.labels if label in wedges]
    figure.legend([wedges[label] for label in shown], shown, loc="outside right center", fontsize=8)
