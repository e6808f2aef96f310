"""Memory over time as pages, pictures and files."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from neuralpower.errors import InputError
from neuralpower.platforms import CPU
from neuralpower.prediction.memory.over_time import Lived, lived
from neuralpower.prediction.timeline import Omitted
from neuralpower.report.charts import Areas, BarSeries
from neuralpower.report.page import Table, html_text
from neuralpower.report.results.memory_pictures import (
    LARGEST,
    POINTS,
    check_memory_picture,
    memory_page,
    of_stages,
    write_memory,
)
from neuralpower.report.svg_charts import drawing
from neuralpower.trace.lifetimes import ACTIVATIONS, WEIGHTS, Storage
from neuralpower.trace.steps.step_lifetimes import training_lifetimes


@pytest.fixture(scope="module")
def step() -> Lived:
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    return lived("net", "training", training_lifetimes(module, (torch.empty(512, 64),)), CPU)


def chart_of(one: Lived) -> Areas:
    (chart,) = (part for part in memory_page(one).parts() if isinstance(part, Areas))
    return chart


def table_of(one: Lived) -> Table:
    tables = (part for part in memory_page(one).parts() if isinstance(part, Table))
    return next(part for part in tables if part.title == "The largest at the peak")


def test_the_page_names_the_peak_and_what_is_alive(step: Lived) -> None:
    chart, table = chart_of(step), table_of(step)
    assert chart.top is not None
    assert chart.top[0] in chart.x
    edges = chart.edges()[-1]
    assert edges[chart.x.index(chart.top[0])] == max(edges)
    assert [name for _, name in chart.marks] == ["forward", "backward", "step"]
    made = {row[0] for row in table.rows}
    assert {"1", "2", "0.weight", "2.weight", "input", "optimizer"} <= made
    assert table.rows[0][3] == "512 KiB"


def test_a_page_runs_no_script_and_escapes_names(step: Lived) -> None:
    text = html_text(memory_page(step._replace(model="<script>alert(1)</script>")))
    assert "<script" not in text
    assert text.count("<svg") == 2


def test_many_calls_and_storages_stay_readable() -> None:
    some = (Storage(i + 1, i + 9, 1000 + (i == 4321) * 5000, ACTIVATIONS) for i in range(9000))
    many = Lived("net", "forward", "forward", (*some, *[Storage(0, None, 4, WEIGHTS)] * 99), CPU, calls=9010)
    chart, table = chart_of(many), table_of(many)
    assert len(chart.x) <= POINTS + 2
    assert len(table.rows) == LARGEST
    assert max(chart.edges()[-1]) == pytest.approx(chart.edges()[-1][chart.x.index(4322.0)])


def test_areas_stand_on_each_other() -> None:
    areas = (BarSeries("low", (1, 2, 1)), BarSeries("high", (1, 1, 0)))
    chart = Areas("a", "x", "y", (0, 1, 2), areas, ((1, "begins"),), (1, "most"))
    assert chart.edges() == [(1, 2, 1), (2, 3, 1)]
    marks = re.findall(r">(begins|most|low|high)</text>", drawing(chart))
    assert sorted(marks) == sorted(["begins", "most", "low", "high"] * 2)
    with pytest.raises(InputError, match="2 values for 3 x"):
        Areas("a", "x", "y", (0, 1, 2), (BarSeries("low", (1, 2)),))


def test_files_by_their_endings(step: Lived, tmp_path: Path) -> None:
    for ending in ("html", "svg", "pickle"):
        write_memory(step, None, tmp_path / f"memory.{ending}")
    assert (tmp_path / "memory.svg").read_text().count("forward") >= 1
    assert {"segments", "device_traces"} <= set(pickle.loads((tmp_path / "memory.pickle").read_bytes()))
    with pytest.raises(InputError, match=r"must be one of \.html, \.png, \.svg, \.pickle"):
        check_memory_picture(Path("memory.txt"))


def test_without_lifetimes_there_is_no_picture() -> None:
    with pytest.raises(InputError, match="leave --memory-picture out"):
        of_stages("net", [Omitted("31 steps", 1.0, None)], CPU)
