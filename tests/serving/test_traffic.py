"""What traffic draws and costs, prompts on devices of their own, and plans that are kept."""

from __future__ import annotations

import functools
import json
import pickle
import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuralpower
from neuralpower.devices.cluster import Layout, cluster_of
from neuralpower.errors import InputError
from neuralpower.networks.phases import Step
from neuralpower.prediction.explore.outcomes import Pool
from neuralpower.report.charts import XY
from neuralpower.report.page import html_text
from neuralpower.report.results.served import plan_page, plan_table, traffic_page, traffic_table
from neuralpower.serving.deployment import Deployment, Setup
from neuralpower.serving.plan import Interrupted, _tried
from neuralpower.serving.policies import host_of
from neuralpower.serving.results import Target
from neuralpower.serving.surface import priced
from neuralpower.serving.traffic import Traffic, served_at
from neuralpower.serving.workload import drawn, looped

SMALL = (
    "transformers:LlamaForCausalLM?num_hidden_layers=2&vocab_size=5000&hidden_size=256"
    "&num_attention_heads=8&num_key_value_heads=2&intermediate_size=512"
)
MIXTURE = (
    "transformers:MixtralForCausalLM?num_hidden_layers=2&vocab_size=5000&hidden_size=256"
    "&num_attention_heads=8&num_key_value_heads=2&intermediate_size=512&num_local_experts=8"
)
SIZES: dict[str, Any] = {"longest": 2_048, "host_s": (0.0, 0.0), "budget": 256, "requests": 16}
ASKED: dict[str, Any] = {"rate": 40, "input": 256, "output": 16, "requests": 60}
ASKED |= {"max_num_batched_tokens": 256, "max_num_seqs": 16}


@functools.cache
def deployment(**more: Any) -> Deployment:
    return Setup(SMALL, neuralpower.load("h100-sxm").predictor, **SIZES, **more).deployed()


@functools.cache
def found() -> Traffic:
    return served_at(replace(deployment(), price=2.0), drawn(60, 256, 16, rate=40.0), rate=40.0, curve="auto")


def test_joules_and_price_are_those_of_all_devices_over_the_whole_time() -> None:
    load = found().value
    drawn_ = load.drawn
    assert drawn_ is not None
    hardware = neuralpower.load("h100-sxm").predictor.hardware
    assert hardware is not None and hardware.limit_w is not None
    assert (hardware.idle_w or 0) <= drawn_.power_w <= hardware.limit_w
    assert drawn_.per_token_j == pytest.approx(drawn_.energy_j / (60 * 16))
    hours = load.duration_s / 3_600
    assert load.price_per_million == pytest.approx(2.0 * hours / (60 * 16) * 1e6)
    assert sum(load.parts.values()) == pytest.approx(1, abs=0.02)


def test_a_curve_has_its_knee_and_goes_beyond_the_highest_throughput() -> None:
    curve = found().curve
    rates = [load.rate or 0.0 for load in curve]
    assert rates == sorted(rates) and found().knee in rates
    assert curve[-1].latency_s["p95"] > curve[0].latency_s["p95"]


def test_each_rate_of_a_curve_has_bounds() -> None:
    slow, points = [], found().to_json()["curve"]
    for load, point in zip(found().curve, points, strict=True):
        low, high = found().between(load, lambda one: one.latency_s["mean"]) or (0.0, 0.0)
        assert 0 < low < load.latency_s["mean"] < high
        assert (low, high) == (point["low"]["latency_s"]["mean"], point["high"]["latency_s"]["mean"])
        slow.append(high)
    assert slow[-1] > slow[0]
    drawn_as = {
        part.title: part
        for section in traffic_page(found()).sections
        for part in section.parts
        if isinstance(part, XY)
    }
    answers = drawn_as["Whole answer over the rate"]
    assert [series.name for series in answers.series if any(series.bounds)] == ["mean"]


def test_every_form_of_traffic_has_its_numbers() -> None:
    text = traffic_table(found())
    for word in ("gaps (ITL)", "p99", "knee:", "a token", "steps: "):
        assert word in text
    page = html_text(traffic_page(found()))
    assert "Throughput over the rate" in page and "Percentiles" in page
    row = json.loads(json.dumps(found().to_json()))
    assert row["value"]["itl_s"].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert row["knee_rate"] == found().knee and row["value"]["energy_per_token_j"] > 0


def test_prompts_on_devices_of_their_own_keep_decodes_even() -> None:
    workload = drawn(80, 1_000, 16, rate=1_000.0)
    together = deployment().load(workload, 1_000.0, replicas=2)
    apart = replace(deployment(), prefills=1)
    split = apart.load(workload, 1_000.0, replicas=1)
    assert split.requests == together.requests and split.latency_s["mean"] > split.ttft_s["mean"]
    assert split.tpot_s["p99"] < together.tpot_s["p99"]
    (served,) = apart.serves(workload)
    assert np.isfinite(served.last_s).all() and (served.last_s >= served.first_s).all()
    with pytest.raises(InputError, match="leave the users out"):
        apart.serves(looped(8, 16, 4, users=2))


def test_a_drafting_model_takes_time_and_memory() -> None:
    workload = drawn(40, 64, 64, rate=50.0)
    free, drafted = deployment(draft=3, acceptance=0.9), deployment(draft=3, acceptance=0.9, drafts=SMALL)
    assert drafted.engine.blocks < free.engine.blocks
    plain, quick, slow = (one.load(workload, 50.0).tpot_s["mean"] for one in (deployment(), free, drafted))
    assert quick < plain and quick < slow
    with pytest.raises(InputError, match="--draft-tokens 3"):
        Setup(SMALL, neuralpower.load("h100-sxm").predictor, drafts=SMALL, **SIZES).deployed()


def test_ranks_of_data_are_of_mixtures_and_stages_share_a_step() -> None:
    predictor = neuralpower.load("h100-sxm").predictor
    with pytest.raises(InputError, match="choose replicas"):
        neuralpower.traffic(SMALL, device="2xh100-sxm", tensor_parallel=1, data_parallel=2, **ASKED)
    mixed = neuralpower.traffic(
        MIXTURE, device="2xh100-sxm", tensor_parallel=1, data_parallel=2, expert_parallel=2, **ASKED
    )
    assert mixed.devices == 2 and mixed.value.requests == 60
    layout = Layout(pipeline=2)
    piped = Setup(SMALL, predictor, layout=layout, cluster=cluster_of("2xh100-sxm"), **SIZES).deployed()
    assert piped.engine.stages == 2 and piped.devices == 2
    assert piped.load(drawn(40, 64, 8, rate=50.0), 50.0).requests == 40


def test_a_token_has_its_joules_money_and_carbon_and_a_limit_slows_it() -> None:
    asked: dict[str, Any] = {"device": "l40s", "rate": 4.0, "requests": 20, "input": 64, "output": 16}
    terms = {"price": "3.6/h", "currency": "EUR", "region": "DE", "node_overhead": 100.0, "pue": 1.5}
    found = neuralpower.traffic("qwen2.5-0.5b", **asked, **terms)
    assert found.footprint is not None and found.value.drawn is not None
    said = {line.name: line.value.value for line in found.footprint.lines}
    node = found.value.drawn.per_token_j + 100 * found.value.duration_s / found.value.drawn.tokens
    assert said["with the site per token"] == pytest.approx(1.5 * node)
    assert said["carbon per million tokens"] == pytest.approx(1.5 * node / 3.6 * 380.95, rel=1e-3)
    tokens = found.value.drawn.tokens
    paid = said["price per million tokens in"] * 20 * 64 + said["price per million tokens out"] * tokens
    assert paid / 1e6 == pytest.approx(3.6 * found.value.duration_s / 3600)
    assert said["price per million tokens"] == pytest.approx(found.value.price_per_million)
    assert "price per million tokens out" in traffic_table(found)
    assert found.to_json()["footprint"]["lines"][0]["name"] == "energy per token"
    slow = neuralpower.traffic("qwen2.5-0.5b", **asked, clock="1005MHz")
    assert slow.footprint is None and slow.value.tpot_s["mean"] > found.value.tpot_s["mean"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no requests"),
        ({"rate": 1.0, "users": 2}, "leave one out"),
        ({"rate": 1.0, "acceptance": 0.5}, "no tokens are drafted"),
        ({"rate": 1.0, "draft_tokens": 3, "acceptance": 1.5}, "from 0 to 1"),
        ({"rate": 1.0, "price": -1}, "price -1: write a positive price"),
        ({"rate": 1.0, "link": "14"}, "--link 14"),
        ({"rate": 1.0, "curve": "x"}, "--curve x"),
        ({"rate": 1.0, "replicas": 0}, "--replicas 0"),
        ({"rate": 1.0, "tensor_parallel": 3}, "the layout takes 3"),
        ({"rate": 1.0, "input": 5_000}, "60 of 60 requests are longer than the 2048 positions"),
        ({"users": 2, "burstiness": -1.0}, "burstiness -1: above 0"),
        ({"rate": 1.0, "speed": 3}, "unknown option of traffic 'speed'"),
    ],
)
def test_traffic_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        neuralpower.traffic(SMALL, device="h100-sxm", **{"requests": 60, **options})


def test_a_plan_is_kept_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {**ASKED, "rate": 3_000, "sla": "ttft=50ms@p90", "tensor_parallel": "1"}
    asked |= {"devices": "h100-sxm", "apart": True, "keep": tmp_path / "plan.jsonl"}
    first = neuralpower.plan(SMALL, **asked)
    assert {choice.candidate.prefills > 0 for choice in first.choices} == {True, False}
    assert any(choice.front for choice in first.choices)
    assert all(choice.replicas * choice.highest >= 3_000 for choice in first.choices)
    monkeypatch.setattr("neuralpower.serving.plan._tried", lambda *_: pytest.fail("simulated again"))
    again = neuralpower.plan(SMALL, **asked)
    assert [choice.devices for choice in again.choices] == [choice.devices for choice in first.choices]
    older = [{**json.loads(line), "version": "0.1"} for line in asked["keep"].read_text().splitlines()]
    asked["keep"].write_text("".join(json.dumps(row) + "\n" for row in older))
    with pytest.raises(pytest.fail.Exception, match="simulated again"):
        neuralpower.plan(SMALL, **asked)
    monkeypatch.undo()
    newer = neuralpower.plan(SMALL, **asked)
    assert any("results of neuralpower 0.1" in note for note in newer.notes)
    asked["keep"].write_text("{\n")
    with pytest.raises(InputError, match="line 1"):
        neuralpower.plan(SMALL, **asked)


def test_a_plan_tries_weights_and_stages_and_says_what_it_has_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {**ASKED, "rate": 3_000, "sla": "ttft=50ms@p90", "devices": "h100-sxm"}
    asked |= {"tensor_parallel": "1", "pipeline_parallel": "1,2", "weights": "none,fp8", "requests": 20}
    found = neuralpower.plan(SMALL, **asked)
    tried = {(c.layout.pipeline, c.candidate.weights) for c in found.choices}
    assert tried == {(1, None), (1, "fp8"), (2, None), (2, "fp8")}
    for choice in found.choices:
        assert choice.goodput is not None and choice.goodput <= choice.highest
        assert choice.power_w is not None and choice.power_w <= 700 * choice.devices  # its limit
    text = plan_table(found)
    assert "stages" in text and "weights" in text and "(goodput)" in text

    def ended(wanted: Any, candidate: Any, guess: float) -> Any:
        if candidate.weights:
            raise KeyboardInterrupt
        return highest(wanted, candidate, guess)

    highest = _tried
    monkeypatch.setattr("neuralpower.serving.plan._tried", ended)
    with pytest.raises(Interrupted) as error:
        neuralpower.plan(SMALL, **asked, keep=tmp_path / "plan.jsonl")
    assert error.value.plan.choices and "interrupted: " in plan_table(error.value.plan)
    monkeypatch.undo()
    assert neuralpower.plan(SMALL, **asked, keep=tmp_path / "plan.jsonl").to_json() == found.to_json()


def test_a_plan_is_made_on_a_ray_cluster_as_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Remote:
        def __init__(self, function: Any) -> None:
            self.function = function

        def remote(self, *call: Any) -> Any:
            return pickle.dumps((self.function, call))

    def get(reference: bytes) -> Any:
        function, call = pickle.loads(reference)
        return function(*call)

    began: list[dict[str, Any]] = []
    ray = types.ModuleType("ray")
    vars(ray).update(
        remote=Remote,
        get=get,
        is_initialized=lambda: bool(began),
        init=lambda **how: began.append(how) or nullcontext(),
    )
    asked = {**ASKED, "rate": 3_000, "sla": "ttft=50ms@p90", "tensor_parallel": "1", "devices": "h100-sxm"}
    here = neuralpower.plan(SMALL, **asked)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed"):
        neuralpower.plan(SMALL, executor="ray", **asked)
    monkeypatch.setitem(sys.modules, "ray", ray)
    there = neuralpower.plan(SMALL, executor="ray", **asked)
    assert began and there.to_json() == here.to_json()


def test_what_cannot_be_the_best_is_not_simulated_once_enough_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuralpower.serving.plan.ENOUGH", 1)
    asked = {**ASKED, "rate": 3_000, "sla": "ttft=50ms@p90", "tensor_parallel": "1,8"}
    found = neuralpower.plan(SMALL, devices="h100-sxm", **asked)
    assert len(found.choices) == 1 and found.choices[0].layout.tensor == 1
    assert "not simulated" in found.skipped[-1][1]


# ---- bounds, hosts, and what limits a rate ----


def test_bounds_are_of_a_whole_run_and_errors_of_several_regressors_are_not_added() -> None:
    workload = drawn(60, 256, 16, rate=40.0)
    served = deployment().serves(workload)
    low, high = deployment().bounds(served)
    assert low.engine.pace < 1 < high.engine.pace
    assert low.engine.pace * high.engine.pace == pytest.approx(1)
    steps = [Step((300,) * 8), Step(chunks=((256, 0),))]
    each = deployment().surface.at(steps)
    together = deployment().surface.together(steps, np.array([3.0, 1.0]))
    assert together[1] == pytest.approx(float(np.array([3.0, 1.0]) @ each.runtime_s))
    assert together[2] < np.array([3.0, 1.0]) @ each.high_s
    both = {bound.seen(bound.serves(workload), workload, 40.0).tpot_s["mean"] for bound in (low, high)}
    value = deployment().load(workload, 40.0).tpot_s["mean"]
    assert min(both) < value < max(both)


def test_a_version_of_an_engine_has_the_host_of_its_time() -> None:
    old, new = host_of("vllm", "0.12.0"), host_of("vllm", "0.19.0")
    assert not old.overlaps and new.overlaps and min(old.seconds) > 0
    assert host_of("vllm", None) == host_of("vllm", "main") == new
    assert host_of("vllm", "v0.8.5") == old
    more = {"longest": 1_024, "budget": 256, "requests": 16}
    predictor = neuralpower.load("h100-sxm").predictor
    engines = [
        Setup(SMALL, predictor, options={"engine_version": version}, **more).deployed().engine
        for version in ("0.12.0", "0.19.0")
    ]
    assert [engine.overlaps for engine in engines] == [False, True]
    assert engines[0].host_s == old.seconds


def test_a_rate_that_is_not_held_is_told_with_the_highest_and_what_limits_it() -> None:
    alone = deployment().load(drawn(1, 256, 64, rate=1.0), 1.0).ttft_s["p95"]
    limits = {
        "compute": (deployment(), ()),
        "the pool": (replace(deployment(), engine=replace(deployment().engine, blocks=40)), ()),
        "the promise: at": (deployment(), (Target("ttft_s", 1.5 * alone),)),
    }
    for said, (about, targets) in limits.items():
        found = served_at(about, drawn(60, 256, 64, rate=1.0).at_rate(9_000.0), rate=9_000.0, targets=targets)
        (note,) = [note for note in found.notes if "more than this holds: at most" in note]
        assert f"what limits it is {said}" in note
    easy = served_at(deployment(), drawn(20, 64, 4, rate=1.0), rate=1.0)
    assert not any("more than this holds" in note for note in easy.notes)


def test_drawn_requests_that_come_at_another_rate_say_so() -> None:
    workload = drawn(60, 64, 4, rate=4.0)
    found = served_at(deployment(), workload, rate=4.0)
    assert workload.rate is not None and abs(workload.rate / 4 - 1) > 0.02
    (note,) = [note for note in found.notes if "drawn requests arrive" in note]
    assert f"at {workload.rate:.3g} a second in the mean, not 4;" in note
    even = served_at(deployment(), drawn(60, 64, 4, rate=4.0, burstiness=np.inf), rate=4.0)
    assert not any("drawn requests arrive" in note for note in even.notes)


def test_requests_of_a_file_come_at_their_mean_rate_and_users_at_none() -> None:
    listed = drawn(21, 64, 4, rate=1.0, burstiness=np.inf)
    assert "1 requests/s: 21 requests" in traffic_table(served_at(deployment(), listed))
    assert "closed loop: 21 requests" in traffic_table(served_at(deployment(), looped(21, 64, 4, users=2)))


def test_a_plan_of_a_day_has_replicas_over_time(tmp_path: Path) -> None:
    rows = ["arrival_s,input_toks,output_toks"]
    rows += [
        f"{3_600 * hour + second / 10},64,8" for hour in range(24) for second in range(1 + 40 * (hour == 12))
    ]
    (tmp_path / "day.csv").write_text("\n".join(rows))
    how: dict[str, Any] = {
        "sla": "ttft=50ms@p90",
        "devices": "h100-sxm",
        "tensor_parallel": "1",
        "by": "cost",
    }
    how |= {"price": "h100-sxm=2", "max_num_batched_tokens": 256, "max_num_seqs": 16}
    found = neuralpower.plan(SMALL, trace=tmp_path / "day.csv", **how)
    (choice,) = found.choices
    assert len(choice.over_time) == 24 and choice.replicas == max(choice.over_time)
    assert choice.cost == pytest.approx(2.0 * sum(choice.over_time) / 24)
    assert "replicas of the first" in plan_table(found)
    assert "Replicas over time" in html_text(plan_page(found))


def test_a_plan_says_what_a_token_costs_on_each_device() -> None:
    asked: dict[str, Any] = {
        "rate": 5.0,
        "sla": "ttft=1s",
        "devices": "h100-sxm,l40s",
        "tensor_parallel": "1",
    }
    asked |= {"input": 64, "output": 4, "requests": 6, "price": "h100-sxm=3.6", "currency": "EUR"}
    found = neuralpower.plan(SMALL, region="DE", pue=1.5, **asked)
    by = {choice.device: choice for choice in found.choices}
    dear, free = by["nvidia-h100-sxm5-80gb"], by["nvidia-l40s"]
    assert dear.each is not None and free.each is not None and dear.load.drawn is not None
    paid, joules = dear.each.price, dear.each.energy_j
    assert paid is not None and joules is not None
    assert paid.value == pytest.approx(3.6 / 3600 / dear.load.tokens_per_s * 1e6)
    assert joules.value == pytest.approx(1.5 * dear.load.drawn.power_w / dear.load.tokens_per_s)
    assert free.each.price is None and free.each.carbon_g is not None
    text = plan_table(found)
    assert "EUR" in text and "g CO2e per 1M" in text
    hour = (dear.cost or 0.0, "its price is not known: the budget is")
    for budget, why in ((hour[0], hour[1]), (0.9 * hour[0], "it takes 3.60 an hour or more: the budget is")):
        within = neuralpower.plan(SMALL, **asked, budget=f"{budget}/h")
        assert len(within.choices) == (budget == hour[0]) and any(why in said for _, said in within.skipped)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sla": "ttft=1s"}, "no --devices"),
        ({"sla": "ttft=1s", "devices": "h100-sxm"}, "give --rate 50, or --trace"),
        ({"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "by": "cost"}, "needs prices"),
        (
            {"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "price": "h100-sxm"},
            "price 'h100-sxm': write a positive price",
        ),
        ({"rate": -5, "sla": "ttft=1s", "devices": "h100-sxm"}, "rate -5"),
        ({"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "budget": "50/h"}, "a budget needs prices"),
        (
            {"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "price": 2, "budget": "-3/h"},
            "budget -3/h: money for an hour",
        ),
        (
            {"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "currency": "EUR"},
            "--currency EUR: no --price",
        ),
        ({"rate": 5, "sla": "ttft=1s", "devices": "h100-sxm", "region": "XQ"}, "region"),
    ],
)
def test_plans_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        neuralpower.plan(SMALL, **options)


def test_a_deployment_is_kept_on_the_disk_and_traced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURALPOWER_CACHE", str(tmp_path))
    predictor = neuralpower.load("h100-sxm").predictor
    workload = drawn(30, 64, 8, rate=50.0)
    first = Setup(MIXTURE, predictor, **SIZES).deployed()
    monkeypatch.setattr(
        "neuralpower.serving.deployment.Setup._formed", lambda *_: pytest.fail("traced again")
    )
    again = Setup(MIXTURE, predictor, **SIZES).deployed()
    assert again.surface.prompts == first.surface.prompts and again.surface.decodes == first.surface.decodes
    assert again.engine == first.engine and again.cache_bytes == first.cache_bytes
    assert again.load(workload, 50.0).latency_s == first.load(workload, 50.0).latency_s
    other = Setup(
        MIXTURE, neuralpower.load("h200").predictor, **SIZES
    ).deployed()  # another device has the same forms
    assert other.surface.decodes == first.surface.decodes and other.engine.blocks > first.engine.blocks
    assert other.load(workload, 50.0).latency_s != first.load(workload, 50.0).latency_s
    with pytest.raises(pytest.fail.Exception, match="traced again"):
        Setup(
            MIXTURE, predictor, **SIZES, layout=Layout(tensor=2), cluster=cluster_of("2xh100-sxm")
        ).deployed()


def test_what_is_priced_is_kept_and_priced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURALPOWER_CACHE", str(tmp_path))
    asked, sizes = {**ASKED, "device": "h100-sxm"}, []
    first = neuralpower.traffic(MIXTURE, **asked)
    other = neuralpower.traffic(MIXTURE, **{**asked, "device": "h200"})
    assert other.value.drawn != first.value.drawn  # tables of another device

    def pool(steps: int, *, graphed: bool) -> Pool:
        sizes.append(steps)
        return Pool(steps, graphed=graphed)

    monkeypatch.setattr("neuralpower.serving.step_times.Pool", pool)
    again = neuralpower.traffic(MIXTURE, **{**asked, "rate": 20})
    assert neuralpower.traffic(MIXTURE, **asked).to_json() == first.to_json() != again.to_json()
    assert set(sizes) == {1}  # no table


def test_a_cache_of_a_shorter_type_is_read_faster_and_holds_more() -> None:
    predictor = neuralpower.load("h100-sxm").predictor
    usual, short, said = (
        Setup(SMALL, predictor, options={"cache_dtype": name}, **SIZES).deployed()
        for name in ("auto", "fp8", "bfloat16")
    )
    step = [Step(contexts=(32_000,) * 256)]
    assert short.surface.at(step).runtime_s < usual.surface.at(step).runtime_s
    assert short.surface.cache_bytes == usual.surface.cache_bytes / 2
    assert short.engine.blocks > 1.9 * usual.engine.blocks
    assert said.surface.at(step).runtime_s == usual.surface.at(step).runtime_s


def test_steps_of_several_layouts_priced_at_once_take_what_each_takes() -> None:
    predictor = neuralpower.load("h100-sxm").predictor
    steps = [Step(chunks=((300, 0),)), Step(contexts=(100, 900)), Step(contexts=(50,) * 20)]
    parts = [
        Setup(name, predictor, **SIZES).deployed().surface
        for name in (MIXTURE, MIXTURE.replace("layers=2", "layers=3"))
    ]
    for surface, found in zip(parts, priced([(one, steps) for one in parts]), strict=True):
        assert found.runtime_s == pytest.approx(surface.at(steps).runtime_s, rel=1e-9)
