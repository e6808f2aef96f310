"""Whole networks' times: factors that are known have to be found, and a predictor learnt from totals alone."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neuralpower.dataset import Dataset
from neuralpower.errors import DatasetError
from neuralpower.layers import KINDS, Layer
from neuralpower.learn import train
from neuralpower.totals import fit_factors, read_totals
from tests.test_predictor import dataset, fresh, seconds


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
        layers = json.dumps([[layer.kind, layer.to_row(), n] for layer, n in chosen])
        rows.append({"model": "made up", "batch": 1, "input": "{}", "layers": layers, "runtime_s": runtime})
    return pd.DataFrame(rows)


def test_factors_that_are_known_are_found() -> None:
    generator = np.random.default_rng(0)
    parts, truth = generator.dirichlet(np.ones(3), 60), np.array([1.0, 1.3, 0.9])
    factors, held_out = fit_factors(parts / (parts @ truth)[:, None])
    assert np.allclose(factors, truth, atol=0.03)
    assert np.max(np.abs(held_out - 1)) < 0.05


def test_few_networks_that_say_little_leave_the_factors_near_the_common_one() -> None:
    generator = np.random.default_rng(1)
    parts = generator.dirichlet(np.ones(20), 12) * np.exp(0.3 * generator.normal(size=(12, 1)))
    factors, _ = fit_factors(parts)
    assert np.ptp(factors) < 0.5


def test_whole_networks_correct_the_sum_of_their_layers() -> None:
    data = dataset(["linear", "softmax"])
    table = network_rows(40, {"linear": 1.0, "softmax": 1.5})
    trained = train(Dataset(data.path, data.meta, {**data.tables, "network": table}), jobs=1)
    assert trained.correction is not None
    assert trained.correction.after < 0.4 * trained.correction.before
    layers = fresh("softmax")
    ratio = trained.predictor.estimate(layers).runtime_s / [seconds(layer) for layer in layers]
    assert np.median(ratio) == pytest.approx(1.5, rel=0.1)


def test_totals_alone_make_a_predictor() -> None:
    data = dataset(["linear"])
    table = network_rows(60, {"linear": 1.0, "softmax": 1.0})
    predictor = train(Dataset(data.path, data.meta, {"network": table}), jobs=1).predictor
    assert predictor.kinds == ("linear", "softmax")
    others, _ = read_totals(network_rows(20, {"linear": 1.0, "softmax": 1.0}, seed=5))
    found = predictor.predict_many(
        [[layer for layer, n in zip(t.layers, t.counts, strict=True) for _ in range(n)] for t in others]
    )
    measured = np.array([t.runtime_s for t in others])
    assert np.median(np.abs(found.value / measured - 1)) < 0.1
    assert np.mean((found.low <= measured) & (measured <= found.high)) >= 0.7


def test_a_network_without_its_layers_is_traced() -> None:
    row = {"model": "zoo:squeezenet", "batch": 2, "input": '{"input_shape": [3, 64, 64]}', "runtime_s": 0.1}
    (total,), rejected = read_totals(pd.DataFrame([row]))
    assert not rejected
    assert {layer.kind for layer in total.layers} >= {"conv2d", "pool2d", "activation"}
    assert any(isinstance(layer, KINDS["conv2d"]) and layer.to_row()["batch"] == 2 for layer in total.layers)


def test_networks_that_cannot_be_used_are_named_with_their_lines() -> None:
    good = network_rows(1, {"linear": 1.0, "softmax": 1.0}).to_dict("records")[0]
    rows = [
        good,
        {**good, "runtime_s": -1.0},
        {**good, "status": "error"},
        {**good, "model": "zoo:alexnt", "layers": None},
    ]
    totals, rejected = read_totals(pd.DataFrame(rows))
    assert len(totals) == 1
    assert [row.line for row in rejected] == [3, 4, 5]
    assert "alexnet" in rejected[2].reason


def test_too_few_totals_and_missing_columns_are_refused() -> None:
    data = dataset(["linear"])
    few = network_rows(3, {"linear": 1.0, "softmax": 1.0})
    with pytest.raises(DatasetError, match="3 measured networks and no layers; 10 are needed"):
        train(Dataset(data.path, data.meta, {"network": few}), jobs=1)
    with pytest.raises(DatasetError, match="column batch missing"):
        read_totals(few.drop(columns="batch"))
    assert isinstance(data.path, Path)
