"""Pages and pictures of predictions, comparisons and sweeps: what they hold, their size, that they fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neuralpower.errors import InputError
from neuralpower.learn.files import predictor_lookup
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.explore.compare import Side, compare
from neuralpower.prediction.explore.sweep import Sweep, SweepPoint
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.timeline import Omitted, Stage
from neuralpower.report import charts, pictures
from neuralpower.report.charts import XY, Bars
from neuralpower.report.grid import at_most
from neuralpower.report.page import Nested, Page, Share, Table, html_text, write_html
from tests.browser import chromium, complaints, looked_at, opened, overflowing, requests
from tests.program import done, run

TINY = (
    "transformers:llama?hidden_size=32&intermediate_size=64&num_attention_heads=4&"
    "num_key_value_heads=2&vocab_size=100&num_hidden_layers=3"
)
LARGEST = 1.5e6  # bytes of a page


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return predictor_lookup.load("amd-epyc-2c")


@pytest.fixture(scope="module")
def predicted(predictor: Predictor) -> tuple[Prediction, list[Stage | Omitted]]:
    stages: list[Stage | Omitted] = []
    prediction, _ = predict_request(Request(TINY, 2, 16), predictor, seen=stages.append)
    return prediction, stages


@pytest.fixture(scope="module")
def page(predicted: tuple[Prediction, list[Stage | Omitted]], predictor: Predictor) -> Page:
    return pictures.prediction_page(*predicted, predictor)


def swept(sizes: Sequence[tuple[int, int | None]], seconds: Sequence[float], **more: str) -> Sweep:
    """A sweep with a point for each (batch, length)."""
    points = [
        SweepPoint(
            *(
                "zoo:x",
                "cpu",
                "A CPU",
                batch,
                length,
                "float32",
                s,
                s / 2,
                s * 2,
                batch / s,
                None,
                1e6 * batch,
            ),
            *(2e6 * batch, None, "formula", 1.0, n == 0),
        )
        for n, ((batch, length), s) in enumerate(zip(sizes, seconds, strict=True))
    ]
    return Sweep(tuple(replace(p, **more) for p in points), "throughput and latency", 3, ("a note",))


def part(page: Page, title: str) -> charts.Chart | Table:
    return next(p for p in page.parts() if p.title == title)  # type: ignore[return-value]


def assert_reads_well(page: Page) -> None:
    """Every axis has three labelled ticks or more, numbers are plain, titles differ, the page is small."""
    text = html_text(page)
    assert len(text.encode()) < LARGEST and "<script" not in text
    shown = " ".join(re.findall(r">([^<]+)<", text.partition("</style>")[2]))
    assert not re.search(r"\de[+-]?\d|10\^", shown)
    titles = [one.title for one in page.parts()]
    assert len({*titles}) == len(titles)
    for _, chart in page.charts():
        if isinstance(chart, XY):
            found = chart.axes(((0.0, 1.0), (0.0, 1.0)), (6, 6))
            assert all(len(axis.ticks) >= 3 for axis in found)
        elif isinstance(chart, Bars):
            assert len(chart.axis(6).ticks) >= 3


def test_a_prediction_shows_totals_kinds_modules_the_roofline_and_the_memory(
    page: Page, predicted: tuple[Prediction, list[Stage | Omitted]]
) -> None:
    p, _ = predicted
    assert [section.title for section in page.sections][:5] == [
        *("At a glance", "Layer kinds", "Modules", "Roofline", "Memory"),
    ]
    assert_reads_well(page)
    bars = part(page, "Latency by layer kind")
    assert isinstance(bars, Bars)
    slowest = p.by_kind()[0]
    assert bars.categories[0] == slowest.kind and bars.y_label in ("latency, ms", "latency, us")
    size = 1e-3 if bars.y_label.endswith("ms") else 1e-6
    assert bars.series[0].values[0] == pytest.approx(slowest.runtime_s / size)
    assert bars.series[0].bounds[0] == pytest.approx((slowest.low_s / size, slowest.high_s / size))
    roofline = next(c for _, c in page.charts() if c.title.startswith("Layers on the roofline"))
    assert isinstance(roofline, XY) and roofline.logs == (True, True)
    assert roofline.series[0].name.startswith("roof (") and len(roofline.series[0].x) == 3
    rows = [row for row in p.rows if row.flops]
    assert sum(len(s.x) for s in roofline.series[1:]) == len(rows)
    named = [label for s in roofline.series for label in s.labels if label]
    assert len(named) == len({*named}) == min(len(rows), pictures.NAMED), "each name is of one layer"


def test_the_tree_adds_up_at_every_depth(
    page: Page, predicted: tuple[Prediction, list[Stage | Omitted]]
) -> None:
    table = part(page, "Module tree")
    assert isinstance(table, Table)
    lines = [(name.depth, float(share)) for name, share, *_ in table.rows if isinstance(name, Nested)]
    assert len(lines) == len(table.rows) and isinstance(table.rows[0][1], Share)
    for i, (depth, share) in enumerate([(-1, 1.0), *lines]):
        end = next((k for k in range(i, len(lines)) if lines[k][0] <= depth), len(lines))
        children = [part for deep, part in lines[i:end] if deep == depth + 1]
        assert not children or sum(children) <= share + 1e-6
    assert sum(share for depth, share in lines if depth == 0) == pytest.approx(1, abs=1e-6)
    assert any("[0-2]" in str(row[0]) for row in table.rows), "equal blocks stand in one line"


def test_the_page_has_the_figures_of_the_printed_tree(
    page: Page, predicted: tuple[Prediction, list[Stage | Omitted]]
) -> None:
    table = part(page, "Module tree")
    assert isinstance(table, Table)
    with at_most(None):
        printed = [" ".join(line.split()) for line in str(predicted[0].tree()).splitlines()]
    assert "module output parameters FLOP latency memory (weights + outputs) share" in printed
    assert table.header[-2:] == ("latency", "memory (weights + outputs)")
    for name, _, *figures in table.rows:
        if isinstance(name, Nested) and name.depth <= 3 and "others" not in name:
            assert any(" ".join(map(str, figures)) in line for line in printed), name


def test_the_memory_over_time_ends_with_the_pass_and_peaks_where_tensors_do(
    page: Page, predicted: tuple[Prediction, list[Stage | Omitted]]
) -> None:
    p, _ = predicted
    chart = part(page, "Memory over time")
    assert isinstance(chart, XY) and p.memory is not None
    size = {"time, ms": 1e-3, "time, us": 1e-6}[chart.x_label]
    byte = {"memory, MiB": 2**20, "memory, KiB": 2**10}[chart.y_label]
    (line,) = chart.series
    assert line.x[0] == 0 and line.x[-1] == pytest.approx(p.runtime_s.value / size)
    assert max(y or 0 for y in line.y) * byte == pytest.approx(p.memory.tensor_bytes, rel=0.05)


def test_a_prediction_alone_is_a_page_too(predicted: tuple[Prediction, list[Stage | Omitted]]) -> None:
    page = pictures.prediction_page(predicted[0])
    assert "Memory over time" not in [part.title for part in page.parts()]
    roofline = next(c for _, c in page.charts() if c.title.startswith("Layers on the roofline"))
    assert isinstance(roofline, XY) and not any(s.name.startswith("roof") for s in roofline.series)


def test_a_comparison_shows_both_beside_each_other(
    predicted: tuple[Prediction, list[Stage | Omitted]], predictor: Predictor
) -> None:
    other, _ = predict_request(Request(TINY, 4, 16), predictor)
    sides = [Side("two", predicted[0], predictor), Side("four", other, predictor)]
    page = pictures.comparison_page(compare(*sides), sides)
    assert page.lead.startswith("A: two. B: four. A takes 0.") and "A is faster" in page.lead
    assert_reads_well(page)
    totals = part(page, "Latency, memory and work, with 90 % bounds")
    assert isinstance(totals, Table) and totals.header == ("quantity", "A", "B")
    kinds = part(page, "Latency by layer kind")
    assert isinstance(kinds, Bars) and [s.name for s in kinds.series] == ["A", "B"]


BATCHES = [(b, None) for b in (1, 2, 4, 8, 16, 32, 64, 128)]
GRID = [(b, s) for s in (64, 128) for b in (1, 2, 4, 8)]
LENGTHS = [(1, s) for s in (64, 72, 80)]


@pytest.mark.parametrize(
    ("sizes", "seconds", "names", "lines"),
    [
        (BATCHES, [0.01 * (b + 1) for b, _ in BATCHES], [b for b, _ in BATCHES], ["A CPU"]),
        (GRID, [0.001 * b * (s or 0) for b, s in GRID], [1, 2, 4, 8] * 2, ["length 64", "length 128"]),
        (LENGTHS, [0.100, 0.108, 0.115], [64, 72, 80], ["A CPU"]),
    ],
)
def test_every_point_of_a_sweep_has_its_batch_size_or_length_beside_it(
    sizes: list[tuple[int, int | None]],
    seconds: list[float],
    names: list[int],
    lines: list[str],
) -> None:
    page = pictures.sweep_page(swept(sizes, seconds))
    assert_reads_well(page)
    chart = page.charts()[0][1]
    assert isinstance(chart, XY)
    assert [s.name for s in chart.series] == [*lines, "Pareto-optimal"]
    wide, narrow = re.findall(r"<svg.*?</svg>", html_text(page), re.S)[:2]
    for drawing in (wide, narrow):
        assert sorted(re.findall(r'class="n">(\d+)<', drawing)) == sorted(map(str, names))
    if sizes is LENGTHS:
        assert chart.logs == (False, False), "15 % need no logarithms"
        assert chart.x_label == "latency, ms"


def test_a_sweep_without_a_latency_is_nothing_to_draw() -> None:
    failed = swept([(1, None)], [0.1])
    nothing = replace(failed, points=tuple(replace(p, runtime_s=None, error="no") for p in failed.points))
    with pytest.raises(InputError, match="no point has a latency to plot"):
        pictures.sweep_page(nothing)


def test_a_point_that_failed_is_in_the_table_with_its_reason() -> None:
    result = swept([(1, None), (2, None)], [0.1, 0.2])
    one, two = result.points
    page = pictures.sweep_page(replace(result, points=(one, replace(two, runtime_s=None, error="no room"))))
    table = part(page, "Points of the sweep")
    assert isinstance(table, Table) and [row[table.header.index("90 %")] for row in table.rows] == [
        "50 ms to 200 ms",
        "no room",
    ]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_for_a_paper_holds_all_charts_of_the_page(page: Page, ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"one.{ending}"
    pictures.draw(page, path)
    if ending == "svg":
        text = path.read_text(encoding="utf-8")
        assert all(chart.title in text for _, chart in page.charts())
        assert "×" not in text and "10^" not in text and "mathdefault" not in text
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_its_library_is_refused_early_and_a_page_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"x\.png'.* pip install matplotlib; FILE.html and FILE.svg need"):
        charts.check_plot(Path("x.png"))
    charts.check_plot(Path("x.html"))
    charts.check_plot(Path("x.svg"))


@pytest.mark.parametrize(
    "command", [("predict", "no:such"), ("compare", "no:such", "no:other"), ("sweep", "no:such")]
)
def test_another_ending_and_a_place_that_cannot_be_written_are_refused_before_anything_else(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    ran = run(*command, "--plot", "x.gif")
    assert ran.code == 2 and "the ending must be one of .html, .png, .svg" in ran.err
    (tmp_path / "file").write_text("")
    ran = run(*command, "--html", tmp_path / "file" / "x.html")
    assert ran.code == 2 and "file" in ran.err.splitlines()[-1]


def test_the_commands_draw(tmp_path: Path) -> None:
    chosen = ("--predictor", "amd-epyc-2c")
    done("predict", "zoo:deep_mnist", *chosen, "--html", tmp_path / "p.html")
    done("compare", "zoo:deep_mnist", "zoo:sensor_net", *chosen, "--plot", tmp_path / "c.html")
    done("sweep", "zoo:deep_mnist", "--batch-size", "1,2", *chosen, "--plot", tmp_path / "s.svg")
    assert "Memory over time" in (tmp_path / "p.html").read_text()
    assert "zoo:sensor_net" in (tmp_path / "c.html").read_text()
    assert (tmp_path / "s.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_no_page_is_wider_than_a_telephone(page: Page, tmp_path: Path) -> None:
    write_html(page, tmp_path / "p.html")
    write_html(pictures.sweep_page(swept(GRID, [0.001 * b * (s or 0) for b, s in GRID])), tmp_path / "s.html")
    with chromium(tmp_path / "profile") as browser:
        for name, width in itertools.product(("p.html", "s.html"), (400, 1400)):
            looked_at(browser, width, dark=width == 400)
            assert opened(browser, tmp_path / name) == 3
            assert complaints(browser) == [] and overflowing(browser) == []
            assert requests(browser) == [(tmp_path / name).resolve().as_uri()]
