"""Charts, static pictures and pages: what is drawn is what was given, with nothing but the one file."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects
import pytest
from matplotlib.image import imread

from neuralpower.errors import InputError
from neuralpower.files.csv_files import write_csv
from neuralpower.report.charts import XY, Bars, BarSeries, Chart, Heatmap, Pie, Pies, Series, slug
from neuralpower.report.labels import Plot, along, limits, place
from neuralpower.report.matplotlib_charts import save
from neuralpower.report.page import Page, Picture, Section, Table, shown, write_html, write_markdown
from neuralpower.report.plotly_charts import plot
from tests.browser import chromium, complaints, opened, requests

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


@pytest.mark.parametrize("chart", CHARTS, ids=[chart.title for chart in CHARTS])
def test_every_chart_is_a_figure_that_plotly_accepts(chart: Chart) -> None:
    spec = json.loads(json.dumps(plot(chart), allow_nan=False))
    figure = plotly.graph_objects.Figure(data=spec["data"], layout=spec["layout"])
    assert (
        len(figure.data)
        == {"XY": 1 if chart is SHADES else 2, "Bars": 2, "Heatmap": 1, "Pies": 2}[type(chart).__name__]
    )


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
    first, second = plot(POINTS)["data"]
    assert first["x"] == [1e9, 2e9] and first["text"] == ["a &lt;b&gt;", "b"]
    assert second["x"] == [6e10, 1e11], "0 has no place on an axis of logarithms"
    assert plot(BARS)["data"][1]["y"] == [2.0, None]
    assert plot(HEAT)["data"][0]["text"] == [["1", "0.25"], ["-", "1"]]


def test_names_stand_beside_points_where_asked_for() -> None:
    assert [a["text"] for a in plot(POINTS)["layout"]["annotations"]] == ["a &lt;b&gt;", "b"]
    assert "annotations" not in plot(SHADES)["layout"]


def test_a_label_has_the_same_colour_in_all_pies() -> None:
    pies = Pies("x", (Pie("1", ("a", "b"), (1.0, 3.0)), Pie("2", ("b", "a"), (1.0, 0.5))))
    one, two = (dict(zip(d["labels"], d["marker"]["colors"], strict=True)) for d in plot(pies)["data"])
    assert one == two and one["a"] != one["b"]
    assert [*pies.colours()] == ["b", "a"]  # 3/4 + 2/3 > 1/4 + 1/3


def test_the_first_twenty_series_look_different() -> None:
    every = Series("s", (1, 2), (1, 2), mode="lines+markers")
    data = plot(XY("t", "x", "y", (every,) * 20))["data"]
    assert len({(d["marker"]["symbol"], d["marker"]["color"]) for d in data}) == 20


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

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k == "src" or (k == "href" and tag == "link")]
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
    assert text.count("plotly.js v") == 1 and (tmp_path / "index.html").stat().st_size < 6e6
    assert "<title>A &lt;page&gt;</title>" in text and "x &lt; y" in text and "<code>code</code>" in text
    assert '<a href="https://example.org/x">https://example.org/x</a>.' in text
    assert "<ul><li>one</li><li>two</li></ul>" in text
    assert "<td class=number>3.642</td>" in text and "<td class=number>-</td>" in text


def test_a_page_without_charts_carries_no_script(tmp_path: Path) -> None:
    write_html(Page("t", "l", (Section("s", (), (TABLE,)),)), tmp_path / "index.html")
    assert "<script" not in (tmp_path / "index.html").read_text()


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
def test_a_browser_draws_every_chart_alone_and_without_complaint(tmp_path: Path) -> None:
    write_html(PAGE, tmp_path / "index.html")
    with chromium(tmp_path / "profile") as browser:
        assert opened(browser, tmp_path / "index.html") == 5
        assert complaints(browser) == []
        assert requests(browser) == [(tmp_path / "index.html").resolve().as_uri()]
        # hover and zoom: the handles are there, and moving an axis moves it
        assert browser.execute_script("return document.querySelectorAll('#c0 .nsewdrag').length") == 1
        browser.execute_script("Plotly.Fx.hover(c0, [{curveNumber: 0, pointNumber: 1}])")
        assert "b" in browser.find_element("css selector", "#c0 .hovertext").text
        browser.execute_script("return Plotly.relayout(c0, {'xaxis.range': [9, 10]})")
        assert browser.execute_script("return c0._fullLayout.xaxis.range") == [9, 10]
        titles = browser.execute_script(
            "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
        )
        assert "Zoom" in titles and not [t for t in titles if "cloud" in t.lower() or "share" in t.lower()]
        # the page itself is never wider than the window
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_the_page_is_dark_where_the_reader_wants_it_and_fits_a_telephone(tmp_path: Path) -> None:
    write_html(PAGE, tmp_path / "index.html")
    with chromium(tmp_path / "profile", width=500, dark=True) as browser:
        opened(browser, tmp_path / "index.html")
        assert (
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(21, 24, 28)"
        )
        assert browser.execute_script("return c0._fullLayout.font.color") == "#e4e7eb"
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert complaints(browser) == []


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
