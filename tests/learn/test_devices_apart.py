"""Predictors of accelerators: terms at the device's peaks, for several devices, and for one never seen."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from neuralpower.data.dataset import Dataset
from neuralpower.data.screening import screen
from neuralpower.devices.spec import find_spec
from neuralpower.errors import DatasetError, InputError, PredictorError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import typed
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.layers.norm import Norm
from neuralpower.layers.rows import from_row, to_row
from neuralpower.layers.softmax import Softmax
from neuralpower.learn.estimates import BYTES, IN_RANGE, MEASURED
from neuralpower.learn.files.predictor_json import save
from neuralpower.learn.files.predictor_lookup import load, on
from neuralpower.learn.fitting.problem import describe, describe_power
from neuralpower.learn.fitting.slopes import Alignment
from neuralpower.learn.notes import assumed, foreign, formula
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.rows import hardware_from
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.platforms import CPU, hardware_to_json, platform_of
from neuralpower.prediction.compose import compose
from neuralpower.prediction.explore.score import score
from neuralpower.prediction.prediction import joined
from neuralpower.report.cards import predictor_card
from neuralpower.report.tables import prediction_table
from neuralpower.trace.tracer import trace

PEAKS = {"small": (4e12, 2e11, 20), "middle": (1e13, 6e11, 60), "large": (2e13, 1.2e12, 100)}
UNSEEN = (3e13, 2e12, 120)


def meta(name: str) -> dict[str, object]:
    flops, memory, cores = PEAKS[name]
    hardware = {
        "accelerator": True,
        "cores": cores,
        "peak_flops_per_s": {"float32": flops},
        "memory_bytes_per_s": memory,
    }
    return {"schema": 1, "device": name, "hardware": hardware}


def seconds(layer: Layer, peaks: tuple[float, float, int]) -> float:
    """8 us a call, then 80 % of the peak FLOP/s and 70 % of the bandwidth, one after the other."""
    return 8e-6 + layer.flops() / (0.8 * peaks[0]) + sum(layer.bytes()) / (0.7 * peaks[1])


def layers(kind: str, count: int, seed: int = 0) -> list[Layer]:
    return list(draw(KINDS[kind], count, seed, PRESETS["standard"]))


def dataset(name: str, kinds: tuple[str, ...] = ("linear", "softmax"), count: int = 120) -> Dataset:
    rows = {
        kind: [{**to_row(la), "runtime_s": seconds(la, PEAKS[name])} for la in layers(kind, count)]
        for kind in kinds
    }
    return Dataset(Path(name), meta(name), {kind: pd.DataFrame(some) for kind, some in rows.items()})


@pytest.fixture(scope="module")
def portable() -> Predictor:
    learnt = train([dataset(name) for name in PEAKS], jobs=1).predictor
    return dataclasses.replace(learnt, name="several")


def unseen() -> Hardware:
    flops, memory, cores = UNSEEN
    return Hardware(
        platform="accelerator",
        cores=cores,
        peak_flops_per_s={"float32": flops},
        memory_bytes_per_s=memory,
        l2_bytes=2**20,
    )


def test_a_device_never_seen_is_predicted_from_its_peaks(portable: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "several.json"
    save(portable, file)
    for predictor in (portable, load(file)):
        there = predictor.on(unseen(), "unseen")
        assert there.device == "unseen"
        for kind in ("linear", "softmax"):
            asked = layers(kind, 40, seed=9)
            measured = [seconds(layer, UNSEEN) for layer in asked]
            assert np.median(np.abs(there.estimate(asked).runtime_s / measured - 1)) < 0.08
        # these very layers were measured, but on other devices
        assert "measured" not in there.estimate(layers("linear", 40)).basis


def test_a_dtype_that_the_device_has_no_peak_of_is_refused(portable: Predictor) -> None:
    both = {("linear", "bfloat16", "forward", "matrix"): next(iter(portable.regressors.values()))}
    there = dataclasses.replace(portable, regressors={**portable.regressors, **both}).on(unseen(), "unseen")
    there.check("float32", "forward")
    said = "unseen has no bfloat16: it would run as float32; choose float32"
    with pytest.raises(PredictorError, match=said):
        there.check("bfloat16", "forward")
    bad, good = score(
        [{"model": "zoo:deep_mnist", "dtype": dtype} for dtype in ("bfloat16", "float32")], there
    )
    assert said in str(bad.error)
    assert not good.error
    with pytest.raises(PredictorError, match="say which"):
        score([{"model": "zoo:deep_mnist"}], portable)


def test_a_new_device_has_the_usual_level_and_the_usual_launch() -> None:
    # two of three run at 80 % of the peak and launch in 8 us; one is half as fast and its host takes 40 us
    level, launch_s = (
        {"small": 1.0, "middle": 1.0, "large": 2.0},
        {"small": 8e-6, "middle": 8e-6, "large": 40e-6},
    )

    def odd(name: str) -> Dataset:
        rows = [
            {**to_row(la), "runtime_s": launch_s[name] + level[name] * (seconds(la, PEAKS[name]) - 8e-6)}
            for la in layers("linear", 200)
        ]
        return Dataset(Path(name), meta(name), {"linear": pd.DataFrame(rows)})

    there = train([odd(name) for name in PEAKS], jobs=1).predictor.on(unseen(), "unseen")
    asked = layers("linear", 60, seed=9)
    measured = np.array([seconds(layer, UNSEEN) for layer in asked])
    found = there.estimate(asked)
    assert np.median(np.abs(found.runtime_s / measured - 1)) < 0.08
    # its bounds cover a device as unusual as the most unusual one of the training data
    assert np.mean(found.high_s >= 2 * (measured - 8e-6)) > 0.8


@pytest.mark.parametrize(("dtype", "like"), [("bfloat16", "middle"), ("float32", "small")])
def test_a_new_device_has_the_level_of_those_with_tensor_cores_as_wide(dtype: str, like: str) -> None:
    # FLOP/s, B/s, cores: those of "middle" do twice as much in a cycle, and reach twice the share of that.
    # A width in float32 names no generation: there the new device is as the most are
    peaks = {"small": (4e12, 2e11, 20), "middle": (2.4e13, 6e11, 60), "large": (2e13, 1e12, 100)}
    new = (4.8e13, 1.2e12, 120)

    def taken(layer: Layer, name: str, of: tuple[float, float, int]) -> float:
        return 8e-6 + (1 if name == "middle" else 2) * (seconds(layer, of) - 8e-6)

    def typed_layers(count: int, seed: int = 0) -> list[Layer]:
        return [dataclasses.replace(layer, dtype=dtype) for layer in layers("linear", count, seed)]

    def odd(name: str) -> Dataset:
        flops, memory, cores = peaks[name]
        hardware = {"cores": cores, "peak_flops_per_s": {dtype: flops}, "memory_bytes_per_s": memory}
        rows = [{**to_row(la), "runtime_s": taken(la, name, peaks[name])} for la in typed_layers(200)]
        about = {**meta(name), "hardware": {"accelerator": True, **hardware}}
        return Dataset(Path(name), about, {"linear": pd.DataFrame(rows)})

    learnt = train([odd(name) for name in peaks], jobs=1).predictor
    asked = typed_layers(60, seed=9)
    alike = dataclasses.replace(
        unseen(), cores=new[2], peak_flops_per_s={dtype: new[0]}, memory_bytes_per_s=new[1]
    )
    found = learnt.on(alike, "unseen").estimate(asked).runtime_s
    assert np.median(np.abs(found / [taken(la, like, new) for la in asked] - 1)) < 0.15
    # a device of the training data keeps its own level, though most are slower
    found = learnt.on(hardware_from(odd("middle").meta), "middle").estimate(asked).runtime_s
    assert np.median(np.abs(found / [taken(la, "middle", peaks["middle"]) for la in asked] - 1)) < 0.1


def test_a_host_launches_as_fast_at_any_clock_of_the_device() -> None:
    # rows that include a launch, by chance as many cycles of each of three devices
    def launched(name: str, clock_hz: float) -> Dataset:
        told = dataset(name, ("linear",), 100)
        rows = told.tables["linear"]
        about = {**told.meta, "hardware": {**told.meta["hardware"], "clock_hz": clock_hz}}
        with_launch = rows.assign(runtime_s=rows.runtime_s + 40e3 / clock_hz)
        return Dataset(told.path, {**about, "includes_launch": True}, {"linear": with_launch})

    clocks = {"small": 1e9, "middle": 1.33e9, "large": 2e9}
    learnt = train([launched(*one) for one in clocks.items()], jobs=1).predictor
    shortest = [Linear(rows=1, in_features=8, out_features=8, bias=False)]
    slow, fast = (
        learnt.on(dataclasses.replace(unseen(), clock_hz=clock), "unseen").estimate(shortest).runtime_s[0]
        for clock in (1e9, 4e9)
    )
    assert fast == pytest.approx(slow, rel=0.01)


def test_a_board_of_little_power_does_not_sustain_its_peak() -> None:
    # 18 pJ per FLOP in 2016, halved every 3 years: 2^(-2/3) = 0.630, 11.34 pJ in 2018; (70 W - 15 W) / that =
    # 4.85e12. Tensor cores of 6.5e13 / (40 x 1.59e9) = 1,022 FLOP a cycle take 1.5 pJ x 2^(4/5) = 2.61 pJ
    peaks = {"float32": 8.1e12, "float16": 6.5e13}
    board = Hardware(
        peak_flops_per_s=peaks, limit_w=70, year=2018, base_clock=0.37, cores=40, clock_hz=1.59e9
    )
    sustained = board.sustained()
    held = {"float32": pytest.approx(4.850e12, rel=1e-3), "float16": pytest.approx(2.68e13, rel=1e-3)}
    assert sustained.peak_flops_per_s == held
    assert sustained.base_clock == 1
    assert board.held_by_power
    assert not dataclasses.replace(board, limit_w=250).held_by_power
    assert dataclasses.replace(board, limit_w=250).sustained().peak_flops_per_s == peaks
    for unknown in (dataclasses.replace(board, limit_w=None), dataclasses.replace(board, year=None)):
        assert unknown.sustained().peak_flops_per_s == peaks
        assert not unknown.held_by_power


def test_schedulers_with_a_lane_for_every_thread_leave_none_for_loads() -> None:
    # 32 lanes take an instruction of 32 threads per clock: of nine, eight are multiply-adds. 16 lanes take
    # one in two clocks
    peaks = {"float32": 9e12, "float16": 1e14}
    wide, narrow, unknown = (
        Hardware(peak_flops_per_s=peaks, lanes_per_scheduler=lanes) for lanes in (32, 16, None)
    )
    assert wide.sustained().peak_flops_per_s == {"float32": pytest.approx(8e12), "float16": 1e14}
    assert narrow.sustained().peak_flops_per_s == unknown.sustained().peak_flops_per_s == peaks
    assert [find_spec(name).hardware().lanes_per_scheduler for name in ("nvidia-p4", "nvidia-t4")] == [32, 16]
    assert find_spec("amd-instinct-mi100").hardware().lanes_per_scheduler is None


def test_the_level_of_a_board_that_power_holds_is_its_own() -> None:
    # of three, two hold 1e12 FLOP/s or less: 30 W - 15 W at 18 pJ allow 8.3e11. They run at half of that,
    # being hot
    def hot(name: str) -> Dataset:
        told = dataset(name, ("linear",), 200)
        rows = told.tables["linear"]
        if name != "large":
            held = {"limit_w": 30.0, "year": 2016}
            hardware: dict[str, object] = {**told.meta["hardware"], **held}
            peaks = (15 / 18e-12, *PEAKS[name][1:])
            slow = [
                2 * (seconds(from_row(KINDS["linear"], row), peaks) - 8e-6) for row in rows.to_dict("records")
            ]
            return Dataset(
                told.path, {**told.meta, "hardware": hardware}, {"linear": rows.assign(runtime_s=slow)}
            )
        return told

    there = train([hot(name) for name in PEAKS], jobs=1).predictor.on(unseen(), "unseen")
    asked = [layer for layer in layers("linear", 200, seed=9) if layer.flops() > 1e9]
    measured = np.array([seconds(layer, UNSEEN) for layer in asked])
    assert np.median(there.estimate(asked).runtime_s / measured) == pytest.approx(1, abs=0.15)


def test_products_with_a_very_long_inner_side_are_not_pooled() -> None:
    # ten times as slow there: nothing that a new device, or a shorter product, needs to know
    def odd(name: str) -> Dataset:
        told = dataset(name)
        rows = [
            Linear(rows=64 * i, in_features=16384, out_features=512, bias=True, transposed=True)
            for i in range(1, 60)
        ]
        slow = [{**to_row(row), "runtime_s": 10 * seconds(row, PEAKS[name])} for row in rows]
        linear = pd.concat([told.tables["linear"], pd.DataFrame(slow)], ignore_index=True)
        return Dataset(told.path, told.meta, {"linear": linear})

    plain = [Dataset(one.path, one.meta, {"linear": one.tables["linear"]}) for one in map(dataset, PEAKS)]
    asked = layers("linear", 40, seed=9)
    found = [
        train(some, jobs=1).predictor.on(unseen(), "unseen").estimate(asked)
        for some in (plain, list(map(odd, PEAKS)))
    ]
    assert np.allclose(found[0].runtime_s, found[1].runtime_s, rtol=1e-12)


def test_passes_over_memory_are_pooled_without_their_flop() -> None:
    gpu = Hardware(platform="accelerator", peak_flops_per_s={"float32": 1e12}, memory_bytes_per_s=1e11)
    for kind, counted in (("linear", True), ("softmax", False), ("elementwise", False)):
        rows = columns_of(KINDS[kind], layers(kind, 3))
        assert ("flops" in describe(rows, gpu, platform_of(gpu).pooled).special) is counted
        assert "flops" in describe(rows, gpu).special


def test_a_faster_memory_reaches_more_of_what_its_sheet_says() -> None:
    # 2 TB/s against 1 TB/s: twice as much, times 2^0.06 = 1.0425
    slow, fast = (Hardware(memory_bytes_per_s=speed).sustained().memory_bytes_per_s for speed in (1e12, 2e12))
    assert slow == 1e12
    assert fast == pytest.approx(2e12 * 1.0425, rel=1e-4)


def test_rows_that_outgrow_the_cache_are_read_from_memory_again() -> None:
    # a norm: 10 cores x 16 rows x 1,024 x 4 B = 640 KiB in flight. Of 1,280 KiB that is half: all that is
    # read again beyond a quarter is from memory, none of what is from a half on; of 10 MiB a sixteenth:
    # nothing is
    norm = Norm(function="layer", rows=1000, width=1024)
    small, large = (
        norm.views.pooled.terms(norm, Hardware(cores=10, l2_bytes=size, memory_bytes_per_s=1e9))
        for size in (1280 * 1024, 10 * 2**20)
    )
    seconds = 4 * 1000 * 1024 / 1e9
    again = [name for name in small if name.startswith("rows_again")]
    assert [small[name] for name in again] == pytest.approx([seconds, seconds, 0, 0])
    assert {large[name] for name in again} == {0}
    # a softmax of 2,048: 8,192 elements x 4 B x 10 cores = 320 KiB, a quarter of 1,280 KiB, half way from 1/8
    # to 1/2
    wide = Softmax.views.pooled.terms(
        Softmax(rows=1000, width=2048), Hardware(cores=10, l2_bytes=1280 * 1024, memory_bytes_per_s=1e9)
    )
    assert wide["long_rows_again"] == pytest.approx(4 * 1000 * 2048 / 1e9 / 2)
    assert (
        Softmax.views.pooled.terms(Softmax(rows=1000, width=1024), Hardware())["long_rows_again"] == 0
    )  # a warp holds such a row


def test_a_kind_that_was_not_trained_takes_an_element_wise_pass_on_an_accelerator() -> None:
    there = train(dataset("small", kinds=("elementwise",)), "lasso", jobs=1).predictor
    copy = Movement(function="copy", elements=10**6)
    twice = Elementwise(function="add", elements=10**6, operands=1, broadcast=False)
    found = there.estimate([copy, twice])
    assert found.basis[0] == BYTES
    assert found.runtime_s[0] == pytest.approx(found.runtime_s[1])
    assert found.hidden_s[0] == found.hidden_s[1]


def test_a_third_of_the_shortest_call_is_not_hidden_by_a_queue() -> None:
    told = dataset("small", ("softmax",))
    told = Dataset(told.path, {**told.meta, "includes_launch": True}, told.tables)
    predictor = train(told, learner="lasso", jobs=1).predictor
    regressor = predictor.regressors["softmax", "any", "forward", "long"]
    assert regressor.launch_s == pytest.approx(8e-6, rel=0.1)
    found = predictor.estimate([from_row(KINDS["softmax"], {"rows": 4096, "width": 4096})])
    assert found.hidden_s[0] == pytest.approx(2 / 3 * regressor.launch_s)


def test_a_predictor_of_several_devices_asks_for_which(portable: Predictor) -> None:
    assert portable.view.pooled
    with pytest.raises(PredictorError, match="serves several devices .*several@small"):
        portable.check("float32", "forward")
    with pytest.raises(PredictorError, match="blind: its spec sheet has no peak for float32"):
        portable.on(Hardware(platform="accelerator"), "blind")
    alone = train(dataset("small", ("softmax",)), "lasso", jobs=1).predictor
    with pytest.raises(PredictorError, match="was trained on one device"):
        alone.on(unseen(), "unseen")


def test_a_predictor_of_several_devices_is_named_with_the_device(portable: Predictor, tmp_path: Path) -> None:
    save(portable, tmp_path / "both.json")
    given = load(f"{tmp_path / 'both.json'}@nvidia-l4")
    assert (given.name, given.device, given.platform.name) == ("both@nvidia-l4", "NVIDIA L4", "nvidia")
    assert given.hardware == find_spec("nvidia-l4").hardware()
    known = load(f"{tmp_path / 'both.json'}@middle")  # it was trained there, and no sheet has that name
    assert (known.name, known.device, known.hardware) == (
        "both@middle",
        "middle",
        hardware_from(meta("middle")),
    )
    mine = {"CPU @ 2.60GHz": hardware_to_json(unseen())}
    save(dataclasses.replace(portable, dataset={**portable.dataset, "devices": mine}), tmp_path / "mine.json")
    assert load(f"{tmp_path / 'mine.json'}@CPU @ 2.60GHz").device == "CPU @ 2.60GHz"
    with pytest.raises(InputError, match="unknown device 'nvidia-l5'"):
        load(f"{tmp_path / 'both.json'}@nvidia-l5")
    with pytest.raises(
        PredictorError, match="EPYC 7763.*: is a CPU, predictor 'both' was trained on accelerators"
    ):
        load(f"{tmp_path / 'both.json'}@amd-epyc-7763")


def test_of_whole_networks_a_predictor_of_several_devices_learns_nothing_and_says_so() -> None:
    networks = pd.DataFrame([{"model": "zoo:absent", "batch": 1, "runtime_s": 1.0}] * 3)
    first, second = (dataset(name, ("softmax",), 40) for name in ("small", "large"))
    found = train([dataclasses.replace(first, tables={**first.tables, "network": networks}), second], jobs=1)
    assert found.doubts == (
        "small: network: 3 rows not used: a predictor of several devices trains on layers only",
    )
    assert (found.predictor.dataset["networks"], found.rejected) == (0, ())


def test_cpus_and_accelerators_are_not_pooled() -> None:
    small = dataset("small")
    hardware = {**small.meta["hardware"], "accelerator": False}
    cpu = Dataset(small.path, {**small.meta, "device": "a CPU", "hardware": hardware}, small.tables)
    with pytest.raises(DatasetError, match="small, a CPU: accelerators and CPUs cannot be pooled"):
        train([small, cpu], jobs=1)


def test_devices_whose_peaks_are_not_known_cannot_be_pooled() -> None:
    blind = dataset("small")
    nameless = Dataset(blind.path, {"schema": 1, "device": "blind"}, blind.tables)
    with pytest.raises(DatasetError, match="those of 'blind' are not known; add peak_flops_per_s"):
        train([nameless, dataset("large")], jobs=1)


def test_what_a_dataset_does_not_say_comes_from_the_spec_sheet() -> None:
    given = hardware_from({"device": "nvidia-t4", "hardware": {"cores": 39}})
    sheet = find_spec("nvidia-t4")
    assert given.cores == 39
    assert given.memory_bytes_per_s == sheet.get("memory_bytes_per_s")
    assert given.platform == "nvidia"
    assert hardware_from({"device": "a toaster"}).platform == "cpu"


@pytest.mark.parametrize("kind", ["linear", "matmul", "softmax", "norm"])
def test_terms_of_an_accelerator_are_seconds_at_its_peaks(kind: str) -> None:
    (layer,) = layers(kind, 1)
    slow, fast = (
        Hardware(platform="accelerator", peak_flops_per_s={"float32": f}, memory_bytes_per_s=1e12)
        for f in (1e12, 2e12)
    )
    terms, twice = layer.views.kernels.terms(layer, slow), layer.views.kernels.terms(layer, fast)
    assert terms["flops"] == pytest.approx(layer.flops() / 1e12)
    assert terms["flops"] == pytest.approx(2 * twice["flops"])
    assert terms["bytes"] == twice["bytes"] == pytest.approx(sum(layer.bytes()) / 1e12)


# ---- rows that begin where memory is read ----


def product(aligned: tuple[float, ...], **filled: tuple[float, ...]) -> dict[str, float]:
    """Shares by name: of rows and columns that begin at 32 and 128 B, of tiles of 64, 128 and 256."""
    names = [f"{side}_bytes_at_{unit}" for side in ("inner", "column") for unit in (32, 128)]
    fill = {
        f"{side}_fill_{tile}": v
        for side, share in filled.items()
        for tile, v in zip((64, 128, 256), share, strict=True)
    }
    return dict(zip(names, aligned, strict=True)) | fill


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        # rows of 12 * 4 = 48 B begin at every second sector of 32 B and at every eighth line of 128 B; of 64
        # * 4 at all. 100 rows fill more than half of the last 64 and of the last 128, and fit into half of
        # 256, of which nothing is known
        (
            Linear(rows=100, in_features=12, out_features=64, bias=False),
            product((0.5, 0.125, 1, 1), rows=(1, 1, 0.5), columns=(1, 0.5, 0.5)),
        ),
        # 129 rows: one in the last 64, 128, 256
        (
            Linear(rows=129, in_features=12, out_features=64, bias=False),
            product((0.5, 0.125, 1, 1), rows=(0, 0, 1), columns=(1, 0.5, 0.5)),
        ),
        # of tensor cores' kernels nothing is known
        (
            Linear(dtype="bfloat16", rows=100, in_features=12, out_features=64, bias=False),
            product((0, 0, 0, 0), rows=(0, 0, 0), columns=(0, 0, 0)),
        ),
        # 4 B and 132 B
        (
            Matmul(batch=3, rows=7, inner=1, columns=33),
            product((0.125, 0.03125, 0.125, 0.03125), rows=(0.5, 0.5, 0.5), columns=(1, 0.5, 0.5)),
        ),
        (Softmax(rows=4, width=1000), {"short_row_bytes_at_32": 1, "short_row_bytes_at_128": 0.25}),
        (
            Softmax(rows=4, width=1032),
            {"short_row_bytes_at_32": 0, "short_row_bytes_at_128": 0},
        ),  # no warp holds it
        (Norm(function="layer", rows=4, width=192), {"row_elements_at_128": 0.5}),
        (
            Softmax(rows=4, width=1000, strided=True),
            {"short_row_bytes_at_32": 0, "short_row_bytes_at_128": 0},
        ),
        (Norm(function="layer", rows=4, width=192, strided=True), {"row_elements_at_128": 0}),
        (Norm(function="batch", rows=4, width=192, spatial=49), {"row_elements_at_128": 0}),
        (Elementwise(function="add", elements=64, operands=2, broadcast=False), {}),
    ],
)
def test_the_share_of_rows_that_begin_aligned(layer: Layer, expected: dict[str, float]) -> None:
    assert layer.views.kernels.alignment(layer) == pytest.approx(expected)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_shares_of_a_table_are_those_of_its_layers_and_no_terms(kind: str) -> None:
    gpu = Hardware(
        platform="accelerator",
        cores=4,
        l2_bytes=2**20,
        memory_bytes_per_s=1e9,
        peak_flops_per_s={"float32": 1e12},
    )
    drawn = [typed(la, dtype) for la in layers(kind, 30) for dtype in ("float32", "bfloat16")]
    table = columns_of(KINDS[kind], drawn)
    kernels = table.views.kernels
    shares = {name: np.broadcast_to(column, len(drawn)) for name, column in kernels.alignment(table).items()}
    for i, layer in enumerate(drawn):
        assert kernels.alignment(layer) == pytest.approx({name: column[i] for name, column in shares.items()})
    assert all(0 <= column.min() <= column.max() <= 1 for column in shares.values())
    assert not set(shares) & {*kernels.terms(table, gpu), *kernels.own_terms(table, gpu), *table.dimensions}


def test_alignment_is_asked_of_one_accelerator_and_of_time_alone() -> None:
    gpu = Hardware(
        platform="accelerator", cores=4, memory_bytes_per_s=1e9, peak_flops_per_s={"float32": 1e12}
    )
    rows = columns_of(Linear, [Linear(rows=8, in_features=16, out_features=8, bias=False)])
    described = describe(rows, gpu)
    assert described.shares == tuple(rows.views.kernels.alignment(rows))
    assert not set(described.shares) & {term.special for term in described.special_terms()}
    for other in (
        describe(rows, gpu, platform_of(gpu).pooled),
        describe(rows, dataclasses.replace(gpu, platform="cpu")),
        describe_power(rows, gpu, np.array([1e-3])),
    ):
        assert other.shares == ()
        assert not set(described.shares) & set(other.special)


def test_a_predictor_of_one_accelerator_knows_what_alignment_saves(tmp_path: Path) -> None:
    # every product takes a fifth less where its inner side is a multiple of 8
    def took(layer: Layer) -> float:
        assert isinstance(layer, Linear)
        return 8e-6 + (seconds(layer, PEAKS["small"]) - 8e-6) * (0.8 if layer.in_features % 8 == 0 else 1.0)

    drawn = [layer for layer in layers("linear", 200) if isinstance(layer, Linear)]
    asked = [
        dataclasses.replace(layer, in_features=layer.in_features + i % 8) for i, layer in enumerate(drawn)
    ]
    table = pd.DataFrame([{**to_row(layer), "runtime_s": took(layer)} for layer in asked])
    learnt = train([Dataset(tmp_path, meta("small"), {"linear": table})], jobs=1, learner="lasso").predictor
    save(learnt, tmp_path / "small.json")
    for predictor in (learnt, load(tmp_path / "small.json")):
        # far larger than any row of the sweep
        even = Linear(rows=65536, in_features=12288, out_features=12288, bias=False)
        odd = dataclasses.replace(even, in_features=12287)
        ratio = predictor.estimate([even]).runtime_s[0] / predictor.estimate([odd]).runtime_s[0]
        assert ratio == pytest.approx(0.8, abs=0.06)


def test_a_share_that_no_longer_is_described_is_refused() -> None:
    learnt = train([dataset("small", ("linear",))], jobs=1, learner="lasso").predictor
    key = ("linear", "float32", "forward", "matrix")
    renamed = dataclasses.replace(learnt.regressors[key], alignment=Alignment({"gone": 0.1}, 1e-6))
    old = dataclasses.replace(learnt, regressors={**learnt.regressors, key: renamed})
    with pytest.raises(PredictorError, match=r"described linear otherwise \(gone\)"):
        old.estimate(layers("linear", 3))


def test_formula_and_card_say_what_alignment_saves() -> None:
    learnt = train([dataset("small", ("linear",))], jobs=1, learner="lasso").predictor
    key = ("linear", "float32", "forward", "matrix")
    regressors = {name: dataclasses.replace(r, alignment=None) for name, r in learnt.regressors.items()}
    without = dataclasses.replace(learnt, regressors=regressors)
    assert "exp" not in formula(without, key)
    assert "Saved" not in predictor_card(without)
    aligned = dataclasses.replace(regressors[key], alignment=Alignment({"inner_bytes_at_32": 0.1}, 1e-5))
    some = dataclasses.replace(learnt, regressors={**regressors, key: aligned})
    assert formula(some, key).endswith(", times exp(-(1 - (1e-05 / seconds)^4) (0.1 inner_bytes_at_32))")
    saved = predictor_card(some).split("## Saved where sizes fit")[1]
    assert saved.splitlines()[-1] == "| `linear` | matrix | float32 | forward | inner_bytes_at_32 10.0% |"


# ---- rows that no device can have produced ----


def test_tiles_of_an_8_bit_product_count_from_where_they_outlast_a_launch() -> None:
    gpu = Hardware(
        platform="accelerator",
        cores=4,
        memory_bytes_per_s=1e9,
        peak_flops_per_s={"float8_e4m3fn": 1e12, "bfloat16": 1e12},
    )
    # 2 x 1024 x 512 in tiles of 64 x 64: 8 tiles, 2 waves; 2 * 4 cores * 64 * 64 * 2 * 1024 FLOP at 1e12/s
    # take 67.1 us. Bytes: 2 * 1024 + 1024 * 512 + 2 * 512 at 1 B take 527.4 us, which is more; written as 8
    # bits first, 4 * 2 * 1024 B more: 8.2 us. Beyond a launch of 80 us: 527.4 + 8.2 - 80 = 455.6 us
    few = Linear(dtype="float8_e4m3fn", rows=2, in_features=1024, out_features=512, bias=False)
    assert few.views.kernels.own_terms(few, gpu)["tiles_64x64_beyond_80_us"] == pytest.approx(455.552e-6)
    # neither one row, which has no tiles, nor products of one call
    one, wide = dataclasses.replace(few, rows=1), dataclasses.replace(few, dtype="bfloat16")
    for layer in (one, wide):
        assert layer.views.kernels.own_terms(layer, gpu)["tiles_64x64_beyond_80_us"] == 0


def test_bytes_of_a_softmax_that_fill_the_cache_are_terms_of_their_own() -> None:
    gpu = Hardware(platform="accelerator", cores=10, l2_bytes=2**20, memory_bytes_per_s=2**20)
    # 256 rows * 512 wide * 4 B in and as many out: 1 MB, which is one cache and takes 1 s
    short = Softmax(rows=256, width=512)
    # 1024 * 2048 * 4 B in and out: 16 MB; of that count 1, 2 and 4 caches, 1 s each
    large = Softmax(rows=1024, width=2048)
    expected = [
        {
            f"bytes_up_to_{step}_l2_beyond_{us}_us": held - us * 1e-6
            for step, held in zip((1, 2, 4), filled, strict=True)
            for us in (5, 10)
        }
        for filled in ((1, 1, 1), (1, 2, 4))
    ]
    table = Softmax.views.kernels.own_terms(columns_of(Softmax, [short, large]), gpu)
    for i, layer in enumerate((short, large)):
        assert layer.views.kernels.own_terms(layer, gpu) == pytest.approx(expected[i])
        assert {name: column[i] for name, column in table.items()} == pytest.approx(expected[i])


def test_a_softmax_whose_rows_no_warp_holds_is_another_kernel_on_a_gpu_alone() -> None:
    table = columns_of(Softmax, [Softmax(rows=8, width=width) for width in (1, 1024, 1025, 50257)])
    assert list(table.views.kernels.group(table)) == ["short", "short", "long", "long"]
    assert table.views.cpu.group(table) == table.views.pooled.group(table) == "all"
    assert [view.group(table) for view in (CPU.alone, CPU.pooled)] == ["all", "all"]
    # 8 rows * (1025, 50257) * 4 B in and out, at 1 kB/s
    gpu = Hardware(platform="accelerator", cores=1, l2_bytes=10**5, memory_bytes_per_s=1000.0)
    together = table.views.pooled.terms(table, gpu)
    np.testing.assert_allclose(together["bytes_long_rows"], [0, 0, 65.6, 3216.448])
    np.testing.assert_allclose(together["bytes_long_rows_past_l2"], [0, 0, 0, 3116.448])


def test_a_group_that_was_not_trained_is_taken_as_its_neighbour_and_says_so() -> None:
    told = dataset("small", ("softmax",), count=300)
    short = told.tables["softmax"][told.tables["softmax"].width <= 1024]
    learnt = train(Dataset(told.path, told.meta, {"softmax": short}), "lasso", jobs=1).predictor
    assert [key[3] for key in learnt.regressors] == ["short"]
    known, other = Softmax(rows=512, width=1024), Softmax(rows=512, width=1025)
    found = learnt.estimate([known, other])
    assert found.runtime_s[1] == pytest.approx(found.runtime_s[0], rel=0.1)
    assert found.basis[1] == "borrowed"
    assert found.high_s[0] / found.runtime_s[0] < 1.2
    assert 3 < found.high_s[1] / found.runtime_s[1] < 3.5
    assert 3 < found.runtime_s[1] / found.low_s[1] < 3.5
    assert assumed(learnt, [known]) == ()
    assert assumed(learnt, [known, other, other]) == (
        "softmax long (float32, forward) was not measured: time borrowed from softmax short (forward), "
        "within a factor of 3",
    )


def test_what_is_not_known_of_a_devices_power_is_said(portable: Predictor) -> None:
    product, pass_ = Linear(rows=8, in_features=16, out_features=8, bias=False), Softmax(rows=8, width=16)
    there = portable.on(unseen(), "unseen")
    assert assumed(there, [pass_]) == ()
    (said,) = assumed(there, [product])
    assert said.startswith("unseen states no limit_w and no year: matrix products are assumed to reach")
    whole = dataclasses.replace(unseen(), limit_w=70.0, year=2018)
    assert assumed(portable.on(whole, "unseen"), [product]) == ()
    (said,) = assumed(portable.on(dataclasses.replace(whole, year=None), "unseen"), [product])
    assert said.startswith("unseen states no year:")


@pytest.mark.parametrize(
    ("name", "bytes_per_s", "cached"), [("h200-sxm-141gb", 4.8e12, 60e6), ("h100-sxm5-80gb", 3.35e12, 50e6)]
)
def test_no_product_of_a_measured_device_is_faster_than_its_memory(
    name: str, bytes_per_s: float, cached: float
) -> None:
    experts = Matmul(dtype="bfloat16", batch=8, rows=2, inner=4096, columns=28672)  # 1.9 GB of weights
    found = load(f"nvidia-{name}").estimate([experts])
    least_s = (2 * 8 * 4096 * 28672 - 1.2 * cached) / bytes_per_s
    assert min(found.runtime_s[0], found.low_s[0]) >= least_s


def test_no_call_is_faster_than_memory_gives_its_weights() -> None:
    learnt, _ = on(load("nvidia-float32"), "nvidia-l40s")  # 864 GB/s
    step = Linear(rows=1, in_features=4096, out_features=14336, bias=False)
    found = learnt.estimate([step])
    least_s = 4 * 4096 * 14336 / (0.9 * 864e9)
    assert found.runtime_s[0] == pytest.approx(least_s)
    assert found.low_s[0] == pytest.approx(least_s)
    assert found.high_s[0] > least_s


def test_bounds_that_know_nothing_of_a_vendor_are_said_to(portable: Predictor) -> None:
    learnt = load("nvidia-float32")
    said = "no device by AMD was measured; bounds may be too narrow"
    assert foreign(on(learnt, "amd-instinct-mi300x")[0]) == (said,)
    assert foreign(on(learnt, "nvidia-l4")[0]) == ()
    assert (
        foreign(on(portable, "amd-instinct-mi300x")[0]) == ()
    )  # the maker of its training devices is unknown


def test_rows_hold_the_devices_time_and_launches_are_a_row_that_completes_the_sum() -> None:
    told = dataset("small")
    with_launch = Dataset(told.path, {**told.meta, "includes_launch": True}, told.tables)
    hides, does_not = (train(data, "lasso", jobs=1).predictor for data in (with_launch, told))
    passes, nothing = nn.Sequential(*(nn.Softmax(-1) for _ in range(30))), nn.Identity()
    for predictor, model, notes in ((hides, passes, 1), (does_not, passes, 0), (hides, nothing, 0)):
        traced = trace(model, (torch.empty(16, 64),))
        one = compose(traced, predictor, model="passes", batch_size=16)
        assert bool(one.launch_row) == bool(notes)
        apart = predictor.estimate([row.layer for row in one.rows if row.layer is not None])
        calls = [row.count for row in one.rows]
        device_s, hidden_s = calls @ (apart.runtime_s - apart.hidden_s), calls @ apart.hidden_s
        assert sum(row.runtime_s for row in one.rows) == pytest.approx(device_s)
        assert sum(row.runtime_s for row in one.with_launches) == pytest.approx(max(device_s, hidden_s))
        # of two passes together one row, of both
        twice = dataclasses.replace(
            one.runtime_s, **{b: 2 * getattr(one.runtime_s, b) for b in ("value", "low", "high")}
        )
        both = joined(one, [one], twice, None)
        for view in (both.by_kind(), both.by_module(1), both.with_launches):
            assert sum(row.runtime_s for row in view) == pytest.approx(2 * one.runtime_s.value)
            assert sum(row.share for row in view) == pytest.approx(1.0 if one.rows else 0.0)
        shown = prediction_table(both, "kind", 3, 15).splitlines()
        assert sum(line.startswith("launch overhead ") for line in shown) == notes


def test_several_devices_say_together_what_a_softmax_takes(portable: Predictor) -> None:
    assert {key[3] for key in portable.regressors if key[0] == "softmax"} == {"all"}
    there = portable.on(hardware_from(meta("small")), "small")
    found = there.estimate([Softmax(rows=64, width=width) for width in (512, 2048)])
    assert len(set(found.regressor)) == 1
    assert set(found.basis) <= {MEASURED, IN_RANGE}


def test_what_a_launch_hides_of_a_softmax_costs_nothing_more() -> None:
    # 8 rows * 16 wide * 4 B in and out: 1 kB, at 1 GB/s about 1 us, less than any launch
    gpu = Hardware(platform="accelerator", cores=10, l2_bytes=2**20, memory_bytes_per_s=1e9)
    assert set(Softmax.views.kernels.own_terms(Softmax(rows=8, width=16), gpu).values()) == {0}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("runtime_s", 1e-7, "no kernel ran"),
        ("runtime_s", 1e-6, "faster than the device's peak"),
        ("power_w", -3.0, "power_w is not above 0"),
        ("energy_j", -0.5, "the counter wrapped or was read backwards"),
        ("power_w", 900.0, "more power than the device can draw"),
        ("energy_j", 50.0, "more energy than the device can draw in the time"),
    ],
)
def test_impossible_rows_are_left_out_with_their_lines(column: str, value: float, reason: str) -> None:
    hardware = Hardware(
        platform="accelerator", peak_flops_per_s={"float32": 1e13}, memory_bytes_per_s=1e12, limit_w=300
    )
    row = {"rows": 512, "in_features": 1024, "out_features": 1024, "bias": True, "runtime_s": 2e-3}
    table = pd.DataFrame(
        [{**row, "power_w": 200.0, "energy_j": 0.4}, {**row, "power_w": 200.0, "energy_j": 0.4}]
    )
    table.loc[1, "in_features"] = 1000
    table.loc[1, column] = value
    rows = screen("linear", table, None, hardware)
    assert len(rows) == 1
    assert rows.power_w[0] == 200
    assert [(bad.line, reason in bad.reason) for bad in rows.rejected] == [(3, True)]


def test_a_row_that_contradicts_its_neighbours_is_named_and_changes_nothing() -> None:
    clean = dataset("small", ("softmax",), 150)
    table = clean.tables["softmax"]
    corrupt = pd.concat(
        [table, table.iloc[[70]].assign(runtime_s=table.runtime_s.iloc[70] * 40)], ignore_index=True
    )
    trained = train(Dataset(clean.path, clean.meta, {"softmax": corrupt}), jobs=1)
    assert [(bad.line, bad.reason) for bad in trained.rejected] == [
        (152, "runtime_s contradicts its neighbours")
    ]
    asked = layers("softmax", 60, seed=4)
    reference = train(clean, jobs=1).predictor.estimate(asked).runtime_s
    assert np.allclose(trained.predictor.estimate(asked).runtime_s, reference, rtol=1e-9)


# ---- power ----


def test_power_is_trained_between_idle_and_limit_and_energy_follows() -> None:
    data = dataset("middle", ("linear",), 200)
    table = data.tables["linear"]
    busy = np.clip((table.runtime_s - 8e-6) / table.runtime_s, 0, 1)
    table = table.assign(runtime_s=table.runtime_s * 100, power_w=60 + 200 * busy)
    hardware = {**data.meta["hardware"], "limit_w": 300.0, "idle_w": 50.0}
    predictor = train(
        Dataset(data.path, {**data.meta, "hardware": hardware}, {"linear": table}), "lasso", jobs=1
    ).predictor
    asked = layers("linear", 60, seed=8)
    found = predictor.estimate(asked)
    whole = np.array([seconds(layer, PEAKS["middle"]) for layer in asked])
    expected = 60 + 200 * (whole - 8e-6) / whole
    long = whole * 100 > 1e-3
    assert np.median(np.abs(found.power_w[long] / expected[long] - 1)) < 0.05
    assert ((found.power_w >= 50) & (found.power_w <= 300)).all()
    assert (found.power_low_w <= found.power_w).all()
    assert (found.power_w <= found.power_high_w).all()
