"""Engines serve checkpoints of 32 bits in 16, and time follows."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import neuralpower
from neuralpower import Phase
from neuralpower.errors import InputError
from neuralpower.prediction.served_type import served_type
from tests.program import run

SMALL = "num_hidden_layers=2&hidden_size=64&intermediate_size=128&vocab_size=128&num_attention_heads=4"
GPT2 = "transformers:GPT2LMHeadModel?n_layer=2&n_embd=64&n_head=4&vocab_size=128"
FULL = {
    "gpt2": GPT2,
    "gpt-neo": "transformers:GPTNeoForCausalLM?num_layers=2&hidden_size=64&num_heads=4&vocab_size=128"
    '&attention_types=[[["global","local"],1]]',
    "gpt-neox": f"transformers:GPTNeoXForCausalLM?{SMALL}",
    "gpt-j": "transformers:GPTJForCausalLM?n_layer=2&n_embd=64&n_head=4&vocab_size=128&rotary_dim=8",
    "opt": "transformers:OPTForCausalLM?num_hidden_layers=2&hidden_size=64&num_attention_heads=4"
    "&vocab_size=99&ffn_dim=128&word_embed_proj_dim=64",
    "bloom": "transformers:BloomForCausalLM?n_layer=2&hidden_size=64&n_head=4&vocab_size=128",
    "llama": f"transformers:LlamaForCausalLM?{SMALL}",
    "qwen2": f"transformers:Qwen2ForCausalLM?{SMALL}&num_key_value_heads=4",
    "phi": f"transformers:PhiForCausalLM?{SMALL}",
    "stablelm": f"transformers:StableLmForCausalLM?{SMALL}&num_key_value_heads=4",
    "gemma": f"transformers:GemmaForCausalLM?{SMALL}&num_key_value_heads=4&head_dim=16",
    "mixtral": f"transformers:MixtralForCausalLM?{SMALL}&num_key_value_heads=4&num_local_experts=2",
}


@pytest.fixture(scope="module")
def h100() -> Any:
    return neuralpower.load("h100-sxm").predictor


@pytest.mark.parametrize("name", FULL)
def test_engines_serve_32_bits_in_16(name: str, h100: Any) -> None:
    for engine in (None, "vllm", "llama.cpp"):
        assert served_type(FULL[name], "float32", "engine", h100, engine)[0] == "bfloat16"
    sglang = "bfloat16" if name == "gemma" else "float16"
    dtype, (note,) = served_type(FULL[name], "float32", "engine", h100, "sglang")
    assert dtype == sglang
    assert note == f"sglang serves it in {sglang} (dtype auto), not in float32; --dtype float32 keeps that"


def test_other_runs_and_types_and_own_modules_stay(h100: Any) -> None:
    for run_ in ("eager", "graph", "compile"):
        assert served_type(GPT2, "float32", run_, h100) == ("float32", ())
    assert served_type(GPT2, "float16", "engine", h100) == ("float16", ())
    assert served_type(GPT2, "bfloat16", "engine", h100) == ("bfloat16", ())
    assert served_type(nn.Linear(2, 2), "float32", "engine", h100) == ("float32", ())
    assert served_type("zoo:resnet18", "float32", "engine", h100) == ("float32", ())


def test_a_device_without_bfloat16_serves_float16() -> None:
    t4 = neuralpower.load("t4").predictor
    assert served_type(GPT2, "float32", "engine", t4)[0] == "float16"
    gemma2 = f"transformers:Gemma2ForCausalLM?{SMALL}&num_key_value_heads=4&head_dim=16"
    assert served_type(gemma2, "float32", "engine", t4)[0] == "float32"  # leaves the range of float16


def test_time_follows_the_type_that_is_served_and_the_answer_says_it(h100: Any) -> None:
    loaded, step = neuralpower.load("h100-sxm"), Phase.decode(context=64)
    found = loaded.predict(GPT2, phase=step)
    assert found.dtype == "bfloat16"
    assert found.assumptions[0].startswith("vllm serves it in bfloat16 (dtype auto), not in float32")
    assert found.runtime_s == loaded.predict(GPT2, phase=step, dtype="bfloat16").runtime_s
    assert loaded.predict(GPT2, phase=step, engine="sglang").dtype == "float16"
    assert loaded.predict(GPT2, phase=step, dtype="float32").dtype == "float32"
    assert loaded.predict(GPT2, phase=step, run="graph").dtype == "float32"
    (point,) = loaded.sweep(GPT2, phase=step).points
    assert point.dtype == "bfloat16"
    ranked = neuralpower.parallel(GPT2, devices="2xh100-sxm", phase="decode", context=64)
    assert ranked.wanted.request.dtype == "bfloat16" and ranked.notes[0].startswith("vllm serves it")
    with_itself = loaded.compare(GPT2, GPT2, phase=step)
    assert "bfloat16" in with_itself.about


def test_engines_are_of_run_engine() -> None:
    loaded = neuralpower.load("h100-sxm")
    with pytest.raises(InputError, match="engine vllm: run eager is without an engine; choose run engine"):
        loaded.predict(GPT2, seq_len=8, engine="vllm")
    with pytest.raises(InputError, match="unknown engine 'vlm'"):
        loaded.predict(GPT2, phase=Phase.decode(context=8), engine="vlm")


def test_the_command_says_it_too() -> None:
    asked = [GPT2, "--device", "h100-sxm", "--phase", "decode", "--context", "64"]
    said = run("predict", *asked, "--engine", "sglang").out
    assert "float16, decode, engine" in said
    assert "sglang serves it in float16 (dtype auto), not in float32" in said
    assert "float32, decode, engine" in run("predict", *asked, "--dtype", "float32").out
    swept = run("sweep", *asked)
    assert "bfloat16" in swept.out
    assert "vllm serves it in bfloat16" in swept.err
    against = run("compare", GPT2, f"{GPT2}@h100-sxm", *asked[1:])
    assert "vllm serves it in bfloat16" in against.err
    devices = ["--devices", "2xh100-sxm", "--phase", "decode", "--context", "64"]
    assert "vllm serves it in bfloat16" in run("parallel", GPT2, *devices).err
