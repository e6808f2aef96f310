"""All layouts of a network on a cluster: they agree with predictions one by one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from torch import nn

from neuralpower.devices.cluster import Cluster, Layout, layout_of
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.costs.carbon import given
from neuralpower.prediction.costs.footprint import Terms
from neuralpower.prediction.costs.prices import Price
from neuralpower.prediction.explore.layouts import Layouts, Wanted, layouts
from neuralpower.prediction.fits.fit import fit
from neuralpower.report.results.layouts import command, layouts_table
from neuralpower.trace.recipe import Recipe
from tests.asking import requested

LLAMA = (
    "transformers:llama?hidden_size=256&intermediate_size=1024&num_attention_heads=4&num_key_value_heads=4&"
    "vocab_size=1000&num_hidden_layers=8&max_position_embeddings=512"
)
SPEC = find_spec("h100-sxm")
CLUSTER = Cluster(SPEC, 4)
PREDICTOR = chosen(None, "h100-sxm", "bfloat16")


def wanted(way: str, **how: Any) -> Wanted:
    phase = Phase(way) if way == "training" else Phase("decode", context=64)
    length = 64 if way == "training" else None
    request = requested(LLAMA, 1, length, dtype="bfloat16", phase=phase, cluster=CLUSTER)
    return Wanted(request, **how)


def on(asked: Wanted, **changes: Any) -> Wanted:
    return replace(asked, request=replace(asked.request, **changes))


@cache
def found(way: str) -> Layouts:
    if way == "interleaved":
        asked, few = wanted("training", schedule=way), Cluster(SPEC, 2)
        return layouts(on(asked, cluster=few), PREDICTOR)
    return layouts(wanted(way), PREDICTOR)


@pytest.mark.parametrize("way", ["decode", "training"])
def test_every_layout_uses_all_devices_and_the_best_comes_first(way: str) -> None:
    every = found(way)
    assert {one.layout.ranks for one in every.found} == {4}
    rates = [one.samples_per_s or 0.0 for one in every.fitting]
    assert len(rates) == len(every.found) and rates == sorted(rates, reverse=True)
    assert {one.layout.tensor for one in every.found} == {1, 2, 4}


@pytest.mark.parametrize(
    ("way", "layout"),
    [
        ("interleaved", Layout(pipeline=2, schedule="interleaved", interleave=2)),
        ("interleaved", Layout(pipeline=2, schedule="interleaved", interleave=4)),
        ("decode", Layout(tensor=4)),
        ("decode", Layout(pipeline=4)),
        ("training", Layout(tensor=2, pipeline=2)),
        ("training", Layout(data=4, shard="zero1")),
    ],
)
def test_a_stretched_network_takes_as_long_as_a_whole_one(way: str, layout: Layout) -> None:
    every = found(way)
    one = next(one for one in every.found if one.layout == layout)
    recipe = Recipe(accumulation=one.micro_batches)
    request = replace(every.wanted.request, layout=layout, recipe=recipe)
    whole, _ = predict_request(request, PREDICTOR)
    assert one.runtime_s is not None and whole.memory is not None and whole.parallel is not None
    assert one.runtime_s.value == pytest.approx(whole.runtime_s.value, rel=0.02)
    assert one.samples_per_s == pytest.approx(whole.parallel.samples_per_s.value, rel=0.02)
    assert one.memory_bytes == pytest.approx(whole.memory.value_bytes, rel=0.02)
    made = whole.parallel.samples * (one.tokens_per_s or 0.0) / (one.samples_per_s or 1.0)
    assert one.energy_j is not None and whole.parallel.energy_j is not None
    for bound in ("value", "low", "high"):
        joules = getattr(whole.parallel.energy_j, bound)
        assert getattr(one.energy_j, bound) * made == pytest.approx(joules, rel=0.05)


def blocks(count: int) -> nn.Module:
    each = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(count)]
    return nn.Sequential(OrderedDict(blocks=nn.Sequential(*each), head=nn.Linear(64, 10)))


SHALLOW: dict[str, Any] = {
    "no blocks": nn.Linear(64, 8),
    "layers": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
    "1 block": blocks(1),
    "2 blocks": blocks(2),
    "3 blocks": blocks(3),
    "6 blocks": blocks(6),
    "convolutions": "zoo:deep_mnist",
    "language": LLAMA.replace("num_hidden_layers=8", "num_hidden_layers=2"),
}


@pytest.mark.parametrize(
    ("name", "devices"), [*((name, 3) for name in SHALLOW), ("2 blocks", 2), ("convolutions", 2)]
)
@pytest.mark.parametrize("way", ["forward", "training"])
def test_a_shallow_network_takes_as_long_as_predicted_alone(name: str, way: str, devices: int) -> None:
    length = 16 if name == "language" else None
    model, cluster = SHALLOW[name], Cluster(SPEC, devices)
    request = requested(model, 1, length, dtype="float32", phase=Phase(way), cluster=cluster)
    request = replace(request, input_shape=(64,) if isinstance(model, nn.Module) else None)
    every = layouts(Wanted(request), PREDICTOR)
    assert Layout(data=devices) in {one.layout for one in every.fitting}
    assert len(every.fitting) + sum(every.reasons.values()) == len(every.found)
    for one in every.fitting:
        if way == "training" or one.micro_batches == 1:
            recipe = Recipe(accumulation=one.micro_batches)
            alone, _ = predict_request(replace(request, layout=one.layout, recipe=recipe), PREDICTOR)
            assert one.runtime_s is not None and alone.memory is not None
            assert one.runtime_s.value == pytest.approx(alone.runtime_s.value, rel=0.001)
            assert one.memory_bytes == pytest.approx(alone.memory.value_bytes, rel=0.02)
    for one in every.found:
        if one.reason:
            deep = one.layout.pipeline > 1 and ("block" in one.reason or "stage" in one.reason)
            assert deep or "4 heads, which 3 ranks do not divide" in one.reason


def test_micro_batches_that_interleaved_stages_do_not_divide_are_a_reason() -> None:
    asked, few = wanted("training", schedule="interleaved", global_batch=3), Cluster(SPEC, 2)
    every = layouts(on(asked, cluster=few), PREDICTOR)
    assert {one.layout.pipeline for one in every.found if "multiple of 2 stages" in one.reason} == {2}
    assert "--schedule interleaved --interleave 4" in command(
        every, next(one for one in every.found if one.layout.short == "pp2 vpp4")
    )


def test_heads_that_ranks_do_not_divide_are_a_reason() -> None:
    model = LLAMA.replace(
        "num_attention_heads=4&num_key_value_heads=4", "num_attention_heads=2&num_key_value_heads=2"
    )
    every = layouts(on(wanted("decode"), model=model), PREDICTOR)
    refused = [one for one in every.found if one.reason]
    assert {one.layout.tensor for one in refused} == {4}
    assert "2 heads, which 4 ranks do not divide" in layouts_table(every)


def test_a_device_that_is_too_small_is_a_reason_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = import_module("neuralpower.prediction.explore.layouts")
    monkeypatch.setattr(explorer, "device_memory", lambda _: 2.0**30)
    every = layouts(wanted("decode"), PREDICTOR)
    assert not every.fitting and every.reasons == {"too little memory": len(every.found)}
    assert "of 1 GiB" in every.found[0].reason
    needed = [one.memory_high_bytes or 0 for one in every.found]
    assert needed == sorted(needed) and needed[0] > 2**30
    assert {one.runtime_s for one in every.found} == {None}
    assert layouts_table(every).startswith("no layout fits")


def test_the_first_lines_say_the_best_and_the_command_that_says_more() -> None:
    every = found("training")
    first, second, *_ = layouts_table(every).splitlines()
    assert first.startswith(f"best by throughput: {every.fitting[0].layout}")
    assert second == f"details: {command(every, every.fitting[0])}"
    assert "--devices 4xnvidia-h100-sxm5-80gb" in second


def test_the_command_that_says_more_repeats_how_the_network_is_trained() -> None:
    every = found("training")
    recipe = Recipe("lion", checkpointing=True, masters=True)
    other = replace(every, wanted=on(every.wanted, recipe=recipe))
    more = command(other, every.fitting[0])
    assert "--optimizer lion --checkpointing --master-weights" in more
    assert f"--dtype {every.wanted.request.dtype}" in more
    assert "--optimizer" not in command(every, every.fitting[0])


def test_cost_follows_from_a_price() -> None:
    every = layouts(wanted("decode", by="cost", price=Price(3.6, "EUR")), PREDICTOR)
    assert "EUR per 1M" in layouts_table(every)
    best = every.fitting[0]
    assert best.cost == pytest.approx(3.6 * 4 / 3600 / (best.tokens_per_s or 0.0) * 1e6)
    assert best.cost == min(one.cost or 0.0 for one in every.fitting)


def test_layouts_are_ranked_by_the_energy_of_a_site_and_tell_its_carbon() -> None:
    every = layouts(wanted("decode", by="energy", terms=Terms(pue=1.2, intensity=given("350"))), PREDICTOR)
    alone = {one.layout: one.energy_j for one in found("decode").found if one.micro_batches == 1}
    best = every.fitting[0]
    assert best.energy_j is not None
    assert best.energy_j.value == min(one.energy_j.value for one in every.fitting if one.energy_j)
    assert best.carbon_g == pytest.approx(best.energy_j.value * 350 / 3.6)
    for one in every.fitting:
        if one.micro_batches == 1:
            before = alone[one.layout]
            assert one.energy_j is not None and before is not None
            assert one.energy_j.value == pytest.approx(1.2 * before.value)
    assert "energy per token" in layouts_table(every) and "CO2e per 1M" in layouts_table(every)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"by": "cost"}, "no price says what a device costs"),
        ({"by": "beauty"}, "unknown ranking 'beauty'"),
        ({"global_batch": 8}, "samples of a training step"),
        ({"schedule": "interleaved"}, "orders passes of training"),
    ],
)
def test_what_cannot_be_ranked_is_refused(how: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        wanted("decode", **how)


def test_a_layout_in_few_letters_is_read_and_written() -> None:
    layout = layout_of("tp4pp2dp8")
    assert layout == Layout(tensor=4, pipeline=2, data=8)
    assert layout_of(layout.short) == layout
    for text in ("", "tp", "tp4tp2", "xx4", "tp4x"):
        with pytest.raises(InputError, match="write degrees with tp, pp, ep and dp"):
            layout_of(text)


def test_fit_holds_the_fullest_device_against_the_memory() -> None:
    request = requested(LLAMA, dtype="bfloat16", phase="decode", context=64, platform=PREDICTOR.platform)
    layout = Layout(tensor=2, pipeline=2, data=2)
    several = fit(replace(request, layout=layout), 2.0**32)
    assert several.fits and len(several.stages) == 2
    assert several.memory.high_bytes == max(one.high_bytes for one in several.stages)
    assert several.largest_whole_batch == 2 * (several.largest_batch or 0)
    assert several.to_json()["ranks"] == 8
    assert several.memory.weights_bytes < fit(request, 2.0**32).memory.weights_bytes / 2
