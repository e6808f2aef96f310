"""Whole networks' times: known factors are found, and totals alone make a predictor."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuralpower.data.dataset import Dataset
from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.layers.base import typed
from neuralpower.layers.rows import from_row, to_row
from neuralpower.learn.files.predictor_json import from_json, save, to_json
from neuralpower.learn.network_estimates import predict_many
from neuralpower.learn.networks.network_rows import Total, read_totals
from neuralpower.learn.networks.pace import Pace
from neuralpower.learn.networks.totals_alone import work_of_totals
from neuralpower.learn.networks.whole_networks import consistent, fit_factors
from neuralpower.learn.notes import assumed
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.names.families import family_of
from tests.learn.test_predictor import dataset, fresh, seconds


def network_rows(count: int, factor: dict[str, float], seed: int = 0) -> pd.DataFrame:
    """Networks of eight to eighty calls, whose layers take `factor` times what they take alone."""
    kinds = tuple(factor)
    generator = np.random.default_rng(seed)
    pools = {kind: fresh(kind) for kind in kinds}
    rows = []
    for _ in range(count):
        chosen: list[tuple[Layer, int]] = []
        for kind in kinds:
            index = generator.choice(len(pools[kind]), 4, replace=False)
            chosen += [(pools[kind][i], int(generator.integers(1, 10))) for i in index]
        runtime = sum(n * seconds(layer) * factor[layer.kind] for layer, n in chosen)
        layers = json.dumps([[layer.kind, to_row(layer), n] for layer, n in chosen])
        rows.append({"model": "made up", "batch": 1, "input": "{}", "layers": layers, "runtime_s": runtime})
    return pd.DataFrame(rows)


def test_factors_that_are_known_are_found() -> None:
    generator = np.random.default_rng(0)
    parts, truth = generator.dirichlet(np.ones(3), 60), np.array([1.0, 1.3, 0.9])
    factors, held_out = fit_factors(parts / (parts @ truth)[:, None])
    assert np.allclose(factors, truth, atol=0.03)
    assert np.max(np.abs(held_out - 1)) < 0.05


def test_what_calls_bring_with_them_is_told_from_what_grows_with_them() -> None:
    # of each network's time, what three kinds take, and how much of that is the first moments of calls
    generator = np.random.default_rng(0)
    parts, truth, more = generator.dirichlet(np.ones(3), 200), np.array([1.0, 1.1, 0.9]), -0.4
    short = parts * generator.uniform(0, 1, parts.shape)
    measured = parts @ truth + more * short.sum(axis=1)
    factors, held_out = fit_factors(
        parts / measured[:, None], taus=(0.05, 0.2), short=short / measured[:, None]
    )
    assert np.allclose(factors, [*truth, more, more, more], atol=0.03)
    assert np.max(np.abs(held_out - 1)) < 0.02


def test_kinds_whose_code_is_cold_for_longer_have_a_number_of_their_own_for_short_calls() -> None:
    generator = np.random.default_rng(0)
    parts, truth = generator.dirichlet(np.ones(3), 300), np.array([1.0, 1.1, 0.9])
    more, short_s = np.array([-0.4, -0.2, -0.4]), np.array([3e-5, 1.5e-4, 3e-5])
    short = parts * generator.uniform(0, 1, parts.shape)
    measured = parts @ truth + short @ more
    factors, held_out = fit_factors(
        parts / measured[:, None], short=short / measured[:, None], short_s=short_s
    )
    assert np.allclose(factors[3:], more, atol=0.03)
    assert np.max(np.abs(held_out - 1)) < 0.02
    assert factors[3] == pytest.approx(factors[5], abs=1e-12)


def test_what_networks_gain_whose_weights_stay_in_the_cache_is_told_from_their_kinds() -> None:
    generator = np.random.default_rng(0)
    parts, truth = generator.dirichlet(np.ones(3), 300), np.array([1.0, 1.1, 0.9])
    left = np.maximum(1 - 2 * generator.uniform(0, 1, 300), 0)
    measured = parts @ truth * (1 - 0.15 * left)
    factors, held_out = fit_factors(parts / measured[:, None], resident=left)
    assert np.allclose(factors, [*truth, -0.15], atol=0.02)
    assert np.max(np.abs(held_out - 1)) < 0.02


def test_small_networks_are_faster_than_their_layers_in_the_cache_and_in_no_other_way() -> None:
    data = dataset(["linear", "softmax"])
    hardware = {"llc_bytes": 64 * 2**20, "l2_bytes": 2**20, "cores": 2}
    table = network_rows(200, {"linear": 1.0, "softmax": 1.0})

    def left(text: str) -> float:
        held = sum(n * from_row(KINDS[kind], row).bytes().weights for kind, row, n in json.loads(text))
        return max(1 - held / (16 * 2**20), 0.0)

    share = table["layers"].map(left)
    assert min((share > 0.5).sum(), (share < 0.5).sum()) >= 10
    table["runtime_s"] *= 1 - 0.2 * share
    trained = train(
        Dataset(data.path, {**data.meta, "hardware": hardware}, {**data.tables, "network": table}),
        "lasso",
        jobs=1,
    )
    predictor = trained.predictor
    assert predictor.resident == pytest.approx(-0.2, abs=0.05)
    assert from_json(to_json(predictor), predictor.name).resident == predictor.resident
    small = [layer for layer in fresh("softmax")[:4]]
    alone = predictor.estimate(small).runtime_s
    assert np.allclose(
        predictor.estimate_network(small, np.ones(4)).runtime_s, alone * (1 + predictor.resident)
    )
    assert predict_many(predictor, [small]).value[0] == pytest.approx(alone.sum() * (1 + predictor.resident))
    large = [layer for layer in fresh("linear") if layer.bytes().weights > 8 * 2**20] * 3
    assert len(large) >= 3
    assert predict_many(predictor, [large]).value[0] == pytest.approx(
        predictor.estimate(large).runtime_s.sum()
    )
    passes = [replace(layer, phase="backward") for layer in small]
    assert np.allclose(
        predictor.estimate_network(passes, np.ones(4)).runtime_s, predictor.estimate(passes).runtime_s
    )
    # networks of one kind only train nothing
    one = train(
        Dataset(
            data.path, {**data.meta, "hardware": hardware}, {**data.tables, "network": table[share > 0.5]}
        ),
        "lasso",
        jobs=1,
    )
    assert one.predictor.resident == 0


def test_of_short_calls_a_quarter_is_left_and_no_more_than_twice_as_much_is_added() -> None:
    parts = np.random.default_rng(0).dirichlet(np.ones(2), 100)
    for more, left in ((-0.9, 0.25), (3.0, 2.0)):
        measured = parts.sum(axis=1) * (1 + more)  # calls that are short from end to end, all of them
        factors, _ = fit_factors(parts / measured[:, None], taus=(0.01,), short=parts / measured[:, None])
        assert (factors[:2] + factors[2:]) / factors[:2] == pytest.approx([left] * 2, rel=0.01)


def test_few_networks_that_say_little_leave_the_factors_near_the_common_one() -> None:
    generator = np.random.default_rng(1)
    parts = generator.dirichlet(np.ones(20), 12) * np.exp(0.3 * generator.normal(size=(12, 1)))
    factors, _ = fit_factors(parts)
    assert np.ptp(factors) < 0.5


def test_whole_networks_correct_the_sum_of_their_layers() -> None:
    data = dataset(["linear", "softmax"])
    table = network_rows(40, {"linear": 1.0, "softmax": 1.5})
    trained = train(Dataset(data.path, data.meta, {**data.tables, "network": table}), "lasso", jobs=1)
    assert trained.correction is not None
    assert trained.correction.after < 0.4 * trained.correction.before
    layers = fresh("softmax")
    ratio = trained.predictor.estimate(layers).runtime_s / [seconds(layer) for layer in layers]
    assert np.median(ratio) == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(("variant", "least", "most"), [("?width={}", 0.6, 1.1), ("_{}", 0.0, 0.4)])
def test_networks_that_are_built_alike_are_held_out_together(variant: str, least: float, most: float) -> None:
    kinds = ["linear", "softmax", "elementwise", "pool2d"]
    data = dataset(kinds)
    tables = []
    for kind in kinds:  # no other network has a family's only kind
        table = network_rows(10, {kind: 1.5})
        tables.append(
            table.assign(model=[f"transformers:{kind}{variant.format(i)}" for i in range(len(table))])
        )
    network = pd.concat(tables, ignore_index=True)
    trained = train(Dataset(data.path, data.meta, {**data.tables, "network": network}), "lasso", jobs=1)
    assert trained.correction is not None
    assert least <= trained.correction.after / trained.correction.before <= most


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("transformers:BertModel?num_hidden_layers=2", "transformers:BertModel"),
        ("zoo:composed?block=plain&axes=1", "zoo:composed?block=plain"),
        ("zoo:composed?axes=1", "zoo:composed"),
        ("zoo:paradnn_rnn?layers=1&embed=96", "zoo:paradnn_rnn"),
        ("zoo:resnet18", "zoo:resnet18"),
        ("nets.py:mine", "nets.py:mine"),
    ],
)
def test_a_family_is_a_name_and_the_sort_of_its_blocks(model: str, family: str) -> None:
    assert family_of(model) == family


def test_what_short_calls_take_in_networks_is_no_factor_of_long_ones() -> None:
    short_s = Layer.short_s
    data = dataset(["linear", "softmax"])
    table = network_rows(150, {"linear": 1.0, "softmax": 1.0})

    def more_s(text: str) -> float:  # half as much again, of each call's first moments
        return sum(
            n * 0.5 * min(seconds(from_row(KINDS[kind], row)), short_s) for kind, row, n in json.loads(text)
        )

    table["runtime_s"] += table["layers"].map(more_s)
    trained = train(Dataset(data.path, data.meta, {**data.tables, "network": table}), "lasso", jobs=1)
    assert trained.correction is not None
    assert trained.correction.after < 0.4 * trained.correction.before
    layers = fresh("softmax")
    alone = np.array([seconds(layer) for layer in layers])
    ratio = trained.predictor.estimate(layers).runtime_s / alone
    assert np.median(ratio[alone < short_s]) == pytest.approx(1.5, rel=0.1)
    assert np.median(ratio[alone > 20 * short_s]) == pytest.approx(1.0, rel=0.03)


def test_a_network_of_which_nothing_was_trained_says_nothing_of_the_others() -> None:
    data = dataset(["linear", "softmax"])
    hardware = {"memory_bytes_per_s": 1e12, "peak_flops_per_s": {"float32": 1e13}}
    table = network_rows(30, {"linear": 1.0, "softmax": 1.5})
    pools = json.dumps(
        [["pool2d", to_row(pool), 1] for pool in draw(KINDS["pool2d"], 4, 0, PRESETS["quick"])]
    )
    more = pd.concat([table, table[:1].assign(layers=pools, runtime_s=1.0)], ignore_index=True)
    without, with_it = (
        train(
            Dataset(data.path, {**data.meta, "hardware": hardware}, {**data.tables, "network": networks}),
            "lasso",
            jobs=1,
        )
        for networks in (table, more)
    )
    assert np.isfinite(with_it.predictor.system)
    for key, regressor in without.predictor.regressors.items():
        assert with_it.predictor.regressors[key].factor == pytest.approx(regressor.factor, rel=1e-6)


def test_networks_in_tensorfloat32_are_none_of_float32() -> None:
    rows = pd.DataFrame(
        {"model": "zoo:deep_mnist", "batch": 1, "input": "{}", "dtype": ["tensorfloat32", "float32"]}
    )
    found, rejected = read_totals(rows.assign(runtime_s=1e-3))
    assert not rejected
    products = [{layer.dtype for layer in total.layers if layer.multiplies} for total in found]
    assert products == [{"tensorfloat32"}, {"float32"}]


def test_how_networks_follow_the_machines_speed_is_trained_on_them() -> None:
    # layers were timed on a machine of one speed; networks while it was up to 1.4 times slower, and by the
    # power 1.3 of that; what the sentinel takes depends on the network before it, too
    generator = np.random.default_rng(0)
    slow = 1.4 ** generator.uniform(0, 1, 60)
    beside = 1e-3 * slow * np.exp(0.01 * generator.normal(size=60))
    data = dataset(["softmax"])
    tables = {kind: table.assign(sentinel_s=1e-3) for kind, table in data.tables.items()}
    networks = network_rows(60, {"softmax": 1.0}).assign(sentinel_s=beside)
    networks["runtime_s"] *= slow**1.3

    def fitted(table: pd.DataFrame) -> Predictor:
        return train(Dataset(data.path, data.meta, {**tables, "network": table}), "lasso", jobs=1).predictor

    predictor = fitted(networks)
    assert predictor.speed is not None
    assert predictor.speed.exponent == pytest.approx(1.3, abs=0.1)
    assert predictor.speed.sentinel_s == pytest.approx(np.median(beside))
    estimates = predictor.estimate(fresh("softmax"))
    usual_s = predictor.speed.sentinel_s
    assert predictor.slowdown(estimates, Pace(1.1 * usual_s)) == pytest.approx(1.1**1.3, rel=0.03)
    usual = [seconds(layer) * np.median(slow) ** 1.3 for layer in fresh("softmax")]
    assert np.median(estimates.runtime_s / usual) == pytest.approx(1.0, abs=0.03)
    assert from_json(to_json(predictor), predictor.name).speed == predictor.speed
    # of too few of them: as its layers do
    few = networks.assign(sentinel_s=networks["sentinel_s"].where(networks.index < 5))
    unknown = fitted(few)
    assert unknown.speed is None
    found = unknown.estimate(fresh("softmax"))
    assert unknown.slowdown(found, Pace(1.2e-3)) == found.slowdown(1.2)
    assert unknown.slowdown(found, None) == 1


def test_the_sentinels_second_call_tells_the_speed_where_it_is_known() -> None:
    # its first call tells of the network before it, too; half of the rows know no second, which takes 0.8 of
    # the first's
    generator = np.random.default_rng(0)
    slow = 1.4 ** generator.uniform(0, 1, 60)
    data = dataset(["softmax"])
    tables = {kind: table.assign(sentinel_s=1e-3) for kind, table in data.tables.items()}
    networks = network_rows(60, {"softmax": 1.0}).assign(
        sentinel_s=1e-3 * slow * np.exp(0.04 * generator.normal(size=60)),
        sentinel_again_s=np.where(np.arange(60) % 2, 0.8e-3 * slow, np.nan),
    )
    networks["runtime_s"] *= slow**0.8
    predictor = train(
        Dataset(data.path, data.meta, {**tables, "network": networks}), "lasso", jobs=1
    ).predictor
    speed = predictor.speed
    assert speed is not None and speed.again_s is not None
    assert speed.exponent < 1.1  # towards 0.8, from the 1.3 that was expected
    assert speed.again_s / speed.sentinel_s == pytest.approx(0.8, rel=0.02)
    found = predictor.estimate(fresh("softmax"))
    fast_first = Pace(0.5 * speed.sentinel_s, 1.1 * speed.again_s)
    assert predictor.slowdown(found, fast_first) == pytest.approx(1.1**speed.exponent)
    assert from_json(to_json(predictor), predictor.name).speed == speed
    # no more is taken out than networks have met, and who asks is told
    assert speed.slowest is not None and 1.1 < speed.slowest < 1.4
    twice = Pace(2 * speed.sentinel_s, 2 * speed.again_s)
    assert predictor.slowdown(found, twice) == pytest.approx(speed.slowest**speed.exponent)
    assert predictor.too_slow(twice) == pytest.approx(2)
    assert predictor.too_slow(fast_first) is None


def test_networks_of_a_calm_minute_do_not_tell_the_slowest() -> None:
    networks = network_rows(12, {"softmax": 1.0}).assign(sentinel_s=1e-3, sentinel_again_s=0.9e-3)
    data = dataset(["softmax"])
    tables = {kind: table.assign(sentinel_s=1e-3) for kind, table in data.tables.items()}
    predictor = train(
        Dataset(data.path, data.meta, {**tables, "network": networks}), "lasso", jobs=1
    ).predictor
    assert predictor.speed is not None
    found, tenth = predictor.estimate(fresh("softmax")), Pace(1.1e-3, 0.99e-3)
    assert predictor.too_slow(tenth) is None
    assert predictor.slowdown(found, tenth) == pytest.approx(1.1**predictor.speed.exponent)
    assert predictor.too_slow(Pace(1.3e-3, 1.17e-3)) == pytest.approx(1.3)


def test_totals_alone_make_a_predictor() -> None:
    data = dataset(["linear"])
    table = network_rows(60, {"linear": 1.0, "softmax": 1.0})
    predictor = train(Dataset(data.path, data.meta, {"network": table}), jobs=1).predictor
    assert predictor.kinds == ("linear", "softmax")
    others, _ = read_totals(network_rows(20, {"linear": 1.0, "softmax": 1.0}, seed=5))
    found = predict_many(
        predictor,
        [[layer for layer, n in zip(t.layers, t.counts, strict=True) for _ in range(int(n))] for t in others],
    )
    measured = np.array([t.runtime_s for t in others])
    assert np.median(np.abs(found.value / measured - 1)) < 0.1
    assert np.mean((found.low <= measured) & (measured <= found.high)) >= 0.7


@pytest.mark.parametrize("count", [12, 60])
def test_nine_in_ten_networks_lie_within_the_bounds_that_totals_alone_give(count: int) -> None:
    rates, noise = {"linear": 1.0, "softmax": 1.2, "norm": 1.1}, np.random.default_rng(5)
    given, asked = (
        table.assign(runtime_s=table["runtime_s"] * np.exp(noise.normal(0, 0.15, len(table))))
        for table in (network_rows(count, rates), network_rows(300, rates, seed=1))
    )
    fitted = train(
        Dataset(Path("synthetic"), dataset(["linear"]).meta, {"network": given}), "lasso", jobs=1
    ).predictor
    totals, _ = read_totals(asked)
    calls = [[la for la, n in zip(t.layers, t.counts, strict=True) for _ in range(int(n))] for t in totals]
    found, measured = predict_many(fitted, calls), asked["runtime_s"].to_numpy()
    assert np.mean((found.low <= measured) & (measured <= found.high)) > 0.85
    assert np.median(found.high / found.low) < 2.5


def test_networks_of_several_dtypes_teach_each_of_them() -> None:
    # a twentieth of the time in bfloat16, whatever the layer; networks of one, of the other, and of both
    def took(layer: Layer) -> float:
        return seconds(layer) / (20 if layer.dtype == "bfloat16" else 1)

    pool, generator, records = fresh("linear"), np.random.default_rng(0), []
    for number in range(90):
        dtypes = [("float32",), ("bfloat16",), ("float32", "bfloat16")][number % 3]
        parts = [
            typed(pool[i], dtypes[i % len(dtypes)]) for i in generator.choice(len(pool), 8, replace=False)
        ]
        layers = json.dumps([[layer.kind, to_row(layer), 2] for layer in parts])
        row = {"model": "made up", "batch": 1, "input": "{}", "layers": layers}
        records.append({**row, "runtime_s": sum(2 * took(layer) for layer in parts)})
    data = dataset(["linear"])
    predictor = train(Dataset(data.path, data.meta, {"network": pd.DataFrame(records)}), jobs=1).predictor
    assert {key[:2] for key in predictor.regressors} == {("linear", "float32"), ("linear", "bfloat16")}
    assert set(predictor.rooflines) == {"float32", "bfloat16"}
    slow, fast = (predictor.rooflines[dtype] for dtype in ("float32", "bfloat16"))
    assert fast.flops_only_per_s > 8 * slow.flops_only_per_s
    for dtype in ("float32", "bfloat16"):
        network = [typed(layer, dtype) for layer in pool]
        found = predict_many(predictor, [network]).value[0]
        assert found == pytest.approx(sum(map(took, network)), rel=0.15)


def test_a_network_counts_for_the_dtype_of_most_of_its_work() -> None:
    small, large = sorted(fresh("linear")[:2], key=lambda layer: layer.flops())
    first = (typed(small, "float32"), typed(large, "bfloat16"))  # little of the one, much of the other
    totals = [Total("a", layers, (1, 1), 0.5, None, 2) for layers in (first, first[::-1])]
    totals.append(Total("b", (typed(large, "float32"), first[0]), (1, 3), 0.25, None, 3))
    found = work_of_totals(totals)
    flops = small.flops() + large.flops()
    assert found["bfloat16"][0].tolist() == [flops, flops]
    assert found["bfloat16"][2].tolist() == [0.5, 0.5]
    assert found["float32"][[0, 2]].tolist() == [[large.flops() + 3 * small.flops()], [0.25]]


def test_a_network_without_its_layers_is_traced() -> None:
    row = {"model": "zoo:squeezenet", "batch": 2, "input": '{"input_shape": [3, 64, 64]}', "runtime_s": 0.1}
    (total,), rejected = read_totals(pd.DataFrame([row]))
    assert not rejected
    assert {layer.kind for layer in total.layers} >= {"conv2d", "pool2d", "activation"}
    assert any(isinstance(layer, KINDS["conv2d"]) and to_row(layer)["batch"] == 2 for layer in total.layers)


def test_networks_that_cannot_be_used_are_named_with_their_lines() -> None:
    good = network_rows(1, {"linear": 1.0, "softmax": 1.0}).to_dict("records")[0]
    rows = [
        good,
        {**good, "runtime_s": -1.0},
        {**good, "status": "error"},
        {**good, "model": "zoo:alexnt", "layers": None},
        {**good, "model": "zoo:alexnet", "layers": None, "phase": "training"},
    ]
    totals, rejected = read_totals(pd.DataFrame(rows))
    assert len(totals) == 1
    assert [row.line for row in rejected] == [3, 4, 5, 6]
    assert "alexnet" in rejected[2].reason
    assert "a training step needs its layers" in rejected[3].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"runtime_s": "1 ms"}, "runtime_s is '1 ms', but must be a number"),
        ({"runtime_s": None}, "runtime_s is not a number"),
        ({"sentinel_s": "slow"}, "sentinel_s is 'slow', but must be a number"),
        ({"layers": "[["}, "layers cannot be read (JSONDecodeError"),
        ({"layers": "[" * 100_000}, "layers cannot be read (ValueError: it is nested too deep"),
        ({"layers": '[["lineal", {}, 1]]'}, "layers cannot be read (KeyError: 'lineal'"),
        ({"layers": '[["linear", {"rows": 1}, 1]]'}, "linear: no value for 'in_features'"),
        ({"layers": "[]"}, "it has no layers"),
        *(
            ({"layers": f'[["softmax", {{"rows": 1, "width": 8}}, {count}]]'}, "layers call softmax ")
            for count in ("-3", "0", "NaN", "Infinity")
        ),
        ({"layers": ["linear", 1]}, "layers cannot be read (TypeError"),
        ({"layers": None, "batch": 1.5}, "batch is 1.5, but must be a whole number from 1"),
        ({"layers": None, "batch": "many"}, "batch is 'many', but must be a number"),
        ({"layers": None, "input": "[3]"}, "input is '[3]', but must be the text of a JSON object"),
        ({"layers": None, "input": "{"}, "input is '{', but must be the text of a JSON object"),
        (
            {"layers": None, "input": {"seq_len": 8}},
            "input is {'seq_len': 8}, but must be the text of a JSON object",
        ),
        ({"layers": None, "input": '{"input_shape": "3x224x224"}'}, "sizes must be whole numbers from 1"),
        (
            {"layers": None, "model": "transformers:bert", "input": '{"seq_len": "long"}'},
            "sizes must be whole numbers from 1",
        ),
    ],
)
def test_a_network_s_row_that_cannot_be_read_says_which_cell(change: dict[str, object], reason: str) -> None:
    row = network_rows(1, {"linear": 1.0}).to_dict("records")[0] | {"model": "zoo:alexnet"} | change
    totals, (rejected,) = read_totals(pd.DataFrame([row]))
    assert totals == []
    assert (rejected.line, reason in rejected.reason) == (2, True), rejected.reason


@pytest.mark.parametrize("factor", [1e-3, 0.2, 20.0])
def test_a_network_that_contradicts_the_others_is_named_and_changes_nothing(factor: float) -> None:
    data, table = dataset(["linear"]), network_rows(30, {"linear": 1.2, "softmax": 1.0})
    wrong = table.assign(runtime_s=table["runtime_s"] * np.where(np.arange(30) == 4, factor, 1.0))
    for tables in ({}, data.tables):
        rest, found = (
            train(Dataset(data.path, data.meta, {**tables, "network": some}), "lasso", jobs=1)
            for some in (table.drop(index=4), wrong)
        )
        assert [(row.kind, row.line) for row in found.rejected] == [("network", 6)]
        assert found.rejected[0].reason == "runtime_s contradicts the other networks"
        asked = fresh("linear")
        np.testing.assert_allclose(
            found.predictor.estimate(asked).runtime_s, rest.predictor.estimate(asked).runtime_s
        )


@pytest.mark.parametrize(
    ("runtime_s", "reason"),
    [
        (1e-9, "outside 1e-08 to 10000 s"),
        (9e9, "outside 1e-08 to 10000 s"),
        (4e-7, "faster than the device's peak"),
    ],
)
def test_no_network_is_faster_than_its_products_at_the_peak(runtime_s: float, reason: str) -> None:
    # 2 * 64 * 64 * 64 FLOP, three times, at 1e12/s: 1.6 us
    layer = from_row(KINDS["linear"], {"rows": 64, "in_features": 64, "out_features": 64, "bias": False})
    row = {"model": "x", "batch": 1, "layers": json.dumps([["linear", to_row(layer), 3]])}
    rows = pd.DataFrame([{**row, "runtime_s": seconds} for seconds in (1.7e-6, runtime_s)])
    totals, rejected = read_totals(rows, Hardware(peak_flops_per_s={"float32": 1e12}))
    assert [total.line for total in totals] == [2]
    assert rejected[0].line == 3
    assert reason in rejected[0].reason


def counted(
    predictor: Predictor, networks: list[list[Layer]], calls: int = 1, **columns: object
) -> list[dict[str, object]]:
    """Rows of networks that take what the predictor says."""
    totals = predict_many(predictor, [calls * network for network in networks])
    return [
        {
            "model": "made up",
            "batch": 1,
            "layers": json.dumps([[layer.kind, to_row(layer), calls] for layer in network]),
            "runtime_s": float(value),
            **columns,
        }
        for network, value in zip(networks, totals.value, strict=True)
    ]


def test_a_network_that_waits_for_its_host_is_no_contradiction() -> None:
    # 20 us of the host for each call: ten times what the smallest layers take
    data = dataset(["linear"], dispatch_s=60e-6)
    fitted = train(data, "lasso", jobs=1).predictor
    assert fitted.dispatch is not None
    layers = sorted(fresh("linear"), key=seconds)
    rows = counted(fitted, [layers[-20 + i : -10 + i] for i in range(10)]) + counted(
        fitted, [layers[:3]], calls=10
    )
    found = train(
        Dataset(data.path, data.meta, {**data.tables, "network": pd.DataFrame(rows)}), "lasso", jobs=1
    )
    assert float(str(rows[-1]["runtime_s"])) > 2.5 * 10 * sum(seconds(layer) for layer in layers[:3])
    assert found.rejected == ()


def test_a_network_of_a_slow_moment_is_no_contradiction() -> None:
    data = dataset(["linear"], sentinel_s=1e-3)
    fitted = train(data, "lasso", jobs=1).predictor
    layers = fresh("linear")
    rows = counted(fitted, [layers[i : i + 10] for i in range(20)], sentinel_s=1e-3)
    rows[3] |= {"runtime_s": 3 * float(str(rows[3]["runtime_s"])), "sentinel_s": 3e-3}
    found = train(
        Dataset(data.path, data.meta, {**data.tables, "network": pd.DataFrame(rows)}), "lasso", jobs=1
    )
    assert found.rejected == ()
    rows[3]["sentinel_s"] = 1e-3  # the same without a reason
    found = train(
        Dataset(data.path, data.meta, {**data.tables, "network": pd.DataFrame(rows)}), "lasso", jobs=1
    )
    assert [row.line for row in found.rejected] == [5]
    assert found.predictor.dataset["networks"] == 19
    assert found.predictor.dataset["rejected"] == 1


def test_a_network_of_kinds_that_no_other_has_can_be_trained_on(tmp_path: Path) -> None:
    table = pd.concat(
        [network_rows(30, {"linear": 1.0}), network_rows(1, {"softmax": 1.0})], ignore_index=True
    )
    found = train(Dataset(Path("synthetic"), dataset(["linear"]).meta, {"network": table}), jobs=1)
    assert found.rejected == ()
    save(found.predictor, tmp_path / "totals.json")  # which takes no NaN
    assert found.predictor.estimate(fresh("linear")).deviation.max() < 0.2


def test_where_too_few_networks_stay_the_reasons_are_said() -> None:
    data, table = dataset(["linear"]), network_rows(11, {"linear": 1.0})
    for wrong, said in (([0], "contradicts the other networks .line 2"), ([0, 3], "is not above 0 .line 5")):
        factor = np.where(
            np.isin(np.arange(11), wrong[:1]), 1000.0, np.where(np.isin(np.arange(11), wrong[1:]), -1.0, 1.0)
        )
        given = table.assign(runtime_s=table["runtime_s"] * factor)
        if len(wrong) == 1:
            given = given.head(10)
        with pytest.raises(DatasetError, match=f"9 measured networks and no layers; 10 needed.*{said}"):
            train(Dataset(data.path, data.meta, {"network": given}), jobs=1)


@pytest.mark.parametrize(("calls", "corrected"), [(1, True), (400, False)])
def test_what_kinds_take_that_were_not_trained_is_no_matter_of_the_others(
    calls: int, corrected: bool
) -> None:
    data = dataset(["linear"])
    fitted = train(data, "lasso", jobs=1).predictor
    linear, softmax = fresh("linear"), fresh("softmax")
    rows = []
    for i in range(20):
        layers = [*(linear[(5 * i + j) % len(linear)] for j in range(5)), softmax[i % len(softmax)]]
        each = fitted.estimate(layers).runtime_s
        counts = [1] * 5 + [calls]
        runtime_s = 1.2 * float(each[:5].sum()) + calls * float(each[5])
        given = [[la.kind, to_row(la), n] for la, n in zip(layers, counts, strict=True)]
        rows.append({"model": f"m{i}", "batch": 1, "layers": json.dumps(given), "runtime_s": runtime_s})
    found = train(
        Dataset(data.path, data.meta, {**data.tables, "network": pd.DataFrame(rows)}), "lasso", jobs=1
    )
    ratio = found.predictor.estimate(linear).runtime_s / fitted.estimate(linear).runtime_s
    assert np.median(ratio) == pytest.approx(1.2 if corrected else 1.0, abs=0.02)
    assert (found.correction is not None) == corrected


def test_an_input_that_is_not_known_is_refused() -> None:
    row = {"model": "zoo:deep_mnist", "batch": 1, "input": '{"seq_lenx": 128}', "runtime_s": 0.01}
    totals, (rejected,) = read_totals(pd.DataFrame([row]))
    assert totals == []
    assert rejected.reason == "input holds seq_lenx; known are seq_len and input_shape"


@pytest.mark.parametrize("factor", [1e-3, 1 / 20, 20])
def test_one_wrong_network_of_a_dozen_alone_is_found_and_changes_nothing(factor: float) -> None:
    clean, wrong = (
        network_rows(12, {"linear": 1.2, "softmax": 1.0}),
        network_rows(1, {"linear": 1.2, "softmax": 1.0}, 9),
    )
    both = pd.concat([clean, wrong.assign(runtime_s=factor * wrong["runtime_s"])], ignore_index=True)
    rest, found = (
        train(Dataset(Path("known"), {"schema": 1, "device": "x"}, {"network": some}), jobs=1)
        for some in (clean, both)
    )
    assert [(row.line, row.reason) for row in found.rejected] == [
        (14, "runtime_s contradicts the other networks")
    ]
    assert rest.rejected == ()
    asked = fresh("linear")
    np.testing.assert_allclose(
        found.predictor.estimate(asked).runtime_s, rest.predictor.estimate(asked).runtime_s
    )


def test_a_few_networks_do_not_tell_which_of_them_is_wrong() -> None:
    totals, _ = read_totals(network_rows(3, {"linear": 1.0}))
    assert consistent(
        totals, np.array([totals[0].runtime_s, totals[1].runtime_s, 5 * totals[2].runtime_s])
    ) == (
        totals,
        [],
    )


def test_gaps_in_a_networks_row_are_defaults_and_blank_rows_none() -> None:
    row = {
        "model": "zoo:deep_mnist",
        "batch": 1.0,
        "input": None,
        "dtype": np.nan,
        "runtime_s": 0.01,
        "status": None,
    }
    table = pd.DataFrame([row, dict.fromkeys(row), row])
    table["sentinel_s"] = pd.array([1e-3, pd.NA, np.inf], "Float64")
    table["dispatch_s"] = [np.inf, np.nan, np.nan]
    totals, rejected = read_totals(table)
    assert [(total.pace, np.isnan(total.dispatch_s)) for total in totals] == [
        (Pace(1e-3), True),
        (None, True),
    ]
    assert ([total.line for total in totals], rejected) == ([2, 4], [])
    assert {layer.dtype for layer in totals[0].layers} == {"float32"}


def test_a_kind_to_which_totals_give_no_time_leaves_bounds_that_are_numbers(tmp_path: Path) -> None:
    # softmaxes take nothing here
    table = network_rows(40, {"linear": 1.0, "softmax": 0.0})
    fitted = train(Dataset(Path("synthetic"), dataset(["linear"]).meta, {"network": table}), jobs=1).predictor
    assert fitted.kinds == ("linear", "softmax")
    nothing = fitted.estimate(fresh("softmax"))
    assert nothing.runtime_s.max() < 1e-6
    assert np.isfinite(
        [nothing.runtime_s, nothing.low_s, nothing.high_s, nothing.deviation, nothing.shared]
    ).all()
    both = predict_many(fitted, [[*fresh("linear")[:3], *fresh("softmax")[:3]]])
    assert 0 < both.low[0] < both.value[0] < both.high[0]
    assert set(fitted.estimate(fresh("linear")[:5]).basis) <= {"in-range", "extrapolated"}
    assert assumed(fitted, fresh("linear")[:5]) == ()  # the kind was trained as a whole
    save(fitted, tmp_path / "totals.json")


def test_what_a_network_draws_is_not_trained_and_that_is_said() -> None:
    networks = network_rows(12, {"linear": 1.0})
    data = dataset(["linear"], count=40)
    found, plain = (
        train(Dataset(data.path, data.meta, {**data.tables, "network": table}), "lasso", jobs=1)
        for table in (networks.assign(power_w=-5.0, energy_j="?"), networks)
    )
    assert found.doubts == ("network: power_w and energy_j not used: whole networks train times only",)
    assert (found.rejected, plain.doubts) == ((), ())


def test_networks_that_layers_say_nothing_of_are_not_trained_on() -> None:
    networks = network_rows(12, {"linear": 1.0})
    data = dataset(["linear"], count=40, dispatch_s=5e-6)
    table = networks.assign(runtime_s=networks.runtime_s * 1e3, dispatch_s=2e-3)
    found = train(Dataset(data.path, data.meta, {**data.tables, "network": table}), "lasso", jobs=1)
    alone = train(data, "lasso", jobs=1)
    assert found.correction is None
    assert [doubt.partition(" are ")[0] for doubt in found.doubts] == ["network: 12 whole networks"]
    assert found.predictor.system == alone.predictor.system
    assert found.predictor.dispatch == alone.predictor.dispatch
    assert [r.factor for r in found.predictor.regressors.values()] == [1.0] * len(found.predictor.regressors)


@pytest.mark.parametrize("count", [1e300, 2.0**60, 0, -1])
def test_a_layer_that_nothing_calls_so_often_leaves_its_network_out(count: float) -> None:
    table = network_rows(12, {"linear": 1.0})
    kind, fields, _ = json.loads(table.layers[4])[0]
    table.loc[4, "layers"] = json.dumps([[kind, fields, count]])
    totals, rejected = read_totals(table)
    assert ([row.line for row in rejected], len(totals)) == ([6], 11)
    assert "layers call linear" in rejected[0].reason


def test_too_few_totals_and_missing_columns_are_refused() -> None:
    data = dataset(["linear"])
    few = network_rows(3, {"linear": 1.0, "softmax": 1.0})
    with pytest.raises(DatasetError, match=f"{data.path}: 3 measured networks and no layers; 10 needed"):
        train(Dataset(data.path, data.meta, {"network": few}), jobs=1)
    with pytest.raises(DatasetError, match="column batch missing"):
        read_totals(few.drop(columns="batch"))
    assert isinstance(data.path, Path)
