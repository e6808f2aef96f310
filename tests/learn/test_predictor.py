"""A synthetic device closes the loop: what it costs is known, training has to find it."""

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from neuralpower.data.dataset import Dataset
from neuralpower.devices.host import Cpu
from neuralpower.errors import DatasetError, InputError, PredictorError
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.layers.base import FORWARD, GRADIENT
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.layers.rows import from_row, to_row
from neuralpower.learn.estimates import EXTRAPOLATED, HELD, IN_RANGE, ROOFLINE
from neuralpower.learn.files import predictor_files
from neuralpower.learn.files import predictor_lookup as predictors
from neuralpower.learn.files.predictor_files import read_predictor
from neuralpower.learn.files.predictor_json import save
from neuralpower.learn.notes import NOISY, assumed, foreign, formula
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import Trained, train
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.platforms import CPU
from neuralpower.platforms.accelerator import STEP_S
from neuralpower.prediction.compose import compose
from neuralpower.prediction.explore.outcomes import outcomes_of
from neuralpower.trace.records import LayerCall, Trace, UnmodelledCall
from neuralpower.trace.tracer import trace
from tests.layers.made import conv3x3

BOUNDED = replace(PRESETS["quick"], most_flops=1.5e9, most_bytes=1e8)  # whatever the preset measures


def seconds(layer: Layer) -> float:
    """The synthetic device: 5 us a call, 200 GFLOP/s, 10 GB/s."""
    return 5e-6 + layer.flops() / 2e11 + sum(layer.bytes()) / 1e10


def dataset(kinds: list[str], count: int = 120, **columns: Any) -> Dataset:
    tables = {}
    for kind in kinds:
        layers = list(draw(KINDS[kind], count, 0, BOUNDED))
        tables[kind] = pd.DataFrame(
            [{**to_row(layer), "runtime_s": seconds(layer), **columns} for layer in layers]
        )
    return Dataset(Path("synthetic"), {"schema": 1, "device": "synthetic"}, tables)


@functools.cache
def learnt_once() -> Trained:
    """Four kinds, for whole test files."""
    return train(dataset(["linear", "norm", "softmax", "activation"]), jobs=1)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return learnt_once()


@pytest.fixture(scope="module")
def predictor(trained: Trained) -> Predictor:
    return trained.predictor


def fresh(kind: str, count: int = 40) -> list[Layer]:
    return [
        layer
        for layer in draw(KINDS[kind], count, 99, BOUNDED)
        if str(layer.views.cpu.group(layer)) not in ("vector", "instance")
    ]


def test_a_known_device_is_recovered(predictor: Predictor) -> None:
    for kind in ("linear", "softmax"):
        layers = fresh(kind)
        values = predictor.estimate(layers).runtime_s
        assert np.median(np.abs(values / [seconds(layer) for layer in layers] - 1)) < 0.02


def test_the_formula_of_the_lasso_can_be_read() -> None:
    lasso = train(dataset(["softmax"]), learner="lasso", jobs=1).predictor
    (key,) = lasso.regressors
    assert lasso.regressors[key].trees is None
    assert formula(lasso, key).startswith("softmax[all, float32, forward] seconds = ")
    # what the plain text says is what the predictor computes
    layer = fresh("softmax")[0]
    sizes = {"rows": layer.rows, "width": layer.width, "flops": layer.flops()}  # type: ignore[attr-defined]
    names = {**sizes, **layer.views.cpu.terms(layer, lasso.hardware)}
    total = 0.0
    for part in formula(lasso, key).split(" = ")[1].split(" + "):
        weight, *factors = part.split(" ")
        value = float(weight)
        for factor in factors:
            name, _, power = factor.partition("^")
            value *= names[name] ** int(power or 1)
        total += value
    assert total == pytest.approx(float(lasso.estimate([layer]).runtime_s[0]), rel=2e-3)
    # with what whole networks taught of its calls
    corrected = replace(
        lasso, regressors={key: replace(lasso.regressors[key], factor=2.0, short=0.5, short_s=3e-5)}
    )
    ((share, limit),) = re.findall(r", plus (\S+) of their first (\S+) us$", formula(corrected, key))
    assert 2 * total + float(share) * min(2 * total, float(limit) / 1e6) == pytest.approx(
        float(corrected.estimate([layer]).runtime_s[0]), rel=2e-3
    )


def test_a_predictor_file_gives_the_same_predictions(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "synthetic.json"
    known = predictor.regressors.items()
    predictor = replace(
        predictor, regressors={key: replace(r, factor=1.1, short=-0.3, short_s=2e-5) for key, r in known}
    )
    save(predictor, file)
    again = predictors.load(file)
    layers = fresh("linear") + fresh("norm")
    np.testing.assert_allclose(
        again.estimate(layers).runtime_s, predictor.estimate(layers).runtime_s, rtol=1e-5
    )
    assert again.device == "synthetic"
    assert again.estimate(layers).basis == predictor.estimate(layers).basis


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "cut off"),
        (lambda text: "[1, 2]", "holds a list"),
        (lambda text: text.replace('"schema":5', '"schema":9'), "schema 9, this version reads 5"),
        (lambda text: text.replace('"rooflines"', '"roof"'), "incomplete .*rooflines"),
        (lambda text: text.replace('"kind":"linear"', '"kind":"lineal"'), "did you mean linear"),
    ],
)
def test_a_damaged_predictor_file_is_refused(
    predictor: Predictor, tmp_path: Path, change: Any, said: str
) -> None:
    file = tmp_path / "p.json"
    save(predictor, file)
    file.write_text(change(file.read_text()))
    with pytest.raises(PredictorError, match=said):
        predictors.load(file)


def test_an_unknown_predictor_is_answered_with_known_ones(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(predictor, tmp_path / "models" / "my-device.json")
    with pytest.raises(PredictorError, match="unknown predictor 'my-devise': did you mean my-device"):
        predictors.load("my-devise")


def test_of_cpus_of_one_name_the_one_most_like_this_machine_predicts(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Cpu("My CPU", 2, 2, 2**15, 2**20, 2**25, 2**34, ("avx2",), virtual=True)
    newer = replace(older, l1d_bytes=3 * 2**14, flags=("avx2", "avx_vnni"))
    monkeypatch.chdir(tmp_path)
    for name, cpu in (("my-cpu-2c", older), ("my-cpu-2c-vnni", newer)):
        fitted = replace(predictor, device=cpu.name, dataset={**predictor.dataset, "hardware": cpu.to_json()})
        save(fitted, tmp_path / "models" / f"{name}.json")
    asked = fresh("linear", 1)
    for cpu, name in ((older, "my-cpu-2c"), (newer, "my-cpu-2c-vnni")):
        found = predictors.default_predictor(cpu)
        assert (found.name, assumed(found, asked), foreign(found)) == (name, (), ())
    found = predictors.default_predictor(replace(newer, flags=("avx2", "avx_vnni", "amx_tile")))
    (warning,) = foreign(found)
    assert found.name == "my-cpu-2c-vnni"
    assert warning.startswith("this machine has other vector extensions; values are for My CPU, ")
    assert warning.endswith("Fix: neuralpower calibrate --from my-cpu-2c-vnni")
    assert assumed(found, asked) == ()  # which ones they are helps nobody
    save(predictor, tmp_path / "models" / "my-device-2c.json")
    assert predictors.default_predictor(replace(older, name="My Device")).device == "synthetic"
    (warning,) = foreign(predictors.default_predictor(replace(newer, name="Another")))
    assert warning.startswith("no predictor for this machine (Another, 2 cores); values are for ")
    larger = predictors.default_predictor(replace(newer, llc_bytes=2**26))
    assert "this machine has other caches" in foreign(larger)[0]
    (note,) = assumed(larger, asked)
    assert "llc_bytes 33554432 there, 67108864 here" in note


def test_what_a_noisy_machine_measured_is_warned_of_with_the_figure(predictor: Predictor) -> None:
    quiet = dataset(["activation"], 15)
    table = quiet.tables["activation"]
    apart = np.where(table.index < 9, 1.4, 9)
    table = table.assign(runtime_q25_s=table.runtime_s, runtime_q75_s=table.runtime_s * apart)
    noisy = train(replace(quiet, tables={"activation": table}), "lasso", jobs=1).predictor
    assert noisy.dataset["spread"] == pytest.approx(0.4)
    recorded = trace(nn.ReLU(), (torch.ones(8, 64),))
    text = "the measuring machine was noisy: half of a layer's runs lie 40% apart"
    assert compose(recorded, noisy, model="net", batch_size=8).warnings == (text,)
    assert compose(recorded, predictor, model="net", batch_size=8).warnings == ()


@pytest.mark.parametrize("name", ["amd-epyc-2c", "amd-epyc-2c-zen5", "nvidia-h200-sxm-141gb-torch"])
def test_predictors_of_own_datasets_say_how_noisy_their_machine_was(name: str) -> None:
    assert 0 < predictors.load(name).dataset["spread"] < NOISY


def test_files_that_are_no_predictors_are_in_nobodys_way(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(predictor_files, "predictor_folders", lambda: [Path("models")])
    save(predictor, tmp_path / "models" / "my-device.json")
    for name, text in (("config", '{"model_type": "bert"}'), ("cut", "{"), ("older", '{"schema": 1}')):
        (tmp_path / "models" / f"{name}.json").write_text(text)
    another = Cpu("Another", 2, 2, 2**15, 2**20, 2**25, 2**34, ("avx2",), virtual=True)
    assert predictors.default_predictor(another).name == "my-device"
    found, refused = predictor_files.readable(predictor_files.known_predictors())
    assert list(found) == ["my-device"]
    assert [str(error).split("'")[1] for error in refused if "schema" in str(error)] == ["config", "older"]
    (tmp_path / "models" / "another-2c.json").write_text('{"schema": 1}')  # of this machine's name
    with pytest.raises(PredictorError, match="'another-2c' has schema 1"):
        predictors.default_predictor(another)


def test_for_this_machine_only_files_of_cpus_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def read(path: Path) -> Predictor:
        built.append(path.stem)
        return read_predictor(path)

    monkeypatch.setattr(predictor_files, "read_predictor", read)
    another = Cpu("Another", 2, 2, 2**15, 2**20, 2**25, 2**34, ("avx2",), virtual=True)
    assert predictors.default_predictor(another).name in built
    assert "amd-epyc-2c" in built
    assert not [name for name in built if name.startswith(("nvidia-", "intel-"))]


def test_a_file_is_built_once_until_it_changes(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    save(predictor, file)
    first = read_predictor(file)
    assert read_predictor(file) is first
    save(replace(predictor, system=0.5), file)
    assert read_predictor(file).system == 0.5
    file.write_text("{")
    with pytest.raises(PredictorError, match="is not a predictor file, or is cut off"):
        read_predictor(file)


def test_of_a_dtype_without_flop_memory_tells_the_roofline() -> None:
    copies = dataset(["movement"], count=60)
    table = copies.tables["movement"].assign(dtype="int64")
    fitted = train(Dataset(copies.path, copies.meta, {"movement": table}), "lasso", jobs=1).predictor
    fields = {"function": "add", "elements": 4096, "operands": 2, "broadcast": False, "dtype": "int64"}
    sums = from_row(KINDS["elementwise"], fields)
    (runtime_s,) = fitted.estimate([sums]).runtime_s
    assert 1e-7 < runtime_s < 1e-3  # 98 kB, at 10 GB/s about 10 us


@pytest.mark.parametrize("count", [40, 120])
@pytest.mark.parametrize("wrong_s", [1e-4, 1e-6])
def test_a_row_that_is_far_too_fast_is_left_out_alone(count: int, wrong_s: float) -> None:
    generator = np.random.default_rng(0)
    rows, inner, columns = generator.integers(1000, 4000, (3, count))
    seconds_s = 2.0 * rows * inner * columns / 1e11 * np.exp(0.05 * generator.standard_normal(count))
    table = pd.DataFrame({"rows": rows, "in_features": inner, "out_features": columns, "bias": True})
    table["runtime_s"] = np.where(np.arange(count) == 5, wrong_s, seconds_s)
    found = train(Dataset(Path("synthetic"), {"schema": 1, "device": "synthetic"}, {"linear": table}), jobs=1)
    assert [row.line for row in found.rejected] == [7]
    (regressor,) = found.predictor.regressors.values()
    assert regressor.scores.mape < 0.1


def test_bounds_enclose_and_widen_outside_the_box(predictor: Predictor) -> None:
    near, far = (
        Linear(rows=64, in_features=512, out_features=512, bias=True),
        Linear(rows=10**6, in_features=10**5, out_features=10**5, bias=True),
    )
    estimates = predictor.estimate([near, far])
    assert (estimates.low_s <= estimates.runtime_s).all()
    assert (estimates.runtime_s <= estimates.high_s).all()
    width = estimates.high_s / estimates.low_s
    assert width[1] >= width[0]
    assert estimates.basis == (IN_RANGE, EXTRAPOLATED)


def test_a_kind_that_was_not_trained_falls_back_to_the_roofline_and_says_so(predictor: Predictor) -> None:
    layers = fresh("matmul", 5)
    estimates = predictor.estimate(layers)
    assert set(estimates.basis) == {ROOFLINE}
    assert (estimates.runtime_s > 0).all()


def test_a_dtype_or_phase_that_was_not_trained_is_refused_with_those_that_were(predictor: Predictor) -> None:
    with pytest.raises(PredictorError, match="dtype 'bfloat16': it has float32"):
        predictor.check("bfloat16", "forward")
    with pytest.raises(PredictorError, match="phase 'training': it has forward"):
        predictor.check("float32", "training")


def test_a_dtype_that_is_only_cast_to_is_not_trained(predictor: Predictor) -> None:
    cast = {("norm", "bfloat16", "forward", "layer"): next(iter(predictor.regressors.values()))}
    assert replace(predictor, regressors={**predictor.regressors, **cast}).dtypes == ("float32",)
    assert replace(predictor, regressors=cast).dtypes == ("bfloat16",)  # all it has


def test_a_predictor_of_integers_alone_serves_layers_and_no_network() -> None:
    fitted = train(dataset(["linear"], dtype="int8"), "lasso", jobs=1).predictor
    assert fitted.dtypes == ()
    for dtype in ("int8", "float32"):
        with pytest.raises(PredictorError, match=f"dtype '{dtype}': it has none; choose another predictor"):
            fitted.check(dtype, "forward")
    assert set(fitted.estimate([replace(layer, dtype="int8") for layer in fresh("linear", 5)]).basis) <= {
        IN_RANGE,
        "measured",
    }
    assert set(fitted.estimate([replace(layer, dtype="int8") for layer in fresh("softmax", 5)]).basis) == {
        ROOFLINE
    }


def test_dirty_rows_never_reach_a_fit() -> None:
    data = dataset(["softmax"])
    table = data.tables["softmax"]
    dirty = pd.concat([table, table.head(3).assign(runtime_s=[0.0, -1.0, np.inf])], ignore_index=True)
    trained = train(Dataset(data.path, data.meta, {"softmax": dirty}), "lasso", jobs=1)
    assert sorted(row.line for row in trained.rejected) == [122, 123, 124]
    key = ("softmax", "float32", "forward", "all")
    assert np.array_equal(
        trained.predictor.regressors[key].weights,
        train(data, "lasso", jobs=1).predictor.regressors[key].weights,
    )


def test_rows_taken_while_the_machine_was_slow_count_as_if_it_had_not_been() -> None:
    data = dataset(["softmax"], 200)
    slow = np.where(np.arange(200) % 5 < 2, 1.5, 1.0)
    table = data.tables["softmax"].assign(sentinel_s=1e-3 * slow)
    table["runtime_s"] *= slow
    fitted = train(Dataset(data.path, data.meta, {"softmax": table}), "lasso", jobs=1).predictor
    assert fitted.sentinel_s == pytest.approx(1e-3)
    layers = fresh("softmax")
    assert (
        np.median(np.abs(fitted.estimate(layers).runtime_s / [seconds(layer) for layer in layers] - 1)) < 0.02
    )
    # a counter that ran wild says nothing of the machine's speed
    table.loc[7, "sentinel_s"] = 1e6
    wild = train(Dataset(data.path, data.meta, {"softmax": table}), "lasso", jobs=1).predictor
    key = ("softmax", "float32", "forward", "all")
    assert wild.regressors[key].exponent == pytest.approx(fitted.regressors[key].exponent, abs=0.05)


def test_too_few_rows_are_an_error_with_the_number_that_is_needed() -> None:
    with pytest.raises(
        DatasetError, match="1 usable rows, 0 skipped, and no kind has 10 different configurations; collect"
    ):
        train(dataset(["softmax"], 1), jobs=1)
    with pytest.raises(InputError, match="unknown learner 'laso': did you mean lasso"):
        train(dataset(["softmax"], 12), learner="laso", jobs=1)


def test_groups_of_too_few_rows_each_are_trained_together() -> None:
    table = dataset(["norm"], 200).tables["norm"]
    few = pd.concat([table[table.function == name].head(6) for name in ("group", "instance")])
    assert len(few) == 12
    alone = table[table.function == "layer"]
    both = train(
        Dataset(Path("synthetic"), {"schema": 1, "device": "synthetic"}, {"norm": pd.concat([alone, few])}),
        "lasso",
        jobs=1,
    )
    assert {key[3] for key in both.predictor.regressors} == {"layer", "group+instance"}
    assert [(key[3], rows) for key, rows in both.skipped.items()] == [("group", 6), ("instance", 6)]
    asked = [
        layer
        for layer in draw(KINDS["norm"], 60, 99, BOUNDED)
        if str(layer.views.cpu.group(layer)) in ("group", "instance")
    ]
    found = both.predictor.estimate(asked)
    assert set(found.basis) <= {IN_RANGE, EXTRAPOLATED}
    assert assumed(both.predictor, asked) == ()  # nothing stands in for anything
    assert np.median(np.abs(found.runtime_s / [seconds(layer) for layer in asked] - 1)) < 0.1


def test_a_group_that_has_too_few_rows_without_a_corrupt_one_is_trained_with_others() -> None:
    table = dataset(["norm"], 200).tables["norm"]
    layers, group, instance = (table[table.function == name] for name in ("layer", "group", "instance"))
    corrupt = group.iloc[[9]].assign(runtime_s=group.runtime_s.iloc[9] * 1e3)
    given = pd.concat([layers, group.head(9), corrupt, instance.head(6)], ignore_index=True)
    found = train(
        Dataset(Path("synthetic"), {"schema": 1, "device": "synthetic"}, {"norm": given}), "lasso", jobs=1
    )
    assert [row.line for row in found.rejected] == [len(layers) + 9 + 2]
    assert {key[3] for key in found.predictor.regressors} == {"layer", "group+instance"}
    assert [(key[3], rows) for key, rows in found.skipped.items()] == [("group", 9), ("instance", 6)]


def test_the_rooflines_peaks_are_found(predictor: Predictor) -> None:
    roof = predictor.own.roofline("float32")
    assert roof.flops_per_s == pytest.approx(2e11, rel=0.5)
    assert roof.bytes_per_s == pytest.approx(1e10, rel=0.5)


def test_a_prediction_adds_up_and_folds_repeated_blocks(predictor: Predictor) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)), nn.Linear(64, 8))
    traced = trace(model, (__import__("torch").empty(16, 64),))
    prediction = compose(traced, predictor, model="blocks", batch_size=16)
    assert [(row.path, row.count) for row in prediction.rows] == [("[0-5].0", 6), ("[0-5].1", 6), ("6", 1)]
    assert sum(row.runtime_s for row in prediction.rows) == pytest.approx(prediction.runtime_s.value)
    assert sum(row.share for row in prediction.rows) == pytest.approx(1)
    assert prediction.runtime_s.low <= prediction.runtime_s.value <= prediction.runtime_s.high
    assert prediction.flops == traced.flops
    for rows in (prediction.by_kind(), prediction.by_module(1)):
        assert sum(row.runtime_s for row in rows) == pytest.approx(prediction.runtime_s.value)
        assert sum(row.count for row in rows) == 13
    json.dumps(prediction.to_json(), allow_nan=False)


def test_steps_that_wait_for_each_other_take_time_on_an_accelerator_that_never_ran_any(
    predictor: Predictor,
) -> None:
    fitted = {key: found for key, found in predictor.regressors.items() if key[0] != "recurrent"}
    hardware = replace(predictor.hardware or Hardware(), platform="accelerator")
    other = replace(predictor, regressors=fitted, hardware=hardware)
    sizes = {"batch": 1, "input_size": 8, "hidden_size": 8, "num_layers": 2, "bidirectional": False}
    layers = [
        from_row(KINDS["recurrent"], {"function": "lstm", "steps": steps, **sizes}) for steps in (1, 1000)
    ]
    short, long = other.estimate(layers).runtime_s
    assert short < 1e-4
    assert long >= 1999 * STEP_S


def test_each_step_on_a_cpu_that_never_ran_any_starts_anew_and_reads_the_weights_again(
    predictor: Predictor,
) -> None:
    sizes = {"batch": 1, "input_size": 256, "hidden_size": 256, "num_layers": 1, "bidirectional": False}
    layers = [from_row(KINDS["recurrent"], {"function": "gru", "steps": n, **sizes}) for n in (1, 101)]
    short, long = predictor.estimate(layers).runtime_s
    again = 100 * 4 * 3 * 256 * 512 / CPU.again_bytes_per_s
    assert long - short >= 100 * CPU.step_s + again > 1e-3


@pytest.mark.parametrize(("side", "groups", "times"), [(3, 64, 1.05), (7, 64, 7.5), (7, 1, 1.15)])
def test_no_vectors_make_the_gradients_of_wide_depthwise_windows_on_a_cpu(
    side: int, groups: int, times: float
) -> None:
    window: Any = {"kernel_height": side, "kernel_width": side}
    layer = replace(conv3x3(64, 64, groups=groups), **window)
    assert layer.law.gradient_on_cpu(layer) == pytest.approx(times)


def test_a_forward_call_that_stands_for_a_gradient_is_less_sure_on_a_cpu(predictor: Predictor) -> None:
    layer = Linear(rows=64, in_features=256, out_features=256, bias=False)
    forward, back = (predictor.estimate([replace(layer, phase=one)]) for one in (FORWARD, GRADIENT))
    assert back.runtime_s == forward.runtime_s
    assert back.low_s < forward.low_s
    assert back.high_s > 1.05 * forward.high_s


COPIED = 1e10  # bytes of a copy in a second, as the synthetic device's


def reaching(predictor: Predictor, **changes: Any) -> Predictor:
    """The predictor of a CPU whose copies and products were measured."""
    rates = {"copied_bytes_per_s": COPIED, "product_flops_per_s": {"float32": 2e11}, **changes}
    return replace(predictor, hardware=replace(predictor.hardware or Hardware(), **rates))


def test_a_call_far_beyond_a_cpus_rows_takes_no_less_and_no_more_than_its_law_allows(
    predictor: Predictor,
) -> None:
    near, far = (from_row(KINDS["softmax"], {"rows": rows, "width": 1024}) for rows in (1024, 2**20))
    law_s = 8 * 2**30 / COPIED
    for wrong in (1e-3, 1e3):  # times what it takes
        moved = {key: replace(one, factor=wrong) for key, one in predictor.regressors.items()}
        other = replace(predictor, regressors=moved)
        free, held = other.estimate([near, far]), reaching(other).estimate([near, far])
        assert held.runtime_s[0] == free.runtime_s[0]
        assert law_s / 3 < held.runtime_s[1] < 20 * law_s
        assert held.basis[1] == HELD
        assert held.low_s[1] >= law_s / 3
        assert held.high_s[1] <= 20 * law_s
    assert reaching(predictor).estimate([far]).runtime_s == pytest.approx(law_s, rel=0.2)


def test_what_a_cpu_reaches_is_what_its_rows_show_where_no_collection_measured_it() -> None:
    some = dataset(["linear"])
    many = [Movement(function="copy", elements=(20 + n) * 2**20) for n in range(10)]
    copies = pd.DataFrame([{**to_row(m), "runtime_s": seconds(m)} for m in many])
    rows = replace(some, tables={**some.tables, "movement": copies})
    shown = train(rows, "lasso", jobs=1).predictor.hardware
    assert shown is not None
    assert shown.copied_bytes_per_s == pytest.approx(1e10, rel=0.01)
    assert 1e11 < shown.product_flops_per_s["float32"] < 2e11
    about = {**rows.meta, "hardware": {"copied_bytes_per_s": 7e9}}
    measured = train(replace(rows, meta=about), "lasso", jobs=1).predictor.hardware
    assert measured is not None and measured.copied_bytes_per_s == 7e9


def test_what_is_not_modelled_is_named_with_its_share(predictor: Predictor) -> None:
    calls = (LayerCall("a", Linear(rows=8, in_features=64, out_features=64, bias=True)),)
    missing = (UnmodelledCall("b", "aten.fft", "no layer kind knows this operator", 10**7, 10**7, "float32"),)
    prediction = compose(Trace(calls, missing), predictor, model="m", batch_size=1)
    assert [(u.operator, u.count) for u in prediction.unmodelled] == [("aten.fft", 1)]
    assert prediction.coverage == pytest.approx(1 - prediction.unmodelled[0].share)
    assert prediction.basis == ROOFLINE
    assert prediction.runtime_s.value > predictor.estimate([calls[0].layer]).runtime_s[0] + 1e-6


def test_shares_that_round_to_more_than_all_leave_no_coverage_below_0(predictor: Predictor) -> None:
    # no convolution was trained: all are rooflines, whose shares add up to 1 give or take rounding
    drawn = list(draw(KINDS["conv2d"], 40, 3, BOUNDED))
    for count in range(1, 40):
        layers = drawn[:count]
        calls = tuple(LayerCall(str(n), layer) for n, layer in enumerate(layers))
        assert 0 <= compose(Trace(calls), predictor, model="m", batch_size=1).coverage < 1e-9
        everything = csr_array(np.ones((1, len(layers))))
        assert 0 <= outcomes_of(layers, everything, predictor).coverage[0] < 1e-9
