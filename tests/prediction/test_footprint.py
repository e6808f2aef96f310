"""Joules, money and carbon for each token, sample and training run."""

from __future__ import annotations

from typing import Any

import pytest

import neuralpower
from neuralpower.errors import InputError
from neuralpower.prediction.footprint import Footprint, footprint_of
from neuralpower.prediction.generation import Generation
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.tables import prediction_table

MODEL = (
    "transformers:LlamaForCausalLM?hidden_size=256&num_hidden_layers=2&num_attention_heads=4&vocab_size=512"
)


@pytest.fixture(scope="module")
def step() -> Prediction:
    phase = neuralpower.Phase.decode(context=64)
    return neuralpower.predict(MODEL, device="h100-sxm", phase=phase, batch_size=4, dtype="bfloat16")


def lines(prediction: Prediction, **options: Any) -> dict[str, Any]:
    found = footprint_of(prediction, options)
    assert isinstance(found, Footprint)
    return {line.name: line for line in found.lines}


def test_nothing_is_said_that_is_not_asked(step: Prediction) -> None:
    assert step.footprint is None and footprint_of(step, {}) is None


def test_node_and_site_are_lines_of_their_own(step: Prediction) -> None:
    said = lines(step, node_overhead=100.0, pue=1.5)
    assert step.energy_j is not None
    joules = step.energy_j.value / 4
    node = joules + 100 * step.runtime_s.value / 4
    assert said["energy per token"].value.value == pytest.approx(joules)
    assert said["with the node per token"].value.value == pytest.approx(node)
    assert said["with the site per token"].value.value == pytest.approx(1.5 * node)


def test_carbon_is_of_the_sites_energy(step: Prediction) -> None:
    said = lines(step, pue=2.0, carbon_intensity="360")["carbon per million tokens"]
    assert step.energy_j is not None
    assert said.value.value == pytest.approx(2 * step.energy_j.value / 4 * 1e6 / 3.6e6 * 360)
    assert said.value.low < said.value.value < said.value.high


def test_the_price_of_a_million_tokens_follows_from_the_time(step: Prediction) -> None:
    said = lines(step, price="3.6/h", currency="EUR")["price per million tokens out"]
    assert said.unit == "EUR"
    assert said.value.value == pytest.approx(3.6 / 3600 * step.runtime_s.value / 4 * 1e6)


def test_a_generation_has_prices_of_both_sides() -> None:
    phase = neuralpower.Phase.generate(prompt=32, new_tokens=4)
    found = neuralpower.predict(
        MODEL, device="h100-sxm", phase=phase, batch_size=2, dtype="bfloat16", price="2/h", power_limit="80%"
    )
    assert isinstance(found.footprint, Footprint)
    said = {line.name: line.value.value for line in found.footprint.lines}
    whole = 2 / 3600 * found.runtime_s.value
    parts = said["price per million tokens in"] * 64 + said["price per million tokens out"] * 6
    assert parts / 1e6 == pytest.approx(whole)
    about = found.generation
    assert isinstance(about, Generation) and about.prefill_energy_j and about.decode_energy_j
    assert found.energy_j is not None
    apart = about.prefill_energy_j.value + about.decode_energy_j.value
    assert apart == pytest.approx(found.energy_j.value)
    assert "price per million tokens out" in prediction_table(found, "kind", 3, 0)
    assert found.power_w is not None and found.power_w.high <= 560
    assert all(row.power_w is None or row.power_w.high <= 560 for row in found.rows)


def test_a_training_run_has_its_kilowatt_hours() -> None:
    how: dict[str, Any] = {"phase": "training", "batch_size": 2, "dtype": "bfloat16"}
    found = neuralpower.predict(MODEL, device="h100-sxm", seq_len=32, tokens=6.4e6, **how)
    assert isinstance(found.footprint, Footprint) and found.energy_j is not None
    said = {line.name: line.value.value for line in found.footprint.lines}
    assert said["training on 6.4e+06 tokens"] == pytest.approx(1e5 * found.energy_j.value / 3.6e6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pue": 0.9}, "PUE 0.9: must be 1 or more"),
        ({"node_overhead": -1.0}, "must be 0 or more"),
        ({"currency": "EUR"}, "no --price is given"),
        ({"region": "DE", "carbon_intensity": "350"}, "both say it"),
        ({"tokens": 1e9}, "is of a training run"),
    ],
)
def test_an_impossible_footprint_is_refused(step: Prediction, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        footprint_of(step, options)
