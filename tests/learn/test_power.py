"""Power and energy of layers and networks, trained on a device of known power."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from neuralpower.data.dataset import Dataset
from neuralpower.files.csv_files import write_csv
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import typed
from neuralpower.layers.columns import columns_of
from neuralpower.layers.linear import Linear
from neuralpower.layers.rows import to_row
from neuralpower.learn.estimates import BASES, CARRIED_BY
from neuralpower.learn.files.predictor_json import save
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.keys import ANY, whole_kind
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train, train_power
from neuralpower.learn.watts import idle_power
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.prediction.compose import compose
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.number_format import plain, quantity, share
from neuralpower.report.tables import prediction_cells, prediction_table
from neuralpower.trace.tracer import trace

PEAKS, BANDWIDTH, LAUNCH_S = {"float32": 4e13, "bfloat16": 1.6e14}, 2e12, 3e-6
IDLE_W, LIMIT_W = 80.0, 400.0
KINDS_MEASURED = ("linear", "softmax", "activation", "elementwise", "norm")
HARDWARE = {
    "accelerator": True,
    "cores": 100,
    "peak_flops_per_s": PEAKS,
    "memory_bytes_per_s": BANDWIDTH,
    "idle_w": IDLE_W,
    "limit_w": LIMIT_W,
}


def peak(layer: Layer) -> float:
    """The peak of its dtype; types that are not floats count as float32."""
    return PEAKS.get(layer.dtype, PEAKS["float32"])


def runtime_s(layer: Layer) -> float:
    """A launch, then 85 % of the peak or 75 % of the bandwidth, whichever is slower."""
    return LAUNCH_S + max(layer.flops() / peak(layer) / 0.85, sum(layer.bytes()) / BANDWIDTH / 0.75)


def power_w(layer: Layer) -> float:
    """Idle power, 250 W for busy units and 150 W for busy memory; never above the limit."""
    seconds = runtime_s(layer)
    compute, memory = layer.flops() / peak(layer) / seconds, sum(layer.bytes()) / BANDWIDTH / seconds
    return min(IDLE_W + 250 * compute + 150 * memory, LIMIT_W)


def rows(kind: str, count: int, seed: int) -> list[Layer]:
    return list(draw(KINDS[kind], count, seed, PRESETS["standard"]))


def table(kind: str, stated: float = 0.02, layers: list[Layer] | None = None) -> pd.DataFrame:
    """Rows with noise of 1 % in time and 2 % in power; of 200 layers where none are given."""
    noise = np.random.default_rng(len(kind))
    return pd.DataFrame(
        {
            **to_row(layer),
            "runtime_s": runtime_s(layer) * np.exp(noise.normal(0, 0.01)),
            "power_w": power_w(layer) * np.exp(noise.normal(0, 0.02)),
            "energy_u_rel": stated,
        }
        for layer in layers or rows(kind, 200, 0)
    )


def dataset(stated: float = 0.02, count: int = 200) -> Dataset:
    meta = {"schema": 1, "device": "known", "hardware": HARDWARE}
    tables = {kind: table(kind, stated, rows(kind, count, 0)) for kind in KINDS_MEASURED}
    return Dataset(Path("known"), meta, tables)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return train(dataset(), "lasso", jobs=1).predictor


@pytest.mark.parametrize("kind", KINDS_MEASURED)
def test_power_of_layers_never_measured_is_within_seven_percent(predictor: Predictor, kind: str) -> None:
    layers = rows(kind, 150, 1)
    estimates = predictor.estimate_columns(columns_of(KINDS[kind], layers))
    truth = np.array([power_w(layer) for layer in layers])
    error = estimates.power_w / truth - 1
    assert np.sqrt(np.mean(error**2)) < 0.07
    assert np.mean((estimates.power_low_w <= truth) & (truth <= estimates.power_high_w)) > 0.85
    assert (estimates.power_w >= IDLE_W).all()
    assert (estimates.power_high_w <= LIMIT_W).all()


@pytest.mark.parametrize(("batch_size", "width"), [(4, 256), (64, 1024), (2048, 2048), (8192, 512)])
def test_energy_of_a_network_is_within_five_percent(
    predictor: Predictor, batch_size: int, width: int
) -> None:
    block = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    network = nn.Sequential(
        *(layer for _ in range(6) for layer in block), nn.Linear(width, 1000), nn.Softmax(-1)
    )
    traced = trace(network.to("meta"), (torch.empty(batch_size, width, device="meta"),), {})
    truth = sum(power_w(layer) * runtime_s(layer) for layer in traced.layers)
    prediction = compose(traced, predictor, model="network", batch_size=batch_size)
    assert prediction.energy_j is not None
    assert prediction.power_w is not None
    assert prediction.energy_j.value == pytest.approx(truth, rel=0.05)
    assert prediction.energy_j.low < truth < prediction.energy_j.high
    assert prediction.energy_j.value == pytest.approx(prediction.power_w.value * prediction.runtime_s.value)


def test_a_row_whose_time_is_wrong_says_nothing_of_power() -> None:
    layers = rows("linear", 80, 0)
    clean, about = table("linear", layers=layers), {"schema": 1, "device": "known", "hardware": HARDWARE}
    wrong = clean.iloc[[60]].assign(
        rows=lambda row: row["rows"] + 1, runtime_s=lambda row: 1e3 * row["runtime_s"]
    )
    trained, reference = (
        train(Dataset(Path("known"), about, {"linear": some}), "lasso", jobs=1)
        for some in (pd.concat([clean, wrong], ignore_index=True), clean)
    )
    assert [(row.line, row.reason) for row in trained.rejected] == [
        (82, "runtime_s contradicts its neighbours")
    ]
    found, expected = (one.predictor.estimate(rows("linear", 60, 1)) for one in (trained, reference))
    for name in ("runtime_s", "power_w", "power_low_w", "power_high_w"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


@pytest.mark.parametrize("change", [{"power_w": 1.0}, {"power_w": np.nan, "energy_j": 1e-6}])
def test_a_wrong_power_of_a_few_is_left_out(change: dict[str, float]) -> None:
    clean = table("linear", layers=rows("linear", 20, 0))
    about = {"schema": 1, "device": "known", "hardware": HARDWARE}
    wrong = clean.assign(energy_j=np.nan)
    wrong.loc[7, list(change)] = list(change.values())
    none = clean.assign(power_w=clean.power_w.where(clean.index != 7))
    found, expected = (
        train(Dataset(Path("known"), about, {"linear": some}), "lasso", jobs=1) for some in (wrong, none)
    )
    assert [(row.line, row.reason) for row in found.rejected] == [(9, "power_w contradicts its neighbours")]
    first, second = (one.predictor.estimate(rows("linear", 40, 1)) for one in (found, expected))
    np.testing.assert_allclose(first.power_w, second.power_w, rtol=1e-9)


def test_power_that_a_meter_is_not_sure_of_is_not_trained() -> None:
    found = train(dataset(0.3, 40), learner="lasso", jobs=1)
    assert found.predictor.power is None
    usable = "(of rows of 100 us or more, or with energy_u_rel up to 0.1)"
    assert f"linear: power not trained: 0 of 40 powers are usable, 10 needed {usable}" in found.doubts
    assert found.powers == dict.fromkeys(KINDS_MEASURED, 0)
    assert len(found.doubts) == len(KINDS_MEASURED)


def test_powers_too_few_to_learn_from_are_told() -> None:
    few = table("softmax")
    few = few.assign(energy_u_rel=0.02, power_w=few.power_w.where(few.index < 9), energy_j=np.nan)
    about = {"schema": 1, "device": "known", "hardware": HARDWARE}
    found = train(Dataset(Path("known"), about, {"softmax": few}), learner="lasso", jobs=1)
    assert found.predictor.power is None
    (said,) = found.doubts
    assert said.startswith("softmax: power not trained: 9 of 9 powers are usable, 10 needed (of rows of 100 ")
    assert found.powers == {"softmax": 9}


def test_of_powers_a_predictor_of_several_devices_learns_nothing_and_says_so() -> None:
    first, second = (
        Dataset(
            Path(name), {"schema": 1, "device": name, "hardware": HARDWARE}, {"softmax": table("softmax")}
        )
        for name in ("one", "two")
    )
    found = train([first, second], jobs=1)
    said = "softmax: 200 powers not used: a predictor of several devices trains times only"
    assert found.doubts == (f"one: {said}", f"two: {said}")


SPARSE = ("linear", "softmax", "matmul")  # kinds of one group
VARIANTS = [(dtype, phase) for dtype in ("float32", "bfloat16") for phase in ("forward", "backward")]


def in_turn(layers: list[Layer]) -> list[Layer]:
    """Each in one of two dtypes and two phases."""
    pairs = zip(layers, itertools.cycle(VARIANTS), strict=False)
    return [dataclasses.replace(typed(layer, dtype), phase=phase) for layer, (dtype, phase) in pairs]


@pytest.fixture(scope="module")
def sparse() -> Predictor:
    """Trained on 28 powers of each kind, 7 of each variant, and 100 runtimes."""
    tables = {}
    for kind in SPARSE:
        tables[kind] = table(kind, layers=in_turn(rows(kind, 100, 0)))
        tables[kind].loc[28:, ["power_w", "energy_u_rel"]] = np.nan
    return train(
        Dataset(Path("known"), {"schema": 1, "device": "known", "hardware": HARDWARE}, tables),
        "lasso",
        jobs=1,
    ).predictor


def test_powers_too_few_for_each_dtype_and_phase_are_trained_for_the_kind(sparse: Predictor) -> None:
    assert sparse.power is not None
    both_dtypes = {("softmax", ANY, phase, "short") for phase in ("forward", "backward")}  # 14 powers each
    assert set(sparse.power) == {*map(whole_kind, ("linear", "matmul", "softmax")), *both_dtypes}
    for kind in SPARSE:
        layers = in_turn(rows(kind, 80, 1))
        estimates = sparse.estimate(layers)
        truth = np.array([power_w(layer) for layer in layers])
        assert np.sqrt(np.mean((estimates.power_w / truth - 1) ** 2)) < 0.15
        assert (
            np.mean((estimates.power_low_w <= truth) & (truth <= estimates.power_high_w)) > 0.7
        )  # of 28 rows


def test_the_power_of_a_kind_travels_in_the_file(sparse: Predictor, tmp_path: Path) -> None:
    save(sparse, tmp_path / "known.json")
    layers = in_turn(rows("linear", 20, 2))
    again = load(tmp_path / "known.json").estimate(layers)
    assert again.power_w.tolist() == pytest.approx(sparse.estimate(layers).power_w.tolist())
    assert np.isfinite(again.power_w).all()


def test_a_kind_whose_every_key_has_its_power_needs_no_other(predictor: Predictor) -> None:
    assert predictor.power is not None
    lacking = (
        predictor.regressors.keys() - predictor.power.keys()
    )  # complex numbers, of which the sweep has few
    assert {key[3] for key in lacking} == {"complex+complex_transcendental+heavy"}
    assert predictor.power.keys() - predictor.regressors.keys() == {whole_kind("elementwise")}


def test_no_layer_draws_less_than_the_least_that_was_measured(tmp_path: Path) -> None:
    wide = [
        Linear(rows=1, in_features=2**n, out_features=2**m, bias=False)
        for n in range(11, 16)
        for m in range(11, 16)
    ]
    measured = table("linear", layers=wide)
    size = np.array([sum(layer.bytes()) for layer in wide])
    measured["power_w"] = (
        300 * size / BANDWIDTH / measured["runtime_s"]
    )  # of the memory alone, next to nothing idle
    meta = {
        "schema": 1,
        "device": "known",
        "hardware": {name: HARDWARE[name] for name in HARDWARE if name != "idle_w"},
    }
    save(
        train([Dataset(tmp_path, meta, {"linear": measured})], "lasso", jobs=1).predictor,
        tmp_path / "known.json",
    )
    small = load(tmp_path / "known.json").estimate(
        [Linear(rows=1, in_features=16, out_features=16, bias=False)]
    )
    assert small.power_w[0] == pytest.approx(measured["power_w"].min(), rel=1e-6)
    assert small.power_low_w[0] <= small.power_w[0] < small.power_high_w[0]


@pytest.mark.parametrize("by", ["kind", "layer", "module"])
def test_a_table_shows_watts_and_joules_where_they_are_trained(predictor: Predictor, by: str) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(3)))
    p = compose(trace(model, (torch.zeros(2048, 512),)), predictor, model="net", batch_size=2048)
    assert p.energy_j is not None and p.power_w is not None
    lines = prediction_table(p, by, 3, 0, full=True).splitlines()
    energy = next(line for line in lines if line.startswith("energy"))
    at = next(i for i, line in enumerate(lines) if line.endswith("basis"))
    head, header, lines = lines[:at], lines[at], lines[at + 2 :]
    assert energy.startswith(f"energy {quantity(p.energy_j.value, 'J')} (")
    assert any(f"power {quantity(p.power_w.value, 'W')} (" in line for line in head)
    assert header.split()[-5:] == ["power", "energy", "FLOP", "bound", "basis"]
    merged = {"kind": p.by_kind(), "module": p.by_module(3), "layer": p.rows}[by]
    assert sum(row.energy_j or 0 for row in merged) == pytest.approx(sum(row.energy_j or 0 for row in p.rows))
    shown = [line for line in lines if line.split()[-1] in BASES]
    assert len(shown) == len(merged)
    assert all(" W " in line and "J " in line for line in shown)


def test_a_csv_has_watts_and_joules_or_nothing(predictor: Predictor, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Conv1d(2048, 8, 1))  # a kind that was not measured
    assert predictor.hardware is not None
    unbounded = dataclasses.replace(predictor.hardware, limit_w=None)
    predictor = dataclasses.replace(predictor, hardware=unbounded)
    p = compose(trace(model, (torch.zeros(2048, 512),)), predictor, model="net", batch_size=2048)
    write_csv(tmp_path / "rows.csv", prediction_cells(p))
    table = pd.read_csv(tmp_path / "rows.csv")
    for said, row in zip(table.itertuples(), p.rows, strict=True):
        assert (
            (said.energy_j == pytest.approx(row.energy_j))
            if row.energy_j is not None
            else np.isnan(said.energy_j)
        )
    first = table.iloc[0]
    assert first.energy_j == pytest.approx(first.power_w * first.runtime_s)
    assert table.energy_j.isna().any()
    frame = p.to_pandas()
    assert [*table, "layer"] == [*frame]
    assert table.step.tolist() == frame.step.tolist() == ["forward"] * len(p.rows)
    assert table.energy_j.tolist() == pytest.approx(frame.energy_j.tolist(), nan_ok=True)


def half_known(sparse: Predictor, **hardware: Any) -> Prediction:
    """A network of products with trained power and a softmax without, on such a device."""
    assert sparse.power is not None and sparse.hardware is not None
    products = dataclasses.replace(
        sparse,
        power={whole_kind("linear"): sparse.power[whole_kind("linear")]},
        hardware=dataclasses.replace(sparse.hardware, **hardware),
    )
    network = nn.Sequential(nn.Linear(512, 512), nn.Softmax(-1), nn.Linear(512, 64), nn.Softmax(-1)).to(
        "meta"
    )
    traced = trace(network, (torch.empty(256, 512, device="meta"),), {})
    return compose(traced, products, model="net", batch_size=256)


def test_energy_is_null_where_a_tenth_of_the_power_is_neither_trained_nor_bounded(sparse: Predictor) -> None:
    some = half_known(sparse, limit_w=None)
    known = sum(row.share for row in some.rows if row.kind == "linear")
    assert 0.1 < known < 0.9
    assert (some.power_w, some.energy_j, some.power_share_trained) == (None, None, None)
    assert some.power_reason == f"power data covers {known:.0%} of the time (90% needed)"
    assert [row.power_w is not None for row in some.rows] == [row.kind == "linear" for row in some.rows]


def test_power_that_was_not_trained_is_carried_within_idle_and_limit(sparse: Predictor) -> None:
    some = half_known(sparse)
    known = sum(row.share for row in some.rows if row.kind == "linear")
    assert some.power_w is not None and some.energy_j is not None
    assert IDLE_W <= some.power_w.low < some.power_w.value < some.power_w.high <= LIMIT_W
    assert some.power_share_trained == pytest.approx(known)
    assert [row.power_trained for row in some.rows] == [row.kind == "linear" for row in some.rows]
    carried = [row.power_w for row in some.rows if row.kind == "softmax" and row.power_w]
    assert len(carried) == 2 and all(0.8 * IDLE_W <= power.low < power.high <= LIMIT_W for power in carried)
    said = some.to_json()
    assert said["power_share_trained"] == some.power_share_trained
    assert f"; {share(known)} measured here" in prediction_table(some, "kind", 3, 0)
    afar = dataclasses.replace(some, origins={CARRIED_BY: 1.0})
    assert f"; {share(known)} scaled from similar devices" in prediction_table(afar, "kind", 3, 0)
    nowhere = dataclasses.replace(
        some, rows=tuple(dataclasses.replace(row, power_trained=False) for row in some.rows)
    )
    assert "power about " in prediction_table(nowhere, "kind", 3, 0)


def test_a_device_of_unknown_idle_power_idles_within_a_share_of_its_limit(sparse: Predictor) -> None:
    assert sparse.hardware is not None
    value, low, high = idle_power(dataclasses.replace(sparse.hardware, idle_w=None))
    assert 0 < low < value < high < LIMIT_W
    value, low, high = idle_power(sparse.hardware)
    assert 0.8 * IDLE_W < low < value == IDLE_W < high < 1.2 * IDLE_W, "boards of a kind differ"
    asleep = dataclasses.replace(sparse.hardware, idle_w=None, deep_idle_w=0.4 * LIMIT_W)
    assert min(idle_power(asleep)) == 0.4 * LIMIT_W, "awake it draws no less"


def test_all_of_a_trained_power_is_trained(sparse: Predictor) -> None:
    network = nn.Sequential(nn.Linear(512, 512), nn.Softmax(-1)).to("meta")
    traced = trace(network, (torch.empty(256, 512, device="meta"),), {})
    every = compose(traced, sparse, model="net", batch_size=256)
    assert every.energy_j is not None
    assert every.energy_j.low < every.energy_j.value < every.energy_j.high
    assert every.power_share_trained == pytest.approx(1.0)
    assert all(row.energy_j is not None for row in every.rows)


def test_power_alone_is_trained_of_rows_whose_times_others_tell() -> None:
    about = {"schema": 1, "device": "known", "hardware": HARDWARE}
    metered = Dataset(Path("known"), about, {"linear": table("linear", layers=rows("linear", 80, 0))})
    power = train_power(metered, jobs=1)
    assert power.keys() == (train(metered, "lasso", jobs=1).predictor.power or {}).keys()


def test_a_quantity_has_three_digits_before_its_prefix_as_far_as_prefixes_go() -> None:
    assert [quantity(v, "FLOP") for v in (0, 1.5e-6, 12, 999.6e12, 3.672e20)] == [
        "0 FLOP",
        "1.5 uFLOP",
        "12 FLOP",
        "1 PFLOP",
        "367 EFLOP",
    ]


def test_a_rate_has_three_digits_or_all_before_its_point() -> None:
    assert [plain(v) for v in (0.06716, 96.84, 999.4, 999.5, 1083.3, 1.2e6)] == [
        *("0.0672", "96.8", "999", "1000", "1083", "1200000")
    ]
    assert [plain(v, 4) for v in (140.31, 12_886.6)] == ["140.3", "12887"]
