"""Phases of generation on the command line, in lists of cases, and in what is collected."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.models import Outcome, classes, outcome, page
from neuralpower.cli.evaluate import listed
from neuralpower.errors import InputError
from neuralpower.layers import KINDS, Draw, Layer
from neuralpower.layers.movement import Movement
from neuralpower.measure.collect.networks import NETWORKS, Network, jittered
from neuralpower.measure.collect.plan import kinds_named, make_plan
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.phases import Phase
from neuralpower.trace.tracer import trace_call
from tests.program import done, run

LLAMA = (
    "transformers:LlamaForCausalLM?num_hidden_layers=2&hidden_size=64&num_attention_heads=4"
    "&num_key_value_heads=2&intermediate_size=128&vocab_size=500"
)
SHIPPED = ("--predictor", "amd-epyc-2c")


def test_a_step_is_predicted_on_the_command_line() -> None:
    data = json.loads(done("predict", LLAMA, "--phase", "decode", "--context", "100", *SHIPPED, "--json"))
    assert data["phase"] == "decode"
    assert data["generation"]["context"] == 100
    assert data["memory"]["phase"] == "decode"
    # 2 layers x (keys, values) x 2 key heads x 100 tokens x 16 wide x 4 B
    assert data["generation"]["cache_bytes"] == 51_200
    assert data["generation"]["energy_per_token_j"] is None
    assert sum(layer["runtime_s"] for layer in data["layers"]) == pytest.approx(data["runtime_s"]["value"])


def test_a_generation_says_when_the_first_token_comes_and_the_others() -> None:
    arguments = ("predict", LLAMA, "--phase", "generate", "--prompt", "16", "--new-tokens", "8", *SHIPPED)
    data = json.loads(done(*arguments, "--json"))
    about = data["generation"]
    assert (about["prompt"], about["new_tokens"]) == (16, 8)
    total = about["time_to_first_token_s"]["value"] + 7 * about["time_per_output_token_s"]["value"]
    assert total == pytest.approx(data["runtime_s"]["value"])
    for name in ("time_to_first_token_s", "time_per_output_token_s", "tokens_per_s"):
        assert about[name]["low"] < about[name]["value"] < about[name]["high"]
    text = done(*arguments)
    assert "generate (prompt 16, 8 new tokens)" in text and "first token " in text
    assert "tokens/s, cache" in done(*arguments, "-v")


def test_a_prefill_is_predicted_on_the_command_line() -> None:
    data = json.loads(done("predict", LLAMA, "--phase", "prefill", "--prompt", "16", *SHIPPED, "--json"))
    assert data["generation"]["tokens"] == 16


def test_a_forward_pass_says_nothing_of_tokens() -> None:
    assert json.loads(done("predict", LLAMA, "--seq-len", "16", *SHIPPED, "--json"))["generation"] is None


@pytest.mark.parametrize(("prompt", "new_tokens"), [(64, 2), (4, 300), (16, 1)])
def test_a_generation_needs_the_memory_of_its_prefill_or_of_its_last_step(
    prompt: int, new_tokens: int
) -> None:
    def memory(phase: str, *sizes: object) -> dict[str, int]:
        data = json.loads(done("predict", LLAMA, "--phase", phase, *sizes, *SHIPPED, "--json"))
        assert data["memory"]["phase"] == phase
        return dict(data["memory_bytes"])

    found = memory("generate", "--prompt", prompt, "--new-tokens", new_tokens)
    passes = [memory("prefill", "--prompt", prompt)]
    if new_tokens > 1:
        passes.append(memory("decode", "--context", prompt + new_tokens - 2))
    assert found == max(passes, key=lambda one: one["high"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformers:bert", "--phase", "decode"], "needs a model with a KV cache"),
        ([LLAMA, "--phase", "decode", "--context", "4000"], "take 4001 positions"),
        ([LLAMA, "--phase", "decode", "--context", "0"], "must be a whole number from 1"),
        ([LLAMA, "--phase", "decode", "--context", "-3"], "must be a whole number from 1"),
        ([LLAMA, "--context", "4"], "--context 4 belongs to --phase decode"),
        ([LLAMA, "--phase", "prefill", "--new-tokens", "4"], "--new-tokens 4 belongs to --phase generate"),
        (
            [LLAMA, "--phase", "backward", "--context", "4"],
            "--context 4 belongs to --phase decode, not to backward",
        ),
        (
            [LLAMA, "--phase", "training", "--prompt", "4"],
            "--prompt 4 belongs to --phase prefill or generate, not to t",
        ),
        (
            [LLAMA, "--phase", "prefill", "--prompt", "4", "--seq-len", "5"],
            "--prompt 4 and --seq-len 5 both are",
        ),
        (
            [LLAMA, "--phase", "generate", "--prompt", "4", "--seq-len", "5"],
            "--prompt 4 and --seq-len 5 both are",
        ),
        ([LLAMA, "--phase", "decode", "--context", "4", "--seq-len", "5"], "give --context alone"),
        ([LLAMA, "--phase", "decode", "--routing", "best"], "write uniform, worst"),
        ([LLAMA, "--phase", "decode", "--dtype", "float64"], "was not trained on dtype 'float64'"),
        ([LLAMA, "--phase", "sideways"], "unknown phase 'sideways': known: backward, decode, forward"),
    ],
)
def test_predict_refuses_what_no_phase_can_do(arguments: list[str], words: str) -> None:
    model = arguments[0] + ("&max_position_embeddings=2048" if arguments[0] == LLAMA else "")
    ran = run("predict", model, *arguments[1:], *SHIPPED)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_a_step_is_measured_beside_its_prediction() -> None:
    options = ("--phase", "decode", "--context", "8", "--rounds", "2", "--json")
    (network,) = json.loads(done("evaluate", LLAMA, *options, *SHIPPED))["networks"]
    assert (network["phase"], network["context"]) == ("decode", 8)
    assert len(network["samples_s"]) == 2
    assert network["measured_s"] > 0


def test_a_whole_generation_is_not_measured() -> None:
    ran = run("evaluate", LLAMA, "--phase", "generate", *SHIPPED)
    assert ran.code == 2
    assert "unknown phase 'generate'" in ran.err


def test_lines_of_a_list_name_phases(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("a 1 -\nb 4 128 forward\nc 2 - decode 512\nd 1 64 prefill 32\ne 8 - decode\n")
    assert listed(file) == [
        ("a", 1, None, None),
        ("b", 4, 128, Phase()),
        ("c", 2, None, Phase.decode(context=512)),
        ("d", 1, 64, Phase.prefill(32)),
        ("e", 8, None, Phase.decode()),
    ]


@pytest.mark.parametrize("line", ["a 1 - generate 4", "a 1 - decode many", "a 1 - training"])
def test_a_line_of_no_measured_phase_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "list.txt"
    file.write_text(line)
    with pytest.raises(InputError, match="list.txt:1: .* phase is forward, prefill or decode"):
        listed(file)


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(InputError, match="list.txt: cannot be read .* lines of MODEL"):
        listed(file)


# ---- what is collected ----


@pytest.mark.parametrize("elements", [160, 1600, 2**14, 16 * 1023, 2**20, 3 * 2**10])
def test_a_cache_that_grows_is_a_movement_of_its_own(elements: int) -> None:
    layer = Movement(function="append", elements=elements)
    call = layer.build(torch.device("meta"))
    assert trace_call(call).layers == (layer,)
    cache, new = call.args[0]
    assert call.warm == (new,)
    assert cache.shape[-2] >= 9 * new.shape[-2]


@pytest.mark.parametrize(
    ("shapes", "dim", "function"),
    [
        (((1, 8, 100, 64), (1, 8, 1, 64)), -2, "append"),
        (((1, 8, 100, 64), (1, 8, 1, 64)), 2, "append"),
        (((1, 8, 5, 64), (1, 8, 1, 64)), -2, "cat"),
        (((1, 992, 7, 7), (1, 32, 7, 7)), 1, "cat"),  # a dense block's
        (((1, 196, 768), (1, 1, 768)), 1, "cat"),  # an image's class token
    ],
)
def test_only_caches_are_appended_to(shapes: tuple[tuple[int, ...], ...], dim: int, function: str) -> None:
    parts = [torch.empty(shape, device="meta") for shape in shapes]
    (layer,) = trace_call(lambda: torch.cat(parts, dim=dim)).layers
    assert isinstance(layer, Movement)
    assert layer.function == function


def drawn(kind: str) -> list[Layer]:
    source = Draw(kind)
    return [KINDS[kind].sample(source) for _ in range(3000)]


def test_the_sweep_holds_one_row_with_large_weights_and_one_query_with_long_keys() -> None:
    rows = [layer for layer in drawn("linear") if layer.rows == 1]  # type: ignore[attr-defined]
    assert len(rows) > 300
    assert sum(layer.parameters() > 2**24 for layer in rows) > 50
    queries = [layer for layer in drawn("attention") if layer.query_length == 1]  # type: ignore[attr-defined]
    assert sum(layer.key_length > 2048 for layer in queries) > 50  # type: ignore[attr-defined]
    assert sum(layer.function == "append" for layer in drawn("movement")) > 100  # type: ignore[attr-defined]


def test_decoders_are_collected_with_a_step_each() -> None:
    steps = {n.model.removeprefix("transformers:").split("?")[0]: n.steps for n in NETWORKS}
    for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "MambaForCausalLM", "T5Model", "WhisperModel"):
        assert len(steps[name]) == 1
    assert steps["BertModel"] == steps["zoo:alexnet"] == steps["OpenAIGPTLMHeadModel"] == ()


def test_a_jittered_step_is_a_little_smaller() -> None:
    changed = jittered(Network("zoo:alexnet", (1,), steps=((4, 1000),)), random.Random(0))
    ((batch, context),) = changed.steps
    assert 2 <= batch <= 6
    assert 500 <= context <= 1000


def test_a_plan_holds_the_layers_of_steps_and_a_step_as_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping = Network(LLAMA, (1,), (16,), steps=((2, 300),))
    monkeypatch.setattr("neuralpower.measure.collect.plan.NETWORKS", (stepping,))
    items = make_plan(
        PRESETS["quick"], kinds_named(["attention", "network"]), [LLAMA], ["float32"], 0, whole=True
    )
    keys = {
        item["row"]["key_length"] for item in items if item["source"] == LLAMA and item["kind"] == "attention"
    }
    assert keys == {16, 301}
    wholes = {(item["row"]["batch"], item["row"]["input"]) for item in items if item["kind"] == "network"}
    assert wholes == {(1, '{"seq_len": 16}'), (2, '{"context": 300}')}


# ---- the list of models ----


def test_every_causal_language_model_is_on_the_list() -> None:
    names = classes()
    assert len(names) >= 100
    assert names == sorted(names)
    assert {"LlamaForCausalLM", "GPT2LMHeadModel", "MambaForCausalLM"} <= set(names)


def test_a_class_is_traced_in_three_phases() -> None:
    found = outcome("GPT2LMHeadModel")
    assert found == Outcome("GPT2LMHeadModel", ("meta", "meta", "meta"), "DynamicCache", 1.0, "")
    assert found.line() == "| GPT2LMHeadModel | meta | meta | meta | DynamicCache | 100.0% | - |"


def test_a_class_without_a_cache_says_so() -> None:
    found = outcome("OpenAIGPTLMHeadModel")
    assert found.phases[::2] == ("meta", "-")
    assert not found.traced
    assert "decode: keeps no cache" in found.note


def test_the_page_counts_what_was_traced() -> None:
    good = Outcome("A", ("meta", "meta", "fake"), "DynamicCache", 1.0, "")
    half, bad = (
        Outcome("B", ("meta", "-", "-"), "", 0.5, "why"),
        Outcome("C", ("-", "-", "-"), "", None, "why not"),
    )
    text = page([good, half, bad])
    assert "**1 traced in forward, prefill and decode**, 1 in some of these, 1 not at all" in text
    assert "| B | meta | - | - | - | 50.0% | why |" in text
