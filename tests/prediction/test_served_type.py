"""Engines serve checkpoints of 32 bits in 16, and time follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import neuralpower
from neuralpower import Phase
from neuralpower.errors import InputError
from neuralpower.prediction.evaluation.measured import Measurement
from neuralpower.prediction.request import Request
from neuralpower.prediction.weights import served_type
from neuralpower.serving.deployment import Setup
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
TYPES = {"h100-sxm": "bfloat16", "t4": "float16"}  # a device -> what vllm serves 32 bits in
STEP: Any = {"phase": "decode", "context": 64}
STEPPED = ("--phase", "decode", "--context", "64")
ON = ("--device", "h100-sxm")
TINY = ("--input", "8", "--output", "2", "--requests", "4")


@pytest.fixture(scope="module")
def h100() -> Any:
    return neuralpower.load("h100-sxm").predictor.hardware


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
    t4 = neuralpower.load("t4").predictor.hardware
    assert served_type(GPT2, "float32", "engine", t4)[0] == "float16"
    gemma2 = f"transformers:Gemma2ForCausalLM?{SMALL}&num_key_value_heads=4&head_dim=16"
    assert served_type(gemma2, "float32", "engine", t4)[0] == "float32"  # leaves the range of float16


ASKED: dict[str, Callable[[str], str]] = {  # each function -> the dtype in which it answers for a device
    "predict": lambda device: neuralpower.predict(GPT2, device=device, **STEP).dtype,
    "fit": lambda device: _requested(neuralpower.fit(GPT2, device=device, **STEP)),
    "fit with a predictor": lambda device: _requested(neuralpower.fit(GPT2, predictor=device, **STEP)),
    "fit under an engine": lambda device: _requested(neuralpower.fit(GPT2, device=device, engine="vllm")),
    "memory": lambda device: _half(neuralpower.memory(GPT2, device=device, **STEP), device),
    "sweep": lambda device: neuralpower.sweep(GPT2, device=device, **STEP).points[0].dtype,
    "compare": lambda device: _type_in(neuralpower.compare(GPT2, GPT2, device=device, **STEP).about),
    "parallel": lambda device: neuralpower.parallel(GPT2, devices=f"2x{device}", **STEP).wanted.request.dtype,
    "traffic": lambda device: Setup(GPT2, neuralpower.load(device).predictor).deployed().surface.dtype,
    "evaluate --measured": lambda device: _measured(device),
}
SAID = {  # each command that says in which dtype it answers
    "predict": (*ON, *STEPPED),
    "fit": (*ON, *STEPPED),
    "sweep": (*ON, *STEPPED),
    "compare": (f"{GPT2}@h100-sxm", *STEPPED),
    "parallel": ("--devices", "2xh100-sxm", *STEPPED),
    "plan": ("--devices", "h100-sxm", "--rate", "1", "--sla", "ttft=9s", *TINY, "--tensor-parallel", "1"),
}


def _requested(found: neuralpower.Fit) -> str:
    assert found.request is not None
    return found.request.dtype


def _half(found: neuralpower.Memory, device: str) -> str:
    """The dtype of 16 bits of which these are the bytes."""
    (dtype,) = {
        name
        for name in ("float32", TYPES[device])
        if neuralpower.memory(GPT2, device=device, dtype=name, **STEP) == found
    }
    return dtype


def _type_in(about: str) -> str:
    return next(word.strip(",") for word in about.split() if "float" in word)


def _measured(device: str) -> str:
    request = Request(GPT2, phase=Phase.decode(context=64))
    return Measurement(request, 1.0, device, 2, typed=False).asked(neuralpower.load(device).predictor).dtype


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("device", TYPES)
def test_all_functions_answer_in_the_type_that_is_served(name: str, device: str) -> None:
    assert ASKED[name](device) == TYPES[device]


@pytest.mark.parametrize("command", SAID)
def test_all_commands_say_the_type_that_is_served(command: str) -> None:
    done = run(command, GPT2, *SAID[command])
    assert "vllm serves it in bfloat16 (dtype auto), not in float32" in done.out + done.err
    kept = run(command, GPT2, *SAID[command], "--dtype", "float32")
    assert "serves it in" not in kept.out + kept.err


def test_time_follows_the_type_that_is_served() -> None:
    loaded, step = neuralpower.load("h100-sxm"), Phase.decode(context=64)
    found = loaded.predict(GPT2, phase=step)
    assert found.runtime_s == loaded.predict(GPT2, phase=step, dtype="bfloat16").runtime_s
    assert loaded.predict(GPT2, phase=step, engine="sglang").dtype == "float16"
    assert loaded.predict(GPT2, phase=step, dtype="float32").dtype == "float32"
    assert loaded.predict(GPT2, phase=step, run="graph").dtype == "float32"


def test_devices_of_a_sweep_have_types_of_their_own() -> None:
    found = neuralpower.sweep(GPT2, device=list(TYPES), **STEP)
    assert {point.device: point.dtype for point in found.points} == {
        neuralpower.load(device).device: dtype for device, dtype in TYPES.items()
    }


def test_engines_are_of_run_engine() -> None:
    loaded = neuralpower.load("h100-sxm")
    with pytest.raises(InputError, match="engine vllm: run eager is without an engine; choose run engine"):
        loaded.predict(GPT2, seq_len=8, engine="vllm")
    with pytest.raises(InputError, match="unknown engine 'vlm'"):
        loaded.predict(GPT2, phase=Phase.decode(context=8), engine="vlm")
