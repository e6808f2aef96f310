"""Charts as files, drawn by matplotlib, which `pip install 'neuralpower[report]'` brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError, writing
from neuralpower.files.atomic import aside
from neuralpower.files.terminal import visible_lines
from neuralpower.report.charts import XY, Bars, Chart, Heatmap, Pies, colour, hatch, symbol
from neuralpower.report.labels import Plot, named

SMALL = 0.04  # share of a pie below which there is no room for digits
NAMED = 0.12  # share from which on there is room for the name, too


def save(chart: Chart, folder: Path, stem: str, formats: Sequence[str] = ("png", "svg")) -> tuple[Path, ...]:
    """Draw a chart into `folder/stem.FORMAT`; the paths.

    Raises:
        InputError: there is no matplotlib, or the folder is not writable.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("charts as files need matplotlib: pip install 'neuralpower[report]'") from None
    paths = tuple(Path(folder) / f"{stem}.{kind}" for kind in formats)
    theme = files("neuralpower.report").joinpath("theme.mplstyle")
    with as_file(theme) as style, matplotlib.rc_context(fname=style), writing(folder, "folder"):
        figure = Figure(figsize=_size(chart))
        figure.suptitle(_plain(chart.title), x=0.01, ha="left")
        DRAWERS[type(chart)](figure, chart)
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            kind = path.suffix[1:]
            with aside(path) as new:
                figure.savefig(new, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return paths


def _size(chart: Chart) -> tuple[float, float]:
    """Width and height, inches."""
    match chart:
        case Bars():
            bars = len(chart.categories) * max(1, len(chart.series))
            return min(max(9.0, 2 + 0.28 * bars), 16), 5.2
        case Heatmap():
            return min(4 + 0.8 * len(chart.columns), 14), min(2.2 + 0.45 * len(chart.rows), 14)
        case Pies():
            return 9.0, 0.9 + 2.7 * chart.below
        case XY():
            return 9.5, 5.6


def _plain(text: str) -> str:
    """Escaped text: matplotlib reads what is between two dollar signs as a formula."""
    return visible_lines(text).replace("$", r"\$")


def _xy(figure: Any, chart: XY) -> None:
    axes = figure.subplots()
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    drawn, scale = chart.drawn(), None
    known = [value for series in drawn for value in series.values if value is not None]
    for i, series in enumerate(drawn):
        mark = symbol(i).matplotlib if "markers" in series.mode else ""
        look = {"marker": mark, "label": _plain(series.name), "zorder": 3 if mark else 2}
        if series.values:
            shades = {"c": series.values, "vmin": min(known), "vmax": max(known)}
            scale = axes.scatter(series.x, series.y, s=38, linewidths=0.6, **shades, **look)
        else:
            line = "none" if "lines" not in series.mode else "--" if series.dash else "-"
            axes.plot(series.x, series.y, linestyle=line, color=colour(i), **look)
    if scale is not None:
        figure.colorbar(scale, ax=axes, label=_plain(chart.value_label))
    elif len(chart.series) > 1:
        figure.legend(loc="outside right upper")
    _name_points(figure, axes, chart)


def _name_points(figure: Any, axes: Any, chart: XY) -> None:
    if not any(any(series.labels) for series in chart.series):
        return
    figure.draw_without_rendering()  # places the plot
    frame = axes.get_window_extent()
    found = named(chart, Plot(frame.width, frame.height, letter=7.0, line=14.0))
    if found is None:
        return
    powers: list[Callable[[float], float]] = [
        (lambda v: 10**v) if log else (lambda v: v) for log in (chart.log_x, chart.log_y)
    ]
    x, y = powers
    axes.set(xlim=[*map(x, found.x_ends)], ylim=[*map(y, found.y_ends)])
    for one in found.labels:
        axes.annotate(
            _plain(one.text), (x(one.x), y(one.y)), one.offset, textcoords="offset pixels",
            fontsize=7.5, ha="center", va="center", zorder=4, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6} if one.far else None,
        )  # fmt: skip


def _bars(figure: Any, chart: Bars) -> None:
    axes = figure.subplots()
    axes.set_ylabel(_plain(chart.y_label))
    axes.grid(visible=False, axis="x")
    count, beside = len(chart.categories), 1 if chart.stacked else max(1, len(chart.series))
    base = np.zeros(count)
    for i, series in enumerate(chart.series):
        shift = 0.0 if chart.stacked else (i - (beside - 1) / 2) * 0.8 / beside
        heights = np.array(series.values, float)  # None becomes nan
        axes.bar(
            np.arange(count) + shift, heights, 0.8 / beside, bottom=base, color=colour(i),
            hatch=hatch(i).matplotlib, edgecolor="white", linewidth=0.5, label=_plain(series.name),
        )  # fmt: skip
        if chart.stacked:
            base = base + np.nan_to_num(heights)
    _name_columns(axes, chart.categories, count > 6 or any(len(name) > 12 for name in chart.categories))
    if chart.log_y and any(v for s in chart.series for v in s.values):
        axes.set_yscale("log")
    if len(chart.series) > 1:
        figure.legend(loc="outside right upper")


def _name_columns(axes: Any, names: Sequence[str], slanted: bool) -> None:
    rotation = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes.set_xticks(range(len(names)), [_plain(name) for name in names], **rotation)


def _heatmap(figure: Any, chart: Heatmap) -> None:
    axes = figure.subplots()
    axes.grid(visible=False)
    image = axes.imshow(np.array(chart.values, float))  # None becomes nan
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    _name_columns(axes, chart.columns, any(len(name) > 8 for name in chart.columns))
    axes.set_yticks(range(len(chart.rows)), [_plain(name) for name in chart.rows])
    figure.colorbar(image, ax=axes, label=_plain(chart.value_label))
    for r, (row, digits) in enumerate(zip(chart.values, chart.digits(), strict=True)):
        for c, (value, text) in enumerate(zip(row, digits, strict=True)):
            dark = value is not None and image.norm(value) < 0.55
            axes.text(c, r, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")


def _pies(figure: Any, chart: Pies) -> None:
    colours = chart.colours()
    wedges: dict[str, Any] = {}
    every = figure.subplots(chart.below, chart.beside, squeeze=False).flat
    for axes in every[len(chart.pies) :]:
        axes.set_visible(False)
    for axes, pie in zip(every, chart.pies, strict=False):
        axes.set_title(_plain(pie.title))
        whole = sum(pie.values)
        if not whole:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes)
            continue
        shares = [value / whole for value in pie.values]
        found = axes.pie(
            pie.values, colors=[colours[label] for label in pie.labels], startangle=90, counterclock=False,
            wedgeprops={"edgecolor": "white", "linewidth": 0.8},
            labels=[*map(_slice_name, pie.labels, shares)], labeldistance=0.68,
            textprops={"color": "white", "size": 7.5, "ha": "center", "va": "center", "weight": "bold"},
        )  # fmt: skip
        wedges = dict(zip(pie.labels, found[0], strict=True)) | wedges
    shown = {_plain(label): wedges[label] for label in colours if label in wedges}
    figure.legend([*shown.values()], [*shown], loc="outside right center")


def _slice_name(label: str, share: float) -> str:
    """A slice's text: its name and its share, as far as there is room."""
    return "" if share < SMALL else f"{share:.0%}" if share < NAMED else f"{_plain(label)}\n{share:.0%}"


DRAWERS: dict[type, Callable[..., None]] = {XY: _xy, Bars: _bars, Heatmap: _heatmap, Pies: _pies}
