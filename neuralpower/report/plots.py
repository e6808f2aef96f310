"""Charts as plotly.js takes them: plain data and layout; colours of text and grid are the page's, set where it is shown."""

from __future__ import annotations

import html
import math
from typing import Any

from neuralpower.files.terminal import visible
from neuralpower.report.charts import XY, Bars, Chart, Heatmap, Number, Pies, cell, colour, limits, room, symbol
from neuralpower.report.labels import is_far, on_lines, place

SYMBOLS = (
    "circle", "square", "diamond", "triangle-down", "triangle-up", "cross", "x", "triangle-left", "triangle-right", "star",
)  # fmt: skip
PATTERNS = ("", "/", ".", "x", "\\", "+")
WIDTH, HEIGHT = 840.0, 345.0  # of a plot on a wide screen, pixels: names are placed for it
LEGEND = (45.0, 6.6, 34)  # pixels beside its letters, pixels of a letter; from so many letters on it lies below
PIE_HEIGHT = 250


def plot(chart: Chart) -> dict[str, Any]:
    """{"kind", "data", "layout", "height"} of one chart; JSON, with None for what is not known."""
    made = {XY: _xy, Bars: _bars, Heatmap: _heatmap, Pies: _pies}[type(chart)](chart)  # type: ignore[operator]  # by type
    data, layout, height = made
    legend = sum(1 for trace in data if trace.get("showlegend", True)) if len(data) > 1 else 0
    layout |= {"showlegend": bool(legend) or isinstance(chart, Pies), "hovermode": "closest"}
    return {"kind": type(chart).__name__.lower(), "data": data, "layout": layout, "height": height, "legend": legend}


def _plain(text: str) -> str:
    """Text as it stands: plotly takes it for a little HTML."""
    return html.escape(visible(text), quote=False)


def _finite(value: Number) -> Number:
    return value if value is not None and math.isfinite(value) else None


def _axis(label: str, log: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": _plain(label), "standoff": 10}, "automargin": True, "zeroline": False}
    if log:
        axis |= {"type": "log", "dtick": 1, "exponentformat": "power"}
    return axis


def _xy(chart: XY) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    data = []
    known = [v for s in chart.series for v in s.values if v is not None]
    for i, series in enumerate(chart.series):
        points = chart.points(series)
        marker: dict[str, Any] = {"symbol": SYMBOLS[symbol(i)], "size": 9, "color": colour(i)}
        if series.values:
            marker |= {
                "color": [series.values[j] for j in points],
                "colorscale": "Cividis",
                "cmin": min(known, default=0),
                "cmax": max(known, default=1),
                "showscale": i == 0,
                "colorbar": {"title": {"text": _plain(chart.value_label), "side": "right"}, "thickness": 14},
            }
        trace: dict[str, Any] = {
            "type": "scatter",
            "name": _plain(series.name),
            "x": [_finite(series.x[j]) for j in points],
            "y": [_finite(series.y[j]) for j in points],
            "mode": series.mode,
            "marker": marker,
            "line": {"color": colour(i), "width": 2, "dash": "dash" if series.dash else "solid"},
        }
        if series.text:
            trace["text"] = [_plain(series.text[j]) for j in points]
            trace["hovertemplate"] = "%{text}<br>%{x:.4s}, %{y:.4s}<extra>" + _plain(series.name) + "</extra>"
        data.append(trace)
    layout: dict[str, Any] = {"xaxis": _axis(chart.x_label, chart.log_x), "yaxis": _axis(chart.y_label, chart.log_y)}
    return data, layout | _names(chart), 440


def _names(chart: XY) -> dict[str, Any]:
    """Names beside the points, with ranges of the axes that leave room for them."""
    every, names = chart.named()
    if not any(names):
        return {}
    x = [float(s.x[i]) for s, i in every]  # type: ignore[arg-type]  # `points` leaves out None
    y = [float(s.y[i]) for s, i in every]  # type: ignore[arg-type]  # the same
    x_range, y_range = room(x, names, limits(x, chart.log_x), chart.log_x), limits(y, chart.log_y)
    x_at = [math.log10(v) if chart.log_x else v for v in x]
    y_at = [math.log10(v) if chart.log_y else v for v in y]
    width = _width(chart)
    pixels = [(_share(a, x_range) * width, _share(b, y_range) * HEIGHT) for a, b in zip(x_at, y_at, strict=True)]
    offsets = place(pixels, names, width, HEIGHT, others=on_lines(every, pixels))
    annotations = []
    for name, a, b, offset in zip(names, x_at, y_at, offsets, strict=True):
        if name and offset is not None:
            annotations.append(
                {
                    "x": a,
                    "y": b,
                    "text": _plain(name),
                    "ax": round(offset[0], 1),
                    "ay": round(-offset[1], 1),
                    "showarrow": True,
                    "arrowhead": 0,
                    "arrowwidth": 0.6 if is_far(offset, name) else 0.1,
                    "standoff": 5,
                    "opacity": 0.9,
                    "arrowcolor": "rgba(128,128,128,0.7)",
                    "borderpad": 0,
                    "font": {"size": 10.5},
                }
            )
    return {"annotations": annotations} | {
        axis: _axis(label, log) | {"range": list(ends)}
        for axis, label, log, ends in (
            ("xaxis", chart.x_label, chart.log_x, x_range),
            ("yaxis", chart.y_label, chart.log_y, y_range),
        )
    }


def _width(chart: XY) -> float:
    """Of the plot, pixels: what the legend leaves of it."""
    longest = max((len(series.name) for series in chart.series), default=0)
    beside = len(chart.series) > 1 and longest <= LEGEND[2]
    return WIDTH - (LEGEND[0] + LEGEND[1] * longest if beside else 0.0)


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _bars(chart: Bars) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    data = [
        {
            "type": "bar",
            "name": _plain(series.name),
            "x": [_plain(c) for c in chart.categories],
            "y": [_finite(value) for value in series.values],
            "marker": {
                "color": colour(i),
                "pattern": {
                    "shape": PATTERNS[i % len(PATTERNS)],
                    "fillmode": "overlay",
                    "fgcolor": "rgba(255,255,255,0.75)",
                    "size": 6,
                    "solidity": 0.2,
                },
            },
            "hovertemplate": "%{x}<br>%{y:.4s}<extra>" + _plain(series.name) + "</extra>",
        }
        for i, series in enumerate(chart.series)
    ]
    layout: dict[str, Any] = {
        "barmode": "stack" if chart.stacked else "group",
        "bargap": 0.25,
        "xaxis": {"automargin": True, "type": "category", "showgrid": False},
        "yaxis": _axis(chart.y_label, chart.log_y),
    }
    return data, layout, 420


def _heatmap(chart: Heatmap) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    trace = {
        "type": "heatmap",
        "x": [_plain(c) for c in chart.columns],
        "y": [_plain(r) for r in chart.rows],
        "z": [[_finite(value) for value in row] for row in chart.values],
        "text": [[cell(value) for value in row] for row in chart.values],
        "texttemplate": "%{text}",
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": _plain(chart.value_label), "side": "right"}, "thickness": 14},
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": _plain(chart.x_label)}, "automargin": True, "type": "category", "showgrid": False},
        "yaxis": {
            "title": {"text": _plain(chart.y_label)},
            "automargin": True,
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
    }
    return [trace], layout, min(900, 150 + 42 * len(chart.rows))


def _pies(chart: Pies) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    colours = {label: colour(i) for i, label in enumerate(chart.labels)}
    data: list[dict[str, Any]] = [
        {
            "type": "pie",
            "name": _plain(pie.title),
            "labels": [_plain(label) for label in pie.labels],
            "values": list(pie.values),
            "marker": {"colors": [colours[label] for label in pie.labels], "line": {"color": "white", "width": 1}},
            "sort": False,
            "direction": "clockwise",
            "textinfo": "label+percent",
            "textposition": "inside",
            "insidetextorientation": "horizontal",
            "hovertemplate": "%{label}: %{percent}<extra></extra>",
        }
        for pie in chart.pies
    ]
    rows = math.ceil(len(chart.pies) / (2 if len(chart.pies) == 4 else 3))
    return data, {"uniformtext": {"minsize": 9, "mode": "hide"}}, 60 + PIE_HEIGHT * max(1, rows)
