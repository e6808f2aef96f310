"""Phases of generation: which passes, with which cache, and what their times add up to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from neuralpower.errors import InputError
from neuralpower.layers.rows import to_row
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.caches import CACHES, Again, cache_bytes, keep
from neuralpower.networks.decoder import Decoder, cached_call, pass_of
from neuralpower.networks.inputs.known_values import tensors_within
from neuralpower.networks.inputs.requests import Generating, asked_of
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import Phase
from neuralpower.networks.running import Answers, converted, on_cpu, on_meta, with_values
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.compose import compose
from neuralpower.prediction.generation import Generation, Step, _sum, with_step
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import Interval
from neuralpower.trace.parts.decoder_steps import Growing, between, lined
from neuralpower.trace.parts.routing import Routing
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import Asked, trace, trace_by, trace_call

TINY = "num_hidden_layers=2&hidden_size=64&num_attention_heads=4&num_key_value_heads=2&intermediate_size=128"
LLAMA = f"transformers:LlamaForCausalLM?{TINY}&vocab_size=500"
WINDOWED = f"transformers:MistralForCausalLM?{TINY}&vocab_size=500&sliding_window=8"
MIXED = (
    f"transformers:Gemma3ForCausalLM?{TINY}&head_dim=16&vocab_size=500&sliding_window=8"
    '&layer_types=["sliding_attention","full_attention"]'
)
MIXTURE = f"transformers:MixtralForCausalLM?{TINY}&vocab_size=500&num_local_experts=8"
HYBRID = (
    f"transformers:FalconH1ForCausalLM?{TINY}&vocab_size=500&mamba_d_ssm=64&mamba_n_heads=4&mamba_d_head=16"
    "&mamba_d_state=16&mamba_n_groups=1&mamba_chunk_size=8"
)
STATE = "transformers:MambaForCausalLM?num_hidden_layers=2&hidden_size=64&vocab_size=500"
PAIR = "transformers:T5ForConditionalGeneration?num_layers=2&num_decoder_layers=2&vocab_size=500"
BART = (
    "transformers:BartForConditionalGeneration?encoder_layers=2&decoder_layers=2&d_model=64&vocab_size=500"
    "&encoder_attention_heads=4&decoder_attention_heads=4&encoder_ffn_dim=128&decoder_ffn_dim=128"
)
MASKED = (
    "transformers:MoonshineForConditionalGeneration?hidden_size=32&intermediate_size=64"
    "&encoder_num_hidden_layers=1&decoder_num_hidden_layers=1&vocab_size=500"
    "&encoder_num_attention_heads=2&decoder_num_attention_heads=2"
)  # its encoder returns a mask, too
SPARSE = (
    "transformers:nllb-moe?encoder_layers=1&decoder_layers=1&d_model=32&vocab_size=500&num_experts=2"
    "&encoder_attention_heads=2&decoder_attention_heads=2&encoder_ffn_dim=64&decoder_ffn_dim=64"
    "&encoder_sparse_step=1"
)  # its encoder returns what its routers chose
DEMANDING = (
    "transformers:fsmt?encoder_layers=1&decoder_layers=1&d_model=32&src_vocab_size=500&tgt_vocab_size=500"
    "&encoder_attention_heads=2&decoder_attention_heads=2&encoder_ffn_dim=64&decoder_ffn_dim=64"
)  # it demands the encoder's tokens, which a step does not read
EVERY = {
    "llama": LLAMA,
    "windowed": WINDOWED,
    "mixed": MIXED,
    "mixture": MIXTURE,
    "hybrid": HYBRID,
    "state": STATE,
    "t5": PAIR,
    "bart": BART,
}


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load("amd-epyc-2c")


def one_pass(model: str, phase: Phase, batch: int = 1, seq_len: int | None = None) -> Pass:
    return pass_of(resolve(model), InputRequest(batch, seq_len), phase)


def traced(one: Pass) -> Trace:
    return trace(one.module, one.inputs.args, one.inputs.kwargs)


def of_kind(found: Trace, kind: str) -> list[Any]:
    return [layer for layer in found.layers if layer.kind == kind]


def layers(model: str, phase: Phase, kind: str, batch: int = 1, seq_len: int | None = None) -> list[Any]:
    return of_kind(traced(one_pass(model, phase, batch, seq_len)), kind)


# ---- what a step reads ----


def test_a_step_attends_to_the_context_and_its_own_token_with_the_key_heads_of_the_cache() -> None:
    first, second = layers(LLAMA, Phase.decode(context=100), "attention", batch=3)
    # 100 tokens in the cache and the new one: 101 keys; 4 query heads share 2 key heads of 64 / 4 = 16
    assert first == second
    assert (first.batch, first.query_heads, first.key_heads) == (3, 4, 2)
    assert (first.query_length, first.key_length, first.head_size) == (1, 101, 16)
    assert not first.causal


def test_the_cache_holds_what_hand_arithmetic_says() -> None:
    # 2 layers x (keys, values) x batch 3 x 2 key heads x 100 tokens x 16 wide x 4 B = 153,600 B
    assert one_pass(LLAMA, Phase.decode(context=100), batch=3).cache_bytes == 153_600


def test_a_generation_is_no_single_call() -> None:
    with pytest.raises(InputError, match="--phase generate is a prefill and many steps, not one call"):
        cached_call(resolve(LLAMA), InputRequest(), Phase.generate(new_tokens=2))


def test_the_batch_of_a_phase_comes_before_the_requests() -> None:
    assert one_pass(LLAMA, Phase.decode(batch=8, context=16), batch=3).inputs.kwargs["input_ids"].shape == (
        8,
        1,
    )


@pytest.mark.parametrize(("context", "kept"), [(5, 5), (7, 7), (8, 7), (100, 7)])
def test_a_window_of_eight_keeps_seven_keys_for_the_next_query(context: int, kept: int) -> None:
    one = one_pass(WINDOWED, Phase.decode(context=context))
    assert [layer.keys.shape[-2] for layer in one.cache.layers] == [kept, kept]
    assert one.cache.get_seq_length() == context
    assert {layer.key_length for layer in of_kind(traced(one), "attention")} == {kept + 1}


def test_windowed_and_full_layers_of_one_model_keep_their_own_lengths() -> None:
    assert sorted(layer.key_length for layer in layers(MIXED, Phase.decode(context=50), "attention")) == [
        8,
        51,
    ]


def test_a_state_does_not_grow_with_the_context() -> None:
    short, long = (one_pass(STATE, Phase.decode(context=context)) for context in (4, 400))
    assert 0 < short.cache_bytes == long.cache_bytes
    assert traced(short).layers == traced(long).layers


def test_a_hybrid_keeps_a_state_and_keys() -> None:
    short, long = (one_pass(HYBRID, Phase.decode(context=context)).cache_bytes for context in (10, 20))
    # 2 layers x (keys, values) x 2 key heads x 10 more tokens x 16 wide x 4 B = 5,120 B; its states stay
    assert long - short == 5_120
    assert short > 5_120


def test_an_encoder_decoder_reads_its_own_tokens_and_those_of_the_encoder() -> None:
    found = layers(PAIR, Phase.decode(context=20), "attention", seq_len=50)
    assert sorted(layer.key_length for layer in found) == [21, 21, 50, 50]
    assert {layer.query_length for layer in found} == {1}


@pytest.mark.parametrize("model", [MASKED, SPARSE, DEMANDING], ids=["masked", "sparse", "demanding"])
def test_a_step_is_given_what_its_own_encoder_returns(model: str) -> None:
    one = one_pass(model, Phase.decode(context=8), batch=2, seq_len=None if model == MASKED else 20)
    steps = traced(one)
    assert not any("encoder" in call.path.split(".") for call in steps.calls)  # nor is it run again
    assert one.inputs.kwargs["encoder_outputs"].last_hidden_state.is_meta


def test_a_prefill_asks_the_head_for_one_position() -> None:
    heads = [
        layer for layer in layers(LLAMA, Phase.prefill(30), "linear", batch=2) if layer.out_features == 500
    ]
    assert [layer.rows for layer in heads] == [2]
    assert {layer.query_length for layer in layers(LLAMA, Phase.prefill(30), "attention")} == {30}


def test_a_pairs_prefill_is_its_encoder_and_one_step_of_its_decoder() -> None:
    found = layers(BART, Phase.prefill(30), "attention")
    # encoder 30 x 30, decoder 1 x 1 and 1 x 30, two layers of each
    assert (
        sorted((layer.query_length, layer.key_length) for layer in found)
        == [(1, 1)] * 2 + [(1, 30)] * 2 + [(30, 30)] * 2
    )


# ---- the cache is the one that a model makes ----


@pytest.mark.parametrize("model", EVERY.values(), ids=EVERY)
def test_a_grown_cache_is_the_one_that_a_pass_over_the_context_leaves(model: str) -> None:
    decoder = Decoder(resolve(model).build("meta"), InputRequest(2))
    read, _ = decoder._read(20)
    assert [tuple(t.shape) for t in tensors_within(decoder.cache(20))] == [
        tuple(t.shape) for t in tensors_within(read)
    ]
    assert cache_bytes(decoder.cache(20)) == cache_bytes(read)


@pytest.mark.parametrize("model", [LLAMA, WINDOWED, MIXED, HYBRID, PAIR, BART])
def test_a_step_traced_on_meta_is_the_one_that_runs_on_the_cpu(model: str) -> None:
    one = one_pass(model, Phase.decode(context=20), batch=2)
    on_shapes = trace_by((("meta", on_meta),), one.module, Asked((), one.inputs.kwargs))
    for_real = trace_by((("cpu", on_cpu),), one.module, Asked((), one.inputs.kwargs))
    assert Counter(on_shapes.layers) == Counter(for_real.layers)


def test_tracing_leaves_the_cache_as_it_was() -> None:
    one = one_pass(WINDOWED, Phase.decode(context=5))
    before = [tuple(t.shape) for t in tensors_within(one.cache)]
    assert traced(one).layers == traced(one).layers
    assert [tuple(t.shape) for t in tensors_within(one.cache)] == before


@pytest.mark.parametrize("model", [LLAMA, WINDOWED, HYBRID, BART])
def test_a_measured_step_finds_the_same_context_each_time(model: str) -> None:
    source = resolve(model)
    one = pass_of(source, InputRequest(1), Phase.decode(context=9), source.build("cpu"))
    kwargs = converted(dict(one.inputs.kwargs), with_values)
    again, cache = Again(one.module, kwargs), next(kwargs[name] for name in CACHES if name in kwargs)
    with torch.inference_mode():
        lengths = []
        for _ in range(3):
            again(**kwargs)
            lengths.append(cache.get_seq_length())
    assert lengths == [10, 10, 10]
    keep(cache)()
    assert cache.get_seq_length() == 10


def test_a_list_of_states_is_put_back() -> None:
    states: list[Any] = [torch.zeros(2), torch.zeros(3)]
    restore, first = keep(states), states[0]
    states[0] = torch.ones(2)
    restore()
    assert states[0] is first


# ---- mixtures of experts ----


def test_uniform_routing_reaches_what_random_draws_reach_on_average() -> None:
    # 8 experts, 2 for each of 4 tokens: 8 (1 - (1 - 1/4)^4) = 5.47 -> 5; one token reaches its own two
    assert Routing().reached(8, 2, 8) == 5
    assert Routing().reached(2, 2, 8) == 2
    assert Routing().reached(2000, 2, 8) == 8


def test_worst_routing_reads_as_many_experts_as_there_can_be() -> None:
    assert Routing.parsed("worst").reached(8, 2, 8) == 8
    assert Routing.parsed("worst").reached(6, 2, 8) == 6


def test_tokens_per_expert_can_be_said() -> None:
    assert Routing.parsed("4").reached(8, 2, 8) == 2  # 8 products in groups of 4


@pytest.mark.parametrize("text", ["best", "0", "-1", "1.5"])
def test_another_routing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write uniform, worst, or how many tokens an expert gets"):
        Routing.parsed(text)


def test_a_mixture_is_traced_in_float32_and_says_what_it_assumed(predictor: Predictor) -> None:
    prediction, trace_ = predict_request(Request(MIXTURE, 4, phase=Phase.decode(context=16)), predictor)
    experts = of_kind(trace_, "matmul")
    # two layers with two products each; 8 pairs over 5 experts: 1.6 rows each
    assert [(layer.batch, layer.rows) for layer in experts if layer.batch > 1] == [(5, 2)] * 4
    assert prediction.assumptions == (
        "routing uniform: 4 tokens with 2 of 8 experts each; 5 experts assumed active",
    )
    notes: Any = prediction.to_json()["trace"]
    assert prediction.assumptions[0] in notes["notes"]


def test_an_expert_gets_as_many_tokens_as_there_are_for_each() -> None:
    rows, experts = torch.empty(130, 8, device="meta"), torch.empty(64, 8, 6, device="meta")
    ends = torch.empty(64, dtype=torch.int32, device="meta")
    (layer,) = trace_call(lambda: torch._grouped_mm(rows, experts, ends)).layers
    # 64 (1 - (1 - 1/64)^130) = 55.7 experts get 130 / 56 = 2.3 tokens each
    assert (to_row(layer)["batch"], to_row(layer)["rows"]) == (56, 2)


# ---- a whole generation ----


def every_step(model: str, contexts: range, predictor: Predictor) -> list[Prediction]:
    decoder = Decoder(resolve(model).build("meta"), InputRequest(1, 4))
    return [
        compose(traced(decoder.decode(context)), predictor, model=model, batch_size=1) for context in contexts
    ]


@pytest.mark.parametrize("model", [LLAMA, MIXED, BART], ids=["llama", "mixed", "bart"])
def test_a_generation_is_the_sum_over_its_steps(model: str, predictor: Predictor) -> None:
    phase = Phase.generate(prompt=4, new_tokens=13)
    prediction, _ = predict_request(Request(model, phase=phase), predictor)
    about = prediction.generation
    assert isinstance(about, Generation)
    first = compose(traced(one_pass(model, Phase.prefill(4))), predictor, model=model, batch_size=1)
    start = 1 if model == BART else 4  # a text encoder's decoder starts with one token
    predicted = every_step(model, range(start, start + 12), predictor)
    steps = [one.runtime_s for one in predicted]
    assert about.time_to_first_token_s.value == pytest.approx(first.runtime_s.value)
    assert prediction.runtime_s.value == pytest.approx(first.runtime_s.value + sum(s.value for s in steps))
    assert about.time_per_output_token_s is not None
    assert about.time_per_output_token_s.value == pytest.approx(sum(s.value for s in steps) / 12)
    assert about.first_step_s is not None and about.last_step_s is not None
    assert (about.first_step_s.value, about.last_step_s.value) == pytest.approx(
        (steps[0].value, steps[-1].value)
    )
    assert about.tokens_per_s.value == pytest.approx(13 / prediction.runtime_s.value)
    assert len(about.traced) < 12  # the others were interpolated
    assert sum(row.share for row in prediction.rows) == pytest.approx(1)
    assert sum(row.runtime_s for row in prediction.rows) == pytest.approx(prediction.runtime_s.value)
    assert sum(row.flops for row in prediction.rows) == prediction.flops
    if model != BART:  # whose encoder reads more in a step that is asked for alone
        assert prediction.flops == pytest.approx(first.flops + sum(one.flops for one in predicted), rel=1e-4)
        alone = traced(one_pass(model, Phase.decode(context=start + 7)))
        assert alone.flops == predicted[7].flops


def test_interpolated_traces_are_the_traced_ones_beyond_a_window() -> None:
    asked = asked_of(MIXED, InputRequest(1), Phase.generate(prompt=3, new_tokens=39))
    assert isinstance(asked, Generating)
    growing = Growing(asked, traced, 3, 40)
    growing.spread()
    assert len(growing.traces) < 12
    for context in (*range(3, 12), 16, 25, 33, 40):  # the window holds 8
        assert growing.at(context).layers == traced(asked.step(context)).layers


def test_few_predicted_steps_lie_near_the_sum_over_all(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = Phase.generate(prompt=16, new_tokens=120)
    full, _ = predict_request(Request(LLAMA, phase=phase), predictor)
    monkeypatch.setattr("neuralpower.trace.parts.decoder_steps.CALLS", 1)
    few, _ = predict_request(Request(LLAMA, phase=phase), predictor)
    assert isinstance(full.generation, Generation) and isinstance(few.generation, Generation)
    assert (full.generation.predicted, few.generation.predicted) == (119, 9)
    assert few.runtime_s.value == pytest.approx(full.runtime_s.value, rel=0.02)


def test_one_new_token_is_the_prefill_alone(predictor: Predictor) -> None:
    one, _ = predict_request(Request(LLAMA, phase=Phase.generate(prompt=8, new_tokens=1)), predictor)
    first, _ = predict_request(Request(LLAMA, phase=Phase.prefill(8)), predictor)
    assert one.runtime_s == first.runtime_s
    assert isinstance(one.generation, Generation)
    assert one.generation.time_per_output_token_s is None
    assert json.loads(json.dumps(one.to_json()))["generation"]["time_per_output_token_s"] is None


def test_a_pairs_steps_read_as_many_tokens_of_the_encoder_as_the_prompt_has() -> None:
    decoder = Decoder(resolve(BART).build("meta"), InputRequest(1, 9))
    assert decoder.tokens_before(None) == 1  # the decoder's start token
    step = traced(decoder.decode(3))  # which makes the fourth token
    assert {layer.key_length for layer in of_kind(step, "attention")} == {4, 9}


def test_weights_add_up_a_straight_line_exactly() -> None:
    # contexts 3..10 of 2 c + 1: 7 + 9 + ... + 21 = 112
    contexts = [3, 5, 10]
    assert sum(w * (2 * c + 1) for w, c in zip(lined(contexts), contexts, strict=True)) == pytest.approx(112)


def test_sizes_between_two_traces_are_interpolated() -> None:
    low, high = (traced(one_pass(LLAMA, Phase.decode(context=context))) for context in (10, 20))
    middle = between(low, high, 0.3)
    assert [layer.key_length for layer in of_kind(middle, "attention")] == [14, 14]


def test_energy_per_token_is_null_without_power(predictor: Predictor) -> None:
    prediction, _ = predict_request(Request(LLAMA, phase=Phase.generate(prompt=8, new_tokens=4)), predictor)
    assert isinstance(prediction.generation, Generation)
    assert prediction.generation.energy_per_token_j is None


def test_a_steps_prediction_says_what_it_means_for_tokens(predictor: Predictor) -> None:
    prediction, _ = predict_request(Request(LLAMA, 2, phase=Phase.decode(context=100)), predictor)
    assert prediction.phase == "decode"
    assert isinstance(prediction.generation, Step)
    assert prediction.generation.tokens_per_s.value == pytest.approx(2 / prediction.runtime_s.value)
    assert prediction.generation.tokens_per_s.low == pytest.approx(2 / prediction.runtime_s.high)
    # 2 layers x 2 x batch 2 x 2 heads x 100 x 16 x 4 B
    assert prediction.generation.cache_bytes == 102_400
    found = prediction.to_json()
    assert found["phase"] == "decode"
    assert {"context", "tokens_per_s", "cache_bytes"} <= set(found["generation"])


def test_energy_is_spread_over_the_tokens_that_are_made(predictor: Predictor) -> None:
    step = one_pass(LLAMA, Phase.decode(context=100), batch=2)
    prediction = compose(traced(step), predictor, model=LLAMA, batch_size=2)
    known = with_step(replace(prediction, energy_j=Interval(6.0, 4.0, 8.0)), step)
    assert isinstance(known.generation, Step)
    assert known.generation.energy_per_token_j == Interval(
        3.0, 2.0, 4.0
    )  # a step makes a token of each of 2 samples


def test_a_sum_over_steps_with_one_unknown_is_unknown() -> None:
    one = Interval(1.0, 0.5, 2.0)
    assert _sum([one, one], [1.0, 3.0]) == Interval(4.0, 2.0, 8.0)
    assert _sum([one, None], [1.0, 3.0]) is None
    assert _sum([], []) is None


def test_a_model_that_asks_for_values_says_which_operator_and_how_it_was_traced_then(
    predictor: Predictor,
) -> None:
    model = (
        "transformers:JetMoeForCausalLM?num_hidden_layers=1&hidden_size=32&num_key_value_heads=2"
        "&kv_channels=16&intermediate_size=64&vocab_size=500&num_local_experts=4"
    )
    prediction, _ = predict_request(Request(model, phase=Phase.decode(context=8)), predictor)
    assert prediction.method == "cpu"
    assert any(
        "fake: DataDependentOutputException: aten._local_scalar_dense" in note for note in prediction.notes
    )


def test_a_longer_context_takes_longer(predictor: Predictor) -> None:
    short, long = (
        predict_request(Request(LLAMA, 8, phase=Phase.decode(context=context)), predictor)[0].runtime_s.value
        for context in (64, 2000)
    )
    assert long > short


# ---- what is refused ----


@pytest.mark.parametrize(
    "model", ["transformers:BertModel?num_hidden_layers=1", "transformers:ViTModel", "zoo:alexnet"]
)
def test_a_step_of_what_keeps_no_cache_is_refused(model: str) -> None:
    with pytest.raises(InputError, match="phase decode needs a model with a KV cache"):
        one_pass(model, Phase.decode(context=4))


@pytest.mark.parametrize(
    ("model", "limit"),
    [("transformers:GPT2LMHeadModel?n_layer=1", 1024), (LLAMA + "&max_position_embeddings=64", 64)],
)
def test_a_context_beyond_the_models_positions_is_refused(model: str, limit: int) -> None:
    one_pass(model, Phase.decode(context=limit - 1))
    with pytest.raises(InputError, match=f"take {limit + 1} positions, but .* is made for {limit}"):
        one_pass(model, Phase.decode(context=limit))


def test_a_generation_past_the_last_position_is_refused(predictor: Predictor) -> None:
    model = LLAMA + "&max_position_embeddings=64"
    predict_request(Request(model, phase=Phase.generate(prompt=60, new_tokens=5)), predictor)
    with pytest.raises(InputError, match="a prompt and 6 new tokens take 65 positions"):
        predict_request(Request(model, phase=Phase.generate(prompt=60, new_tokens=6)), predictor)


@pytest.mark.parametrize(
    "phase", [Phase.decode(context=0), Phase.decode(batch=-1), Phase.prefill(0), Phase.generate(4, 0)]
)
def test_numbers_below_one_are_refused(phase: Phase) -> None:
    with pytest.raises(InputError, match="must be a whole number from 1"):
        pass_of(resolve(LLAMA), InputRequest(), phase)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase(context=4), "--context 4 belongs to --phase decode, not to forward"),
        (Phase("decode", prompt=4), "--prompt 4 belongs to --phase prefill or generate"),
        (Phase("prefill", new_tokens=4), "--new-tokens 4 belongs to --phase generate"),
        (Phase("training"), "unknown phase 'training': known: decode, forward, generate, prefill"),
    ],
)
def test_another_phase_or_a_number_of_one_is_refused(phase: Phase, words: str) -> None:
    with pytest.raises(InputError, match=words):
        phase.check()


def test_what_meta_tensors_are_asked_for_is_answered() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool, device="meta")
    with torch.inference_mode(), Answers():
        assert bool(mask.sum() == 6)
        assert not bool(mask.sum() == 5)
        assert bool(mask.all())
        with pytest.raises(RuntimeError, match="meta"):
            mask.float().sum().item()
