"""Draw charts into files with matplotlib: `pip install 'neuralpower[report]'`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError, writing
from neuralpower.files.atomic import aside
from neuralpower.files.terminal import visible_lines
from neuralpower.report.axes import Axis
from neuralpower.report.charts import (
    NO_MATPLOTLIB,
    XY,
    Areas,
    Bars,
    Chart,
    Heatmap,
    Pies,
    colour,
    hatch,
    symbol,
)
from neuralpower.report.labels import Plot, named

SMALL = 0.04  # share of a pie below which digits do not fit
NAMED = 0.12  # share from which the name fits, too


def save(chart: Chart, folder: Path, stem: str, formats: Sequence[str] = ("png", "svg")) -> tuple[Path, ...]:
    """Draw a chart into `folder/stem.FORMAT`; the paths.

    Raises:
        InputError: matplotlib is missing, or the folder is not writable.
    """
    paths = tuple(Path(folder) / f"{stem}.{kind}" for kind in formats)
    _save([chart], paths, "folder")
    return paths


def save_together(charts: Sequence[Chart], path: Path) -> None:
    """Draw charts below each other into one PNG or SVG; raises as `save`."""
    _save(charts, (path,), "file")


def _save(charts: Sequence[Chart], paths: Sequence[Path], what: str) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    theme = files("neuralpower.report").joinpath("theme.mplstyle")
    place = paths[0].parent if what == "folder" else paths[0]
    with as_file(theme) as style, matplotlib.rc_context(fname=style), writing(place, what):
        sizes = [_size(chart) for chart in charts]
        heights = [height for _, height in sizes]
        figure = Figure(figsize=(max(width for width, _ in sizes), sum(heights)))
        rows = figure.subfigures(len(charts), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, chart in zip(rows if len(charts) > 1 else [figure], charts, strict=True):
            part.suptitle(_plain(chart.title), x=0.01, ha="left")
            DRAWERS[type(chart)](part, chart)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = path.suffix[1:]
            with aside(path) as new:
                figure.savefig(new, format=kind, metadata={"Date": None} if kind == "svg" else None)


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
        case XY() | Areas():
            return 9.5, 5.6


def _plain(text: str) -> str:
    """Escaped text: matplotlib reads text between two dollar signs as a formula."""
    return visible_lines(text).replace("$", r"\$")


def _xy(figure: Any, chart: XY) -> None:
    axes = figure.subplots()
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    log_x, log_y = chart.logs
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
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
            wide = {"linewidth": 8, "alpha": 0.3} if series.halo else {}
            axes.plot(series.x, series.y, linestyle=line, color=colour(i), **wide, **look)
    if scale is not None:
        figure.colorbar(scale, ax=axes, label=_plain(chart.value_label))
    elif len(chart.series) > 1:
        figure.legend(loc="outside right upper")
    _name_points(figure, axes, chart)


def _name_points(figure: Any, axes: Any, chart: XY) -> None:
    """The ends of the axes, their ticks, and the names of points."""
    axes.figure.get_figure(root=True).draw_without_rendering()  # places the plot
    frame = axes.get_window_extent()
    found = named(chart, Plot(frame.width, frame.height, letter=7.0, line=14.0))
    x, y = chart.axes((found.x_ends, found.y_ends), (int(frame.width / 80), int(frame.height / 45)))
    _tick(axes, "x", x)
    _tick(axes, "y", y)
    for one in found.labels:
        where = tuple(10**v if end.log else v for v, end in ((one.x, x), (one.y, y)))
        axes.annotate(
            _plain(one.text), where, one.offset, textcoords="offset pixels",
            fontsize=7.5, ha="center", va="center", zorder=4, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6} if one.far else None,
        )  # fmt: skip


def _tick(axes: Any, side: str, axis: Axis) -> None:
    """The ends, ticks and plain numbers of the x or y side of a plot."""
    getattr(axes, f"set_{side}lim")(*axis.ends)
    axes.minorticks_off()
    getattr(axes, f"set_{side}ticks")([value for value, _ in axis.ticks], [text for _, text in axis.ticks])


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
            hatch=hatch(i), edgecolor="white", linewidth=0.5, label=_plain(series.name),
        )  # fmt: skip
        for c, bounds in enumerate(series.bounds):
            if bounds is not None:
                line = {"color": "#333333", "linewidth": 1, "marker": "_", "markeredgecolor": "#333333"}
                axes.plot([c + shift] * 2, bounds, **line)
        if chart.stacked:
            base = base + np.nan_to_num(heights)
    _name_columns(axes, chart.categories, count > 6 or any(len(name) > 12 for name in chart.categories))
    side = chart.axis(8)
    axes.set_yscale("log" if side.log else "linear")
    _tick(axes, "y", side)
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


def _areas(figure: Any, chart: Areas) -> None:
    axes = figure.subplots()
    axes.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    names = [_plain(one.name) for one in chart.areas]
    colours = [colour(i) for i in range(len(names))]
    values = [np.array(one.values, float) for one in chart.areas]
    axes.stackplot(chart.x, values, labels=names, colors=colours, step="post")
    for side, ends in zip("xy", chart.axes((8, 8)), strict=True):
        _tick(axes, side, ends)
    high = axes.get_ylim()[1]
    for begin, name in chart.marks:
        axes.axvline(begin, color="#999999", linewidth=0.8)
        axes.annotate(_plain(name), (begin, high), (3, -9), textcoords="offset points", fontsize=7.5)
    if chart.top is not None:
        at, name = chart.top
        axes.axvline(at, color="#333333", linewidth=1, linestyle=":")
        aside = {"ha": "right" if at > chart.x[-1] / 2 else "left", "va": "center", "fontsize": 7.5}
        axes.annotate(_plain(name), (at, high * 0.97), (0, 9), textcoords="offset points", **aside)
    figure.legend(loc="outside right upper", reverse=True)


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
    """A slice's text: its name and its share, if they fit."""
    return "" if share < SMALL else f"{share:.0%}" if share < NAMED else f"{_plain(label)}\n{share:.0%}"


DRAWERS: dict[type, Callable[..., None]] = {
    XY: _xy,
    Bars: _bars,
    Heatmap: _heatmap,
    Pies: _pies,
    Areas: _areas,
}
