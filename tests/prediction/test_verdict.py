"""The verdict on a memory, its probability, and the changes that make a network fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import neuralpower
from neuralpower.ask.spread import fitted_in
from neuralpower.devices.cluster import Layout, cluster_of
from neuralpower.devices.spec import spec_of
from neuralpower.errors import InputError
from neuralpower.platforms import CPU, PLATFORMS, platform_of
from neuralpower.prediction.fits import remedies as found_in
from neuralpower.prediction.fits.fit import Fit, assumed, fit, memory
from neuralpower.prediction.fits.remedies import CHANGES, ENOUGH, Situation, remedies
from neuralpower.prediction.fits.verdict import COVERED, probability_of, verdict_of
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.request import Request
from neuralpower.report.results.explored import fit_table
from tests.asking import requested
from tests.program import done, run

NVIDIA = PLATFORMS["nvidia"]
NET = "zoo:deep_mnist"
DECODER = (
    "transformers:llama?num_hidden_layers=1&hidden_size=64&num_attention_heads=2&num_key_value_heads=2"
    "&intermediate_size=128&vocab_size=100"
)


def taking(value: int, *, more: int = 0, **parts: int) -> Memory:
    """A memory of that many bytes of activations and of other parts, and an upper bound above them."""
    sizes = dict.fromkeys(
        ("weights", "gradients", "optimizer", "cache", "inputs", "workspace", "framework", "heap"), 0
    )
    sizes |= {"activations": value - sum(parts.values()), **parts}
    return Memory(
        phase="training",
        margin_bytes=more,
        tensor_bytes=value // 2,
        **{f"{name}_bytes": size for name, size in sizes.items()},
    )


# ---- the verdict ----


def test_a_memory_is_tight_between_the_value_and_the_upper_bound() -> None:
    needs = taking(100, more=50)
    rooms = {99: "does not fit", 100: "tight", 149: "tight", 150: "fits"}
    assert {room: verdict_of(needs, room) for room in rooms} == rooms


def test_the_probability_is_a_half_at_the_value_and_that_of_the_bound_at_the_bound() -> None:
    needs = taking(100, more=50)
    assert probability_of(needs, 100) == pytest.approx(0.5)
    assert probability_of(needs, 150) == pytest.approx(COVERED)
    shares = [probability_of(needs, room) for room in range(50, 300, 10)]
    assert shares == sorted(shares) and shares[-1] > 0.999


def test_below_the_tensors_nothing_fits_and_a_bound_at_the_value_is_certain() -> None:
    assert probability_of(taking(100, more=50), 49) == 0 < probability_of(taking(100, more=50), 60)
    assert [probability_of(taking(100), room) for room in (-5, 99, 100)] == [0, 0, 1]


def test_a_tight_fit_ends_with_0_and_is_no_sure_one() -> None:
    needs = memory(requested(NET, platform=NVIDIA))
    between = (needs.value_bytes + needs.high_bytes) // 2
    ran = run("fit", NET, "--device", f"{between}B", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["fits"], found["verdict"]) == (0, False, "tight")
    assert 0.5 < found["probability"] < COVERED
    assert found["likely_batch_size"] >= 1 > found["largest_batch_size"]
    text = done("fit", NET, "--device", f"{between}B")
    assert f"largest batch size: 0 for sure, {found['likely_batch_size']} if the peak stays below" in text


@pytest.mark.parametrize(
    "asked",
    [
        {"phase": "training"},
        {"phase": "decode", "context": 64, "model": DECODER},
        {"phase": "prefill", "seq_len": 64, "model": DECODER},
        {"phase": "forward", "batch_size": 4},
        {"phase": "training", "optimizer": "sgd", "batch_size": 2},
    ],
)
def test_what_is_tight_has_a_size_that_is_expected_to_fit(asked: dict[str, Any]) -> None:
    request = requested(**{"model": NET, "platform": NVIDIA, "remedies": False, **asked})
    needs = memory(request)
    between = (needs.value_bytes + needs.high_bytes) / 2
    found = fit(request, between / (1 - NVIDIA.margin(request.phase.name)))
    assert (found.verdict, found.fits) == ("tight", False)
    assert found.likely_batch is not None and found.largest_batch is not None
    assert found.likely_batch >= request.batch_size > found.largest_batch
    if request.length is not None:
        assert found.likely_longest is not None and found.longest is not None
        assert found.likely_longest >= request.length > found.longest
    sure = fit(request, 4 * needs.high_bytes)
    assert (sure.verdict, sure.likely_batch, sure.likely_longest) == ("fits", None, None)


def test_the_table_says_that_it_is_tight_and_how_sure_that_is() -> None:
    request = requested(NET, platform=NVIDIA)
    found = Fit(False, taking(100, more=50), 120.0, 1, None, "", 1, request=request)
    said = "tight: fits into 120 B if the peak stays below its upper bound (probability 82%)"
    assert said in fit_table(found, request, "a GPU")
    assert replace(found, room_bytes=99.0).verdict == "does not fit"


# ---- remedies ----


class Fake:
    """Gives memories of requests, by a rule, and counts them."""

    def __init__(self, rule: Callable[[Request], int]) -> None:
        self.rule, self.asked = rule, list[Request]()

    def __call__(self, request: Request) -> Memory:
        self.asked.append(request)
        return taking(self.rule(request))


def training(**how: Any) -> Request:
    sized = {"batch_size": 8, "phase": "training", "platform": NVIDIA, "run": "eager", **how}
    return requested(NET, **sized)


def test_changes_come_cheapest_first_and_the_search_ends_with_enough() -> None:
    fake = Fake(lambda asked: 60 if asked.dtype == "bfloat16" or asked.recipe.checkpointing else 90)
    found = remedies(Situation(training(), taking(100), 95, largest_batch=7), fake)
    assert [one.change for one in found] == ["2 micro-batches of 4", "bfloat16", "activation checkpointing"]
    assert all(one.fits for one in found) and len(found) == ENOUGH == len(fake.asked)
    assert [one.saved_bytes for one in found] == [10, 40, 40]
    assert found[0].options == "--batch-size 4 --accumulation 2"


def test_what_saves_nothing_or_is_refused_is_left_out() -> None:
    def rule(asked: Request) -> int:
        if asked.recipe.checkpointing:
            raise InputError("has no blocks")
        return 100 if asked.dtype == "bfloat16" else 90

    found = remedies(Situation(training(batch_size=1), taking(100), 95), Fake(rule))
    assert not {"bfloat16", "activation checkpointing"} & {one.change for one in found}


def test_changes_are_added_up_where_none_is_enough_alone() -> None:
    def rule(asked: Request) -> int:
        halved = (asked.dtype == "bfloat16", asked.recipe.checkpointing, not asked.layout.alone)
        return 100 - 25 * sum(halved)

    found = remedies(Situation(training(batch_size=1), taking(100), 55), Fake(rule))
    assert [one.fits for one in found] == [False] * (len(found) - 1) + [True]
    assert found[-1].change == "bfloat16 + activation checkpointing"
    assert found[-1].options == "--dtype bfloat16 --checkpointing"
    assert found[-1].memory.high_bytes == 50


def test_stronger_weights_are_not_tried_where_weaker_ones_fit() -> None:
    request = requested(NET, phase="decode", dtype="bfloat16", platform=NVIDIA, run="engine")
    now = Situation(request, taking(100, weights=80), 70)
    both = {"int8": 75, "int4": 60}
    assert [one.change for one in remedies(now, Fake(lambda asked: both.get(asked.weights or "", 100)))][
        :2
    ] == ["int8 weights", "int4 weights"]
    now = replace(now, room_bytes=76)
    names = [one.change for one in remedies(now, Fake(lambda asked: both.get(asked.weights or "", 100)))]
    assert "int8 weights" in names and "int4 weights" not in names


def test_a_cache_of_8_bits_keeps_half_the_bytes_of_an_engines_cache() -> None:
    request = requested(NET, phase="decode", dtype="bfloat16", platform=NVIDIA, run="engine")
    first = remedies(Situation(request, full := taking(100, cache=60), 75), lambda asked: full)[0]
    assert (first.change, first.memory.cache_bytes, first.saved_bytes) == (
        "8-bit cache of keys and values",
        30,
        30,
    )
    assert first.options == "--engine vllm --cache-dtype fp8"
    eager = replace(request, run="eager")
    assert not remedies(Situation(eager, full, 75), lambda asked: full)


def test_masters_are_left_out_where_pure_16_bit_weights_fit() -> None:
    asked = training(batch_size=1, dtype="bfloat16", optimizer="sgd", master_weights=True)
    found = remedies(Situation(asked, taking(100), 60), lambda one: taking(100 if one.recipe.masters else 50))
    change = next(one for one in found if one.change == "no float32 masters")
    assert (change.options, change.fits) == ("without --master-weights", True)
    adapters = next(one for one in found if one.change == "LoRA adapters of rank 16")
    assert adapters.options == "--lora 16 without --master-weights"


def test_devices_are_added_where_they_may_be_enough_and_training_shares_states() -> None:
    asked = training(batch_size=1, dtype="bfloat16", checkpointing=True, optimizer="sgd")
    big = taking(100, weights=40, gradients=40)
    fake = Fake(lambda asked: 100 - 10 * asked.layout.data)
    found = remedies(Situation(asked, big, 30), fake)
    assert fake.asked[-1].layout == Layout(data=8, shard="zero3")
    assert found[-1].options == "--data-parallel 8 --zero 3" and found[-1].fits
    assert all(one.layout.data != 2 for one in fake.asked)  # 80 / 2 is above 30


def test_each_change_has_words_for_its_cost() -> None:
    assert all(type(change).cost for change in CHANGES)
    assert len({type(change).__name__ for change in CHANGES}) >= 9
    assert found_in.CHANGES[0].cost == "nothing"


def test_fit_gives_the_changes_and_a_switch_leaves_them_out() -> None:
    request = requested(nn.Linear(64, 64), 64, input_shape=(64,), phase="training", platform=NVIDIA, margin=0)
    room = memory(request).value_bytes - 1.0
    found = fit(request, room)
    assert found.verdict == "does not fit" and found.remedies
    told = found.to_json()["remedies"][0]
    assert told["saved_bytes"] == found.memory.high_bytes - told["memory_bytes"]["high"] > 0
    assert fit(replace(request, remedies=False), room).remedies == ()


# ---- devices ----


def test_a_size_is_a_gpu_and_several_devices_have_a_usual_layout() -> None:
    assert fitted_in({"device": "24GiB"}, NET) == ({"device": None, "memory": "24GiB"}, "")
    several, note = fitted_in({"device": "2xh100-sxm", "phase": "training"}, NET)
    assert several["layout"] == Layout(data=2, shard="zero3") and several["devices"] == "2xh100-sxm"
    assert note.startswith("no layout is given: data 2, zero3 is assumed")
    several, note = fitted_in({"device": "2xh100-sxm", "layout": Layout(pipeline=2)}, NET)
    assert (several["layout"], note) == (Layout(pipeline=2), "")
    assert cluster_of("8xh100-sxm", 2).usual_layout(trains=False) == Layout(tensor=8, pipeline=2)
    assert cluster_of("h100-sxm").usual_layout(trains=True) == Layout()
    platform, name = assumed("24GiB")
    assert (platform, name) == (NVIDIA, "an NVIDIA GPU of 24GiB")


def test_the_command_takes_several_devices_as_one_and_says_the_layout() -> None:
    text = done("fit", NET, "--device", "2xh100-sxm", "--phase", "training")
    assert "data 2, zero3 (2 devices)" in text and "no layout is given: data 2, zero3 is assumed" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device", "24GB", "--memory", "8GB"), "both are a size; leave one out"),
        (("--device", "100MB"), "the framework alone takes 527 MiB of an NVIDIA GPU; choose a larger memory"),
        (("--device", "2xh100-sxm", "--devices", "2xh100-sxm"), "both name a device"),
        (("--device", "h100", "-b", 0), "batch size 0: must be 1 or more"),
        (("--device", "2xnothing"), "unknown device 'nothing'"),
        (("--device", "0GB"), "unknown device '0GB'"),
    ],
)
def test_what_cannot_be_a_device_is_refused_in_a_line(options: tuple[object, ...], said: str) -> None:
    ran = run("fit", NET, *options)
    assert ran.code == 2
    assert said in ran.err and len(ran.err.strip().splitlines()) == 1


# ---- memory alone ----


def test_memory_alone_is_that_of_a_fit_and_takes_a_shape() -> None:
    found = neuralpower.memory(nn.Linear(64, 8), (4, 64), device="h100")
    asked = requested(nn.Linear(64, 8), 4, input_shape=(64,), phase="training", platform=NVIDIA)
    hopper = platform_of(spec_of("h100").hardware())
    assert found == memory(replace(asked, platform=hopper)) != memory(asked)
    assert neuralpower.memory(NET, phase="forward") == memory(requested(NET, platform=CPU))
    with pytest.raises(InputError, match="must be a shape, batch first"):
        neuralpower.memory(NET, "one")
    with pytest.raises(InputError, match="batch size 0"):
        neuralpower.memory(NET, batch_size=0)
