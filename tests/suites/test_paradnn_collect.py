"""A family of the zoo is a sweep of `collect-data`."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from neuralpower.measure.collect import networks as networks_module
from neuralpower.measure.collect.networks import SWEPT, swept
from neuralpower.measure.collect.plan import kinds_named, make_plan
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.zoo.paradnn import SWEEPS

QUICK = dataclasses.replace(PRESETS["quick"], sweep=1)


@pytest.mark.parametrize("id", SWEEPS)
def test_a_bare_family_stands_for_a_seeded_sample_of_its_ranges(id: str) -> None:
    model = f"zoo:{id}"
    networks = swept(model, random.Random(0))
    assert networks == swept(model, random.Random(0)) != swept(model, random.Random(1))
    assert len({network.model for network in networks}) == len(networks) == SWEPT
    for network in networks:
        fields = dict(part.split("=") for part in network.model.partition("?")[2].split("&"))
        assert set(fields) == set(SWEEPS[id]) - {"batch_size"}
        assert all(value in map(str, SWEEPS[id][name]) for name, value in fields.items())
        assert network.batch_sizes[0] in SWEEPS[id]["batch_size"]


def test_one_network_of_a_family_stands_for_itself() -> None:
    assert swept("zoo:paradnn_fc?layers=4", random.Random(0)) == []
    assert swept("zoo:resnet18", random.Random(0)) == []
    assert swept("transformers:bert", random.Random(0)) == []


def test_the_plan_has_layers_and_whole_networks_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks_module, "SWEPT", 10)
    items = make_plan(QUICK, kinds_named(["linear"]), ["zoo:paradnn_fc"], ["float32"], 0, whole=True)
    networks = [item["row"] for item in items if item["kind"] == "network"]
    assert len(networks) > 1  # of 10, those that are cheap enough for a CPU's quick preset
    assert len({row["model"] for row in networks}) == len(networks)
    assert all(row["model"].startswith("zoo:paradnn_fc?") for row in networks)
    assert all(json.loads(row["layers"]) for row in networks)
    assert {item["source"].partition("?")[0] for item in items if item["kind"] == "linear"} >= {
        "zoo:paradnn_fc"
    }
