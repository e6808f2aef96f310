"""Batches whose requests have lengths of their own."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from neuralpower.ask import texts
from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.rows import to_row
from neuralpower.networks.inputs.requests import Generating, asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed, Grown
from neuralpower.trace.parts.decoder_steps import UNPADDED
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace
from tests.program import done, run

SIZES = "num_hidden_layers=2&hidden_size=256&num_attention_heads=4&vocab_size=1000&intermediate_size=512"
GROUPED = f"{SIZES}&num_key_value_heads=2"
LLAMA = f"transformers:LlamaForCausalLM?{GROUPED}"
REQUEST = InputRequest(1, None, None, torch.bfloat16)


@functools.cache
def worked(phase: Phase, way: str = "engine", model: str = LLAMA) -> Trace:
    found = follow(asked_of(model, REQUEST, phase), Question(dtype="bfloat16", run=way))
    assert isinstance(found, Followed)
    return found.work


def attention(work: Trace) -> list[tuple[int, int, float]]:
    """(queries, keys, share) of the attention calls of one block."""
    tasks = [(task.layer, task.share) for task in work.tasks if ".0." in task.path]
    return [(x.query_length, x.key_length, round(share, 9)) for x, share in tasks if isinstance(x, Attention)]


def rows(work: Trace) -> Counter[int]:
    return Counter(task.layer.rows for task in work.tasks if isinstance(task.layer, Linear))


@pytest.mark.parametrize("way", ["engine", "eager"])
def test_a_prefill_multiplies_all_tokens_and_attends_request_by_request(way: str) -> None:
    work = worked(Phase.prefill(lengths=[8, 12, 13, 12]), way)
    products = 4 if way == "engine" else 7
    assert rows(work) == {45: 2 * products, 4: 1}  # logits of each request's last token
    assert attention(work) == [(8, 8, 0.25), (12, 12, 0.5), (13, 13, 0.25)]
    assert {task.layer.batch for task in work.tasks if isinstance(task.layer, Attention)} == {4}
    assert UNPADDED in work.granted


def test_a_step_reads_each_requests_context() -> None:
    work = worked(Phase.decode(lengths=[8, 13, 13, 40]))
    assert rows(work) == {4: 9}
    assert attention(work) == [(1, 9, 0.25), (1, 14, 0.5), (1, 41, 0.25)]
    fused = [task.layer for task in work.tasks if isinstance(task.layer, FusedPointwise)]
    even = worked(Phase.decode(context=18, batch=4))
    assert fused == [task.layer for task in even.tasks if isinstance(task.layer, FusedPointwise)]


def test_equal_lengths_are_a_batch() -> None:
    for ragged, even in (
        (Phase.prefill(lengths=[9, 9]), Phase.prefill(9, 2)),
        (Phase.decode(lengths=[9, 9]), Phase.decode(2, 9)),
    ):
        assert worked(ragged).tasks == worked(even).tasks


def test_work_is_that_of_the_requests_one_by_one() -> None:
    lengths = (8, 12, 13, 12)

    def flops(work: Trace) -> float:
        return sum(task.flops_and_bytes()[0] for task in work.tasks if task.layer.multiplies)

    for make in (Phase.prefill, Phase.decode):
        together = flops(worked(make(lengths=lengths)))
        alone = sum(flops(worked(make(lengths=[length]))) for length in lengths)
        assert together == pytest.approx(alone, rel=1e-12)


def test_a_window_ends_what_a_long_context_adds() -> None:
    model = f"transformers:MistralForCausalLM?{GROUPED}&sliding_window=16"
    work = worked(Phase.decode(lengths=[4, 10, 100]), "engine", model)
    assert attention(work) == [(1, 5, round(1 / 3, 9)), (1, 11, round(1 / 3, 9)), (1, 16, round(1 / 3, 9))]
    prompts = worked(Phase.prefill(lengths=[4, 10, 100]), "engine", model)
    windows = [task.layer.window for task in prompts.tasks if isinstance(task.layer, Attention)]
    assert windows == [0, 0, 16] * 2


def test_scores_that_are_written_out_grow_with_the_square() -> None:
    model = f"transformers:Gemma2ForCausalLM?{GROUPED}&head_dim=64&sliding_window=4096"
    work = worked(Phase.prefill(lengths=[8, 24]), "eager", model)
    scores = [t for t in work.tasks if t.layer.kind == "softmax" and ".0." in t.path]
    assert [(to_row(t.layer)["rows"], to_row(t.layer)["width"], t.share) for t in scores] == [
        (2 * 4 * 8, 8, 0.5),
        (2 * 4 * 24, 24, 0.5),
    ]


def test_a_generation_grows_each_request() -> None:
    asked = asked_of(LLAMA, REQUEST, Phase.generate(lengths=[4, 10], new_tokens=6))
    assert isinstance(asked, Generating)
    # layers, keys and values, heads, size, bytes, tokens of both requests at the end
    assert asked.cache_bytes == 2 * 2 * 2 * 64 * 2 * (4 + 10 + 2 * 5)
    grown = follow(asked, Question(dtype="bfloat16", run="engine"))
    assert isinstance(grown, Grown)
    assert attention(grown.work) == [(4, 4, 0.5), (10, 10, 0.5)]
    steps = [attention(step) for step in grown.steps]
    assert steps == [[(1, 5 + n, 0.5), (1, 11 + n, 0.5)] for n in range(5)]


def test_a_prediction_says_the_lengths_and_counts_all_tokens() -> None:
    where = ("predict", LLAMA, "--predictor", "amd-epyc-2c", "--phase", "prefill", "--lengths", "8,12,13")
    data = json.loads(done(*where, "--json"))
    assert (data["batch_size"], data["run"], data["generation"]["lengths"]) == (3, "eager", [8, 12, 13])
    rate, seconds = data["generation"]["tokens_per_s"]["value"], data["runtime_s"]["value"]
    assert rate == pytest.approx(33 / seconds)
    assert "prefill (prompt 8,12,13), batch 3" in done(*where)


def test_lengths_are_read_from_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("812\n\n 95 \n4076\n")
    assert texts.lengths("812, 95,4076") == texts.lengths(str(file)) == (812, 95, 4076)
    assert texts.lengths(None) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8,0", "'0' is not a length"),
        ("8,-3", "'-3' is not a length"),
        ("8,,9", "'' is not a length"),
        ("8,2.5", "'2.5' is not a length"),
        ("", "contains no number"),
        ("nowhere.txt", "cannot be read"),
        ("99999999999", "is not a length"),
    ],
)
def test_what_is_no_list_of_lengths_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        texts.lengths(text)


def test_a_file_that_is_empty_or_holds_words_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    for content, said in (("\n\n", "contains no number"), ("12\nmany\n", "line 2: 'many' is not a length")):
        file.write_text(content)
        with pytest.raises(InputError, match=said):
            texts.lengths(str(file))


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (Phase("forward", lengths=(3, 4)), "--lengths belongs to --phase prefill, decode or generate"),
        (Phase("training", lengths=(3, 4)), "--lengths belongs to --phase"),
        (Phase.prefill(lengths=[]), "got 0"),
        (Phase.prefill(lengths=[4, 0]), "length 0 of a request"),
        (Phase.decode(3, lengths=[4, 5]), "batch 3 and 2 lengths"),
        (Phase.prefill(7, lengths=[4, 5]), "--prompt 7 and --lengths both"),
        (Phase.decode(context=7, lengths=[4, 5]), "--context 7 and --lengths both"),
    ],
)
def test_lengths_that_contradict_the_phase_are_refused(phase: Phase, said: str) -> None:
    with pytest.raises(InputError, match=said):
        phase.check((*("forward", "prefill", "decode", "generate"), "training"))


def test_more_tokens_than_the_model_has_positions_for_are_refused() -> None:
    with pytest.raises(InputError, match="prompt 99 takes"):
        asked_of(f"{LLAMA}&max_position_embeddings=64", REQUEST, Phase.prefill(lengths=[9, 99]))
    with pytest.raises(InputError, match="is a pair of an encoder and a decoder"):
        asked_of("transformers:t5?num_layers=1", REQUEST, Phase.prefill(lengths=[9, 8]))


def test_the_command_refuses_a_batch_size_beside_lengths() -> None:
    ran = run("predict", LLAMA, "--phase", "prefill", "--lengths", "9,8", "--batch-size", "3")
    assert ran.code == 2
    assert "--batch-size 3 and 2 lengths" in ran.err
