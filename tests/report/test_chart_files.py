"""Pictures of charts: the SVG is the page's drawing, the PNG the same in pixels."""

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from neuralpower.report import chart_files
from neuralpower.report.chart_files import outline, save_together, svg_text
from neuralpower.report.charts import XY, Bars, BarSeries, Series
from neuralpower.report.svg_canvas import SIZES
from neuralpower.report.svg_charts import drawn

BARS = Bars("A & b", "ms", ("x", "y"), (BarSeries("", (2.0, 1.0)),))


def test_an_svg_holds_the_marks_of_the_page_and_its_own_style() -> None:
    text = svg_text([BARS, BARS])
    assert "".join(drawn(BARS, SIZES[0]).marks) in text
    assert text.count("A &amp; b</text>") == 2 and "var(" not in text
    root = ElementTree.fromstring(text.partition("\n")[2])
    assert len(root.findall("{*}g")) == 2


def test_an_svg_needs_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chart_files, "_rasterise", None)
    save_together([BARS], tmp_path / "new" / "one.svg")
    assert (tmp_path / "new" / "one.svg").read_text().startswith("<?xml")


def test_a_png_has_the_bars_where_the_drawing_has_them(tmp_path: Path) -> None:
    save_together([BARS], tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[..., :3]
    blue = np.abs(picture - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
    long, short = sorted({int(row) for row in blue.sum(axis=1) if row > 100}, reverse=True)[:2]
    assert short / long == pytest.approx(0.5, abs=0.01)


def test_a_band_is_pale_in_a_png(tmp_path: Path) -> None:
    line = Series.of("a", [(1, 1.0, ""), (2, 1.0, "")], mode="lines", bounds=((0.5, 1.5), (0.5, 1.5)))
    save_together([XY("", "x", "y", (line,))], tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[..., :3]
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    full, pale = (np.abs(picture - one).max(axis=2).ravel() < 0.02 for one in (blue, 0.84 + 0.16 * blue))
    assert pale.sum() > 5 * full.sum()


def test_arcs_are_parts_of_their_circle() -> None:
    quarter, codes = outline("M0,0L0,-10A10,10 0 0,1 10,0z")
    assert codes[0] == 1 and codes[-1] == 79 and quarter[-1] == (0, 0)
    assert all(math.hypot(*point) == pytest.approx(10) for point in quarter[1:-1])
    assert all(x >= -1e-9 and y <= 1e-9 for x, y in quarter)  # clockwise, from the top to the right
    most, _ = outline("M0,0L0,-10A10,10 0 1,1 -10,0z")
    assert max(y for _, y in most) == pytest.approx(10) and max(x for x, _ in most) == pytest.approx(10)
    whole, _ = outline("M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z")
    assert {round(abs(y), 1) for _, y in whole} >= {0.0, 4.5}
