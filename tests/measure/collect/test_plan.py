"""Plans for an accelerator: how many configurations, how large, in which dtypes."""

import dataclasses
import json
import warnings
from collections import Counter
from typing import Any

import pytest
import torch

from neuralpower.errors import InputError
from neuralpower.layers import KINDS
from neuralpower.layers.rows import from_row, to_row
from neuralpower.measure.collect.gaps import TOPICS, gap_layers
from neuralpower.measure.collect.networks import _listed
from neuralpower.measure.collect.plan import kinds_named, make_plan
from neuralpower.measure.collect.request import ACCELERATOR_PRESETS, PRESETS, preset_named
from neuralpower.measure.collect.worker import Answers
from tests.simulated_cuda import SimulatedCuda, rig_of

TINY = "transformers:BertModel?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=64"


def accelerator_plan(**changes: Any) -> list[dict[str, Any]]:
    """Two networks and a sweep of 320, in two dtypes and two phases."""
    dtypes, phases = ["bfloat16", "float32"], ["forward", "backward"]
    preset = dataclasses.replace(
        ACCELERATOR_PRESETS["standard"], **{"sweep": 320, "jitters": 0, "traced": 20, **changes}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        return make_plan(preset, kinds_named(None, phases), [TINY, "zoo:resnet18"], dtypes, 0, True, phases)


def test_an_accelerators_preset_counts_all_dtypes_and_phases_together() -> None:
    items = accelerator_plan(networks=3)
    networks = [item for item in items if item["kind"] == "network"]
    swept = [item for item in items if item["source"] == "sweep"]
    assert len(networks) == 3
    assert len(items) - len(networks) - len(swept) == 20
    # 320 by share; small kinds have 5 in each of 4 variants: 160 more at the very most (8 kinds of 20)
    assert 320 <= len(swept) <= 480
    each = Counter((item["row"]["dtype"], item["row"]["phase"]) for item in swept if item["kind"] == "linear")
    assert len(each) == 4  # 4 of 35.4 shares: 36 layers, in turn
    assert set(each.values()) == {9}


def test_an_accelerators_layers_and_networks_are_larger_than_a_cpus() -> None:
    items = accelerator_plan()
    assert max(item["flops"] for item in items) > 100 * PRESETS["standard"].most_flops
    assert max(item["row"]["rows"] for item in items if item["kind"] == "linear") > 4096
    assert any(item["flops"] < 1e8 for item in items if item["kind"] == "linear")
    batches = [item["row"]["batch"] for item in items if item["kind"] == "network"]
    assert max(batches) > 4
    preset = ACCELERATOR_PRESETS["standard"]
    for item in items:
        if item["kind"] != "network":
            layer = dataclasses.replace(from_row(KINDS[item["kind"]], item["row"]), phase="forward")
            assert layer.flops() <= preset.most_flops
            assert item["bytes"] <= 2 * preset.most_bytes


def test_a_worker_plans_for_the_device_that_it_measures_on() -> None:
    asked = {
        "do": "plan",
        "preset": "standard",
        "kinds": ["softmax"],
        "models": ["none"],
        "dtypes": ["float32"],
    }
    answers = Answers(lambda first: rig_of(SimulatedCuda()))
    # 0.8 of 35.4 shares of 1,250; of a CPU's 6,900 it would be 156
    assert len(answers({**asked, "phases": ["forward"], "seed": 0})["plan"]) == 28


def test_whole_networks_are_measured_in_every_dtype_on_an_accelerator() -> None:
    networks = [item["row"] for item in accelerator_plan() if item["kind"] == "network"]
    assert {(row["model"], row["dtype"]) for row in networks} == {
        (model, dtype) for model in (TINY, "zoo:resnet18") for dtype in ("bfloat16", "float32")
    }
    for row in networks:
        linear = [fields["dtype"] for kind, fields, _ in json.loads(row["layers"]) if kind == "linear"]
        assert set(linear) == {row["dtype"]}


def test_what_has_no_gradient_is_not_planned_backward() -> None:
    items = make_plan(
        PRESETS["standard"],
        kinds_named(["movement", "reduction"]),
        ["none"],
        ["float32"],
        0,
        False,
        ["forward", "backward"],
    )
    functions: dict[str, set[str]] = {"forward": set(), "backward": set()}
    for item in items:
        functions[item["row"]["phase"]].add(item["row"]["function"])
    assert {"fill", "argmax"} <= functions["forward"]
    assert functions["backward"]
    assert not {"fill", "argmax"} & functions["backward"]


@pytest.mark.parametrize(("word", "meant"), [("quik", "quick"), ("txt=16", "text")])
def test_a_misspelt_word_of_a_listed_network_is_refused(word: str, meant: str) -> None:
    name = word.partition("=")[0]
    with pytest.raises(InputError, match=f"word of zoo:alexnet in networks.txt '{name}'.*{meant}"):
        _listed(f"zoo:alexnet  batch=1  {word}")


# ---- gaps ----

DTYPES = ("bfloat16", "float16", "tensorfloat32")


def gaps_plan(names: list[str] | None = None, phases: tuple[str, ...] = ("forward", "backward")) -> Any:
    return make_plan(ACCELERATOR_PRESETS["gaps"], kinds_named(names, phases), None, DTYPES, 0, True, phases)


def test_a_beginning_of_the_gaps_has_some_of_every_topic() -> None:
    items = gaps_plan()
    assert items == gaps_plan()
    assert len({item["config_id"] for item in items}) == len(items) > 2000
    # what has no products is float32 for TF32, and some casts are of integers
    assert {item["row"]["dtype"] for item in items} == {*DTYPES, "float32", "int64"}
    kinds = {item["kind"] for item in items}
    assert {item["kind"] for item in items[: 2 * len(TOPICS)]} == kinds
    shares = [Counter(item["kind"] for item in part) for part in (items[:500], items)]
    for kind in kinds:
        assert shares[0][kind] / 500 == pytest.approx(shares[1][kind] / len(items), abs=0.01)


def test_gaps_hold_both_memory_formats_of_large_batches() -> None:
    rows = [item["row"] for item in gaps_plan(["conv2d"], ("forward",))]
    assert {row["phase"] for row in rows} == {"forward"}
    assert all(row["batch"] >= 32 for row in rows)
    assert {row["in_channels"] for row in rows} >= {3, 24, 36, 50, 63, 129}
    last = {json.dumps(row) for row in rows if row["channels_last"]}
    first = {json.dumps({**row, "channels_last": True}) for row in rows if not row["channels_last"]}
    assert len(last & first) > 0.9 * len(last)


def test_gaps_are_calls_that_torch_makes() -> None:
    for item in gaps_plan()[:600]:
        call = from_row(KINDS[item["kind"]], item["row"]).build(torch.device("meta"))
        outputs = call()
        assert outputs[0].numel() if isinstance(outputs, tuple) else outputs.numel()


def test_gaps_are_of_the_asked_kinds_dtypes_and_phases() -> None:
    kinds = kinds_named(["norm", "linear"], ("backward",))
    layers = gap_layers(200, kinds, ["float16"], ["backward"], seed=1)
    assert {(layer.kind, layer.dtype, layer.phase) for layer in layers} == {
        ("norm", "float16", "backward"),
        ("linear", "float16", "backward"),
    }
    functions = {to_row(layer)["function"] for layer in layers if layer.kind == "norm"}
    assert functions >= {"batch_training", "layer"}


def test_the_gaps_of_an_accelerator_are_refused_on_a_cpu() -> None:
    with pytest.raises(InputError, match="preset 'gaps': .* add --device cuda:0, or choose one of quick"):
        preset_named("gaps", "cpu")
    assert preset_named("gaps", "cuda:0").gaps
