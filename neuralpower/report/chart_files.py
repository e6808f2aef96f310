"""Charts as files: the wide drawings of `svg_charts` in one SVG, and as a PNG of the same.

An SVG needs nothing else. A PNG needs matplotlib, which draws the SVG's few kinds of marks.
"""

from __future__ import annotations

import cmath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from neuralpower.errors import InputError, writing
from neuralpower.files.atomic import aside
from neuralpower.report.charts import NO_MATPLOTLIB, Chart
from neuralpower.report.svg_canvas import SIZES, letters, stylesheet
from neuralpower.report.svg_charts import drawn

TITLE, BETWEEN = 30.0, 22.0  # pixels above a drawing for its title, and below it
POINT = 0.75  # of a pixel, in browsers
SHARP = 192  # pixels of a PNG for each inch, which has 96 on a page
FONT = "DejaVu Sans, sans-serif"
ANCHORS = {"middle": "center", "end": "right"}
NUMBER = re.compile(r"-?[\d.]+")

Style = Mapping[str, Mapping[str, str]]  # selector -> property -> value


def save(chart: Chart, folder: Path, stem: str, formats: Sequence[str] = ("png", "svg")) -> tuple[Path, ...]:
    """Draw a chart into `folder/stem.FORMAT`; the paths.

    Raises:
        InputError: matplotlib is missing for a PNG, or the folder is not writable.
    """
    paths = tuple(Path(folder) / f"{stem}.{kind}" for kind in formats)
    for path in paths:
        save_together([chart], path, "folder")
    return paths


def save_together(charts: Sequence[Chart], path: Path, what: str = "file") -> None:
    """Draw charts below each other into one PNG or SVG; raises as `save`."""
    text = svg_text(charts)
    with writing(path.parent if what == "folder" else path, what):
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as new:
            if path.suffix == ".svg":
                new.write_text(text, encoding="utf-8")
            else:
                _rasterise(text, new)


def svg_text(charts: Sequence[Chart]) -> str:
    """One SVG that needs no other file: charts below each other, on white."""
    width, top, parts = SIZES[0].width, 0.0, []
    for chart in charts:
        canvas = drawn(chart, SIZES[0])
        canvas.text(4, 10 - TITLE, chart.title, more=' class="t"')
        parts.append(f'<g transform="translate(0,{top + TITLE:.0f})">{"".join(canvas.marks)}</g>')
        top += TITLE + canvas.height + BETWEEN
    rules = "".join(
        f"{name}{{{';'.join(map(':'.join, look.items()))}}}" for name, look in chart_style().items()
    )
    title = letters(", ".join(chart.title for chart in charts))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" font-size="12" width="{width:.0f}" height="{top:.0f}" '
    box = f'viewBox="0 0 {width:.0f} {top:.0f}" font-family="{FONT}" role="img" aria-label="{title}">'
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    inside = f"<style>{rules}</style>{white}{''.join(parts)}"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{box}{inside}</svg>\n'


def chart_style() -> Style:
    """What `page.css` says of charts on white paper."""
    css = stylesheet()
    colours = dict(re.findall(r"--(\w+): (#\w+)", css.partition("@media")[0]))
    plain = re.sub(r"var\(--(\w+)\)", lambda name: colours.get(name[1], ""), css)
    rules = re.findall(r"^\.chart (text(?:\.\w)?|\.\w) \{ (.*); \}$", plain, re.M)
    return {name: dict(part.split(": ", 1) for part in rule.split("; ")) for name, rule in rules}


def _rasterise(svg: str, path: Path) -> None:
    """Draw an SVG of `svg_text` as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    root = ElementTree.fromstring(svg.partition("\n")[2])  # noqa: S314  # made above
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    figure = Figure(figsize=(width / 96, height / 96), dpi=SHARP)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    style = chart_style()
    for group in root.findall("{*}g"):
        top = float(NUMBER.findall(group.attrib["transform"])[1])
        for mark in group:
            _mark(axes, mark, top, style)
    figure.savefig(path, format="png")


def _mark(axes: Any, mark: ElementTree.Element, top: float, style: Style) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    tag, kind = mark.tag.rpartition("}")[2], mark.get("class", "")
    look = {
        **style.get(tag, {}),
        **style.get(f".{kind}", {}),
        **style.get(f"{tag}.{kind}", {}),
        **mark.attrib,
    }
    look |= dict(part.split(":") for part in filter(None, look.get("style", "").split(";")))
    moved = NUMBER.findall(look.get("transform", ""))
    size = {name: float(look.get(name, 0)) for name in ("x", "y", "width", "height")}
    if tag == "text":
        axes.text(
            size["x"],
            size["y"] + top,
            mark.text or "",
            fontsize=POINT * float(look.get("font-size", "12px")[:-2]),
            color=look["fill"],
            weight="bold" if "font-weight" in look else "normal",
            ha=ANCHORS.get(look.get("text-anchor", ""), "left"),
            rotation=-float(moved[0]) if moved else 0,
            rotation_mode="anchor",
            parse_math=False,
        )
        return
    if tag == "rect":
        points, codes = outline("M{x},{y}h{width}v{height}h-{width}z".format(**size))
    else:
        points, codes = outline(look["d"])
    shift = [float(part) for part in moved] if moved else [0.0, 0.0]
    dashes = look.get("stroke-dasharray")
    axes.add_patch(
        PathPatch(
            Outline(np.array(points) + shift + [0.0, top], codes),
            facecolor=to_rgba(look.get("fill", "none"), float(look.get("fill-opacity", 1))),
            edgecolor=to_rgba(look.get("stroke", "none"), float(look.get("stroke-opacity", 1))),
            linewidth=POINT * float(look.get("stroke-width", 1)),
            linestyle=(0, tuple(float(part) for part in dashes.split())) if dashes else "-",
        )
    )


def outline(d: str) -> tuple[list[tuple[float, float]], list[int]]:
    """Points of an SVG outline with matplotlib's codes: 1 moves, 2 draws a line, 79 closes."""
    points, codes = [], []
    at = begun = 0j
    for command, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", d):
        numbers = [float(number) for number in NUMBER.findall(text)]
        end = _end(command, numbers, at, begun)
        steps = _arc(at, end, numbers) if command in "Aa" else [end]
        points += [(step.real, step.imag) for step in steps]
        codes += [{"M": 1, "z": 79}.get(command, 2)] * len(steps)
        at, begun = end, end if command == "M" else begun
    return points, codes


def _end(command: str, numbers: Sequence[float], at: complex, begun: complex) -> complex:
    """Where a command ends: small letters count from its beginning."""
    if command == "z":
        return begun
    start = at if command.islower() else 0j
    if command in "hH":
        return complex(start.real + numbers[0], at.imag)
    if command in "vV":
        return complex(at.real, start.imag + numbers[0])
    return start + complex(*numbers[-2:])


def _arc(at: complex, end: complex, numbers: Sequence[float]) -> list[complex]:
    """Points of a circle's arc, clockwise on paper, from `at` to `end`."""
    if at == end:  # too thin to be seen
        return [end]
    radius, is_large = numbers[0], bool(numbers[3])
    half = (end - at) / 2
    aside = max(radius**2 - abs(half) ** 2, 0.0) ** 0.5 * (-1j if is_large else 1j) * half / abs(half)
    centre = at + half + aside
    first, last = cmath.phase(at - centre), cmath.phase(end - centre)
    last += 2 * cmath.pi * (last <= first)
    return [centre + cmath.rect(radius, angle) for angle in np.linspace(first, last, 49)[1:].tolist()]
