"""A queue of calls on two clocks: from the simulated device's rows to a network's time and energy."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from neuralpower.data.dataset import Dataset
from neuralpower.errors import PredictorError
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.activation import Activation
from neuralpower.layers.linear import Linear
from neuralpower.layers.recurrent import Recurrent
from neuralpower.layers.rows import to_row
from neuralpower.layers.softmax import Softmax
from neuralpower.learn.files.predictor_json import from_json, save, to_json
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.launch_overhead import Cost, Dispatch, Observation, device_end_s, train_dispatch
from neuralpower.learn.network_estimates import predict_many
from neuralpower.learn.networks.network_rows import Total
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.train import train
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.prediction.compose import compose
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.tables import prediction_table
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace
from tests.simulated_cuda import META, SimulatedCuda, layer_call, rig_of

PEAK, BANDWIDTH = 5e13, 2e12
DISPATCH_S = {"linear": 9e-6, "activation": 5e-6, "softmax": 6e-6}


def kernel_s(layer: Layer) -> float:
    """2 us, then 80 % of the peak FLOP/s, then 70 % of the bandwidth; TF32 five times as fast."""
    speed = 5 if layer.dtype == "tensorfloat32" else 1
    return 2e-6 + layer.flops() / (0.8 * PEAK * speed) + sum(layer.bytes()) / (0.7 * BANDWIDTH)


def run(layers: tuple[Layer, ...], dispatch: float = 1.0, walk_s: float = 0.0) -> float:
    """What the simulated device takes for a network, from a queue that is empty."""
    cuda = SimulatedCuda()
    for layer in layers:
        cuda.launch(kernel_s(layer), dispatch * DISPATCH_S[layer.kind] + walk_s)
    return cuda.device_s


def measured(kind: str, dtypes: tuple[str, ...] = ("float32",), count: int = 45) -> pd.DataFrame:
    """Rows of a sweep, taken by the rig on the simulated device."""
    cuda = SimulatedCuda(noise=0.003, l2_bytes=10**4)
    layers = [
        dataclasses.replace(layer, dtype=dtype)
        for dtype in dtypes
        for layer in draw(KINDS[kind], count, 0, PRESETS["standard"])
    ]
    calls = [layer_call(cuda, layer, kernel_s(layer), DISPATCH_S[kind]) for layer in layers]
    columns = rig_of(cuda).time(calls)
    return pd.DataFrame([{**to_row(layer), **row} for layer, row in zip(layers, columns, strict=True)])


def dataset(tables: dict[str, pd.DataFrame], **hardware: object) -> Dataset:
    about = rig_of(SimulatedCuda()).hardware()
    peaks = {"float32": PEAK, "tensorfloat32": 5 * PEAK}
    known = {**about, "peak_flops_per_s": peaks, "memory_bytes_per_s": BANDWIDTH, **hardware}
    return Dataset(Path("simulated"), {"schema": 1, "device": "Simulated", "hardware": known}, tables)


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return {
        "linear": measured("linear", ("float32", "tensorfloat32")),
        "activation": measured("activation", count=90),
        "softmax": measured("softmax"),
    }


@pytest.fixture(scope="module")
def predictor(tables: dict[str, pd.DataFrame]) -> Predictor:
    return train(dataset(tables), learner="lasso", jobs=1).predictor


def network(batch: int, blocks: int = 12, width: int = 1024) -> Trace:
    parts: Iterator[nn.Module] = (
        part for _ in range(blocks) for part in (nn.Linear(width, width, device="meta"), nn.ReLU())
    )
    return trace(nn.Sequential(*parts, nn.Softmax(-1)), (torch.empty(batch, width, device=META),))


def predicted(predictor: Predictor, traced: Trace, dtype: str = "float32") -> Prediction:
    return compose(traced, predictor, model="net", batch_size=1, dtype=dtype)


# ---- the queue ----


def test_the_device_waits_for_the_host_or_the_host_is_ahead() -> None:
    # issued at 1, 2, 3 and run for 5 each: starts at 1, then 6, 11; done at 16
    assert device_end_s(np.array([1.0, 1, 1]), np.array([5.0, 5, 5])) == 16
    # issued at 5, 10, 15 and run for 1 each: done at 16
    assert device_end_s(np.array([5.0, 5, 5]), np.array([1.0, 1, 1])) == 16
    # issued at 1, 2, 12, 13; a long kernel hides two issues, then the host is late: 1 + 6 = 7, 8; 12 + 1 =
    # 13, 14
    assert device_end_s(np.array([1.0, 1, 10, 1]), np.array([6.0, 1, 1, 1])) == 14
    assert device_end_s(np.array([]), np.array([])) == 0


def test_the_closed_form_is_the_walk() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        dispatch, kernel = generator.lognormal(size=(2, 30))
        host = device = 0.0
        for d, k in zip(dispatch, kernel, strict=True):
            host += d
            device = max(host, device) + k
        assert device_end_s(dispatch, kernel) == pytest.approx(device, rel=1e-12)


def test_the_order_of_calls_counts() -> None:
    # the same four calls: long kernels first hide the host's part of the short ones
    dispatch, kernel = np.ones(4), np.array([5.0, 5, 0.1, 0.1])
    assert device_end_s(dispatch, kernel) == pytest.approx(1 + 10.2)
    assert device_end_s(dispatch, kernel[::-1]) == pytest.approx(3 + 10)


# ---- what the host takes ----


def test_columns_take_the_host_as_long_as_their_layers() -> None:
    costs = {
        ("recurrent", "forward", "lstm"): Cost(1e-5, 2e-6, 9),
        ("recurrent", "forward", ""): Cost(1e-5, 3e-6, 9),
        ("linear", "forward", ""): Cost(7e-6, 0.0, 9),
    }
    dispatch = Dispatch(costs, 4e-6, 0.1, factor=1.5, walk_s=9e-6)
    for kind in ("recurrent", "linear", "softmax"):
        layers = list(draw(KINDS[kind], 20, 4))
        np.testing.assert_allclose(
            dispatch.seconds_of_columns(columns_of(KINDS[kind], layers)), dispatch.seconds(layers)
        )


def observation(
    kind: str, dispatch_s: list[float], function: str = "", launches: float | list[float] = 1.0
) -> Observation:
    n = len(dispatch_s)
    labels = np.full(n, "forward"), np.full(n, function)
    return Observation(
        kind, *labels, np.broadcast_to(np.asarray(launches, dtype=float), (n,)), np.array(dispatch_s)
    )


def test_the_host_takes_a_median_per_kind_and_function() -> None:
    trained = train_dispatch(
        [
            observation("activation", [4e-6, 5e-6, 9e-6], "relu"),
            observation("activation", [8e-6, float("nan"), 0.0], "gelu"),
            observation("linear", [7e-6, 7e-6]),
        ]
    )
    assert trained is not None
    layers: list[Layer] = [Activation(function=name, elements=8) for name in ("relu", "gelu", "silu")]
    layers += [Linear(rows=1, in_features=1, out_features=1, bias=True), Softmax(rows=1, width=1)]
    # relu 5, gelu 8, another activation the median of 4, 5, 8, 9; linear 7; a kind never seen the median of
    # 4, 5, 7, 7, 8, 9
    assert trained.seconds(layers) == pytest.approx([5e-6, 8e-6, 6.5e-6, 7e-6, 7e-6])


def test_no_rows_teach_nothing() -> None:
    assert train_dispatch([]) is None
    assert train_dispatch([observation("linear", [float("nan"), 0.0, -1.0])]) is None


def test_a_chain_of_launches_takes_the_host_a_line() -> None:
    steps = [1.0, 10, 50, 100]
    trained = train_dispatch([observation("recurrent", [1e-5 + 2e-6 * s for s in steps], "lstm", steps)])
    assert trained is not None
    layer = Recurrent(
        function="lstm", batch=1, steps=20, input_size=8, hidden_size=8, num_layers=2, bidirectional=False
    )
    # 20 steps in each of 2 layers: 10 us + 40 x 2 us
    assert trained.seconds([layer]) == pytest.approx([9e-5])


def forward_and_backward(kind: str, forward_s: float, backward_s: float) -> Observation:
    phase, one = np.array(["forward", "backward"]), np.ones(2)
    return Observation(kind, phase, np.array(["", ""]), one, np.array([forward_s, backward_s]))


def test_a_network_starts_its_backward_pass_once() -> None:
    relu, product = ("activation", 8e-6, 70e-6), ("linear", 18e-6, 147e-6)
    trained = train_dispatch([forward_and_backward(*row) for row in (relu, product)])
    assert trained is not None
    layers: list[Layer] = [Activation(function="relu", elements=8, phase="backward")]
    layers += [Linear(rows=1, in_features=1, out_features=1, bias=True, phase="backward")]
    assert trained.seconds(layers) == pytest.approx([8e-6, 85e-6])  # 62 us less
    assert trained.other_s == pytest.approx(13e-6)  # a forward call's


def test_networks_tell_how_long_python_takes_around_a_call() -> None:
    product = Linear(rows=1, in_features=1, out_features=1, bias=True)
    plain = Dispatch({("linear", "forward", ""): Cost(1e-5, 0.0, 9)}, 1e-5, 0.1)

    def measured(host_s: float) -> Total:
        return Total("net", (product,), (4.0,), 1e-3, None, 2, host_s)

    assert plain.corrected([measured(6e-5)] * 2) is plain  # too few
    corrected = plain.corrected([measured(us * 1e-6) for us in (100, 110, 120, float("nan"))])
    assert corrected.walk_s == pytest.approx(17.5e-6)  # 110 us for 4 calls of 10
    assert corrected.unknown_s == pytest.approx(2.75e-5)
    recurring, back = replace(product, recurs=True), replace(product, phase="gradient")
    assert corrected.seconds([product, recurring, back]) == pytest.approx([2.75e-5, 1e-5, 1e-5])
    assert corrected.of_compiled().seconds([product]) == pytest.approx([1e-5])


# ---- a network, from the rig's rows to its time ----


@pytest.mark.parametrize(
    ("batch", "host_bound"),
    [
        # 1 row: 25 kernels of 2 to 5 us, issued every 5 to 9 us: about 180 us, the host's
        (1, True),
        # 8192 rows: 12 products of 17 GFLOP, 0.4 ms each at 40 TFLOP/s: the host is far ahead
        (8192, False),
    ],
)
def test_a_network_is_the_hosts_or_the_devices(predictor: Predictor, batch: int, host_bound: bool) -> None:
    traced = network(batch)
    truth = run(traced.layers)
    prediction = predicted(predictor, traced)
    assert prediction.host_bound is host_bound
    assert prediction.to_json()["host_bound"] is host_bound
    assert ("bound by launch overhead" in prediction_table(prediction, "kind", 3, 15)) is host_bound
    assert prediction.runtime_s.value == pytest.approx(truth, rel=0.03)
    assert prediction.runtime_s.low <= truth <= prediction.runtime_s.high
    busy = sum(kernel_s(layer) for layer in traced.layers)
    assert (truth > 1.3 * busy) is host_bound
    assert prediction.idle_s == pytest.approx(truth - busy, abs=0.03 * truth)
    (many,) = predict_many(predictor, [traced.layers]).value
    assert many == pytest.approx(prediction.runtime_s.value)


def test_many_networks_are_each_on_their_own_clocks(predictor: Predictor) -> None:
    networks = [network(batch, blocks).layers for batch, blocks in ((1, 3), (2048, 2), (64, 7))]
    totals = predict_many(predictor, networks)
    assert totals.value == pytest.approx([run(layers) for layers in networks], rel=0.03)
    assert np.all(totals.low < totals.value)
    assert np.all(totals.value < totals.high)
    assert predict_many(predictor, [()]).value == pytest.approx([0.0])


def test_products_in_tf32_are_trained_separately_and_the_rest_is_float32(predictor: Predictor) -> None:
    traced = network(2048)
    single, tf32 = predicted(predictor, traced), predicted(predictor, traced, "tensorfloat32")
    layers = tuple(
        dataclasses.replace(x, dtype="tensorfloat32") if x.kind == "linear" else x for x in traced.layers
    )
    assert tf32.runtime_s.value == pytest.approx(run(layers), rel=0.03)
    assert tf32.runtime_s.value < 0.7 * single.runtime_s.value
    # products are as well known as in float32, and what multiplies nothing is the same layer
    assert [row.basis for row in tf32.rows] == [row.basis for row in single.rows]


def test_the_hosts_part_travels_in_the_file_and_without_it_kernels_are_summed(
    predictor: Predictor, tmp_path: Path
) -> None:
    save(predictor, tmp_path / "two.json")
    kept = load(tmp_path / "two.json")
    save(kept, tmp_path / "again.json")  # what was rounded once stays
    assert kept.dispatch is not None
    assert load(tmp_path / "again.json").dispatch == kept.dispatch
    traced = network(1)
    value = predicted(kept, traced).runtime_s.value
    assert value == pytest.approx(predicted(predictor, traced).runtime_s.value, rel=1e-5)
    data = {**to_json(predictor), "dispatch": None}
    without = from_json(json.loads(json.dumps(data)))
    assert without.dispatch is None
    sum_alone = predicted(without, traced)
    assert (sum_alone.host_bound, sum_alone.idle_s) == (None, None)
    assert sum_alone.runtime_s.value == pytest.approx(
        sum(kernel_s(layer) for layer in traced.layers), rel=0.03
    )


def test_rows_without_the_hosts_time_are_summed(tables: dict[str, pd.DataFrame]) -> None:
    bare = {"softmax": tables["softmax"].drop(columns="dispatch_s")}
    assert train(dataset(bare), learner="lasso", jobs=1).predictor.dispatch is None


def test_whole_networks_correct_the_hosts_part(tables: dict[str, pd.DataFrame]) -> None:
    # a network's host takes 20 us around each call
    rows = []
    for i, batch in enumerate((1, 8, 64)):
        layers = network(batch, blocks=4 + i).layers
        host_s = sum(DISPATCH_S[layer.kind] + 2e-5 for layer in layers)
        parts = [[layer.kind, to_row(layer), 1] for layer in layers]
        busy = sum(kernel_s(layer) for layer in layers)
        rows.append(
            {
                "model": f"n{i}",
                "batch": batch,
                "runtime_s": busy,
                "dispatch_s": host_s,
                "layers": json.dumps(parts),
            }
        )
    # and some with so many kernels that their hosts waited for a place in the queue: that is the device's
    # time
    rows += [{**row, "dispatch_s": row["runtime_s"]} for row in rows]
    few = {kind: table.iloc[::2] for kind, table in tables.items()}
    trained = train(dataset({**few, "network": pd.DataFrame(rows)}), learner="lasso", jobs=1).predictor
    assert trained.dispatch is not None
    assert trained.dispatch.walk_s == pytest.approx(2e-5, rel=0.01)
    traced = network(1)
    assert predicted(trained, traced).runtime_s.value == pytest.approx(
        run(traced.layers, walk_s=2e-5), rel=0.03
    )


# ---- energy ----


@pytest.fixture(scope="module")
def powered(tables: dict[str, pd.DataFrame]) -> Predictor:
    """Every kernel draws 300 W, and the meter knows it to 1 %, however short the kernel."""
    metered = {
        kind: table[table["dtype"] == "float32"].iloc[::2].assign(power_w=300.0, energy_u_rel=0.01)
        for kind, table in tables.items()
    }
    return train(dataset(metered, limit_w=700.0), learner="lasso", jobs=1).predictor


def test_a_device_that_waits_draws_idle_power(powered: Predictor) -> None:
    traced = network(1)
    busy = sum(kernel_s(layer) for layer in traced.layers)
    truth = run(traced.layers)
    assert powered.hardware is not None
    measured_idle = dataclasses.replace(powered, hardware=dataclasses.replace(powered.hardware, idle_w=100.0))
    prediction = predicted(measured_idle, traced)
    assert prediction.energy_j is not None
    assert prediction.power_w is not None
    # E = 300 W while it works + 100 W while it waits
    energy = 300 * busy + 100 * (truth - busy)
    assert prediction.energy_j.value == pytest.approx(energy, rel=0.04)
    assert prediction.power_w.value == pytest.approx(energy / truth, rel=0.04)


def test_a_device_that_waits_draws_within_wide_bounds_where_its_idle_power_is_not_known(
    powered: Predictor,
) -> None:
    blind = predicted(powered, network(1))  # it waits: idle is assumed, and the bounds are wide
    assert blind.energy_j is not None and blind.power_w is not None
    assert blind.power_w.high > 1.5 * blind.power_w.low
    full = predicted(powered, network(8192))  # it hardly waits: what it then draws does not matter
    assert full.energy_j is not None
    assert full.energy_j.value == pytest.approx(300 * run(network(8192).layers), rel=0.04)


# ---- backward ----


def test_a_backward_pass_is_predicted_from_backward_rows(tables: dict[str, pd.DataFrame]) -> None:
    """Backward rows: twice the forward's time, at 250 W."""
    both = {}
    for kind, table in tables.items():
        rows = table[table["dtype"] == "float32"].assign(power_w=300.0, energy_u_rel=0.01)
        slower = {name: 2 * rows[name] for name in ("runtime_s", "dispatch_s")}
        both[kind] = pd.concat([rows, rows.assign(phase="backward", power_w=250.0, **slower)])
    trained = train(dataset(both, limit_w=700.0), learner="lasso", jobs=1).predictor
    traced = network(8192)
    forward = predicted(trained, traced)
    backward = compose(traced, trained, model="net", batch_size=1, phase="backward")
    # the first of 12 products has no gradient of its input: half of its backward pass
    expected = 2 * run(traced.layers) - kernel_s(traced.layers[0])
    assert backward.runtime_s.value == pytest.approx(expected, rel=0.02)
    assert backward.energy_j is not None
    assert backward.energy_j.value == pytest.approx(250 * expected, rel=0.04)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    # a product's gradients are two products, of input and weights, and a sum for the bias: 12 times 8192 x
    # 1024 numbers; the first one's input asks for none, its weights and its bias do
    products = [sum(row.flops for row in p.rows if row.kind == "linear") for p in (forward, backward)]
    assert products[1] == 2 * products[0] * 23 / 24 + 12 * 8192 * 1024
    assert backward.rows[0].kind == "softmax"
    with pytest.raises(PredictorError, match="was not trained on phase 'backward': it has forward"):
        compose(
            traced,
            dataclasses.replace(trained, regressors=forward_of(trained)),
            model="net",
            batch_size=1,
            phase="backward",
        )


def forward_of(trained: Predictor) -> dict[tuple[str, str, str, str], Regressor]:
    return {key: regressor for key, regressor in trained.regressors.items() if key[2] == "forward"}
