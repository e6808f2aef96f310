"""Repeated calls of a Python loop: how they are found, measured, trained and predicted."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import NEAR_BYTES, RECURRING
from neuralpower.layers.columns import columns_of, fingerprint
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import ALIAS, Movement
from neuralpower.layers.rows import from_row, identity, to_row
from neuralpower.learn.files.predictor_json import from_json, to_json
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.fitting.problem import FEWEST_ROWS
from neuralpower.learn.keys import recurs
from neuralpower.learn.notes import assumed
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train
from neuralpower.measure.calls import call_of
from neuralpower.measure.collect.plan import draw, make_plan
from neuralpower.measure.collect.request import ACCELERATOR_PRESETS, PRESETS, Preset
from neuralpower.networks.running import META
from neuralpower.networks.zoo import ZOO
from neuralpower.platforms import CPU, platform_named
from neuralpower.prediction.compose import compose
from neuralpower.trace.operators.loops import NEW_BYTES, OFTEN, VIEW, Called, recurring
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace
from tests.learn.test_predictor import BOUNDED, dataset, fresh, seconds

SMALL = 1000  # B that a call goes through

GPU = platform_named("accelerator")


def test_calls_recur_from_the_second_on_where_there_are_many() -> None:
    step = [Called("a", SMALL), Called("b", SMALL)]
    assert recurring(step * OFTEN) == [False, False] + [True] * (2 * OFTEN - 2)
    assert recurring(step * (OFTEN - 1)) == [False] * (2 * OFTEN - 2)
    assert recurring([]) == []


def test_calls_between_which_the_caches_are_emptied_do_not_recur() -> None:
    assert not any(recurring([Called("a", SMALL), Called("b", NEAR_BYTES)] * OFTEN))
    assert sum(recurring([Called("a", SMALL), Called("b", NEAR_BYTES - SMALL)] * OFTEN)) == 2 * (OFTEN - 1)


def test_calls_between_which_other_parameters_are_read_do_not_recur() -> None:
    assert not any(recurring([Called("a", SMALL), Called("b", SMALL, NEW_BYTES + 1)] * OFTEN))
    assert sum(recurring([Called("a", SMALL), Called("b", SMALL, NEW_BYTES)] * OFTEN)) == 2 * (OFTEN - 1)


def stepwise(**settings: Any) -> Trace:
    with torch.device(META):
        network, inputs = ZOO["stepwise"].build(**settings).eval(), ZOO["stepwise"].example_inputs
        assert inputs is not None
        return trace(network, inputs(2, settings.get("steps", 32)))


def again(t: Trace) -> list[str]:
    return [call.operator.removeprefix("aten.") for call in t.calls if call.layer.recurs]


def test_a_loop_over_time_repeats_its_calls_and_their_views() -> None:
    calls = again(stepwise(loop="scan", width=16, steps=20))
    assert calls.count("add") == calls.count("bmm") == 19  # the first of each has its code to load
    assert calls.count("select") >= 3 * 19  # views of what is kept, of what grows and of what is read
    once = [c for c in stepwise(loop="scan", width=16, steps=OFTEN - 1).calls if c.layer.recurs]
    assert once == []  # neither are their views among the calls
    assert again(stepwise(loop="gru", width=64, layers=2)).count("linear") == 2 * 2 * 31


class Repeated(nn.Module):
    """A step, OFTEN times, of the number of which it may know."""

    def __init__(self, step: Any, width: int = 64) -> None:
        super().__init__()
        self.step = step
        self.linear, self.gain = nn.Linear(width, width), nn.Parameter(torch.empty(OFTEN, width))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(width, width)) for _ in range(OFTEN))
        self.experts = nn.Parameter(torch.empty(OFTEN, width, width))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(OFTEN):
            x = self.step(self, x, number)
        return x


def repeated(step: Any, width: int = 64) -> list[str]:
    return again(trace(Repeated(step, width).to(META), (torch.empty(2, width, device=META),)))


@pytest.mark.parametrize(
    "step",
    [
        lambda net, x, number: torch.relu(F.linear(x, net.weights[number])).view(1, -1).view(x.shape),
        lambda net, x, number: torch.relu(x @ net.weights[number].t()),
        lambda net, x, number: torch.relu(F.linear(x, net.experts[number])),
        lambda net, x, number: torch.relu(F.linear(x.bfloat16(), net.weights[number].bfloat16()).float()),
    ],
)
def test_blocks_with_weights_of_their_own_are_no_loop(step: Any) -> None:
    assert repeated(step) == []


def test_modules_that_follow_each_other_are_no_loop() -> None:
    network = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(12)))
    t = trace(network.to(META), (torch.empty(2, 16, device=META),))
    assert len(t.calls) == 24
    assert again(t) == []


def test_one_block_that_is_called_often_is_a_loop_and_its_weights_stay_where_they_fit() -> None:
    def step(net: Repeated, x: Tensor, number: int) -> Tensor:
        return torch.relu(net.linear(x) * net.gain[number])  # the row of a step is read once

    assert repeated(step) == ["linear", "select", "mul", "relu"] * (OFTEN - 1)
    assert repeated(step, 2048) == []  # 16 MiB of weights


def test_what_a_loops_gradients_take_beside_its_calls_recurs_too() -> None:
    t = trace(
        Repeated(lambda net, x, n: net.linear(x)[:, :32].repeat(1, 2)).to(META),
        (torch.empty(2, 64, device=META),),
        training=True,
    )
    pads = [call.layer.recurs for call in t.gradients if getattr(call.layer, "function", "") == "pad"]
    assert pads.count(True) == OFTEN - 1


def test_a_loop_that_is_checkpointed_has_its_views_again() -> None:
    def step(net: Repeated, x: Tensor, number: int) -> Tensor:
        return checkpoint(lambda x: torch.relu(net.linear(x).t().t()), x, use_reentrant=False)

    x = torch.empty(2, 64, device=META)
    t = trace(Repeated(step).to(META), (x,), training=True)
    views = [call for call in t.calls if call.operator == "aten.t"]
    assert len(views) >= OFTEN - 1
    assert all(call.again for call in views)


def test_what_recurs_is_another_group_on_a_cpu_and_another_configuration() -> None:
    layer = Elementwise(function="add", elements=64, operands=2, broadcast=False)
    looped = replace(layer, recurs=True)
    assert str(CPU.alone.group(layer)) == "cheap"
    assert str(CPU.alone.group(looped)) == f"cheap {RECURRING}"
    assert str(GPU.alone.group(looped)) == str(GPU.alone.group(layer))
    assert CPU.alone.group(columns_of(Elementwise, [layer, looped])).tolist() == [
        "cheap",
        f"cheap {RECURRING}",
    ]
    assert from_row(Elementwise, to_row(looped)) == looped
    assert "recurs" not in identity(layer)
    one, other = fingerprint(columns_of(Elementwise, [layer, looped])).tolist()
    assert one != other


def test_what_recurs_is_timed_just_after_a_run_of_its_own() -> None:
    layer = Elementwise(function="add", elements=64, operands=2, broadcast=False)
    assert not call_of(layer, torch.device("cpu")).recurs
    assert call_of(replace(layer, recurs=True), torch.device("cpu")).recurs


def test_a_loop_reads_another_part_at_each_step() -> None:
    layer = Elementwise(function="add", elements=64, operands=2, broadcast=False, run=16, recurs=True)
    call = call_of(layer, torch.device("cpu"))
    (whole,), (other,) = call.warm, call.args
    assert whole.shape == (4, 32, 16)
    for step in (0, 1):
        assert torch.equal(call(), whole[:, step] + other)
    assert Elementwise.from_call("aten.add", call(), whole[:, 2], other) == replace(layer, recurs=False)


def test_a_view_shares_memory_and_moves_nothing() -> None:
    view = Movement(function=ALIAS, elements=64, recurs=True)
    call = call_of(view, torch.device("cpu"))
    assert call().untyped_storage().data_ptr() == call.args[0].untyped_storage().data_ptr()
    assert sum(view.bytes()) == view.flops() == 0
    assert not view.training.differentiable(view)


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.recurring_share])
def test_the_sweep_draws_what_fits_into_the_caches(kind: type[Layer]) -> None:
    layers = list(draw(kind, 20, 0, sort=RECURRING))
    assert len(layers) == 20
    assert all(layer.recurs and sum(layer.bytes()) <= NEAR_BYTES for layer in layers)


def test_a_cpu_measures_what_recurs_and_an_accelerator_does_not() -> None:
    def planned(preset: Preset) -> set[str]:
        kinds = [KINDS["elementwise"], KINDS["movement"]]
        items = make_plan(preset, kinds, ["none"], ["float32"], 0, phases=("forward", "backward"))
        return {item["row"]["phase"] for item in items if item["row"]["recurs"]}

    assert planned(PRESETS["standard"]) == {"forward", "backward"}
    assert planned(ACCELERATOR_PRESETS["standard"]) == set()


def test_two_minutes_are_enough_for_a_fit_of_what_loops_call_most() -> None:
    kinds = [KINDS[name] for name in ("elementwise", "movement")]
    for seed in range(3):
        items = make_plan(PRESETS["quick"], kinds, ["none"], ["float32"], seed, phases=("forward",))
        layers = [from_row(KINDS[item["kind"]], item["row"]) for item in items]
        groups = Counter((layer.kind, str(layer.views.cpu.group(layer))) for layer in layers if layer.recurs)
        often = [
            ("elementwise", "cheap"),
            ("elementwise", "transcendental"),
            ("movement", "copy"),
            ("movement", ALIAS),
        ]
        assert min(groups[group] for group in often) >= FEWEST_ROWS


VIEW_S, FASTER = 1.2e-6, 0.2


@pytest.fixture(scope="module")
def fitted() -> Predictor:
    """A predictor of a device: repeated calls take a fifth of the time, every view the same time."""
    data = dataset(["softmax", "elementwise", "movement"], 40)
    tables = {}
    for kind, table in data.tables.items():
        layers = list(draw(KINDS[kind], 60, 0, BOUNDED, RECURRING))
        times = [FASTER * seconds(layer) if sum(layer.bytes()) else VIEW_S for layer in layers]
        rows = pd.DataFrame(
            [{**to_row(layer), "runtime_s": s} for layer, s in zip(layers, times, strict=True)]
        )
        tables[kind] = pd.concat([table, rows], ignore_index=True)
    return train(replace(data, tables=tables), jobs=1).predictor


def test_what_recurs_is_trained_separately(fitted: Predictor) -> None:
    layers = fresh("softmax")[:20]
    looped = [replace(layer, recurs=True) for layer in layers if sum(layer.bytes()) < NEAR_BYTES]
    times = fitted.estimate(looped).runtime_s
    assert times == pytest.approx([FASTER * seconds(layer) for layer in looped], rel=0.05)
    view = Movement(function=ALIAS, elements=500, recurs=True)
    assert fitted.estimate([view]).runtime_s[0] == pytest.approx(VIEW_S, rel=0.05)
    assert assumed(fitted, looped) == ()
    assert from_json(to_json(fitted), "again").estimate(looped).runtime_s == pytest.approx(times, rel=1e-5)


def test_where_nothing_that_recurs_was_trained_it_is_as_any_call_and_views_are_free() -> None:
    cold = train(dataset(["softmax", "movement"]), jobs=1).predictor
    layers = fresh("softmax")[:20]
    looped = [replace(layer, recurs=True) for layer in layers]
    assert cold.estimate(looped).runtime_s == pytest.approx(cold.estimate(layers).runtime_s)
    assert assumed(cold, looped) == assumed(cold, layers)
    t = stepwise(loop="scan", width=16, steps=16)
    views = [call.layer for call in t.calls if call.layer == VIEW]
    assert views
    for predictor in (cold, load("nvidia-t4"), load("nvidia-float32@nvidia-l4")):
        assert predictor.estimate(views).runtime_s.sum() == 0
        assert assumed(predictor, views) == ()
        rows = compose(t, predictor, model="loop", batch_size=2).rows
        assert VIEW not in [row.layer for row in rows]


def test_views_are_not_trained_together_with_copies() -> None:
    views = [Movement(function=ALIAS, elements=2**i, recurs=True) for i in range(FEWEST_ROWS - 1)]
    copies = [Movement(function="copy", elements=64 * 3**i, recurs=True) for i in range(FEWEST_ROWS - 1)]
    joins = [replace(copy, function="index", run=1) for copy in copies]
    data = dataset(["movement"], 40)
    rows = [{**to_row(layer), "runtime_s": seconds(layer) or VIEW_S} for layer in (*views, *copies, *joins)]
    table = pd.concat([data.tables["movement"], pd.DataFrame(rows)], ignore_index=True)
    trained = train(replace(data, tables={"movement": table}), jobs=1)
    together = [key[3] for key in trained.predictor.regressors if recurs(key)]
    assert together == ["copy recurring+index recurring"]
    assert [key[3] for key in trained.skipped if ALIAS in key[3]] == [f"{ALIAS} {RECURRING}"]
    assert trained.predictor.estimate(views).runtime_s.sum() == 0


def test_a_loop_is_composed_of_what_recurs(fitted: Predictor) -> None:
    t = stepwise(loop="decayed", width=32, steps=16)
    whole = compose(t, fitted, model="loop", batch_size=2)
    per_step = [row for row in whole.rows if row.layer is not None and row.layer.recurs]
    assert {row.kind for row in per_step} == {"elementwise", "movement"}
    assert sum(row.flops for row in whole.rows) == sum(call.layer.flops() for call in t.calls)
