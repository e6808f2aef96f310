"""Charts for plotly.js: plain data and layout; `page.js` shows them and adds all style."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from neuralpower.files.json_files import nullable
from neuralpower.files.terminal import visible
from neuralpower.report.charts import XY, Bars, Chart, Heatmap, Pies, colour, hatch, symbol
from neuralpower.report.labels import Plot, named

WIDTH, HEIGHT = 840.0, 345.0  # pixels of a plot on a wide screen: names are placed for it
LEGEND = (45.0, 6.6, 34)  # pixels beside its letters, pixels of a letter; with more letters it lies below
Made = tuple[list[dict[str, Any]], dict[str, Any], int]  # data, layout, height in pixels


def plot(chart: Chart) -> dict[str, Any]:
    """One chart as JSON: {"kind", "data", "layout", "height", "legend"}, with None for unknown values."""
    data, layout, height = MAKERS[type(chart)](chart)
    legend = len(data) if len(data) > 1 else 0
    layout |= {"showlegend": bool(legend) or isinstance(chart, Pies)}
    made = {"data": data, "layout": layout, "height": height, "legend": legend}
    found: dict[str, Any] = nullable(_letters({"kind": type(chart).__name__.lower(), **made}))
    return found


def _letters(value: Any) -> Any:
    """The same with every text escaped: plotly reads text as HTML."""
    if isinstance(value, str):
        return html.escape(visible(value), quote=False)
    if isinstance(value, dict):
        return {name: _letters(item) for name, item in value.items()}
    return [_letters(item) for item in value] if isinstance(value, (list, tuple)) else value


def _axis(label: str, log: bool = False, **more: Any) -> dict[str, Any]:
    kind = {"type": "log", "dtick": 1, "exponentformat": "power"} if log else {}
    return {"title": {"text": label}, **kind, **more}


def _xy(chart: XY) -> Made:
    data = []
    for i, series in enumerate(chart.drawn()):
        shade = {"color": series.values, "coloraxis": "coloraxis"} if series.values else {"color": colour(i)}
        data.append(
            {"type": "scatter", "name": series.name, "x": series.x, "y": series.y, "mode": series.mode}
            | {"marker": {"symbol": symbol(i).plotly, **shade}}
            | {"line": {"color": colour(i), "dash": "dash" if series.dash else "solid"}}
            | ({"text": series.text} if series.text else {"hovertemplate": None})
        )
    layout: dict[str, Any] = {
        "xaxis": _axis(chart.x_label, chart.log_x),
        "yaxis": _axis(chart.y_label, chart.log_y),
        "coloraxis": _scale(chart.value_label),
    }
    longest = max((len(series.name) for series in chart.series), default=0)
    beside = len(chart.series) > 1 and longest <= LEGEND[2]
    found = named(chart, Plot(WIDTH - (LEGEND[0] + LEGEND[1] * longest if beside else 0.0), HEIGHT))
    if found is not None:
        layout["xaxis"]["range"], layout["yaxis"]["range"] = found.x_ends, found.y_ends
        layout["annotations"] = [
            {"text": one.text, "x": one.x, "y": one.y, "arrowwidth": 0.6 if one.far else 0.1}
            | {"ax": round(one.offset[0], 1), "ay": round(-one.offset[1], 1)}
            for one in found.labels
        ]
    return data, layout, 440


def _scale(label: str) -> dict[str, Any]:
    """The legend of the colours."""
    return {"colorbar": {"title": {"text": label}}}


def _bars(chart: Bars) -> Made:
    data: list[dict[str, Any]] = [
        {"type": "bar", "name": series.name, "x": chart.categories, "y": series.values}
        | {"marker": {"color": colour(i), "pattern": {"shape": hatch(i).plotly}}}
        for i, series in enumerate(chart.series)
    ]
    layout = {
        "barmode": "stack" if chart.stacked else "group",
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": _axis(chart.y_label, chart.log_y),
    }
    return data, layout, 420


def _heatmap(chart: Heatmap) -> Made:
    trace = {"type": "heatmap", "coloraxis": "coloraxis"}
    cells = {"x": chart.columns, "y": chart.rows, "z": chart.values, "text": chart.digits()}
    layout = {
        "xaxis": _axis(chart.x_label, type="category", showgrid=False),
        "yaxis": _axis(chart.y_label, type="category", showgrid=False, autorange="reversed"),
        "coloraxis": _scale(chart.value_label),
    }
    return [{**trace, **cells}], layout, min(900, 150 + 42 * len(chart.rows))


def _pies(chart: Pies) -> Made:
    colours = chart.colours()
    data: list[dict[str, Any]] = [
        {"type": "pie", "name": pie.title, "labels": pie.labels, "values": pie.values}
        | {"marker": {"colors": [colours[label] for label in pie.labels]}}
        for pie in chart.pies
    ]
    return data, {}, 60 + 250 * chart.below


MAKERS: dict[type, Callable[..., Made]] = {XY: _xy, Bars: _bars, Heatmap: _heatmap, Pies: _pies}
