"""Charts as inline SVG for pages: a wide and a narrow drawing of each; the page shows one.

They need no script, and text stays text. `page.css` colours ink, grid and paper, also on dark pages.
A point or bar under the pointer shows its name and value.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from markupsafe import Markup

from neuralpower.report.axes import Axis
from neuralpower.report.charts import XY, Areas, Bars, Chart, Heatmap, Number, Pie, Pies, Series, colour
from neuralpower.report.number_format import plain
from neuralpower.report.svg_canvas import (
    SIZES,
    Canvas,
    Label,
    Plot,
    Size,
    hex_colour,
    named,
    number,
    shade,
    shortened,
)

SMALLER = 11 / 12  # letters of a point's name
LONGEST = 22  # letters of one on a narrow drawing
SMALL = 0.07  # share of a pie below which digits do not fit


@functools.lru_cache(maxsize=64)  # a page that changes draws some of its charts again
def drawing(chart: Chart) -> Markup:
    """A chart as markup: a wide drawing and a narrow one."""
    found = [drawn(chart, size).svg(chart.title) for size in SIZES]
    return Markup("".join(found))  # noqa: S704  # every text in it is escaped


def drawn(chart: Chart, size: Size) -> Canvas:
    """A chart in one size."""
    canvas = Canvas(size)
    DRAWERS[type(chart)](canvas, chart)
    return canvas


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else plain(value)


def _axes(canvas: Canvas, chart: XY | Areas, x: Axis, y: Axis, left: float, top: float) -> None:
    """Both axes of a plot, with their labels."""
    height = canvas.size.height
    canvas.text(4, 10, chart.y_label, more=' class="l"')
    for value, text in y.ticks:
        at = top + height * (1 - y.share(value))
        canvas.line(left, at, canvas.size.width - 4, at)
        canvas.text(left - 6, at, text, "end")
    _x_axis(canvas, x, left, top, height)
    canvas.text(canvas.size.width - 4, canvas.height + 8, chart.x_label, "end", ' class="l"')
    canvas.height += 20


def _x_axis(canvas: Canvas, axis: Axis, left: float, top: float, height: float) -> None:
    """Lines of the grid from top to bottom, and their numbers below."""
    width = canvas.size.width - 4 - left
    for value, text in axis.ticks:
        x = left + width * axis.share(value)
        canvas.line(x, top, x, top + height)
        half = canvas.size.room(text) / 2
        canvas.text(min(max(x, half), canvas.size.width - half), top + height + 13, text, "middle")
    canvas.height = top + height + 24


# ---- points and lines ----


def _xy(canvas: Canvas, chart: XY) -> None:
    size, top = canvas.size, 30.0
    if size.name == "narrow":
        chart = replace(chart, series=tuple(map(_with_short_names, chart.series)))
    most = (max(4, int(size.width / 90)), max(4, int(size.height / 42)))
    ends = named(chart, Plot(size.width, size.height, SMALLER * size.letter, 13.0))
    texts = [text for _, text in chart.axes((ends.x_ends, ends.y_ends), most)[1].ticks]
    left = 12 + max(map(size.room, texts), default=0.0)
    plot = Plot(size.width - 4 - left, size.height, SMALLER * size.letter, 13.0)
    names = named(chart, plot)
    x, y = chart.axes((names.x_ends, names.y_ends), most)
    _axes(canvas, chart, x, y, left, top)

    def at(a: float | None, b: float | None) -> tuple[float, float]:
        return left + plot.width * x.share(a or 0), top + plot.height * (1 - y.share(b or 0))

    drawn = chart.drawn()
    known = [v for s in drawn for v in s.values if v is not None]
    for i, series in enumerate(drawn):
        _band(canvas, i, series, at, y)
        _lines(canvas, i, series, [at(*pair) for pair in zip(series.x, series.y, strict=True)])
    for i, series in enumerate(drawn):
        if "markers" in series.mode:
            _points(canvas, i, series, [at(*pair) for pair in zip(series.x, series.y, strict=True)], known)
    for one in names.labels:
        a = left + plot.width * (one.x - x.low) / (x.high - x.low)
        b = top + plot.height * (1 - (one.y - y.low) / (y.high - y.low))
        _name(canvas, one, a, b)
    if known:
        _scale(canvas, chart.value_label, min(known), max(known))
    elif len(drawn) > 1:
        canvas.legend([(s.name, _sample(canvas, i, s)) for i, s in enumerate(drawn)])


def _with_short_names(series: Series) -> Series:
    return replace(series, labels=tuple(shortened(name, LONGEST) for name in series.labels))


def _name(canvas: Canvas, label: Label, x: float, y: float) -> None:
    """The name of a point: its nearest edge stays in place, whatever the width of its letters."""
    aside, up = label.offset
    half = SMALLER * canvas.size.room(label.text) / 2
    anchor, edge = ("start", -half) if aside >= half else ("end", half) if aside <= -half else ("middle", 0.0)
    if label.far:
        canvas.line(x, y, x + 0.85 * (aside + edge), y - 0.85 * up, "f")
    canvas.text(x + aside + edge, y - up, label.text, anchor, ' class="n"')


def _band(
    canvas: Canvas, index: int, series: Series, at: Callable[[Number, Number], tuple[float, float]], y: Axis
) -> None:
    """The bounds of a line, joined, or of each point alone; on a logarithmic axis those above 0."""
    pairs = zip(series.x, series.bounds, strict=False)
    known = [(x, pair) for x, pair in pairs if pair and (pair[0] > 0 or not y.log)]
    if "lines" not in series.mode:
        for (x, top), (_, bottom) in ((at(x, high), at(x, low)) for x, (low, high) in known):
            canvas.line(x, top, x, bottom, "w")
    elif len(known) > 1:
        edge = [*(at(x, low) for x, (low, _) in known), *(at(x, high) for x, (_, high) in reversed(known))]
        d = "M" + "L".join(f"{number(a)},{number(b)}" for a, b in edge) + "z"
        canvas.path(d, f'fill="{colour(index)}" fill-opacity=".16"', f"{series.name}: 90 % bounds")


def _lines(canvas: Canvas, index: int, series: Series, points: Sequence[tuple[float, float]]) -> None:
    if "lines" not in series.mode or len(points) < 2:
        return
    look = (
        '"2" stroke-dasharray="6 4"' if series.dash else '"8" stroke-opacity=".3"' if series.halo else '"2"'
    )
    d = "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points)
    canvas.path(d, f'fill="none" stroke="{colour(index)}" stroke-width={look}', series.name)


def _points(
    canvas: Canvas, index: int, series: Series, points: Sequence[tuple[float, float]], known: Sequence[float]
) -> None:
    low, span = (min(known), max(known) - min(known) or 1.0) if known else (0.0, 1.0)
    texts = series.text or ("",) * len(points)
    values = series.values or (None,) * len(points)
    figures = zip(points, series.x, series.y, texts, values, strict=True)
    for (px, py), x, y, text, value in figures:
        fill = colour(index) if value is None else hex_colour(shade((value - low) / span))
        said = f"{text or series.name}: {_figure(x or 0)}, {_figure(y or 0)}"
        kind = "m" if value is None else "v"
        canvas.mark(index, px, py, fill, said if canvas.size.name == "wide" else "", kind)


def _sample(canvas: Canvas, index: int, series: Series) -> Callable[[float, float], None]:

    def draw(x: float, y: float) -> None:
        _lines(canvas, index, series, [(x, y), (x + 19, y)])
        if "markers" in series.mode:
            canvas.mark(index, x + 9.5, y, colour(index))

    return draw


def _scale(canvas: Canvas, label: str, low: float, high: float) -> None:
    """The colours of numbers, with three of them."""
    width, y, steps = canvas.size.width * 0.5, canvas.height + 8, 24
    for i in range(steps):
        canvas.box(4 + width * i / steps, y, width / steps + 0.6, 10, hex_colour(shade((i + 0.5) / steps)))
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        canvas.text(4 + width * share, y + 19, _figure(low + (high - low) * share), anchor)
    canvas.text(14 + width, y + 5, label)
    canvas.height = y + 32


# ---- bars ----


def _bars(canvas: Canvas, chart: Bars) -> None:
    """Bars from left to right, so that long names stay horizontal."""
    size, top = canvas.size, 24.0
    longest = max((len(name) for name in chart.categories), default=0)
    letters = min(longest, int(size.width * 0.36 / size.letter))
    left = 10 + letters * size.letter
    beside = 1 if chart.stacked else max(1, len(chart.series))
    thick = 20.0 if beside == 1 else max(9.0, 15.0 - beside)
    row = thick * beside + 9
    height = row * len(chart.categories) + 4
    axis = chart.axis(max(4, int(size.width / 100)))
    width = size.width - 4 - left
    canvas.text(size.width - 4, 10, chart.y_label, "end", ' class="l"')
    _x_axis(canvas, axis, left, top, height)
    zero = axis.low if axis.log else 0.0

    def at(value: float) -> float:
        start = 0.0 if axis.log else axis.share(zero)
        return left + width * max(axis.share(value) if value > 0 or not axis.log else 0.0, min(start, 0.0))

    for c, name in enumerate(chart.categories):
        y = top + 6 + row * c
        canvas.text(left - 6, y + (row - 9) / 2, shortened(name, letters), "end")
        base = 0.0
        for i, series in enumerate(chart.series):
            value = series.values[c]
            if value is None or not math.isfinite(value):
                continue
            start = left if axis.log else at(base)
            end = at(base + value) if chart.stacked else at(value)
            shift = 0.0 if chart.stacked else thick * i
            said = f"{name}, {series.name}: {_figure(value)}" if size.name == "wide" else ""
            canvas.box(min(start, end), y + shift, abs(end - start), thick - 1, colour(i), said)
            base += value if chart.stacked else 0.0
            if (bounds := series.bound(c)) is not None:
                _whisker(canvas, at(bounds[0]), at(bounds[1]), y + shift + (thick - 1) / 2)
    if len(chart.series) > 1:
        samples = [(s.name, _patch(canvas, colour(i))) for i, s in enumerate(chart.series)]
        canvas.legend(samples)


def _whisker(canvas: Canvas, low: float, high: float, y: float) -> None:
    canvas.line(low, y, high, y, "w")
    for x in (low, high):
        canvas.line(x, y - 4, x, y + 4, "w")


def _patch(canvas: Canvas, fill: str) -> Callable[[float, float], None]:
    return lambda x, y: canvas.box(x + 4, y - 5, 14, 10, fill)


# ---- areas ----


def _areas(canvas: Canvas, chart: Areas) -> None:
    size, top = canvas.size, 46.0
    x, y = chart.axes((max(4, int(size.width / 90)), max(4, int(size.height / 42))))
    left = 12 + max(size.room(text) for _, text in y.ticks)
    width = size.width - 4 - left

    def across(value: float) -> float:
        return left + width * x.share(value)

    def up(value: float) -> float:
        return top + size.height * (1 - y.share(value))

    _axes(canvas, chart, x, y, left, top)
    below = (0.0,) * len(chart.x)
    for i, (one, edge) in enumerate(zip(chart.areas, chart.edges(), strict=True)):
        points = [*_stairs(chart.x, edge), *reversed(_stairs(chart.x, below))]
        d = "M" + "L".join(f"{number(across(a))},{number(up(b))}" for a, b in points) + "z"
        canvas.path(d, f'fill="{colour(i)}"', one.name if size.name == "wide" else "")
        below = edge
    for begin, name in chart.marks:
        canvas.line(across(begin), top, across(begin), top + size.height, "f")
        canvas.text(
            min(across(begin) + 3, size.width - size.room(name) - 4), top - 6, name, more=' class="n"'
        )
    if chart.top is not None and chart.x:
        at, name = chart.top
        high = below[max(0, sum(one <= at for one in chart.x) - 1)]
        canvas.line(across(at), up(high), across(at), top + size.height, "w")
        half = size.room(name) / 2
        canvas.text(min(max(across(at), left + half), size.width - half), up(high) - 9, name, "middle")
    canvas.legend([(one.name, _patch(canvas, colour(i))) for i, one in enumerate(chart.areas)])


def _stairs(x: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The corners of a line that stays level until the next x."""
    corners: list[tuple[float, float]] = []
    for at, value in zip(x, values, strict=True):
        if corners and value != corners[-1][1]:
            corners.append((at, corners[-1][1]))
        if not corners or value != corners[-1][1] or at == x[-1]:
            corners.append((at, value))
    return corners


# ---- heat maps and pies ----


def _heatmap(canvas: Canvas, chart: Heatmap) -> None:
    size, top = canvas.size, 26.0 if chart.y_label else 6.0
    letters = min(max(map(len, chart.rows), default=0), int(size.width * 0.34 / size.letter))
    left = 12 + letters * size.letter
    wide = (size.width - 4 - left) / max(1, len(chart.columns))
    high = min(38.0, max(22.0, wide * 0.6))
    known = [v for row in chart.values for v in row if v is not None]
    low, span = (min(known), max(known) - min(known) or 1.0) if known else (0.0, 1.0)
    if chart.y_label:
        canvas.text(4, 10, chart.y_label, more=' class="l"')
    for r, (name, values, digits) in enumerate(zip(chart.rows, chart.values, chart.digits(), strict=True)):
        y = top + high * r
        canvas.text(left - 6, y + high / 2, shortened(name, letters), "end")
        for c, (value, text) in enumerate(zip(values, digits, strict=True)):
            x, share = left + wide * c, 0.0 if value is None else (value - low) / span
            said = f"{name}, {chart.columns[c]}: {text}" if size.name == "wide" else ""
            fill = "none" if value is None else hex_colour(shade(share))
            canvas.box(x + 0.5, y + 0.5, wide - 1, high - 1, fill, said)
            ink = "" if value is None else f' style="fill:{"#fff" if share < 0.55 else "#111"}"'
            if size.room(text) <= wide:
                canvas.text(x + wide / 2, y + high / 2, text, "middle", ink)
    canvas.height = top + high * len(chart.rows)
    _columns(canvas, chart.columns, left, wide)
    if chart.x_label:
        canvas.text(size.width - 4, canvas.height + 8, chart.x_label, "end", ' class="l"')
        canvas.height += 20
    if known:
        _scale(canvas, chart.value_label, min(known), max(known))


def _columns(canvas: Canvas, names: Sequence[str], left: float, wide: float) -> None:
    """Names below columns; slanted if they are wider."""
    size, y = canvas.size, canvas.height + 12
    if all(size.room(name) <= wide for name in names):
        for c, name in enumerate(names):
            canvas.text(left + wide * (c + 0.5), y, name, "middle")
        canvas.height = y + 14
        return
    shown = [shortened(name, 22) for name in names]
    for c, name in enumerate(shown):
        x = left + wide * (c + 0.5) + 4
        canvas.text(x, y - 4, name, "end", f' transform="rotate(-40 {number(x)} {number(y)})"')
    canvas.height = y + 8 + 0.66 * max(map(size.room, shown), default=0.0)


def _pies(canvas: Canvas, chart: Pies) -> None:
    size, colours = canvas.size, chart.colours()
    beside = chart.beside if size.name == "wide" else min(2, chart.beside)
    wide = size.width / max(beside, 1)
    radius = min(wide / 2 - 12, 100.0)
    for i, pie in enumerate(chart.pies):
        x = wide * (i % beside + 0.5)
        y = 24 + (i // beside) * (2 * radius + 34)
        canvas.text(x, y - 12, shortened(pie.title, int(wide / size.letter)), "middle", ' class="l"')
        _pie(canvas, pie, (x, y + radius), radius, colours)
        canvas.height = y + 2 * radius + 6
    canvas.legend([(label, _patch(canvas, fill)) for label, fill in colours.items()])


def _pie(
    canvas: Canvas, pie: Pie, middle: tuple[float, float], radius: float, colours: dict[str, str]
) -> None:
    (x, y), whole, wide = middle, sum(pie.values), canvas.size.name == "wide"
    if not whole:
        canvas.text(x, y, "nothing", "middle")
        return
    ends = [0.0, *itertools.accumulate(value / whole for value in pie.values)]
    texts: list[tuple[float, float, str]] = []
    for label, (start, end) in zip(pie.labels, itertools.pairwise(ends), strict=True):
        if end <= start:
            continue
        said = f"{label}: {end - start:.1%}" if wide else ""
        if end - start > 0.9999:
            canvas.path(f"M{number(x - radius)},{number(y)}{_arcs(radius)}", f'fill="{colours[label]}"', said)
        else:
            (ax, ay), (bx, by) = (_around(middle, radius, share) for share in (start, end))
            arc = f"A{number(radius)},{number(radius)} 0 {int(end - start > 0.5)},1 {number(bx)},{number(by)}"
            d = f"M{number(x)},{number(y)}L{number(ax)},{number(ay)}{arc}z"
            canvas.path(d, f'class="m" fill="{colours[label]}"', said)
        if end - start >= SMALL:
            texts.append((*_around(middle, radius * 0.66, (start + end) / 2), f"{end - start:.0%}"))
    for a, b, text in texts:
        canvas.text(a, b, text, "middle", ' class="p"')


def _arcs(radius: float) -> str:
    r = number(radius)
    return f"a{r},{r} 0 1,0 {number(2 * radius)},0a{r},{r} 0 1,0 {number(-2 * radius)},0z"


def _around(middle: tuple[float, float], radius: float, share: float) -> tuple[float, float]:
    """The point on a circle at a share of its length, clockwise from the top."""
    angle = 2 * math.pi * share
    return middle[0] + radius * math.sin(angle), middle[1] - radius * math.cos(angle)


DRAWERS: dict[type, Callable[..., None]] = {
    XY: _xy,
    Bars: _bars,
    Heatmap: _heatmap,
    Pies: _pies,
    Areas: _areas,
}
