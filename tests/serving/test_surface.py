"""A surface prices steps that were not traced as a prediction of them does."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import neuralpower
from neuralpower.devices.cluster import ONE
from neuralpower.errors import InputError
from neuralpower.networks.phases import Step
from neuralpower.prediction.beside import BLOCK_S, SOFTMAX_S, Beside, Heads
from neuralpower.serving.deployment import Setup, with_link
from neuralpower.serving.results import Target, targets_of
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.surface import StepSurface, surface_of
from neuralpower.serving.traffic import _limit, highest_rate, traffic
from neuralpower.serving.workload import drawn

SMALL = "num_hidden_layers=2&vocab_size=5000&hidden_size=256&num_attention_heads=8&num_key_value_heads=2"
MODELS = {
    "dense": f"transformers:LlamaForCausalLM?{SMALL}&intermediate_size=512",
    "experts": f"transformers:MixtralForCausalLM?{SMALL}&intermediate_size=512&num_local_experts=8",
    "windows": f"transformers:Gemma3ForCausalLM?{SMALL}&intermediate_size=512&head_dim=64&sliding_window=512",
}


@functools.cache
def surface(name: str) -> StepSurface:
    return surface_of(MODELS[name], neuralpower.load("h100-sxm").predictor, dtype="bfloat16")


@pytest.mark.parametrize("name", MODELS)
def test_decode_steps_that_were_not_traced_take_what_is_predicted_of_them(name: str) -> None:
    sizes = [(1, 300), (5, 1_000), (64, 1_500)]
    found = surface(name).at([Step(contexts=(context,) * count) for count, context in sizes])
    for i, (count, context) in enumerate(sizes):
        phase = neuralpower.Phase.decode(batch=count, context=context)
        alone = neuralpower.predict(MODELS[name], phase=phase, device="h100-sxm", dtype="bfloat16")
        assert found.runtime_s[i] == pytest.approx(alone.runtime_s.value, rel=1e-6)
        assert found.low_s[i] < found.runtime_s[i] < found.high_s[i]


def test_requests_of_different_lengths_take_what_is_predicted_of_them() -> None:
    lengths = (100, 700, 700, 1_900)
    found = surface("dense").at([Step(contexts=lengths)])
    phase = neuralpower.Phase.decode(lengths=lengths)
    alone = neuralpower.predict(MODELS["dense"], phase=phase, device="h100-sxm", dtype="bfloat16")
    assert found.runtime_s[0] == pytest.approx(alone.runtime_s.value, rel=1e-3)


def test_a_chunk_of_a_prompt_takes_longer_with_more_before_it() -> None:
    steps = [Step(chunks=((256, cached),), ending=0) for cached in (0, 1_000, 16_000)]
    times = surface("dense").at(steps).runtime_s
    assert (np.diff(times) > 0).all()
    whole = surface("dense").at([Step(chunks=((256, 0),))]).runtime_s[0]
    assert whole > times[0]  # logits and sampling


def test_a_step_with_a_window_reads_no_more_than_that() -> None:
    times = surface("windows").at([Step(contexts=(n,) * 64) for n in (600, 1_200)]).runtime_s
    dense = surface("dense").at([Step(contexts=(n,) * 64) for n in (600, 1_200)]).runtime_s
    assert times[1] / times[0] < dense[1] / dense[0]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"contexts": (0,)},
        {"chunks": ((0, 5),)},
        {"chunks": ((5, -1),)},
        {"chunks": ((5, 0),), "ending": 2},
    ],
)
def test_steps_that_cannot_be_are_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Step(**sizes)


def test_stages_of_a_pipeline_are_refused() -> None:
    predictor = neuralpower.load("h100-sxm").predictor
    with pytest.raises(InputError, match="choose tensor ranks"):
        surface_of(MODELS["dense"], predictor, dtype="bfloat16", layout=neuralpower.Layout(pipeline=2))


@functools.cache
def times(device: str = "h100-sxm") -> StepTimes:
    known = surface_of(MODELS["dense"], neuralpower.load(device).predictor, dtype="bfloat16")
    return StepTimes(known, budget=640, requests=256, longest=2_048)


def test_tables_give_the_times_of_the_surface() -> None:
    for contexts in ((300,), (100,) * 7, (2_000,) * 32):
        exact = surface("dense").at([Step(contexts=contexts)]).runtime_s[0]
        assert times().seconds(np.array(contexts), [], 0) == pytest.approx(exact, rel=0.01)
    for new, cached in ((100, 0), (512, 0), (300, 700)):
        exact = surface("dense").at([Step(chunks=((new, cached),))]).runtime_s[0]
        assert times().seconds(np.zeros(0), [(new, cached)], 1) == pytest.approx(exact, rel=0.03)


def test_a_step_above_the_largest_graph_waits_for_the_hosts_calls_and_smaller_ones_run_padded() -> None:
    found = times()
    at_once, above = (found.seconds(np.zeros(0), [(new, 0)], 1) for new in (512, 513))
    assert above == pytest.approx(found.calls_s) and above > 2 * at_once
    assert found.prompt_tokens_s(137) == found.prompt_tokens_s(144) != found.prompt_tokens_s(136)
    assert (found.decode_tokens_s[9:17] == found.decode_tokens_s[16]).all()
    eager = StepTimes(replace(found.surface, captured=0), budget=640, requests=256, longest=2_048)
    assert eager.calls_s > found.calls_s  # whose code is compiled
    assert eager.seconds(np.full(4, 300), [], 0) == pytest.approx(eager.calls_s)


def test_decodes_beside_a_prompt_take_longer_than_alone_where_the_kernel_does_not_pack_them() -> None:
    contexts, chunks = np.full(31, 2_000), [(400, 0)]
    parts = {
        device: times(device).seconds(np.zeros(0), chunks, 1) + times(device).decodes_s(contexts)
        for device in ("rtx-4090", "h100-sxm")
    }
    mixed = {device: times(device).seconds(contexts, chunks, 1) for device in parts}
    assert times("h100-sxm").laws.packs and not times("rtx-4090").laws.packs
    assert mixed["rtx-4090"] - parts["rtx-4090"] > mixed["h100-sxm"] - parts["h100-sxm"]


def test_no_cache_is_read_faster_than_memory_gives_it() -> None:
    known = surface("dense")
    key_bytes = 2 * 2 * 2 * 32 * 2  # layers, keys and values, heads, width, bytes
    seconds = StepTimes(known, budget=64, requests=256, longest=8_192).decodes_s(np.full(256, 8_000))
    assert seconds >= 256 * 8_000 * key_bytes / 3.35e12


def test_a_link_carries_what_is_said_of_it() -> None:
    from neuralpower.layers.collective import Collective, on_links

    predictor = with_link(neuralpower.load("l40s").predictor, 5e9)
    exchange = Collective(dtype="bfloat16", phase="forward", function="all_reduce", elements=2**27, ranks=2)
    seconds = float(predictor.estimate([exchange]).runtime_s[0])
    assert on_links(exchange) / seconds == pytest.approx(5e9, rel=0.2)
    for speed in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="link"):
            with_link(predictor, speed)


def test_a_workload_is_served_within_its_bounds_and_the_highest_rate_holds() -> None:
    predictor = neuralpower.load("l40s").predictor
    deployment = Setup(
        MODELS["dense"], predictor, longest=1_024, host_s=(0.0, 0.0), budget=256, requests=16
    ).deployed()
    workload = drawn(120, 256, 32, rate=50.0, spread=0.3)
    found = traffic(deployment, workload, rate=50.0)
    for measure in ("ttft_s", "tpot_s", "latency_s"):
        mean = found.interval(measure)
        assert 0 < mean.low < mean.value < mean.high
    two = traffic(deployment, workload, rate=50.0, replicas=2)
    assert two.value.latency_s["mean"] < found.value.latency_s["mean"]
    targets = targets_of("ttft=50ms@p90")
    rate, tried = highest_rate(deployment, workload, targets)
    assert all(load.holds(targets) for load in tried if load.rate is not None and load.rate <= rate)
    assert any(load.rate is not None and rate < load.rate < 1.05 * rate for load in tried)
    with pytest.raises(InputError, match="an empty system misses its target"):
        highest_rate(deployment, workload, targets_of("ttft=0.01ms"))
    few = drawn(4, 256, 32, rate=50.0)
    rate, tried = highest_rate(deployment, few, targets_of("ttft=9s"))
    alone = deployment.load(drawn(1, 256, 32, rate=1.0), 1.0)
    assert rate == pytest.approx(4 / alone.latency_s["mean"], rel=0.021)  # all four are there at once
    assert _limit(rate, tried, ()) == "the run: 4 requests tell no higher rate; take more with --requests"
    assert found.to_json()["value"]["ttft_s"].keys() == {"mean", "p50", "p90", "p95", "p99"}


@pytest.mark.full  # two devices, each at many rates
def test_a_plan_has_enough_replicas_and_says_why_others_are_none() -> None:
    from neuralpower.devices.spec import find_spec
    from neuralpower.serving.plan import Wanted, plan

    devices = [find_spec(name) for name in ("l40s", "h100-sxm")]
    workload, targets = drawn(60, 256, 16, rate=1.0), targets_of("ttft=50ms@p90")
    how: dict[str, Any] = {"layouts": (ONE,)}
    how["how"] = {"host_s": (0.0, 0.0), "budget": 256, "requests": 16}
    prices = {devices[0].slug: 1.0, devices[1].slug: 1.5}
    found = plan(
        Wanted(MODELS["dense"], workload, 5_000.0, targets, devices, prices=prices, by="cost", **how)
    )
    assert {choice.device for choice in found.choices} == {spec.slug for spec in devices}
    costs = [choice.cost or 0.0 for choice in found.choices]
    assert costs == sorted(costs)
    dear = {devices[0].slug: 1.0, devices[1].slug: 100.0}
    cheap = plan(Wanted(MODELS["dense"], workload, 5_000.0, targets, devices, prices=dear, by="cost", **how))
    assert len(cheap.choices) == 1 and "not simulated" in cheap.skipped[0][1]
    for choice in found.choices:
        assert choice.replicas * choice.highest >= 5_000 > (choice.replicas - 1) * choice.highest
    none = plan(Wanted(MODELS["dense"], workload, 1.0, targets_of("ttft=0.01ms"), devices[:1], **how))
    assert not none.choices and "misses its target" in none.skipped[0][1]
    for rate, promise, by in ((0.0, targets, "devices"), (1.0, (), "devices"), (1.0, targets, "cost")):
        with pytest.raises(InputError):
            plan(Wanted(MODELS["dense"], workload, rate, promise, devices, by=by, **how))


def test_targets_are_read_and_broken_ones_refused() -> None:
    assert targets_of("ttft=500ms, tpot=0.03s@p99") == (Target("ttft_s", 0.5), Target("tpot_s", 0.03, 99))
    for text in ("", "ttft", "ttft=5", "speed=5ms", "ttft=-5ms", "ttft=5ms@p0", "ttft=5ms@99th", "ttft=nans"):
        with pytest.raises(InputError, match="write ttft, tpot, itl or latency"):
            targets_of(text)


MIXED = [
    ((), ((400, 0),)),
    ((), ((300, 100), (100, 700))),
    ((700,) * 20, ((400, 0),)),
    ((300, 700, 1_900), ((100, 0), (50, 700))),
    ((300, 700, 1_900), ()),
]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_predicted_as_the_surface_prices_it(name: str) -> None:
    found = surface(name).at([Step(*requests) for requests in MIXED])
    for i, requests in enumerate(MIXED):
        phase = neuralpower.Phase.step(*requests)
        alone = neuralpower.predict(MODELS[name], phase=phase, device="h100-sxm", dtype="bfloat16")
        assert alone.runtime_s.value == pytest.approx(found.runtime_s[i], rel=5e-3)
        assert alone.batch_size == sum(map(len, requests))
        assert alone.coverage <= 1


def test_decodes_next_to_a_prompt_run_in_waves_of_tiles_until_memory_is_slower() -> None:
    heads = Heads(query=32, keys=8, size=128, width=512.0, window=0, layers=1.0)
    laws = Beside((heads,), ((4096.0, 0),), 1e12, 128, packs=False, flops_per_s=165e12, cache_bytes=75e6)

    def takes(count: int, held: int) -> float:
        return laws.mixed_s(np.full(count, held), ((16, 0),), 0.0, 0.0)

    tile = 4 * 64 * 128 * 128 / (165e12 / 128) + 128 * SOFTMAX_S
    assert takes(1, 4_000) == takes(3, 4_000) == pytest.approx(BLOCK_S + 32 * tile)  # 128 blocks: one wave
    assert takes(8, 4_000) > 1.9 * takes(3, 4_000)
    moved = 4 * 4096.0 * 128 * 16_000 / 1e12  # no head of a key finds what others have read
    assert takes(128, 16_000) == pytest.approx(moved, rel=0.05)
    assert laws.mixed_s(np.full(4, 64), ((512, 0),), 1.0, 0.0) >= 1.0  # no less than the prompt alone
    packed = replace(laws, packs=True)
    assert packed.mixed_s(np.full(4, 64), ((512, 0),), 1.0, 0.5) == 1.5


def test_a_step_whose_decodes_run_in_the_prompts_kernel_says_so_in_a_row() -> None:
    from neuralpower.prediction.beside import KIND

    phase = neuralpower.Phase.step([1_900] * 64, [(400, 0)])
    model = MODELS["dense"]
    rows = {
        device: neuralpower.predict(model, phase=phase, device=device, dtype="bfloat16").rows
        for device in ("rtx-4090", "h100-sxm")
    }
    assert [sum(row.kind == KIND for row in rows[device]) for device in rows] == [1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "a step without requests"),
        ({"contexts": [0]}, "context 0"),
        ({"contexts": [1.5]}, "context 1.5"),
        ({"contexts": 5}, "contexts 5: must be a list"),
        ({"chunks": [(0, 3)]}, "chunk 0@3"),
        ({"chunks": [(5, -1)]}, "chunk 5@-1"),
        ({"chunks": [5]}, "chunk 5:"),
        ({"chunks": [(5, 1, 2)]}, "chunk 5@1@2"),
        ({"contexts": [1] * 5_000}, "a step of 5000 requests"),
    ],
)
def test_steps_of_a_phase_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        neuralpower.Phase.step(**given)


def test_requests_of_a_step_belong_to_its_phase_and_fit_the_positions() -> None:
    for options, said in (
        ({"phase": "decode", "contexts": "5"}, "--contexts belongs to --phase step"),
        ({"phase": "step", "chunks": "512"}, "chunk '512'"),
        ({"phase": "step", "chunks": "512@0", "batch_size": 2}, "--batch-size 2"),
        ({"phase": "step", "contexts": "3000"}, "3001 positions"),
        ({"phase": "step", "chunks": "512@0", "prompt": 5}, "--prompt 5 belongs to"),
    ):
        with pytest.raises(InputError, match=said):
            neuralpower.predict(MODELS["dense"], device="h100-sxm", **options)


def test_ranks_wait_for_the_slowest_of_them_at_exchanges() -> None:
    from neuralpower.devices.cluster import cluster_of

    predictor, sizes = neuralpower.load("h100-sxm").predictor, {"budget": 64, "requests": 8, "longest": 512}
    known = surface_of(
        MODELS["dense"],
        predictor,
        dtype="bfloat16",
        layout=neuralpower.Layout(tensor=2),
        cluster=cluster_of("2xh100-sxm"),
    )
    steps = StepTimes(known, **sizes)
    exact = known.at([Step(contexts=(300,) * 4)]).runtime_s[0]
    exchanges = known.by_kind([Step(contexts=(300,) * 4)])["collective"][0]
    found = steps.seconds(np.full(4, 300), [], 0)
    assert 0 < steps.skew < 0.1
    assert found == pytest.approx(exact + steps.skew * (exact - exchanges), rel=0.01)
    assert times().skew == 0
