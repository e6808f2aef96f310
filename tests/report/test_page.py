"""Charts, static pictures and pages: what is drawn is what was given, with nothing but the one file."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv
from neuralpower.report.axes import axis, limits, logarithmic, scaled
from neuralpower.report.axes import texts as texts_of
from neuralpower.report.chart_files import save
from neuralpower.report.charts import XY, Bars, BarSeries, Chart, Heatmap, Pie, Pies, Series, slug
from neuralpower.report.page import (
    Nested,
    Page,
    Picture,
    Section,
    Share,
    Table,
    shown,
    write_html,
    write_markdown,
)
from neuralpower.report.svg_canvas import SIZES, Plot, along, place, shade
from neuralpower.report.svg_charts import drawing
from tests.browser import chromium, complaints, looked_at, opened, overflowing, requests

POINTS = XY(
    "Latency against FLOP",
    "FLOP",
    "s",
    (
        Series(
            "batch 1", (1e9, 2e9, None), (0.1, 0.2, 0.3), text=("a <b>", "b", "c"), labels=("a <b>", "b", "c")
        ),
        Series("batch 64", (6e10, 0, 1e11), (1.0, 1.0, 2.0), mode="lines+markers", dash=True),
    ),
    log_x=True,
    log_y=True,
    note="a note with `code`",
)
SHADES = XY(
    "Shades", "x", "y", (Series("a", (1, 2, 3), (1, 4, 9), values=(1.0, None, 3.0)),), value_label="GB"
)
BARS = Bars(
    "Work", "GFLOP", ("x", "y"), (BarSeries("forward", (1.0, 2.0)), BarSeries("backward", (2.0, None)))
)
HEAT = Heatmap("Ranks", "", "", ("p", "q"), ("p", "q"), ((1.0, 0.25), (None, 1.0)), value_label="Spearman")
PIES = Pies("Shares & parts", (Pie("time", ("conv", "norm"), (3.0, 1.0)), Pie("none", ("conv",), (0.0,))))
CHARTS: tuple[Chart, ...] = (POINTS, SHADES, BARS, HEAT, PIES)
TABLE = Table(
    "Networks", ("network", "GFLOP", "bound"), (("a|b", 3.64213, "memory"), ("<c>", None, "compute")), "noted"
)
PAGE = Page(
    "A <page>",
    "What it is about.",
    (
        Section(
            "First & last", ("Text with `code` and https://example.org/x.", "- one", "- two"), (POINTS, TABLE)
        ),
        Section("Second", ("x < y",), (SHADES, BARS, HEAT), level=3),
        Section("Third", (), (PIES,)),
    ),
)


def drawn(chart: Chart) -> list[ElementTree.Element]:
    """The drawings of a chart, wide and narrow."""
    found = [*ElementTree.fromstring(f"<div>{drawing(chart)}</div>")]
    assert [one.get("class") for one in found] == [size.name for size in SIZES]
    return found


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter("text")]


def tips(element: ElementTree.Element) -> list[str]:
    """What is shown under the pointer."""
    return [title.text or "" for title in element.iter("title")]


@pytest.mark.parametrize("chart", CHARTS, ids=[chart.title for chart in CHARTS])
def test_every_chart_is_drawn_wide_and_narrow_with_all_of_its_text_inside(chart: Chart) -> None:
    wide, narrow = drawn(chart)
    assert all(one.get("role") == "img" and one.get("aria-label") == chart.title for one in (wide, narrow))
    for element, size in zip((wide, narrow), SIZES, strict=True):
        box = [float(part) for part in (element.get("viewBox") or "").split()]
        assert box[2] == size.width and 100 < box[3] < 700
        for text in element.iter("text"):
            x, y, wide_by = (
                float(text.get("x", 0)),
                float(text.get("y", 0)),
                size.letter * len(text.text or ""),
            )
            left = x - {None: 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor")] * wide_by
            assert left >= -1 and left + wide_by <= box[2] + 1 and 0 < y < box[3], text.text


@pytest.mark.parametrize("chart", CHARTS, ids=[chart.title for chart in CHARTS])
def test_every_chart_becomes_a_picture_and_a_drawing(chart: Chart, tmp_path: Path) -> None:
    png, svg = save(chart, tmp_path / "figures", "one")
    picture = imread(png)
    assert (
        picture.shape[0] > 200 and picture.shape[1] > 400 and picture[..., :3].std() > 0.02
    )  # not one plain colour
    assert chart.title.replace("&", "&amp;") in svg.read_text(encoding="utf-8")


def test_the_same_chart_is_the_same_file(tmp_path: Path) -> None:
    first, second = (save(HEAT, tmp_path / name, "x", ("svg",))[0].read_bytes() for name in ("a", "b"))
    assert first == second


def test_what_is_not_known_is_left_out_and_never_drawn_as_nothing() -> None:
    # 0 has no place on an axis of logarithms
    points = ["a <b>: 1,000,000,000, 0.1", "b: 2,000,000,000, 0.2"]
    more = ["batch 64: 60,000,000,000, 1", "batch 64: 100,000,000,000, 2"]
    found = tips(drawn(POINTS)[0])
    assert [tip for tip in found if ":" in tip] == [*points, *more]
    assert tips(drawn(BARS)[0]) == ["x, forward: 1", "x, backward: 2", "y, forward: 2"]
    assert [t for t in texts(drawn(HEAT)[0]) if t in ("1", "0.25", "-")][:4] == ["1", "0.25", "-", "1"]


def test_names_stand_beside_points_where_asked_for() -> None:
    wide, _ = drawn(POINTS)
    assert [t.text for t in wide.iter("text") if t.get("class") == "n"] == ["a <b>", "b"]
    assert not [t for t in drawn(SHADES)[0].iter("text") if t.get("class") == "n"]


def test_a_label_has_the_same_colour_in_all_pies() -> None:
    pies = Pies("x", (Pie("1", ("a", "b"), (1.0, 3.0)), Pie("2", ("b", "a"), (1.0, 0.5))))
    slices = [path for path in drawn(pies)[0].iter("path") if path.get("fill")]
    colours = [((path.find("title").text or "")[0], path.get("fill")) for path in slices]  # type: ignore[union-attr]
    assert len(colours) == 4 and len({*colours}) == 2 and len({fill for _, fill in colours}) == 2
    assert [*pies.colours()] == ["b", "a"]  # 3/4 + 2/3 > 1/4 + 1/3


def test_a_pie_of_one_part_is_a_whole_circle() -> None:
    (whole,) = [p for p in drawn(Pies("x", (Pie("1", ("a", "b"), (2.0, 0.0)),)))[0].iter("path")]
    assert (whole.get("d") or "").count("a") == 2


def test_the_first_twenty_series_look_different() -> None:
    every = Series("s", (1, 2), (1, 2), mode="lines+markers")
    wide, _ = drawn(XY("t", "x", "y", (every,) * 20))
    marks = {(p.get("d"), p.get("fill")) for p in wide.iter("path") if p.get("transform")}
    assert len(marks) == 20


def test_the_ends_of_the_colours_are_dark_and_light() -> None:
    assert shade(0.0) == (0, 32, 77) and shade(1.0) == (255, 234, 70)
    # half way between the second and the third of five: (65 + 124) / 2, (77 + 123) / 2, (107 + 120) / 2
    assert shade(0.375) == (94, 100, 114)


def test_bounds_of_bars_are_whiskers() -> None:
    bars = Bars("t", "ms", ("a", "b"), (BarSeries("", (2.0, 1.0), ((1.0, 4.0), None)),))
    whiskers = [path.get("d") for path in drawn(bars)[0].iter("path") if path.get("class") == "w"]
    assert len(whiskers) == 3  # one line, two ends
    assert bars.axis(8).high > 4.0


# ---- axes ----


def span(values: list[float], log: bool, most: int = 6) -> list[str]:
    """The texts of the ticks of an axis for values."""
    log = logarithmic(values, log)
    return [text for _, text in axis(*limits([scaled(v, log) for v in values], log), log, most).ticks]


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [1, 1.15], [195, 224], [0.31, 2.7], [1.5, 7.5], [2.1, 4.5], [1, 256], [31, 162], [0.0012, 0.0031],
        [1e9, 5e12], [2e7, 1.3e8], [3e-6, 4e-5], [7], [12345.6, 12346.1], [1, 1e12], [999, 1001],
    ],
)  # fmt: skip
def test_every_axis_has_three_ticks_or_more_in_plain_numbers(values: list[float], wanted: bool) -> None:
    for most in (4, 6, 9):
        found = span(values, wanted, most)
        assert 3 <= len(found) <= 2 * most + 3 and len(set(found)) == len(found)
        for text in found:
            assert re.fullmatch(r"-?\d{1,3}(,\d{3})*(\.\d+)?( [PTGMkmun])?", text), text


def test_a_small_range_has_a_linear_axis_even_where_a_logarithmic_one_is_asked_for() -> None:
    assert (
        not logarithmic([100, 115], True) and logarithmic([1, 256], True) and not logarithmic([1, 256], False)
    )
    assert span([100, 115], True) == ["100", "105", "110", "115"]
    chart = XY("t", "x", "y", (Series("s", (1, 8), (100, 115)),), log_x=True, log_y=True)
    assert chart.logs == (True, False)


def test_sizes_have_their_ticks_at_themselves() -> None:
    batches = (1, 2, 8, 64)
    chart = XY("t", "batch", "y", (Series("s", batches, (1, 2, 3, 4), mode="lines+markers"),), log_x=True)
    shown = texts(drawn(chart)[0])
    assert [text for text in shown if text in map(str, batches)][-4:] == ["1", "2", "8", "64"]
    two = axis(*limits([0.0, scaled(64, True)], True), True, 9, [1, 64])
    assert [text for _, text in two.ticks] == ["1", "2", "4", "8", "16", "32", "64"]
    # whole numbers, and three of them, where there are but two sizes
    few = axis(0.94, 2.06, False, 8, [1, 2])
    assert [text for _, text in few.ticks] == ["0", "1", "2", "3"]


def test_a_prefix_stands_where_a_number_would_be_long() -> None:
    assert texts_of([1e9, 2.5e9]) == ["1.0 G", "2.5 G"] and texts_of([0, 2e-5]) == ["0", "20 u"]
    assert texts_of([100, 20000]) == ["100", "20,000"]


def boxes(points: list[tuple[float, float]], names: list[str]) -> list[tuple[float, float, float, float]]:
    found = place(points, names, Plot(600, 400))
    assert None not in found
    middles = [
        (x + o[0], y + o[1], 6.5 * len(n) + 4) for (x, y), n, o in zip(points, names, found, strict=True) if o
    ]
    return [(x - w / 2, y - 6.5, x + w / 2, y + 6.5) for x, y, w in middles]


def test_names_of_a_crowd_cover_neither_each_other_nor_points_and_stay_inside() -> None:
    points = [(300.0 + 9 * i, 200.0 + 5 * (i % 3)) for i in range(12)]
    found = boxes(points, [f"network{i}" for i in range(12)])
    for a, b in itertools.combinations(found, 2):
        assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
    for box, (x, y) in itertools.product(found, points):
        assert not (box[0] < x < box[2] and box[1] < y < box[3])
    assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= 600 and b[3] <= 400 for b in found)


def test_names_of_lines_that_end_together_are_stacked_in_their_order() -> None:
    found = place(
        [(500.0, 100.0), (500.0, 104.0), (500.0, 300.0), (0.0, 0.0)], ["a", "b", "c", ""], Plot(600, 400)
    )
    assert found[3] is None
    # a and b are 4 px apart and need 13: 4.5 px down and up from their places; c stays
    assert [o[1] for o in found if o] == [-4.5, 4.5, 0.0]
    assert all(o[0] > 14 for o in found if o)


def test_a_name_without_room_is_left_out() -> None:
    assert place([(5.0, 5.0)], ["long name"], Plot(20, 20)) == [None]


def test_a_line_is_points_no_farther_apart_than_a_name_is_high() -> None:
    # 30 px in steps of at most 8: 4 steps of 7.5
    assert along([(0.0, 0.0), (30.0, 0.0)]) == [(0.0, 0.0), (7.5, 0.0), (15.0, 0.0), (22.5, 0.0), (30.0, 0.0)]


def test_a_name_stands_rather_on_a_line_than_nowhere() -> None:
    lines = [(float(x), float(y)) for x in range(0, 60, 4) for y in range(0, 40, 4)]
    assert place([(30.0, 20.0)], ["8"], Plot(60, 40), lines) != [None]


def test_limits_leave_room_on_both_sides() -> None:
    # decades 0 to 2, 6 % of 2 on each side
    assert limits([0.0, 2.0], log=True) == pytest.approx((-0.12, 2.12))
    assert limits([3.0], log=False) == (1.5, 4.5)
    assert limits([], log=False) == pytest.approx((-0.06, 1.06))


def test_a_file_name_has_only_letters_digits_and_hyphens() -> None:
    assert slug("Roofline: FLOP/s, A100 & CPU (1)") == "roofline-flop-s-a100-cpu-1"
    assert slug("///") == "chart"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Series("s", (1, 2), (1,)), "series 's': 1 y for 2 x; give one for each"),
        (lambda: Series("s", (1, 2), (1, 2), text=("a",)), "1 text for 2 x"),
        (lambda: Bars("t", "y", ("a",), (BarSeries("b", (1.0, 2.0)),)), "2 values for 1 categories"),
        (lambda: Heatmap("t", "", "", ("a",), ("b",), ((1.0, 2.0),)), "must be 1 rows of 1 columns"),
        (lambda: Pie("t", ("a",), (-1.0,)), "one value of 0 or more"),
        (lambda: Table("t", ("a", "b"), (("c",),)), "1 cells under 2 headers"),
    ],
)
def test_lengths_that_differ_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_large_numbers_are_grouped_alike_whole_or_not() -> None:
    found = [
        shown(value) for value in (1638.4, 3277, 999.94, 999.97, 1979.0, 12.0, Share(0.1234), float("nan"))
    ]
    assert found == ["1,638", "3,277", "999.9", "1,000", "1,979", "12", "12.3%", "-"]


def test_no_two_parts_of_a_page_have_one_title() -> None:
    page = Page("p", "", (Section("a", (), (BARS, TABLE)), Section("b", (), (BARS, BARS))))
    assert [part.title for part in page.parts()] == ["Work", "Networks", "Work (2)", "Work (3)"]


def test_shares_have_bars_and_nested_names_stand_to_the_right(tmp_path: Path) -> None:
    table = Table("t", ("module", "share"), ((Nested("a", 0), Share(0.5)), (Nested("b", 1), Share(0.125))))
    page = Page("p", "", (Section("a", (), (table,)),))
    write_html(page, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<td class=share style="--share:50.0%">50.0%</td>' in text
    assert '<td style="--depth:1">b</td>' in text
    write_markdown(page, tmp_path / "page.md", tmp_path)
    assert "| \u2003b | 12.5% |" in (tmp_path / "page.md").read_text()


def test_cells_are_shown_with_four_digits_and_written_with_all(tmp_path: Path) -> None:
    assert [shown(v) for v in (None, 3.64213, 2.0, 1234567, "x", "")] == [
        "-",
        "3.642",
        "2",
        "1,234,567",
        "x",
        "-",
    ]
    write_csv(tmp_path / "deep" / "t.csv", [TABLE.header, *TABLE.rows], "folder")
    with (tmp_path / "deep" / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["network", "GFLOP", "bound"],
            ["a|b", "3.64213", "memory"],
            ["<c>", "", "compute"],
        ]


class Outline(HTMLParser):
    """Tags that are opened and closed, and links to elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.svg = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k == "src" or (k == "href" and tag == "link")]
        self.svg += tag == "svg"
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_html_is_well_formed_and_one_file(tmp_path: Path) -> None:
    write_html(PAGE, tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and outline.sources == ["data:,"]
    assert "<script" not in text and (tmp_path / "index.html").stat().st_size < 1e5
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert outline.svg == 2 * 5
    assert "<title>A &lt;page&gt;</title>" in text and "x &lt; y" in text and "<code>code</code>" in text
    assert '<a href="https://example.org/x">https://example.org/x</a>.' in text
    assert "<ul><li>one</li><li>two</li></ul>" in text
    assert "<td class=number>3.642</td>" in text and "<td class=number>-</td>" in text


def test_the_markdown_shows_the_same_with_pictures_that_exist(tmp_path: Path) -> None:
    drawn = write_markdown(PAGE, tmp_path / "report.md", tmp_path / "figures")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert links[0] == "figures/01-latency-against-flop.png" and len(links) == len(drawn) == 5
    assert all(
        (tmp_path / link).is_file() and (tmp_path / link).with_suffix(".svg").is_file() for link in links
    )
    assert "| a\\|b | 3.642 | memory |" in text and "| --- | ---: | --- |" in text
    assert "### Second" in text and "- one\n- two\n" in text


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (
        lambda: write_html(PAGE, tmp_path / "file" / "index.html"),
        lambda: write_csv(tmp_path / "file" / "t.csv", [TABLE.header, *TABLE.rows], "folder"),
        lambda: save(BARS, tmp_path / "file", "x"),
    ):
        with pytest.raises(InputError, match="cannot be written .* choose another folder"):
            write()


@pytest.mark.slow
def test_a_browser_shows_every_chart_in_any_width_and_light(tmp_path: Path) -> None:
    write_html(PAGE, tmp_path / "index.html")
    papers = set()
    with chromium(tmp_path / "profile") as browser:
        for width, dark in itertools.product((400, 1400), (False, True)):
            looked_at(browser, width, dark)
            assert opened(browser, tmp_path / "index.html") == 5
            assert complaints(browser) == []
            assert requests(browser) == [(tmp_path / "index.html").resolve().as_uri()]
            assert overflowing(browser) == []
            shown = [
                svg.get_attribute("class") for svg in browser.find_elements("css selector", ".chart svg")
            ]
            seen = [svg.is_displayed() for svg in browser.find_elements("css selector", ".chart svg")]
            assert [name == ("narrow" if width == 400 else "wide") for name in shown] == seen
            ink = "return getComputedStyle(document.querySelector('.chart text:not([class])')).fill"
            papers.add((browser.execute_script(ink), dark))
    assert papers == {("rgb(31, 35, 40)", False), ("rgb(228, 231, 235)", True)}


def test_a_picture_stands_in_the_page_itself_and_beside_the_markdown(tmp_path: Path) -> None:
    page = Page("A page", "Lead.", (Section("One", (), (Picture("A dot", b"\x89PNG dot", "Small."),)),))
    write_html(page, tmp_path / "page.html")
    # base64 of the nine bytes
    assert 'alt="A dot" src="data:image/png;base64,iVBORyBkb3Q="' in (tmp_path / "page.html").read_text()
    assert not page.charts()
    assert not page.tables()
    write_markdown(page, tmp_path / "page.md", tmp_path / "figures")
    assert "![A dot](figures/a-dot.png)" in (tmp_path / "page.md").read_text()
    assert (tmp_path / "figures/a-dot.png").read_bytes() == b"\x89PNG dot"
