"""The roofline report: what is gathered, what follows from it, what is drawn."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from neuralpower.data.journal import sole_writer
from neuralpower.errors import InputError, ModelError
from neuralpower.layers.base import Call
from neuralpower.networks.sources import resolve
from neuralpower.profiling import profile
from neuralpower.profiling.result import NetworkProfile
from neuralpower.report.charts import XY, Bars, Heatmap, Pies
from neuralpower.report.page import Page, Table, write_html
from neuralpower.report.svg_canvas import Plot, named
from neuralpower.suites.roofline import analysis, pages, records
from neuralpower.suites.roofline.analysis import View
from neuralpower.suites.roofline.gather import MODELS, Gathering, Request
from neuralpower.suites.roofline.records import (
    Calls,
    Data,
    Device,
    Network,
    Point,
    Runner,
    Sketch,
    Training,
    Work,
)
from neuralpower.suites.roofs import Roof
from tests.browser import chromium, complaints, looked_at, opened, overflowing, requests
from tests.program import run

NETWORKS = """
from torch import empty, nn

def example_inputs(batch_size):
    return (empty(batch_size, 4),)

def thin():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU())

def again():
    return thin()

def wide():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())

def deep():
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(4, 4), nn.Tanh())))

def flat():
    return nn.Sequential(nn.Linear(4, 256))

def tall():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
"""
FLOPS, BYTES = 1e9, 1e8  # of the device that never was


class FakeRunner(Runner):
    """A device that runs each network at its roof and records the requests; `fails` raises at a turn."""

    def __init__(self, memory: int = 10**9, fails: dict[int, BaseException] | None = None) -> None:
        super().__init__(torch.device("cpu"))
        self.products, self.triads = (8,), (2**20,)
        self.memory, self.fails = memory, fails or {}
        self.asked: list[tuple[str, int]] = []
        self.roofs = 0

    name = "Fake 1"

    def check(self, dtype: str) -> None:
        pass

    def prepare(self) -> None:
        pass

    def free_bytes(self) -> int:
        return self.memory

    def samples(self, call: Call) -> tuple[float, ...]:
        self.roofs += 1
        if call.function is torch.mm:
            return (2 * call.args[0].shape[0] ** 3 / FLOPS,) * 5
        return (9.9, 3 * call.args[0].nbytes / BYTES, 9.9, 9.9, 9.9)  # the fastest counts

    def forward(self, model: str, batch_size: int, dtype: str) -> tuple[float, ...]:
        self.asked.append((model, batch_size))
        if len(self.asked) in self.fails:
            raise self.fails[len(self.asked)]
        sketch = Sketch(model, torch.float32)
        work = sketch.work(batch_size, sketch.trace(batch_size))
        return (max(work.flops / FLOPS, work.bytes_moved / BYTES),) * 9

    def training(self, model: str, batch_size: int, dtype: str) -> NetworkProfile:
        source = resolve(model)
        network = source.build("cpu").train()
        return profile(
            network, source.inputs(network).args, phase="training", warmup=0, repeat=1, power="none"
        )


@pytest.fixture
def nets(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(NETWORKS)
    return str(tmp_path / "nets.py")


def gathering(nets: str, folder: Path, runner: Runner | None = None, **changes: object) -> Gathering:
    models = tuple(f"{nets}:{name}" for name in ("thin", "wide", "deep", "flat"))
    request = replace(
        Request(models, (1, 8), training_batch=2, predictors=("nvidia-a100-pcie-40gb",)), **changes
    )
    return Gathering(request, folder, runner=runner or FakeRunner())


def view_of(gathered: Gathering) -> View:
    return View(gathered.data, gathered.models, tuple(sorted(gathered.request.batch_sizes)))


# ---- work ----


def test_work_and_bytes_of_a_network_by_hand(nets: str) -> None:
    sketch = Sketch(f"{nets}:thin", torch.float32)
    work = sketch.work(2, sketch.trace(2))
    # linear 2 x 4 -> 8 without bias: 2*2*4*8 = 128 FLOP; ReLU of 16: 16 FLOP
    assert work.flops == 144
    # linear: 8*4 B in, 32*4 B of weights, 16*4 B out = 224; ReLU: 64 B in, 64 B out
    assert work.bytes_moved == 352
    # weights 128, input 32, the linear layer's result 64 and the ReLU's 64 live at once
    assert work.peak_bytes == 288
    assert work.intensity == pytest.approx(144 / 352) and work.footprint_intensity == 0.5


def test_work_grows_with_the_batch_and_weights_are_read_once(nets: str) -> None:
    sketch = Sketch(f"{nets}:thin", torch.float32)
    one, two = (sketch.work(b, sketch.trace(b)) for b in (2, 4))
    assert two.flops == 2 * one.flops
    assert two.bytes_moved == 2 * (one.bytes_moved - 128) + 128


def test_every_network_gets_the_input_of_its_own_size() -> None:
    inputs = {
        m: Sketch(m, torch.float32).network(m).input
        for m in ("zoo:inception3", "zoo:resnet18", "zoo:alexnet")
    }
    assert inputs == {"zoo:inception3": "3x299x299", "zoo:resnet18": "3x224x224", "zoo:alexnet": "3x227x227"}


def test_the_default_list_holds_ten_networks_and_more_of_different_families() -> None:
    assert len(set(MODELS)) >= 10
    assert {m.partition(":")[0] for m in MODELS} == {"zoo", "transformers"}


class SpyRunner(Runner):
    """Notes in which modes a network is that is about to be timed."""

    def samples(self, call: Call) -> tuple[float, ...]:
        assert isinstance(call.function, torch.nn.Module)
        self.modes = {module.training for module in call.function.modules()}
        return (1.0,)


def test_a_forward_pass_is_timed_in_eval_mode() -> None:
    runner = SpyRunner(torch.device("cpu"))
    assert runner.forward("zoo:alexnet", 2, "float32") == (1.0,)
    assert runner.modes == {False}


@pytest.mark.parametrize(("raised", "told"), [(MemoryError(), MemoryError), (ValueError(), ModelError)])
def test_what_fails_without_a_word_is_told_by_its_class(
    raised: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = SpyRunner(torch.device("cpu"))
    monkeypatch.setattr(runner, "samples", Mock(side_effect=raised))
    with pytest.raises(told, match=rf"{type(raised).__name__}$"):
        runner.forward("zoo:alexnet", 2, "float32")


# ---- roofs and chips ----


def test_the_roof_is_work_over_time() -> None:
    # 2*8^3 = 1024 FLOP in 1024/1e9 s; a triad of 2^20 B reads two arrays and writes one: 3*2^20 B
    roof = FakeRunner().roof("float32")
    assert roof.flops_per_s == pytest.approx(1e9) and roof.bytes_per_s == pytest.approx(1e8)
    assert roof.samples == 5 and "the fastest of 5 runs" in roof.how and "triad a = b + 3 c" in roof.how
    assert roof.ridge == pytest.approx(10)
    # below the ridge of 10 FLOP/B the memory limits: 2 FLOP/B * 1e8 B/s
    assert roof.attainable(2) == pytest.approx(2e8) and roof.attainable(20) == pytest.approx(1e9)


def test_this_cpu_has_a_roof() -> None:
    runner = Runner(torch.device("cpu"))
    runner.products, runner.triads = (64,), (2**20,)
    roof = runner.roof("float32")
    assert roof.flops_per_s > 1e6 and roof.bytes_per_s > 1e6 and roof.samples >= 3


def test_chips_of_every_class_are_there_with_peaks_bandwidth_and_sources() -> None:
    every = analysis.chip_sheets()
    assert len(every) >= 10 and {c.device_class for c in every} == {"cpu", "gpu", "tpu", "soc"}
    table = analysis.chip_table(every)
    by_name = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    # 320 GB/s is 320e9 B/s, 8.1 TFLOP/s is 8.1e12: T4 and A100 as their data sheets have them
    assert by_name["NVIDIA Tesla T4"]["memory, GB/s"] == pytest.approx(320, rel=0.01)
    assert by_name["NVIDIA Tesla T4"]["float32, TFLOP/s"] == pytest.approx(8.1)
    assert by_name["NVIDIA A100-PCIE-40GB"]["float32, TFLOP/s"] == pytest.approx(19.5)
    assert by_name["NVIDIA A100-PCIE-40GB"]["memory, GB/s"] == pytest.approx(1555)
    assert all(len(str(row[2])) > 5 and len(str(row[3])) > 5 for row in analysis.chip_sources(every).rows)


@pytest.mark.parametrize("slugs", [analysis.DATA_CENTRE, analysis.MOBILE], ids=["data centre", "mobile"])
def test_every_chip_of_a_chart_exists_and_is_named_in_it(slugs: tuple[str, ...]) -> None:
    every = {c.slug: c for c in analysis.chip_sheets()}
    chart = analysis.chip_roofline("x", [every[slug] for slug in slugs])
    names = {analysis.short_name(every[s]) for s in slugs}
    for plot in (Plot(780, 345, 7.0, 13.0), Plot(300, 300, 6.9, 13.0)):
        assert {label.text for label in named(chart, plot).labels} == names


# ---- analysis ----


def small(times: Sequence[float], flops: Sequence[int], parameters: Sequence[int]) -> View:
    """Networks n0, n1, ... at batch 1 on one device of 1e9 FLOP/s and 1e8 B/s."""
    data = Data(devices=[Device("d", "measured")], roofs=[Roof("d", "measured here", 1e9, 1e8, "", 5)])
    for i, (time, work, weights) in enumerate(zip(times, flops, parameters, strict=True)):
        data.put(Network(f"n{i}", f"n{i}", "4", weights, 4 * weights))
        data.put(Work(f"n{i}", 1, work, 100, 100, (Calls("linear", 1, work, 100),)))
        data.put(Point(f"n{i}", "d", 1, "measured", "ok", time, (time,)))
    return View(data, tuple(f"n{i}" for i in range(len(times))), (1,))


def test_rank_correlations_by_hand() -> None:
    view = small((1, 2, 3, 4, 5), (10, 20, 40, 30, 50), (5, 4, 3, 2, 1))
    spearman, kendall = (analysis.correlation(view, 1, m) for m in ("Spearman", "Kendall"))
    # one swap of neighbours among five: 1 - 6*(1+1)/(5*24) = 0.9; nine pairs agree, one does not: (9-1)/10
    assert spearman.of("runtime, d", "FLOP") == pytest.approx(0.9)
    assert kendall.of("runtime, d", "FLOP") == pytest.approx(0.8)
    assert spearman.of("runtime, d", "parameters") == pytest.approx(-1)
    assert spearman.networks == 5


def test_the_correlation_that_is_drawn_is_the_one_computed_for_that_batch_size(
    nets: str, tmp_path: Path
) -> None:
    names = ("thin", "wide", "deep", "flat", "tall")
    gathered = gathering(nets, tmp_path / "out", models=tuple(f"{nets}:{name}" for name in names))
    gathered.run()
    view = view_of(gathered)
    heat = [part for part in parts(pages.page(view)) if isinstance(part, Heatmap)]
    computed = [analysis.correlation(view, b, m) for b in (1, 8) for m in ("Spearman", "Kendall")]
    assert [h.values for h in heat] == [c.values for c in computed]
    assert [h.title for h in heat] == [
        f"{c.method}'s rank correlation, batch {c.batch_size}" for c in computed
    ]


def test_four_networks_are_too_few_for_ranks_and_equal_values_have_none() -> None:
    four, five = (
        small((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
        small((1, 2, 3, 4, 5), (5,) * 5, (1, 2, 3, 4, 5)),
    )
    assert analysis.correlation(four, 1, "Spearman").of("FLOP", "FLOP") is None
    assert analysis.correlation(five, 1, "Spearman").of("FLOP", "parameters") is None


def test_a_heat_map_of_too_few_networks_is_left_out_and_the_page_says_why() -> None:
    few = next(s for s in pages._benchmark(small((1, 2), (1, 2), (1, 2))) if s.title == "Rank correlations")
    assert few.parts == ()
    assert few.text == (
        "Batch 1: too few networks for a rank correlation. 2 have a time on every device; 5 are needed.",
    )
    enough = small((1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 3, 4, 5))
    drawn = next(s for s in pages._benchmark(enough) if s.title == "Rank correlations")
    assert drawn.text == () and [type(part).__name__ for part in drawn.parts] == [
        "Heatmap",
        "Heatmap",
        "Table",
    ]


def test_a_verdict_counts_the_network_and_its_layers_apart() -> None:
    view = small((1,), (2000,), (1,))
    # ridge 10; 2000 FLOP for 100 + 100 B
    # calls: 1990 FLOP and 100 B take 1.99 us by compute, 10 FLOP and 100 B 1 us by memory
    view.data.put(Work("n0", 1, 2000, 200, 100, (Calls("linear", 1, 1990, 100), Calls("add", 1, 10, 100))))
    (verdict,) = analysis.verdicts(view, 1)
    assert (verdict.intensity, verdict.roof.ridge, verdict.bound) == (10, 10, "compute")
    assert verdict.memory_share == pytest.approx(1 / 2.99)


def test_a_gap_is_a_share_of_the_peak_and_of_the_roof_above_the_intensity() -> None:
    view = small((1e-6,), (400,), (1,))
    (gap,) = analysis.gaps(view, view.data.devices[0], 1, view.data.roofs[0])
    # 400 FLOP in 1 us: 4e8 of 1e9; 4 FLOP/B * 1e8 B/s = 4e8 attainable
    assert gap.of_peak == pytest.approx(0.4) and gap.of_attainable == pytest.approx(1.0)


def test_utilisation_is_of_the_measured_roof_never_above_all_of_it_and_says_where_it_is_clipped() -> None:
    # 400 FLOP in half a microsecond: 8e8 FLOP/s, above the 4e8 that 4 FLOP/B allow, below the peak of 1e9
    view = small((0.5e-6, 4e-6), (400, 400), (1, 1))
    view.data.put(Roof("d", "data sheet", 1e12, 1e12, ""))
    (section,) = pages._utilisation(view)
    table = section.parts[-1]
    assert isinstance(table, Table)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["roof"] for row in rows] == ["measured here"] * 2
    assert [row["of the attainable"] for row in rows] == [1.0, pytest.approx(0.25)]
    assert [row["of the peak"] for row in rows] == [pytest.approx(0.8), pytest.approx(0.1)]
    assert [row["clipped"] for row in rows] == ["yes", ""]
    assert "Bytes are counted without caches" in table.note


def test_a_network_without_flop_leaves_the_roof_its_slope() -> None:
    view = small((1e-6, 1e-6), (400, 0), (1, 0))
    (chart,) = [part for part in pages._utilisation(view)[0].parts if isinstance(part, XY)]
    # from a tenth of the lowest intensity, 4 FLOP/B, over the ridge at 1e9 / 1e8 to three times that
    assert chart.series[0].x == pytest.approx((0.4, 10, 30)) and len(chart.drawn()[1].x) == 1
    assert chart.logs == (True, True), "a roof is straight on logarithmic axes alone"


def test_examples_of_both_kinds_are_the_extreme_pairs() -> None:
    view = small((9.0, 10.0, 1.0), (900, 100, 90), (1, 1, 1))
    found = {what: pair for what, pair, _ in analysis.examples(view, view.data.devices[0])}
    wrong, right = found["FLOP mislead"], found["time follows FLOP"]
    assert (wrong.first.label, wrong.second.label) == ("n0", "n1")
    assert wrong.error == pytest.approx(9 / 0.9)
    assert (right.first.label, right.second.label) == ("n0", "n2")
    assert right.error == pytest.approx(10 / 9)
    # 900 / 90 = 10 times the FLOP, 9 / 1 times the time; 900 / 100 and 9 / 10
    rows: list[Any] = [row[2:] for row in pages._pair_table(view).rows]
    assert rows == [
        ("time follows FLOP", "n0", "n2", pytest.approx(10), 1.0, pytest.approx(9)),
        ("FLOP mislead", "n0", "n1", pytest.approx(9), 1.0, pytest.approx(0.9)),
    ]


def test_no_pair_is_no_example() -> None:
    view = small(
        (1.0, 5.0), (10, 300), (1, 1)
    )  # 30 times the FLOP, 5 times the time: not alike, and in the right order
    assert analysis.examples(view, view.data.devices[0]) == []


def test_a_prediction_that_is_mostly_roofline_is_no_example() -> None:
    view = small((1.0, 2.0), (10, 20), (1, 1))
    view.data.put(Point("n0", "d", 1, "predicted", "ok", 1.0, coverage=0.2))
    assert analysis.pairs(view, view.data.devices[0], 1) == []


# ---- gathering ----


def parts(page: Page) -> Iterator[object]:
    for section in page.sections:
        yield from section.parts


def test_everything_is_gathered_and_a_second_run_measures_nothing_again(nets: str, tmp_path: Path) -> None:
    first = gathering(nets, tmp_path / "out")
    data = first.run()
    assert {(p.device, p.basis) for p in data.points} == {
        ("Fake 1", "measured"),
        ("NVIDIA A100-PCIE-40GB", "predicted"),
    }
    assert len(data.points) == 16 and all(p.status == "ok" for p in data.points)
    assert all(len(p.samples_s) == 9 for p in data.points if p.basis == "measured")
    assert len(data.trainings) == 8 and records.read(tmp_path / "out") == data
    second = FakeRunner()
    again = gathering(nets, tmp_path / "out", second).run()
    assert second.asked == [] and second.roofs == 0 and len(again.points) == 16


def test_an_interrupted_run_keeps_what_it_had_and_goes_on_from_there(nets: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        gathering(nets, tmp_path / "out", FakeRunner(fails={4: KeyboardInterrupt()})).run()
    kept = records.read(tmp_path / "out")
    assert kept is not None and sum(p.basis == "measured" for p in kept.points) == 3
    runner = FakeRunner()
    gathering(nets, tmp_path / "out", runner).run()
    assert len(runner.asked) == 8 - 3


def test_a_batch_that_does_not_fit_is_told_with_the_largest_that_does(nets: str, tmp_path: Path) -> None:
    # thin: weights 128 B, 80 B a sample (input 16, results 32 + 32): (0.85 * 400 - 128) / 80 = 2.65
    gathered = gathering(nets, tmp_path / "out", FakeRunner(memory=400), models=(f"{nets}:thin",))
    point = gathered.run().find(Point, f"{nets}:thin", "Fake 1", 8)
    assert point is not None and point.status == "out of memory" and point.runtime_s is None
    assert point.reason.endswith("the largest batch that fits is about 2")
    sections = {section.title: section for section in pages.page(view_of(gathered)).sections}
    missing = sections["How this was made"].parts[1]
    assert isinstance(missing, Table) and missing.rows[0][3:] == ("out of memory", point.reason)


def test_a_run_that_fails_or_finds_no_memory_is_a_point_of_its_own(nets: str, tmp_path: Path) -> None:
    fails = {1: MemoryError("CUDA out of memory"), 2: ModelError("it broke")}
    data = gathering(nets, tmp_path / "out", FakeRunner(fails=fails)).run()
    found = {p.status: p.reason for p in data.points if p.status != "ok"}
    assert found == {"out of memory": "CUDA out of memory", "failed": "it broke"}


def test_what_would_overrun_the_budget_is_not_begun(nets: str, tmp_path: Path) -> None:
    clock = iter(range(0, 10**6, 5))  # five seconds between any two looks
    gathered = gathering(nets, tmp_path / "out", budget_s=60)
    gathered.clock = lambda: float(next(clock))
    runner = gathered.runner
    data = gathered.run()
    assert isinstance(runner, FakeRunner) and 0 < len(runner.asked) < 8
    late = [p for p in data.points if p.status == "over the time budget"]
    assert len(late) == 8 - len(runner.asked) and all("s left" in p.reason for p in late)
    counted = [t for t in data.trainings if t.basis == "measured" and t.forward_s is None]
    assert counted and all(t.flops_ratio for t in counted), "their work is known all the same"


def test_the_same_network_under_two_names_is_reported_once(nets: str, tmp_path: Path) -> None:
    talk: list[str] = []
    models = (f"{nets}:thin", f"{nets}:again", f"{nets}:thin")
    gathered = gathering(nets, tmp_path / "out", models=models)
    gathered.show = talk.append
    gathered.run()
    assert gathered.models == (f"{nets}:thin",)
    assert any("is the same network as" in text for text in talk)


def test_a_folder_of_another_report_is_left_alone(nets: str, tmp_path: Path) -> None:
    gathering(nets, tmp_path / "out").run()
    with pytest.raises(
        InputError, match="has a report with training_batch 2, this one has 4; choose another folder"
    ):
        gathering(nets, tmp_path / "out", training_batch=4).run()


def test_a_network_that_is_none_is_told_before_anything_is_measured(nets: str, tmp_path: Path) -> None:
    runner = FakeRunner()
    with pytest.raises(ModelError, match="unknown zoo network 'alexnot'"):
        gathering(nets, tmp_path / "out", runner, models=(f"{nets}:thin", "zoo:alexnot")).run()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_a_measured_report_takes_no_predicted_one(nets: str, tmp_path: Path) -> None:
    gathering(nets, tmp_path / "out").run()
    predicted = replace(gathering(nets, tmp_path / "out").request, device=None)
    with pytest.raises(
        InputError, match="has a report with device .*, this one has none; choose another folder"
    ):
        Gathering(predicted, tmp_path / "out").run()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a report's data of schema 1"),
        ('{"schema": 7}', "not a report's data of schema 1"),
        ('{"schema": 1}', "has missing or unknown fields"),
    ],
)
def test_a_data_file_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(InputError, match=message):
        records.read(tmp_path)


def test_a_torn_write_leaves_the_file_whole(nets: str, tmp_path: Path) -> None:
    gathering(nets, tmp_path / "out").run()
    (tmp_path / "out" / ".data.json.0123abcd.new").write_text("{")
    kept = records.read(tmp_path / "out")
    assert kept is not None and len(kept.points) == 16


def test_a_device_that_lacks_a_dtype_is_told() -> None:
    with pytest.raises(InputError, match="dtype tensorfloat32: a CPU has none; choose --dtype float32"):
        Runner(torch.device("cpu")).check("tensorfloat32")
    with pytest.raises(InputError, match="choose --dtype float32"):
        Runner(torch.device("cpu")).check("float8_e4m3fn")


def test_this_cpu_times_a_network_several_times_after_warming_up(nets: str) -> None:
    runner = Runner(torch.device("cpu"))
    samples = runner.forward(f"{nets}:wide", 4, "float32")
    assert (
        len(samples) == 9 and min(samples) > 0 and min(samples) <= runner.statistic(samples) <= max(samples)
    )
    assert set(runner.training(f"{nets}:wide", 4, "float32").total.phases_s) == {
        "forward",
        "backward",
        "optimizer",
    }


# ---- the page ----


def test_the_page_has_every_part_and_shows_every_network(nets: str, tmp_path: Path) -> None:
    gathered = gathering(nets, tmp_path / "out")
    gathered.run()
    made = pages.page(view_of(gathered))
    titles = [s.title for s in made.sections]
    assert [t[0] for t in titles if t[0].isdigit()] == ["1", "2", "3", "4"]
    assert titles[:2] == ["1 Networks: work and memory", "The roof of the machine"], "theirs come first"
    assert titles[-2:] == ["How this was made", "Appendix: chips"]
    first = made.sections[0].parts[0]
    assert isinstance(first, Table) and {row[0] for row in first.rows} == {"thin", "wide", "deep", "flat"}
    named = [part.title for part in made.parts()]
    assert len({*named}) == len(named) and not [
        title for title in named if title.endswith(")") and "(2)" in title
    ]
    labels = {n.label for n in view_of(gathered).networks}
    scatters = [
        p for p in parts(made) if isinstance(p, XY) and p.title.startswith(("Runtime against", "Achieved"))
    ]
    assert len(scatters) == 6  # against FLOP, against parameters, on the roofline; two devices each
    for chart in scatters:
        assert labels <= {text for s in chart.series for text in s.text}
        assert sorted(t for s in chart.series for t in s.labels if t) == sorted(labels), "each named once"
        points = [s for s in chart.series if s.mode == "markers"]
        predicted = "predicted" in chart.title
        assert ("Strokes" in chart.note) is predicted
        pairs = [(b, y or 0) for s in points for b, y in zip(s.bounds, s.y, strict=True) if b]
        assert all(low <= y <= high for (low, high), y in pairs)
        assert all((b is not None) is predicted for s in points for b in s.bounds)
    pies = [p for p in parts(made) if isinstance(p, Pies)]
    assert len(pies) == 3 and all(len(p.pies) == 6 for p in pies)
    ratio = next(p for p in parts(made) if isinstance(p, Bars) and p.title == "Backward over forward pass")
    assert len(ratio.categories) == 4 and None not in ratio.series[0].values + ratio.series[1].values
    text = " ".join(t for s in made.sections for t in s.text)
    assert "no data sheet of Fake 1" in text
    devices = next(p for p in parts(made) if isinstance(p, Table) and p.title == "Devices")
    assert [row[:3] for row in devices.rows] == [
        ("Fake 1", "measured", "9"),
        ("NVIDIA A100-PCIE-40GB", "predicted", None),
    ]
    assert not [p for p in parts(made) if isinstance(p, Table) and not p.rows]


def test_the_ratio_of_a_single_product_is_one_and_of_many_nearly_two() -> None:
    step = Training("m", "d", 1, "measured", "ok", 100, 190, 1.0, 3.0, 3)
    assert (step.flops_ratio, step.time_ratio) == (1.9, 3.0)
    view = small((1.0,), (10,), (1,))
    view.data.put(replace(step, model="n0"))
    assert pages._training(view)[0].text == ()
    view.data.put(replace(step, model="n0", status="over the time budget", forward_s=None, backward_s=None))
    assert "longer --time-budget" in pages._training(view)[0].text[0]
    assert Training("m", "d", 1, "measured", "over the time budget").flops_ratio is None


@pytest.mark.slow
def test_a_browser_shows_the_report_without_complaint(nets: str, tmp_path: Path) -> None:
    gathered = gathering(nets, tmp_path / "out")
    gathered.run()
    write_html(pages.page(view_of(gathered)), tmp_path / "out" / "index.html")
    assert (tmp_path / "out" / "index.html").stat().st_size < 1.5e6
    with chromium(tmp_path / "profile") as browser:
        looked_at(browser, 400)
        assert opened(browser, tmp_path / "out" / "index.html") == 19  # four networks have no ranks
        assert complaints(browser) == [] and overflowing(browser) == []
        assert requests(browser) == [(tmp_path / "out" / "index.html").resolve().as_uri()]


# ---- the command ----


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("zoo:resnet",), 2, "unknown"),
        (("--batch-size", "1,x"), 2, "write whole numbers with commas"),
        (("--batch-size", "0"), 2, "--batch-size 0: must be 1 or more"),
        (
            ("--train-batch-size", "0"),
            2,
            "--train-batch-size 0: must be 1 or more; choose --train-batch-size 16",
        ),
        (("--dtype", "tensorfloat32"), 2, "a CPU has none"),
        (("--dtype", "float17"), 2, "float17"),
        (("--device", "gpu"), 2, "unknown device"),
        (("--time-budget", "soon"), 2, "write a positive number"),
        (("--predicted", "--predictor", "none"), 2, "nothing to measure"),
        (("--predicted", "--predictor", "nvidia-t5"), 2, "unknown predictor"),
        (("--predictor", "nvidia-t5"), 2, "unknown predictor"),
        (
            ("--predicted", "--predictor", "nvidia-t4", "--dtype", "bfloat16"),
            2,
            "was not trained on dtype 'bfloat16'",
        ),
    ],
)
def test_bad_input_is_one_line_and_its_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    first = () if arguments[0].startswith("zoo:") else ("zoo:deep_mnist",)
    extra = ("--predicted",) if arguments[0].startswith("zoo:") else ()
    ran = run("report", *first, *arguments, *extra, "--out", tmp_path / "out")
    assert ran.code == code and message in ran.err, ran
    assert [line for line in ran.err.splitlines() if line.startswith("error: ")] == [ran.err.splitlines()[-1]]
    assert ran.out == "" and "measuring" not in ran.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu_ends_with_code_4(tmp_path: Path) -> None:
    ran = run("report", "zoo:deep_mnist", "--device", "cuda:0", "--out", tmp_path / "out")
    assert ran.code == 4 and "no such CUDA device" in ran.err


def test_a_folder_that_cannot_be_made_ends_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("report", "zoo:deep_mnist", "--predicted", "--out", tmp_path / "file" / "out")
    assert ran.code == 2 and "choose another --out" in ran.err


def test_a_batch_systems_end_keeps_what_was_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gathering, "_networks", lambda self: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ran = run("report", "zoo:deep_mnist", "--predicted", "--out", tmp_path / "out")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ran.code == 130
    assert "results so far are kept; run the same command again to resume" in ran.err


def test_nobody_else_writes_to_a_folder_while_its_page_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(made: object, path: Path) -> None:
        with sole_writer(path.parent):
            pytest.fail("two write at once")

    monkeypatch.setattr("neuralpower.report.page.write_html", drawn)
    ran = run("report", "zoo:deep_mnist", "--predicted", "--batch-size", "1", "--out", tmp_path / "out")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].endswith(
        "another run is writing to it; wait for it, or choose another --out"
    )


def test_a_folder_that_another_run_writes_to_is_left_alone(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "out"):
        ran = run("report", "zoo:deep_mnist", "--predicted", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "another run is writing to it; wait for it, or choose another --out" in ran.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


@pytest.mark.slow
def test_the_command_writes_all_files(nets: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    models = [f"{nets}:{name}" for name in ("thin", "wide", "deep")]
    ran = run("report", "roofline", *models, "--predicted", "--batch-size", "1,4", "--out", out)
    assert ran.code == 0, ran.err
    assert ran.out.strip() == str(out / "index.html")
    # 3 bar charts, 5 charts for each of two devices, ratios, pies of 3 networks, 2 charts of chips
    assert len(list((out / "figures").glob("*.png"))) == len(list((out / "figures").glob("*.svg"))) == 19
    assert len(list((out / "tables").glob("*.csv"))) >= 9
    assert (out / "report.md").read_text(encoding="utf-8").startswith("# Rooflines and runtimes")
    points = json.loads((out / "data.json").read_text())["points"]
    assert {p["basis"] for p in points} == {"predicted"} and len(points) == 3 * 2 * 2
    steps = json.loads((out / "data.json").read_text())["trainings"]
    assert len(steps) == 3 * 2 and all(step["backward_s"] > step["forward_s"] > 0 for step in steps)
    for step in steps:
        for phase in ("forward", "backward"):
            parts = sum(kind["runtime_s"] for kind in step["kinds"] if kind["phase"] == phase)
            assert parts == pytest.approx(step[f"{phase}_s"], rel=1e-6)


def test_a_record_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match=r"data\.json: has no work of zoo:alexnet, 64; move it away"):
        Data().get(Work, "zoo:alexnet", 64)
