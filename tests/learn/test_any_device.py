"""Every device with a spec sheet is answered for, by the best that is known of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.screening import screen
from neuralpower.devices.spec import DeviceSpec, find_spec, known_specs, read_spec
from neuralpower.dtypes import NETWORK_DTYPES, floats_of
from neuralpower.errors import PredictorError
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import GRADIENT, Draw
from neuralpower.learn.estimates import (
    BARE,
    BASES,
    BY_LAW,
    BY_PHYSICS,
    ROOFLINE,
    ROOFLINE_FACTOR,
    TRAINED_HERE,
)
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.fitting.intervals import _of_new_devices
from neuralpower.learn.keys import ANY
from neuralpower.learn.launch_overhead import Cost, Dispatch
from neuralpower.learn.notes import assumed, foreign, origin
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured.any_device import FOREIGN, REACHED_BANDWIDTH, for_device, roofline_of
from tests.sampled import one_of_each

SHEETS = [find_spec(slug) for slug in known_specs()]
ACCELERATORS = [spec for spec in SHEETS if spec.device_class != "cpu"]


def sort_of(spec: DeviceSpec) -> object:
    """Devices of one sort are answered for by the same code."""
    return spec.vendor, spec.device_class, floats_of(spec.peak_flops)


def layers_of(dtype: str) -> list[Layer]:
    """One layer of each kind, in its forward pass."""
    drawn = [kind.sample(Draw(1)) for kind in KINDS.values()]
    return [dataclasses.replace(one, dtype=dtype) if one.dtype == "float32" else one for one in drawn]


def add(elements: int, dtype: str) -> Layer:
    kind: Any = KINDS["elementwise"]
    found: Layer = kind(function="add", elements=elements, operands=2, broadcast=False, dtype=dtype)
    return found


def linear(rows: int, dtype: str) -> Layer:
    fields = {"rows": rows, "in_features": 4096, "out_features": 4096, "bias": False}
    return KINDS["linear"](dtype=dtype, **fields)


@pytest.mark.parametrize("spec", one_of_each(SHEETS, sort_of), ids=lambda spec: spec.slug)
def test_a_device_answers_for_every_kind_in_the_dtypes_it_has(spec: DeviceSpec) -> None:
    has = floats_of(spec.peak_flops)
    assert has, "a sheet with peaks of integers alone can serve no network"
    predictor = for_device(spec)
    for dtype in has:
        predictor.check(dtype, "forward")
    layers = layers_of([one for one in NETWORK_DTYPES if one in has][-1])
    found = predictor.estimate(layers)
    assert np.isfinite(found.high_s).all() and set(found.basis) <= set(BASES)
    assert (found.low_s <= found.runtime_s).all() and (found.runtime_s <= found.high_s).all()
    assert origin(predictor, found, found.runtime_s)
    assert not any("collect-data" in text for text in assumed(predictor, layers))


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        (
            "nvidia-h100-sxm5-80gb",
            "nvfp4",
            "no nvfp4: such weights would be unpacked and multiplied in bfloat16",
        ),
        (
            "nvidia-a100-sxm4-80gb",
            "float8_e4m3fn",
            "(weight-only); choose float64, float32, bfloat16, float16",
        ),
        ("nvidia-t4", "bfloat16", "no bfloat16: it would run as float32; choose float32, float16"),
        ("nvidia-p4", "float16", "it would run as float32; choose float32"),
    ],
)
def test_a_dtype_that_a_device_lacks_is_refused_with_what_it_would_run_as(
    device: str, dtype: str, words: str
) -> None:
    with pytest.raises(PredictorError) as refused:
        for_device(find_spec(device), dtype)
    assert words in str(refused.value) and "collect" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_alias_of_a_dtype_is_known() -> None:
    assert "bfloat16" in for_device(find_spec("nvidia-h100-sxm5-80gb"), "bf16").dtypes


def test_the_devices_own_rows_come_before_those_of_relatives() -> None:
    predictor = for_device(find_spec("nvidia-a100-pcie-40gb"))
    known, carried, narrow = add(2**24, "float32"), add(2**14, "bfloat16"), add(2**24, "bfloat16")
    own = load("nvidia-a100-pcie-40gb").estimate([known])
    assert 0.4 < predictor.estimate([narrow]).runtime_s[0] / own.runtime_s[0] < 0.7  # half the bytes
    found = predictor.estimate([known, carried])
    assert found.runtime_s[0] == own.runtime_s[0] and found.basis[1] == "carried"
    assert origin(predictor, found.at(np.array([0])), found.runtime_s[:1]) == TRAINED_HERE
    assert origin(predictor, found.at(np.array([1])), found.runtime_s[1:]) == BY_PHYSICS
    both = origin(predictor, found, found.runtime_s)
    assert TRAINED_HERE in both and BY_PHYSICS in both and "%" in both


def test_half_the_bytes_take_half_the_time_on_a_device_that_nothing_was_trained_on() -> None:
    predictor = for_device(find_spec("nvidia-l4"))
    found = predictor.estimate([add(2**27, dtype) for dtype in ("float32", "bfloat16", "float16")])
    assert found.runtime_s[0] / found.runtime_s[1] == pytest.approx(2.0, rel=0.03)
    assert found.runtime_s[1] == pytest.approx(found.runtime_s[2])
    least = 3 * 2**27 * 2 / 300e9
    assert least < found.runtime_s[1] < 1.5 * least


def test_products_of_either_half_take_the_same_where_their_peaks_agree() -> None:
    predictor = for_device(find_spec("nvidia-l40s"))
    found = predictor.estimate([linear(4096, "bfloat16"), linear(4096, "float16")])
    assert found.runtime_s[0] == pytest.approx(found.runtime_s[1])


def test_another_makers_device_has_wider_bounds_and_says_why() -> None:
    spec = find_spec("amd-instinct-mi300x")
    predictor, one = for_device(spec), [add(2**27, "bfloat16")]
    near = load("nvidia").on(spec.hardware(), spec.slug).estimate(one)
    found = predictor.estimate(one)
    # above: below, no pass is faster than its memory
    widths = [float(np.log(each.high_s / each.runtime_s)[0]) for each in (near, found)]
    assert widths[1] > widths[0] and widths[1] > NINETY * FOREIGN
    told = assumed(predictor, [linear(4096, "bfloat16")])
    assert any("no device by AMD was measured" in text for text in told)


def test_a_processor_is_a_roofline_with_wide_bounds() -> None:
    spec = find_spec("intel-xeon-platinum-8480")
    predictor, big = for_device(spec, "bfloat16"), add(2**27, "bfloat16")
    found = predictor.estimate([big])
    seconds = sum(big.bytes()) / (REACHED_BANDWIDTH * spec.hardware().memory_bytes_per_s)
    assert found.runtime_s[0] == pytest.approx(seconds, rel=0.01)
    assert found.high_s[0] / found.runtime_s[0] == pytest.approx(ROOFLINE_FACTOR)
    assert found.basis == (ROOFLINE,) and origin(predictor, found, found.runtime_s) == BARE


def test_a_pass_of_an_unknown_kind_takes_no_less_than_its_bytes() -> None:
    spec = find_spec("nvidia-l4")
    predictor = for_device(spec)
    known = {key[0] for one in (predictor, *predictor.others) for key in one.regressors}
    kind = next(kind for name, kind in KINDS.items() if name not in known and not kind.multiplies)
    layer = kind.sample(Draw(3))
    found = predictor.estimate([layer])
    assert found.basis == ("carried",) and found.regressor.tolist() == [BY_LAW]
    assert found.runtime_s[0] >= sum(layer.bytes()) / spec.hardware().memory_bytes_per_s


def test_a_users_sheet_is_answered_as_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    values = {"peak_flops_bfloat16": 1e14, "memory_bytes_per_s": 5e11, "cores": 64}
    text = '{"schema": 1, "name": "Mine", "class": "gpu", "vendor": "NVIDIA", "values": %s}'
    file.write_text(text % str(values).replace("'", '"'))
    predictor = for_device(read_spec(file), "bfloat16")
    assert predictor.estimate([linear(64, "bfloat16")]).runtime_s[0] > 4096**2 * 2 / 5e11


def test_a_predictor_of_the_device_that_cannot_be_read_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "nvidia-l4-cut.json").write_text('{"schema": 1')
    monkeypatch.chdir(tmp_path)
    predictor = for_device(find_spec("nvidia-l4"))
    assert predictor.estimate([add(64, "bfloat16")]).basis == ("carried",)
    assert any("skipped" in text and "nvidia-l4-cut" in text for text in foreign(predictor))


def test_a_roofline_was_trained_on_nothing() -> None:
    bare = roofline_of(find_spec("nvidia-l4"))
    assert isinstance(bare, Predictor) and not bare.regressors and bare.learner == "roofline"


def test_relatives_serve_in_every_dtype_of_a_sheet() -> None:
    there = load("nvidia@nvidia-l40s")
    for dtype in floats_of(find_spec("nvidia-l40s").peak_flops):
        there.check(dtype, "forward")
    with pytest.raises(PredictorError, match="choose"):
        there.check("float64", "forward")


def test_bounds_of_a_new_device_are_the_wider_the_fewer_were_trained() -> None:
    rng = np.random.default_rng(0)
    halves = []
    for count in (2, 4, 16):
        levels = np.where(np.arange(count) % 2, 0.2, -0.2)  # each a factor of 1.2 away, up or down
        level = np.repeat(levels, 50)
        halves.append(_of_new_devices(level + 0.01 * rng.standard_normal(len(level)), level, levels))
    assert halves[0] > halves[1] > halves[2] > NINETY * 0.2 * 0.9


def test_a_kernel_that_took_no_time_is_no_row() -> None:
    table = pd.DataFrame({"function": "add", "elements": [64.0, 128.0], "operands": 2, "broadcast": False})
    table = table.assign(dtype="bfloat16", phase="backward", runtime_s=[1e-8, 2e-6])
    gpu, cpu = find_spec("nvidia-l4").hardware(), find_spec("amd-epyc-9654").hardware()
    rejected = screen("elementwise", table, hardware=gpu).rejected
    assert [row.reason for row in rejected] == ["no kernel ran"]
    assert not screen("elementwise", table, hardware=cpu).rejected


def test_rows_of_all_dtypes_teach_a_pass_over_memory_together() -> None:
    known = {(key[0], key[1]) for key in load("nvidia").regressors}
    assert {dtype for kind, dtype in known if not KINDS[kind].multiplies} == {ANY}
    assert {"bfloat16", "float32"} <= {dtype for kind, dtype in known if KINDS[kind].multiplies}


def test_a_host_that_is_not_known_is_less_certain_and_named() -> None:
    trained = Dispatch({("linear", "forward", ""): Cost(1e-5, 0.0, 40)}, 2e-5, 0.1, factor=2.5)
    there = trained.of_another_host()
    assert there.deviation > trained.deviation and there.seconds([linear(1, "bfloat16")])[0] == 2.5e-5
    calls = [linear(1, "bfloat16"), linear(2, "bfloat16")]
    assert not trained.note(calls) and not there.note([])
    assert "25 us each" in there.note(calls) and "factor of 2" in there.note(calls)
    assert there.of_another_host() == there


@pytest.mark.parametrize(
    ("elements", "outputs", "blocks"),
    [(2**15, 1, 4), (2**15, 45, 45), (2**16, 4, 8), (2**22, 1, 132), (2**22, 4096, 132)],
)
def test_few_results_of_short_rows_keep_few_cores_busy_and_long_rows_are_shared(
    elements: int, outputs: int, blocks: int
) -> None:
    hardware = find_spec("nvidia-h200-sxm-141gb").hardware()
    kind: Any = KINDS["reduction"]
    layer = kind(function="sum", elements=elements, outputs=outputs, dtype="bfloat16")
    seconds = kind.views.kernels.terms(layer, hardware)["bytes_few_results"]
    assert hardware.cores == 132
    assert seconds == pytest.approx(2 * elements * (132 / blocks) / hardware.memory_bytes_per_s)


def test_what_engines_tables_say_of_attention_is_not_said_of_torchs() -> None:
    shape = {"batch": 1, "query_heads": 16, "key_heads": 16, "query_length": 2048, "key_length": 2048}
    kind: Any = KINDS["attention"]
    layer = kind(**shape, head_size=128, causal=True, masked=False, dtype="bfloat16")
    engine = for_device(find_spec("nvidia-h100-sxm5-80gb")).estimate([layer])
    torchs = for_device(find_spec("nvidia-h100-sxm5-80gb")).estimate(
        [dataclasses.replace(layer, library="torch")]
    )
    assert engine.basis == ("in-range",) and torchs.basis == ("carried",)  # from an H200's rows of torch
    assert torchs.regressor.tolist() != engine.regressor.tolist()
    assert 0.5 < torchs.runtime_s[0] / engine.runtime_s[0] < 3


def test_torchs_products_follow_whole_networks_where_some_ran_and_tables_of_engines_do_not() -> None:
    kind: Any = KINDS["linear"]
    layer = kind(rows=4608, in_features=3072, out_features=12288, bias=True, dtype="bfloat16")
    b200 = for_device(find_spec("nvidia-b200"))
    table, torchs = (one.estimate([layer]).runtime_s[0] for one in (b200, b200.of_torch()))
    assert 1.3 < torchs / table < 3  # FLUX's products sustain half of the rate that the table has
    a100 = for_device(find_spec("nvidia-a100-sxm4-80gb"))  # no network ran there
    assert a100.estimate([layer]).runtime_s[0] == a100.of_torch().estimate([layer]).runtime_s[0]


def test_a_gradients_call_takes_what_tables_say_of_the_forward_pass() -> None:
    kind: Any = KINDS["linear"]
    layer = kind(rows=4096, in_features=4096, out_features=4096, bias=False, dtype="bfloat16")
    found = for_device(find_spec("nvidia-a100-sxm4-80gb")).estimate(
        [layer, dataclasses.replace(layer, phase=GRADIENT)]
    )
    assert found.runtime_s[0] == found.runtime_s[1] and found.basis[0] == found.basis[1]
