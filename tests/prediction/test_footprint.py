"""Joules, money and carbon for each token, sample and training run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.errors import InputError
from neuralpower.prediction.costs.footprint import Footprint, footprint_of
from neuralpower.prediction.generation import Generation
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.glance import details
from neuralpower.report.tables import prediction_table
from tests.program import done

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
    assert lines(step, node_overhead="100W", pue=1.5) == said
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
    table = prediction_table(replace(found, warned=("a warning", "another")), "kind", 3, 0)
    assert "price per million tokens out" in table
    head, _, _ = table.partition("\n\n")
    assert any(line.startswith("energy of the prompt ") for line in details(found))
    assert len(head.splitlines()) == 4 and "another" in head and "tokens out" in head
    assert found.power_w is not None and found.power_w.high <= 560
    assert all(row.power_w is None or row.power_w.high <= 560 for row in found.rows)


def test_a_training_run_has_its_kilowatt_hours() -> None:
    how: dict[str, Any] = {"phase": "training", "batch_size": 2, "dtype": "bfloat16"}
    found = neuralpower.predict(MODEL, device="h100-sxm", seq_len=32, tokens=6.4e6, samples=4e5, **how)
    assert isinstance(found.footprint, Footprint) and found.energy_j is not None
    said = {line.name: line.value.value for line in found.footprint.lines}
    assert said["training on 400000 samples"] == 2 * said["training on 6.4e+06 tokens"]
    assert said["training on 6.4e+06 tokens"] == pytest.approx(1e5 * found.energy_j.value / 3.6e6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pue": 0.9}, "PUE 0.9: must be 1 or more"),
        ({"node_overhead": -1.0}, "must be 0 W or more"),
        ({"node_overhead": "400 kW"}, "node overhead 400 kW: must be 0 W or more, as 400W"),
        ({"currency": "EUR"}, "no --price is given"),
        ({"region": "DE", "carbon_intensity": "350"}, "both say it"),
        ({"tokens": 1e9}, "is of a training run"),
    ],
)
def test_an_impossible_footprint_is_refused(step: Prediction, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        footprint_of(step, options)


def test_an_old_intensity_is_a_warning_of_the_prediction() -> None:
    found = neuralpower.predict("zoo:deep_mnist", device="h100", region="ESH")
    assert any("carbon intensity of Western Sahara is of 2009" in text for text in found.warnings)


def test_a_comparison_has_the_footprints_of_both_sides() -> None:
    how: dict[str, Any] = {"device": ("h100", "l40s"), "price": "h100=3.6,l40s=1.8", "region": "FR"}
    found = neuralpower.compare("zoo:deep_mnist", **how)
    assert found.a_footprint is not None and found.b_footprint is not None
    told = found.to_json()
    lines = {line["name"]: line["value"]["value"] for line in told["b"]["footprint"]["lines"]}
    assert lines["price per million samples"] == pytest.approx(1.8 / 3600 * found.b_s.value * 1e6)
    assert "carbon per million samples, g" in str(found)
    assert neuralpower.compare("zoo:deep_mnist", "zoo:mnist_cnn", device="h100").a_footprint is None
    asked = ("--device", "h100", "--price", "2/h", "--format", "csv")
    assert "price per million samples, USD" in done("compare", "zoo:deep_mnist", "zoo:mnist_cnn", *asked)


def test_points_of_a_sweep_are_priced_and_the_best_limit_is_named(tmp_path: Path) -> None:
    page = tmp_path / "limits.html"
    asked = ("--device", "h100", "--batch-size", "64", "--dtype", "bfloat16", "--run", "graph", "--json")
    how = ("--power-limit", "60%..100%", "--price", "3.6/h", "--region", "DE", "--plot", page)
    told = json.loads(done("sweep", "zoo:resnet18", *asked, *how))
    points = told["points"]
    assert [point["power_limit_w"] for point in points][:2] == [420, 455] and len(points) == 9
    for point in points:
        each = point["runtime_s"] / 64
        assert point["price_per_million"] == pytest.approx(1e-3 * each * 1e6)
        assert point["joules_low"] < point["joules_per_unit"] < point["joules_high"]
        grams = point["joules_per_unit"] / 3.6 * 380.95
        assert point["carbon_g_per_million"] == pytest.approx(grams, rel=1e-3)
    assert points[0]["joules_per_unit"] < points[-1]["joules_per_unit"]
    assert any(note.startswith("least energy") and "420 W" in note for note in told["notes"])
    text = page.read_text(encoding="utf-8")
    assert "J per sample over power limit, W" in text and "Bands: 90 % bounds." in text
    chart = text.partition("W over power limit")[2].partition("J per sample over power limit")[0]
    assert "fill-opacity" in chart, "watts have bounds, too"


def test_a_sweep_of_clocks_says_them_as_they_were_typed(tmp_path: Path) -> None:
    page = tmp_path / "clocks.svg"
    asked = ("zoo:resnet18", "--device", "h100", "--batch-size", "64", "--run", "graph")
    text = done("sweep", *asked, "--clock", "990MHz,1980MHz", "--plot", page)
    assert "990 MHz" in text and "1980 MHz" in text and "samples/s over clock, MHz" in page.read_text()
    assert "least energy, times delay too: 990 MHz" in text or "least energy: 990 MHz" in text
    (point,) = json.loads(done("sweep", *asked, "--clock", "990MHz", "--json"))["points"]
    assert point["clock_hz"] == 990e6 and point["power_limit_w"] is None


def test_joules_of_a_sweep_have_the_bounds_of_a_prediction() -> None:
    how: dict[str, Any] = {"device": "h100", "batch_size": 64, "dtype": "bfloat16", "run": "graph"}
    (point,) = neuralpower.sweep("zoo:resnet18", **{**how, "batch_size": (64,)}).points
    alone = neuralpower.predict("zoo:resnet18", **how).energy_j
    assert alone is not None and point.energy_j == pytest.approx(alone.value, rel=0.01)
    assert point.energy_low_j == pytest.approx(alone.low, rel=0.05)
    assert point.energy_high_j == pytest.approx(alone.high, rel=0.05)
