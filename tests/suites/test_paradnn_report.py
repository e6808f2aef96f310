"""What sweeps say: models, pictures and the page of synthetic devices whose speed is a known formula."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError, OutOfMemory
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.report.charts import XY, Heatmap, Series
from neuralpower.suites.paradnn.page import (
    best,
    chosen_widths,
    faster,
    heatmap,
    hyper_parameters,
    linear_weights,
    over_batch,
    page_of,
    paired,
    power_of_two,
    roofline,
    speedups,
    timed,
    utilisation,
)
from neuralpower.suites.paradnn.points import FAMILIES, Point
from neuralpower.suites.paradnn.sweep import Result, Setup, frame
from neuralpower.suites.roofs import (
    Roof,
    copy_bytes_per_s,
    figures,
    matmul_benchmark,
    tf32_by_default,
    theoretical,
)

SLOW, FAST = "Steady 1", "Hungry 2"
NODES, BATCHES, LAYERS = (32, 256, 2048), (64, 256, 1024, 4096), (4, 16)


def result(
    device: str, layers: int, nodes: int, batch: int, flops_per_s: float | None, dtype: str = "float32"
) -> Result:
    sizes = {"layers": layers, "nodes": nodes, "input_size": 2000, "output_size": 200, "batch_size": batch}
    point = Point.of("fc", "paradnn", sizes)
    known = Result(
        point=point,
        setup=Setup(dtype=dtype),
        machine=device,
        parameters=nodes**2,
        formula_flops=6 * nodes**2 * batch,
    )
    if flops_per_s is None:
        return replace(known, state="oom", reason="too large")
    return replace(known, duration_s=100 * 6 * nodes**2 * batch / flops_per_s, steps=100)


def steady(nodes: int, batch: int) -> float:
    return 1e12


def hungry(nodes: int, batch: int) -> float:
    """Faster than the steady one from a batch of 1024 on."""
    return 1e9 * batch


@pytest.fixture(scope="module")
def points() -> pd.DataFrame:
    return frame(
        result(device, layers, nodes, batch, speed(nodes, batch))
        for device, speed in ((SLOW, steady), (FAST, hungry))
        for layers in LAYERS
        for nodes in NODES
        for batch in BATCHES
    )


def of(points: pd.DataFrame, device: str) -> pd.DataFrame:
    return points[points["device"] == device]


# ---- models ----


def test_sizes_that_vary_are_the_hyper_parameters(points: pd.DataFrame) -> None:
    assert hyper_parameters(points) == ["layers", "nodes", "batch_size"]


def test_utilisation_is_of_the_best_or_of_the_peak(points: pd.DataFrame) -> None:
    hungry_ones = of(points, FAST)
    # 64, 256, 1024, 4096 GFLOP/s: the best is 4096
    assert sorted(set(utilisation(hungry_ones).round(4))) == [1.5625, 6.25, 25.0, 100.0]
    assert utilisation(hungry_ones, {"float32": 8.192e12}).max() == pytest.approx(50)
    assert utilisation(hungry_ones, {"float16": 1e12}).isna().all()


def test_the_weights_of_a_known_speed_are_found(points: pd.DataFrame) -> None:
    model = linear_weights(of(points, FAST))
    # % of best = 100 batch / 4096: a standard deviation of batches is worth 100 std / 4096, others nothing
    assert model.weights["batch_size"] == pytest.approx(100 * float(np.std(BATCHES)) / 4096)
    assert model.weights["layers"] == pytest.approx(0, abs=1e-9)
    assert model.r2 == pytest.approx(1)
    assert model.points == 24


def test_the_second_order_has_squares_and_products(points: pd.DataFrame) -> None:
    model = linear_weights(of(points, FAST), order=2)
    assert {"batch_size^2", "nodes x batch_size", "layers^2"} <= set(model.weights)
    # 3 sizes, 3 squares, 3 products
    assert len(model.weights) == 9
    assert model.r2 == pytest.approx(1)


def test_a_model_of_too_few_points_is_refused(points: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="7 points that differ in 3 sizes: a model needs 8"):
        linear_weights(of(points, FAST).head(12).tail(7).assign(layers=[4, 4, 4, 4, 4, 4, 16]))


def test_who_is_faster_is_trained(points: pd.DataFrame) -> None:
    pairs = paired(points, FAST, SLOW)
    assert len(pairs) == 24
    # at batch 64: 64e9 / 1e12
    assert pairs[pairs["batch_size"] == 64]["speedup"].unique() == pytest.approx([0.064])
    model = faster(pairs)
    # batches 1024 and 4096 of four
    assert model.share == 0.5
    assert model.weights["batch_size"] > 0.5 > abs(model.weights["layers"])
    assert model.accuracy >= 0.75


def test_one_that_is_always_faster_is_nothing_to_learn(points: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="A is faster at all of 24 points"):
        faster(paired(points, FAST, SLOW).assign(speedup=2.0))
    with pytest.raises(InputError, match="have no point in common"):
        paired(points, FAST, "nobody")


def test_points_without_a_time_are_left_out() -> None:
    some = frame([result(SLOW, 4, 32, 64, 1e12), result(SLOW, 4, 8192, 64, None)])
    assert len(timed(some)) == 1
    with pytest.raises(InputError, match="no point has a time"):
        timed(some[some["state"] == "oom"])


def test_the_best_of_each_dtype_is_found() -> None:
    some = frame(
        [
            result(SLOW, 4, 32, 64, 1e12),
            result(SLOW, 4, 64, 64, 3e12),
            result(SLOW, 4, 32, 64, 2e12, "float16"),
        ]
    )
    rows = {row["dtype"]: (row["flops_per_s"], row["nodes"]) for row in best(some).to_dict("records")}
    assert rows == {"float32": (pytest.approx(3e12), 64), "float16": (pytest.approx(2e12), 32)}


@pytest.mark.parametrize(
    ("widths", "chosen"),
    [
        ((32, 64, 256, 2048), [32, 256, 2048]),
        ((32, 1024, 8192), [32, 1024, 8192]),
        ((16, 64), [16, 64]),
        ((1, 2, 3, 4, 5), [1, 3, 5]),
    ],
)
def test_three_widths_get_a_picture_each(widths: tuple[int, ...], chosen: list[int]) -> None:
    assert chosen_widths(frame(result(SLOW, 4, width, 64, 1e12) for width in widths)) == chosen


# ---- pictures ----


def test_the_heat_map_has_powers_of_two_and_means_over_the_rest(points: pd.DataFrame) -> None:
    chart = heatmap(of(points, FAST), "TFLOP/s")
    assert chart.columns == ("2^6", "2^8", "2^10", "2^12")
    assert chart.rows == ("2^11", "2^8", "2^5")
    assert chart.values[0] == pytest.approx((0.064, 0.256, 1.024, 4.096))
    assert chart.note == "Mean over layers."
    assert (power_of_two(200), power_of_two(1)) == ("200", "2^0")


def test_a_point_that_is_missing_stays_missing(points: pd.DataFrame) -> None:
    some = of(points, FAST)
    some = some[~((some["nodes"] == 32) & (some["batch_size"] == 64))]
    assert heatmap(some, "% of best").values[-1][0] is None


def test_the_roofline_bends_where_memory_and_products_meet(points: pd.DataFrame) -> None:
    roof = Roof("roof", "data sheet", 2e12, 1e11, "made up")
    assert (roof.attainable(10), roof.attainable(20), roof.attainable(99)) == (1e12, 2e12, 2e12)
    chart = roofline(of(points, SLOW), roof, "nodes")
    line = chart.series[-1]
    assert line.x[1] == pytest.approx(20) and line.y[1] == pytest.approx(2)
    # 6 nodes^2 batch FLOP on nodes^2 parameters of 4 bytes: 1.5 batch
    assert set(chart.series[0].x) == {1.5 * batch for batch in BATCHES}
    assert set(chart.series[0].values) == {5.0, 8.0, 11.0}
    relative = roofline(of(points, SLOW), roof, "nodes", relative=True)
    assert relative.series[0].y == pytest.approx([50.0] * 24)
    assert [s.name for s in roofline(of(points, SLOW), None, "kind").series] == ["fc paradnn"]


def test_speed_ups_are_coloured(points: pd.DataFrame) -> None:
    chart = speedups(paired(points, FAST, SLOW), FAST, SLOW, "batch_size")
    assert set(chart.series[0].values) == {6.0, 8.0, 10.0, 12.0}
    assert chart.series[1].y == (1.0, 1.0)


def test_every_depth_is_a_line_over_the_batch(points: pd.DataFrame) -> None:
    charts = over_batch(of(points, FAST))
    assert len(charts) == 3
    lines: tuple[Series, ...] = charts[0].series
    assert [line.name for line in lines] == ["layers 4", "layers 16"]
    assert lines[0].x == BATCHES
    assert lines[0].y == pytest.approx((0.064, 0.256, 1.024, 4.096))


def test_the_page_holds_every_analysis(points: pd.DataFrame) -> None:
    everything = pd.concat([points, frame([result(SLOW, 4, 8192, 64, None)])], ignore_index=True)
    roof = Roof(SLOW, "data sheet", 2e12, 1e11, "made up")
    page = page_of(everything, {(SLOW, "float32"): roof})
    titles = [chart.title for _, chart in page.charts()]
    for wanted in (
        f"TFLOP/s: {SLOW}, fc, float32",
        f"% of best: {FAST}, fc, float32",
        f"% of peak: {SLOW}, fc, float32",
        f"Roofline by nodes: {FAST}, fc, float32",
        f"Roofline by batch_size, relative: {SLOW}, fc, float32",
        f"Roofline by kind: {FAST}, fc, float32",
        f"TFLOP/s over batch, nodes 2048: {SLOW}, fc, float32",
        "Effects on FLOP/s: linear weights, order 1",
        "Effects on FLOP/s: linear weights, order 2",
        f"Speed-up of {SLOW} over {FAST}, coloured by batch_size",
        f"Speed-up of {SLOW} over {FAST}, coloured by nodes",
        f"When {SLOW} is faster than {FAST}",
    ):
        assert wanted in titles
    states, maxima = (table for _, table in page.tables())
    assert (*("fc", SLOW, "float32", "train", "oom"), 1) in states.rows
    assert [row[3] for row in maxima.rows] == pytest.approx([4.096, 1.0])
    assert [row[4] for row in maxima.rows] == [None, pytest.approx(50)]
    assert any("no spec sheet" in text for section in page.sections for text in section.text)
    assert all(isinstance(c, Heatmap) for _, c in page.charts() if c.title.startswith("% of"))


def test_families_have_sections_of_their_own_and_one_roofline_together(points: pd.DataFrame) -> None:
    point = Point.of("rnn", "gru", FAMILIES["rnn"].defaults)
    known = Result(point=point, setup=Setup(), machine=SLOW, parameters=1000, counted_flops=10**9)
    mixed = pd.concat([points, frame([replace(known, duration_s=1.0, steps=100)])], ignore_index=True)
    page = page_of(mixed)
    charts = {chart.title: chart for _, chart in page.charts()}
    together = charts[f"Roofline by kind: {SLOW}, 2 families, float32"]
    assert isinstance(together, XY)
    assert [series.name for series in together.series] == ["fc paradnn", "rnn gru"]
    lines = charts[f"TFLOP/s over batch, embed 100: {SLOW}, rnn, float32"]
    assert isinstance(lines, XY)
    assert [series.name for series in lines.series] == ["layers 5"]
    assert any("a model needs 8" in text for section in page.sections for text in section.text)


# ---- roofs ----


def properties(capability: str, cores: int, **more: int) -> SimpleNamespace:
    major, minor = map(int, capability.split("."))
    return SimpleNamespace(major=major, minor=minor, multi_processor_count=cores, **more)


@pytest.mark.parametrize(
    ("capability", "cores", "clock_khz", "memory_khz", "bits", "tflops", "gigabytes"),
    [
        ("7.5", 40, 1_590_000, 5_001_000, 256, 8.14, 320.06),  # T4
        ("7.5", 72, 1_770_000, 7_001_000, 384, 16.31, 672.10),  # Titan RTX
        ("8.0", 108, 1_410_000, 1_512_000, 5120, 19.49, 1935.36),  # A100 PCIe 80 GB
    ],
)
def test_clocks_and_widths_make_the_theoretical_figures(
    capability: str, cores: int, clock_khz: int, memory_khz: int, bits: int, tflops: float, gigabytes: float
) -> None:
    clocks = {"clock_rate": clock_khz, "memory_clock_rate": memory_khz, "memory_bus_width": bits}
    found = figures(properties(capability, cores, **clocks))
    # T4: 64 lanes in each of 40 multiprocessors: 2 * 2560 * 1.59e9 = 8.14e12 FLOP/s
    # 2 * 5.001e9 * 256 / 8 = 320.06e9 B/s
    assert found["FMA TFLOP/s"] == pytest.approx(tflops, abs=0.005)
    assert found["DRAM GB/s"] == pytest.approx(gigabytes, abs=0.005)
    # T4: 64 B per clock of each of 40 multiprocessors at 1.59 GHz
    assert found["L1 GB/s"] == pytest.approx((64 if capability == "7.5" else 128) * cores * clock_khz / 1e6)


def test_figures_that_are_not_known_are_left_out() -> None:
    assert figures(properties("3.5", 15)) == {"multiprocessors": 15}


@pytest.mark.parametrize(
    ("device", "tflops", "gigabytes"),
    [
        ("nvidia-t4", 8.14, 320.06),
        ("nvidia-titan-rtx", 16.31, 672.10),
        ("nvidia-a100-80gb-pcie", 19.49, 1935.36),
    ],
)
def test_spec_sheets_give_the_same_roof(device: str, tflops: float, gigabytes: float) -> None:
    roof = theoretical(find_spec(device))
    assert roof.flops_per_s / 1e12 == pytest.approx(tflops, abs=0.005)
    assert roof.bytes_per_s / 1e9 == pytest.approx(gigabytes, rel=1e-3)  # makers round
    with pytest.raises(InputError, match="its spec sheet has no peak in float8"):
        theoretical(find_spec(device), "float8")


@pytest.mark.parametrize(
    ("device", "flops_per_s", "bytes_per_s"),
    [("nvidia-t4", 8.10e12, 245.2e9), ("nvidia-a100-80gb-pcie", 19.37e12, 1607.3e9)],
)
def test_measured_roofs_lie_below_the_theoretical_ones(
    device: str, flops_per_s: float, bytes_per_s: float
) -> None:
    roof = theoretical(find_spec(device))
    assert 0.98 < flops_per_s / roof.flops_per_s < 1
    assert 0.75 < bytes_per_s / roof.bytes_per_s < 1


class Steady(HostClock):
    """A second between two marks."""

    def seconds(self, start: int, end: int) -> float:
        return 1.0


def test_a_copy_reads_and_writes_all_its_bytes() -> None:
    # the clock moves 1 s in each of the copies of 4 MiB: 4 MiB read and written together in 1 s
    assert copy_bytes_per_s("cpu", 2**22, Steady()) == 2**22


# ---- square products ----


def test_a_square_product_is_timed_after_its_warm_up() -> None:
    found = matmul_benchmark(64, "float32", warmup=1, steps=3, profiled=True)
    assert (found.size, found.steps, found.tf32) == (64, 3, False)
    assert found.flops_per_s == pytest.approx(2 * 64**3 / found.product_s)
    assert "aten::mm" in found.table


class Properties:
    def __init__(self, type: str) -> None:
        self.type = type


@pytest.mark.parametrize(("capability", "on"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_tf32_is_used_from_compute_capability_8_on(
    capability: tuple[int, int], on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert tf32_by_default("float32", Properties("cuda")) is on
    assert not tf32_by_default("float16", Properties("cuda"))
    assert not tf32_by_default("float32", Properties("cpu"))


def test_products_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="size 0, 20 warm-up and 10 timed steps"):
        matmul_benchmark(0)
    with pytest.raises(InputError, match="dtype 'int8': must be float16"):
        matmul_benchmark(8, "int8")
    with pytest.raises(InputError, match="tf32 with float32 on cpu"):
        matmul_benchmark(8, tf32=True)
    with pytest.raises(OutOfMemory, match=r"matmul of 1000000: needs 12 TB, .* --size \d+ fits"):
        matmul_benchmark(10**6)
    assert inspect.signature(matmul_benchmark).parameters["size"].default == 16384


def test_every_family_has_its_picture_words() -> None:
    for family in FAMILIES.values():
        assert {family.depth, family.width} <= set(family.words)
        assert math.prod(len(values) for values in family.ranges.values()) > 100
