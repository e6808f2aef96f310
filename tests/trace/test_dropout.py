"""Dropout: nothing in evaluation; in training a random number per element, alone and inside attention."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neuralpower.data.dataset import Dataset
from neuralpower.data.schema import config_id
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.attention import Attention
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.norm import Norm
from neuralpower.layers.rows import from_row, identity, to_row
from neuralpower.layers.training import backward_of
from neuralpower.learn.estimates import BORROWED, IN_RANGE
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.train import train
from neuralpower.measure.calls import call_of
from neuralpower.measure.collect.plan import draw, kinds_named, make_plan
from neuralpower.measure.collect.request import ACCELERATOR_PRESETS, PRESETS, Preset
from neuralpower.networks.running import META
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.tracer import trace, trace_call

CPU = torch.device("cpu")
ATTENTION = Attention(
    batch=2, query_heads=4, key_heads=2, query_length=8, key_length=8, head_size=16, causal=True, masked=False
)
DROPPED = Elementwise(function="dropout_training", elements=64, operands=1, broadcast=False)


class Attending(nn.Module):
    """Attention and a hidden state, both dropped in training."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.dropout, self.rate = nn.Dropout(rate), rate

    def forward(self, x: Tensor) -> Tensor:
        context = F.scaled_dot_product_attention(x, x, x, dropout_p=self.rate if self.training else 0.0)
        return self.dropout(context)


def layers_of(model: nn.Module, training: bool) -> tuple[Layer, ...]:
    return trace(model, (torch.empty(1, 2, 4, 8, device=META),), training=training).layers


def test_a_trace_tells_dropout_in_training() -> None:
    attention, dropped = layers_of(Attending(), training=True)
    assert isinstance(attention, Attention)
    assert attention.dropout
    assert dropped == DROPPED  # 2 heads x 4 tokens x 8


def test_dropout_is_nothing_in_evaluation() -> None:
    (attention,) = layers_of(Attending(), training=False)
    assert isinstance(attention, Attention)
    assert not attention.dropout


def test_a_rate_of_zero_drops_nothing() -> None:
    (attention,) = layers_of(Attending(0.0), training=True)
    assert isinstance(attention, Attention)
    assert not attention.dropout


def test_dropout_in_place_is_made_of_its_parts() -> None:
    layers = layers_of(nn.Dropout(inplace=True), training=True)
    assert [to_row(layer)["function"] for layer in layers] == ["bernoulli", "div", "mul"]
    assert [str(layer.views.cpu.group(layer)) for layer in layers] == ["random", "transcendental", "cheap"]


@pytest.mark.parametrize("kind", ["elementwise", "attention"])
def test_layers_of_the_sweep_for_training_are_those_that_their_calls_make(kind: str) -> None:
    for layer in draw(KINDS[kind], 20, 0, sort=TRAINING):
        assert layer.training.only(layer)
        assert trace_call(layer.build(META)).layers == (layer,)


def test_a_call_that_is_timed_drops_a_tenth() -> None:
    call = call_of(dataclasses.replace(DROPPED, elements=10_000), CPU)
    torch.manual_seed(0)
    kept = torch.count_nonzero(call()).item()
    # 10,000 x 0.9, standard deviation (10,000 x 0.9 x 0.1)^0.5 = 30
    assert abs(kept - 9000) < 150
    assert torch.count_nonzero(call_of(ATTENTION, CPU)()) == 2 * 4 * 8 * 16
    once, again = (call_of(dataclasses.replace(ATTENTION, dropout=True), CPU) for _ in range(2))
    assert not torch.equal(once(), again())


def test_a_backward_pass_draws_nothing_again() -> None:
    assert (
        backward_of(dataclasses.replace(ATTENTION, dropout=True))
        == backward_of(ATTENTION)
        == (ATTENTION, ATTENTION)
    )


# ---- what is collected ----


def plan_of(phases: tuple[str, ...], preset: Preset = PRESETS["quick"]) -> Counter[tuple[str, str, bool]]:
    kinds = kinds_named(["elementwise", "attention", "norm"], phases)
    items = make_plan(preset, kinds, ["none"], ["float32"], 0, phases=phases)
    rows = [(item["kind"], item["row"]["phase"], item["row"]) for item in items]
    layers = ((phase, from_row(KINDS[kind], row)) for kind, phase, row in rows)
    return Counter((layer.kind, phase, layer.training.only(layer)) for phase, layer in layers)


def test_what_only_training_has_is_measured_forward_beside_backward() -> None:
    found = plan_of(("backward",))
    for kind in ("elementwise", "attention", "norm"):
        # a backward pass may be too large where its forward pass is not
        assert (
            found[kind, "forward", True] >= found[kind, "backward", True] > 0.8 * found[kind, "forward", True]
        )
        assert found[kind, "forward", False] == 0
    # a fifth more than 900 x 2.5 of 35.4 shares, and than 900 x 2
    assert found["elementwise", "forward", True] == round(64 * 0.2)
    assert found["attention", "forward", True] == round(51 * 0.2)


def test_a_collection_of_forward_passes_is_as_it_was() -> None:
    found = plan_of(("forward",))
    assert found["elementwise", "forward", True] == found["attention", "forward", True] == 0


def test_on_an_accelerator_each_comes_in_one_phase() -> None:
    found = plan_of(("forward", "backward"), ACCELERATOR_PRESETS["standard"])
    both = found["attention", "forward", True], found["attention", "backward", True]
    assert sum(both) == round(71 * 0.2)  # 1,250 x 2 of 35.4 shares are 71
    assert min(both) > 0


# ---- data and predictors from before this field ----


def test_a_configuration_without_dropout_keeps_its_name_and_its_number() -> None:
    # as they were named before there was a field for it
    assert config_id(identity(ATTENTION)) == "4645b461ce07fa89"
    assert fingerprint(columns_of(Attention, [ATTENTION]))[0] == 1255404007497476393
    dropped = dataclasses.replace(ATTENTION, dropout=True)
    assert config_id(identity(dropped)) != "4645b461ce07fa89"
    assert fingerprint(columns_of(Attention, [dropped]))[0] != 1255404007497476393


def seconds(layer: Layer) -> float:
    """The synthetic device: 10 GB/s, and 10 ns for each random number."""
    return 5e-6 + sum(layer.bytes()) / 1e10 + 1e-8 * to_row(layer)["elements"] * layer.training.only(layer)


def trained(training: bool) -> Predictor:
    layers: list[Any] = list(draw(Elementwise, 300, 0, PRESETS["quick"]))
    if training:
        layers += draw(Elementwise, 60, 0, PRESETS["quick"], sort=TRAINING)
    table = pd.DataFrame([{**to_row(layer), "runtime_s": seconds(layer)} for layer in layers])
    meta = {"schema": 1, "device": "synthetic"}
    return train(Dataset(Path("synthetic"), meta, {"elementwise": table}), jobs=1, learner="lasso").predictor


def test_a_predictor_learns_what_random_numbers_cost() -> None:
    layer = dataclasses.replace(DROPPED, elements=2**18)
    found = trained(training=True).estimate([layer])
    assert found.runtime_s[0] == pytest.approx(seconds(layer), rel=0.1)
    assert found.basis == (IN_RANGE,)


def test_a_predictor_that_never_saw_dropout_takes_it_for_arithmetic_and_says_so() -> None:
    dropped = dataclasses.replace(DROPPED, elements=2**18)
    found = trained(training=False).estimate([dropped, dataclasses.replace(dropped, function="neg")])
    assert found.runtime_s[0] == found.runtime_s[1]
    assert found.basis[0] == BORROWED


def test_rows_of_attention_from_before_are_read_without_dropout() -> None:
    row = to_row(ATTENTION)
    del row["dropout"]
    assert from_row(Attention, row) == ATTENTION
    groups = Attention.views.cpu.group(
        columns_of(Attention, [ATTENTION, dataclasses.replace(ATTENTION, dropout=True)])
    )
    assert np.array_equal(groups, ["prefill", "dropout"])


def test_a_batch_norm_of_training_is_no_call_of_evaluation() -> None:
    norm = Norm(function="batch", rows=2, width=4)
    assert norm.training.only(norm.training.turned(norm))
    assert not norm.training.only(norm)
