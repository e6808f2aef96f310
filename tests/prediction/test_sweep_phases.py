"""Grids of training steps and of a language model's phases: each point is what `predict` says of it alone."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
import torch

import neuralpower
from neuralpower.errors import InputError
from neuralpower.learn.files import predictor_lookup
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.explore.phases import sweep_phases
from neuralpower.prediction.request import Request
from neuralpower.trace.recipe import Recipe
from tests.program import done, run

GPT = "transformers:gpt2?n_layer=1&n_embd=32&n_head=2&vocab_size=100&n_positions=64"
PREDICTOR = "amd-epyc-2c"


def points(*arguments: object) -> list[dict[str, Any]]:
    found = json.loads(done("sweep", *arguments, "--predictor", PREDICTOR, "--json"))["points"]
    return list(found)


def test_each_context_and_batch_is_a_step_as_predict_has_it() -> None:
    trained = predictor_lookup.load(PREDICTOR)
    found = points(GPT, "--phase", "decode", "--context", "8:32", "-b", "1,3")
    assert [(p["seq_len"], p["batch_size"]) for p in found] == [(c, b) for c in (8, 16, 32) for b in (1, 3)]
    for point in found:
        case = Request(GPT, point["batch_size"], phase=Phase.decode(context=point["seq_len"]))
        alone, _ = predict_request(case, trained)
        assert point["runtime_s"] == alone.runtime_s.value
        assert alone.memory is not None
        assert point["memory_high_bytes"] == alone.memory.high_bytes
        assert point["samples_per_s"] == pytest.approx(point["batch_size"] / alone.runtime_s.value)
        assert (point["phase"], point["basis"]) == ("decode", "traced")
    assert any(p["best"] for p in found)


def test_a_training_step_counts_the_samples_of_its_micro_batches() -> None:
    trained = predictor_lookup.load(PREDICTOR)
    recipe = Recipe("momentum", accumulation=3)
    cases = [Request("zoo:deep_mnist", batch, phase=Phase("training"), recipe=recipe) for batch in (1, 4)]
    swept = sweep_phases(cases, [trained])
    for case, point in zip(cases, swept.points, strict=True):
        assert point.phase == "training"
        assert point.runtime_s is not None
        assert point.samples_per_s == pytest.approx(3 * case.batch_size / point.runtime_s)


def test_python_sweeps_a_phase_as_the_command_does() -> None:
    loaded = neuralpower.load(PREDICTOR)
    steps = [Phase.decode(context=context) for context in (8, 16)]
    for swept in (loaded.sweep(GPT, phase=steps), neuralpower.sweep(GPT, predictor=PREDICTOR, phase=steps)):
        asked = points(GPT, "--phase", "decode", "--context", "8:16", "-b", 1)
        assert [vars(point) for point in swept.points] == [{**p, "error": ""} for p in asked]


def test_python_sweeps_a_module_in_training() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    loaded, recipe = neuralpower.load(PREDICTOR), Recipe("momentum", accumulation=2)
    (point,) = loaded.sweep(module, batch_size=[4], phase="training", recipe=recipe, input_shape=(8,)).points
    alone = loaded.predict(module, (4, 8), phase="training", recipe=recipe)
    assert (point.model, point.phase, point.runtime_s) == ("Sequential", "training", alone.runtime_s.value)
    assert point.samples_per_s == pytest.approx(8 / alone.runtime_s.value)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("decoding", "unknown phase 'decoding': did you mean decode"),
        (["prefill", "decode"], "phases prefill, decode: a sweep takes one phase; call it for each"),
        ([], r"phases \(\): a sweep takes one phase"),
        (Phase.decode(batch=2), "batch of phase decode: a sweep takes batch_size; leave batch out"),
        (
            Phase.decode(lengths=[2, 3]),
            "lengths of phase decode: a sweep takes batch_size; leave lengths out",
        ),
        (3, "phase 3: must be a name"),
    ],
)
def test_a_phase_that_cannot_be_swept_is_refused(phase: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        neuralpower.sweep(GPT, predictor=PREDICTOR, phase=phase)


def test_a_point_that_cannot_be_predicted_says_why_and_the_others_stand() -> None:
    found = points(GPT, "--phase", "prefill", "--prompt", "16,128")
    assert found[0]["runtime_s"] > 0
    assert found[1]["runtime_s"] is None
    assert "positions" in found[1]["error"]
    rows = list(
        csv.DictReader(
            io.StringIO(
                done("sweep", GPT, "--phase", "generate", "--prompt", 4, "--new-tokens", 2, "--format", "csv")
            )
        )
    )
    assert [row["phase"] for row in rows] == ["generate"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "8"), "--context 8 belongs to --phase decode, not to forward"),
        (("--phase", "decode", "--prompt", "8"), "--prompt 8 belongs to --phase prefill or generate"),
        (("--phase", "decode", "--context", "x"), "context 'x': write sizes such as"),
        (("--optimizer", "sgd"), "belong to phase training, not to forward"),
    ],
)
def test_what_belongs_to_another_phase_is_refused(arguments: tuple[str, ...], words: str) -> None:
    ran = run("sweep", GPT, "--predictor", PREDICTOR, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
