"""A device is predicted by what was trained on a board of the same chip, by what binds each call."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import Draw
from neuralpower.learn.estimates import CARRIED_BY
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.notes import origin, origins
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.learn.unmeasured.twins import BY_POWER, Twin, completed, rounded_alike

ALONE = [name for name in KINDS if name != "collective"]  # kinds of calls on one GPU


def on(name: str) -> Predictor:
    return for_device(find_spec(name))


def product(rows: int, side: int) -> Layer:
    fields: Any = {"rows": rows, "in_features": side, "out_features": side, "bias": False}
    return KINDS["linear"](dtype="bfloat16", **fields)


def seconds(predictor: Predictor, layer: Layer) -> float:
    return float(predictor.estimate([layer]).runtime_s[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("board", "other"), [("h100", "h800"), ("a100-sxm4-80gb", "a800-sxm4-80gb")])
def test_where_links_alone_differ_layers_take_the_same_to_the_last_digit(
    board: str, other: str, dtype: str
) -> None:
    layers = [KINDS[kind].sample(Draw(seed)) for kind in ALONE for seed in range(4)]
    layers = [dataclasses.replace(one, dtype=dtype) if one.dtype == "float32" else one for one in layers]
    known, found = (on(name).estimate(layers) for name in (board, other))
    assert (known.runtime_s == found.runtime_s).all()


def test_exchanges_follow_the_links() -> None:
    kind: Any = KINDS["collective"]
    for function in ("all_reduce", "all_gather"):
        large = kind(function=function, elements=2**28, ranks=8, library="nccl", dtype="bfloat16")
        ratio = seconds(on("h800"), large) / seconds(on("h100"), large)
        assert 1.5 < ratio < 450 / 200 * 1.1  # GB/s of their links


def test_large_products_follow_the_power_limit_and_the_weights_of_few_rows_the_bandwidth() -> None:
    h200, nvl, gh200 = (on(name) for name in ("h200", "h200-nvl", "gh200"))
    large, few, small = product(8192, 8192), product(8, 16384), product(2, 64)
    allowed = (600 / 700) ** BY_POWER  # W of their limits
    assert seconds(nvl, large) / seconds(h200, large) == pytest.approx(1 / allowed, rel=0.03)
    assert seconds(nvl, few) / seconds(h200, few) == pytest.approx(1.0, rel=0.02)
    assert seconds(nvl, small) / seconds(h200, small) == pytest.approx(1.0, rel=0.01)
    # GH200: 4.0 TB/s; its nearest board is an H100, of 3.35
    h100 = on("h100")
    assert seconds(gh200, few) / seconds(h100, few) == pytest.approx(3.35 / 4.0, rel=0.05)
    assert seconds(gh200, small) / seconds(h100, small) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("board", "low", "high"),
    [("rtx-6000-ada", 90, 115), ("l40", 80, 115), ("rtx-pro-6000-max-q", 110, 160)],
)
def test_large_products_of_boards_of_300_w_sustain_what_long_prefills_do(
    board: str, low: float, high: float
) -> None:
    large = product(16384, 8192)
    assert low < large.flops() / seconds(on(board), large) / 1e12 < high  # of 182 to 439 TFLOP/s


def test_a_times_part_that_the_peaks_do_not_explain_remains() -> None:
    h200, h100 = (find_spec(name).hardware() for name in ("h200", "h100"))
    few: Any = product(8, 16384)
    at_peak = sum(few.bytes()) / h200.memory_bytes_per_s
    for waits in (0.0, at_peak, 9 * at_peak):
        carried, unsure = Twin("H200", h200).carried(few, np.array([at_peak + waits]), h100)
        assert carried[0] == pytest.approx(at_peak * 4.8 / 3.35 + waits, rel=0.01)
        assert unsure[0] > 0


def test_the_answer_names_the_board() -> None:
    predictor, layer = on("h800"), product(512, 4096)
    found = predictor.estimate([layer])
    assert found.basis == ("carried",)
    assert origin(predictor, found, found.runtime_s) == "carried from NVIDIA H100-SXM5-80GB, the same chip"
    own = on("h100").estimate([layer])
    assert found.low_s[0] < own.low_s[0] and own.high_s[0] < found.high_s[0]


def test_kinds_with_rows_of_the_device_itself_are_not_carried_from_a_twin() -> None:
    device = find_spec("rtx-4090")  # some of its products were measured, none of its attention
    predictor, layer = for_device(device), product(512, 4096)
    kind: Any = KINDS["attention"]
    sizes = {"batch": 8, "query_heads": 32, "key_heads": 8, "head_size": 128}
    flags = {"causal": False, "masked": False}
    decode = kind(dtype="bfloat16", query_length=1, key_length=2048, **sizes, **flags)
    found = predictor.estimate([layer, decode])
    named = "carried from NVIDIA L40S, the same chip"
    assert origins(predictor, found).tolist() == [CARRIED_BY, named]
    assert seconds(predictor, layer) == seconds(load("nvidia").on(device.hardware(), device.slug), layer)


def test_times_with_launches_are_of_their_own_host() -> None:
    names = {one.twin.name for one in (on("a100-sxm4-40gb"), *on("a100-sxm4-40gb").others) if one.twin}
    assert names == {"NVIDIA A100-SXM4-80GB"}  # not the A100 PCIe, whose rows include launches


def test_a_chips_sheets_print_one_number_rounded_differently() -> None:
    h100, h800 = (find_spec(name).hardware() for name in ("h100", "h800"))
    alike = rounded_alike(h800, h100)
    assert alike.peak_flops_per_s["bfloat16"] == h100.peak_flops_per_s["bfloat16"] != h800.peak("bfloat16")
    assert (alike.year, alike.base_clock) == (h100.year, h100.base_clock)
    assert alike.link_bytes_per_s == h800.link_bytes_per_s == 200e9
    assert alike.peak_flops_per_s["float64"] == 1e12  # which differs


def test_what_a_sheet_states_since_reaches_an_older_predictor() -> None:
    sheet = find_spec("h200").hardware()
    older = dataclasses.replace(sheet, idle_w=None, limit_w=650.0)
    assert completed(older, sheet) == dataclasses.replace(sheet, limit_w=650.0)
    hardware = on("h200").hardware
    assert hardware is not None and hardware.idle_w == sheet.idle_w is not None
