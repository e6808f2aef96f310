"""The parts of a prediction add up to it, whatever is asked: rows, kinds, modules, steps, energy."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import neuralpower
from neuralpower.api.loaded import load
from neuralpower.devices.cluster import ONE, Layout
from neuralpower.layers.base import FORWARD
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.sharding import TRAINING as TO_TRAIN
from neuralpower.networks.sharding import Sharding
from neuralpower.prediction.compose import composed, question_of
from neuralpower.prediction.parallel import one_micro_batch, predict_layout
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import Interval, Row
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.recipe import TRAINING, Recipe
from tests.sampled import some_always

QUESTIONS = 50
DEVICES = ("h100-sxm", "mi300x", "aws-graviton3")
SIZES = "num_hidden_layers=2&hidden_size=256&intermediate_size=512&num_attention_heads=8&vocab_size=1000"
LLAMA = f"transformers:LlamaForCausalLM?{SIZES}"
MIXTRAL = f"transformers:MixtralForCausalLM?{SIZES}&num_key_value_heads=8&num_local_experts=4"
CASES = ((LLAMA, TRAINING), (MIXTRAL, TRAINING), ("zoo:mnist_cnn", TRAINING), (LLAMA, "decode"))
ALIKE: Callable[[float], Any] = functools.partial(pytest.approx, rel=1e-6)


@functools.cache
def predictor_of(device: str) -> Any:
    return load(device).predictor


@functools.cache
def followed(
    device: str, model: str, way: str, tensor: int, expert: int, count: int = 1
) -> tuple[Followed, Question]:
    """One micro-batch of a rank, or `count` on one device, and the question that it was followed for."""
    predictor = predictor_of(device)
    layout, recipe = Layout(tensor=tensor, expert=expert), Recipe(accumulation=count)
    run = ENGINE if way == "decode" and predictor.platform.family != "cpu" else "eager"
    phase = way if way == TRAINING else FORWARD
    question = question_of(predictor, phase=phase, dtype="float32", run=run, layout=layout, recipe=recipe)
    tokens = None if way == "decode" or model.startswith("zoo") else 128
    about = InputRequest(2, tokens)
    sharding = Sharding(layout, 8, TO_TRAIN if way == TRAINING else run if run == ENGINE else "inference")
    asked = asked_of(model, about, Phase.decode(2, 64) if way == "decode" else Phase(), sharding=sharding)
    found = follow(asked, question if layout.alone else one_micro_batch(question))
    assert isinstance(found, Followed)
    return found, question


def drawn(chance: random.Random) -> tuple[Prediction, float | None]:
    """A random question's answer, and the power that its device may draw."""
    device = chance.choice(DEVICES)
    model, way = chance.choice(CASES)
    blocks = model in (LLAMA, MIXTRAL)
    ranks = chance.choice([1, 2]) if blocks else 1
    expert = ranks if model == MIXTRAL and chance.random() < 0.5 else 1
    pipeline = chance.choice([1, 2]) if blocks else 1
    data = chance.choice([1, 2, 8])
    trained = way == TRAINING
    schedule = chance.choice(["1f1b", "gpipe"]) if trained and pipeline > 1 else "1f1b"
    shard = chance.choice(["", "zero1", "zero2", "zero3"]) if trained and data > 1 and pipeline == 1 else ""
    count = chance.choice([1, 4, 16])
    alone = ranks == data == pipeline == 1
    found, question = followed(device, model, way, ranks, expert, count if alone and trained else 1)
    layout = Layout(
        tensor=ranks,
        expert=expert,
        pipeline=pipeline,
        data=data,
        schedule=schedule,
        **({"shard": shard} if shard else {}),
    )
    asked = question_of(
        predictor_of(device),
        phase=question.phase,
        dtype="float32",
        run=question.run,
        layout=layout,
        recipe=Recipe(accumulation=count),
    )
    predictor = predictor_of(device)
    limit = None if predictor.hardware is None else predictor.hardware.limit_w
    if layout == ONE:
        return composed(found.work, predictor, question, model=model, batch_size=2), limit
    return predict_layout(found, predictor, asked, model=model), limit


def check_rows(rows: Sequence[Row], whole: Interval, joules: float | None, limit_w: float | None) -> None:
    """That rows are parts of a whole, none larger than it."""
    assert sum(row.runtime_s for row in rows) == ALIKE(whole.value)
    assert sum(row.share for row in rows) == ALIKE(1)
    for row in rows:
        assert 0 <= row.low_s <= row.runtime_s * (1 + 1e-9)
        assert row.runtime_s * (1 - 1e-9) <= row.high_s <= whole.high * (1 + 1e-9), row
        if row.power_w is not None and limit_w is not None:
            assert row.power_w.value <= limit_w * (1 + 1e-9), row
    known = [row.energy_j for row in rows if row.runtime_s]
    if joules is not None and None not in known:
        assert sum(energy or 0.0 for energy in known) == ALIKE(joules)


@pytest.mark.parametrize("seed", some_always(range(4), lambda seed: seed == 0))
def test_all_parts_add_up_to_the_whole(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(QUESTIONS):
        found, limit_w = drawn(chance)
        whole = found.runtime_s
        joules = None if found.energy_j is None else found.energy_j.value
        for rows in (found.with_launches, found.by_kind(), found.by_module(3)):
            check_rows(rows, whole, joules, limit_w)
        if (several := found.parallel) is not None and several.energy_j is not None:
            most = several.ranks * (limit_w or math.inf) * several.cycle_s
            assert several.energy_j.value <= most * (1 + 1e-9)
            if several.layout.pipeline == 1:
                passes = 1 if found.training is not None else several.micro_batches
                assert several.energy_j.value == ALIKE(several.ranks * passes * (joules or 0.0))
        if found.training is not None:
            waits = [row.runtime_s for row in (found.launch_row, found.bubble_row) if row is not None]
            steps = found.training.steps.values()
            assert sum(step.value for step in steps) + sum(waits) == ALIKE(whole.value)
            assert all(step.high <= whole.high * (1 + 1e-9) for step in steps)


@pytest.mark.parametrize(("device", "phase", "times"), [("mi300x", "forward", 4), ("h100-sxm", "decode", 2)])
def test_joules_fall_where_work_falls(device: str, phase: str, times: int) -> None:
    chance = random.Random(phase)
    batch, length = chance.choice([1, 3, 5, 8]), chance.choice([96, 128, 160])  # doubled: aligned alike
    batches, lengths = [batch * 2**i for i in range(times)], [length, 2 * length]
    sizes: dict[str, Any] = {"context" if phase == "decode" else "seq_len": lengths}
    joules: dict[tuple[int, int, int], float] = {}
    for width in (256, 512):
        wide = f"hidden_size={width}&intermediate_size={2 * width}"
        model = LLAMA.replace("hidden_size=256&intermediate_size=512", wide)
        how: dict[str, Any] = {"phase": phase, "device": device, "dtype": "bfloat16", **sizes}
        found = neuralpower.sweep(model, batch_size=batches, **how)
        joules |= {(width, p.batch_size, p.seq_len or 0): p.energy_j or 0.0 for p in found.points}
    for key, value in joules.items():
        for axis in range(3):
            less = joules.get(tuple(size // 2 if i == axis else size for i, size in enumerate(key)), 0.0)
            assert 0 <= less <= value * (1 + 1e-9), (key, axis)


def test_a_generation_takes_the_joules_of_its_prefill_and_steps() -> None:
    how: dict[str, Any] = {"batch_size": 2, "dtype": "bfloat16"}
    loaded = load("h100-sxm")
    whole = loaded.predict(LLAMA, phase=Phase.generate(prompt=64, new_tokens=3), **how)
    parts = [Phase.prefill(prompt=64), Phase.decode(context=64), Phase.decode(context=65)]
    joules = [found.energy_j for found in (loaded.predict(LLAMA, phase=part, **how) for part in parts)]
    assert whole.energy_j is not None
    assert sum(one.value for one in joules if one is not None) == ALIKE(whole.energy_j.value)
