"""Blocks of language models under an engine: experts, latent attention, linear attention and scans."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from neuralpower.layers.experts import Experts
from neuralpower.layers.latent_attention import LatentAttention
from neuralpower.layers.linear_attention import GATED_DELTA, KIMI_DELTA, LinearAttention
from neuralpower.layers.rows import from_row, to_row
from neuralpower.layers.scan import MAMBA, MAMBA2, Scan
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.prediction.memory.peak import forward_memory
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed
from neuralpower.trace.parts.routing import Routing
from neuralpower.trace.question import Question
from neuralpower.trace.records import Task, Trace

SIZES = "hidden_size=256&vocab_size=500&num_attention_heads=4"
TWO = f"{SIZES}&num_hidden_layers=2&intermediate_size=512&num_key_value_heads=2"
LATENT = f"{SIZES}&num_hidden_layers=2&intermediate_size=512&num_key_value_heads=4"
MIXTURE = "num_experts_per_tok=4&moe_intermediate_size=128"
MIXTRAL = f"transformers:MixtralForCausalLM?{TWO}&num_local_experts=8"
QWEN = f"transformers:Qwen3MoeForCausalLM?{TWO}&num_experts=16&{MIXTURE}&head_dim=64"
GPT_OSS = f"transformers:GptOssForCausalLM?{TWO}&num_local_experts=8&head_dim=64"
LLAMA4 = (
    f"transformers:Llama4ForCausalLM?{TWO}&num_local_experts=8&num_experts_per_tok=1&intermediate_size_mlp=512"
    "&head_dim=64&interleave_moe_layer_step=1"
)
DEEPSEEK = (
    f"transformers:DeepseekV3ForCausalLM?{LATENT}&n_routed_experts=16&{MIXTURE}&n_group=4&topk_group=2"
    "&first_k_dense_replace=1&q_lora_rank=96"
)
SECOND = f"transformers:DeepseekV2ForCausalLM?{LATENT}&n_routed_experts=16&{MIXTURE}&first_k_dense_replace=1"
MINI = f"transformers:MiniCPM3ForCausalLM?{LATENT}"
NEXT = (
    f"transformers:Qwen3NextForCausalLM?{TWO}&num_experts=16&{MIXTURE}&head_dim=64&linear_num_value_heads=8"
    "&linear_num_key_heads=4&linear_key_head_dim=32&linear_value_head_dim=32"
    '&layer_types=["linear_attention","full_attention"]'
)
KIMI = (
    f"transformers:KimiLinearForCausalLM?{LATENT}&num_local_experts=16&{MIXTURE}&pad_token_id=0"
    '&linear_num_heads=4&linear_head_dim=32&layer_types=["linear_attention","full_attention"]'
)
STATE = "transformers:MambaForCausalLM?num_hidden_layers=2&hidden_size=64&vocab_size=500"
STATE2 = (
    "transformers:Mamba2ForCausalLM?num_hidden_layers=2&hidden_size=64&vocab_size=500&num_heads=8&head_dim=16"
    "&state_size=16&n_groups=2&chunk_size=8"
)
JAMBA = (
    f"transformers:JambaForCausalLM?{TWO}&num_experts=4&attn_layer_period=2&attn_layer_offset=1"
    "&expert_layer_period=2&expert_layer_offset=1"
)
PREFILL, DECODE = Phase.prefill(32), Phase.decode(context=64)


@functools.cache
def followed(
    model: str, phase: Phase, run: str = "engine", batch: int = 2, routing: str = "uniform"
) -> Followed:
    """A network in bfloat16."""
    asked = asked_of(model, InputRequest(batch, None, None, torch.bfloat16), phase)
    found = follow(asked, Question(dtype="bfloat16", run=run, routing=Routing.parsed(routing)))
    assert isinstance(found, Followed)
    return found


def worked(model: str, phase: Phase, **how: Any) -> Trace:
    return followed(model, phase, **how).work


def of_kind(trace: Trace, kind: str) -> list[Any]:
    return [task.layer for task in trace.tasks if task.layer.kind == kind]


def under(trace: Trace, path: str) -> list[Task]:
    return [task for task in trace.tasks if f"{path}." in f"{task.path}."]


@pytest.mark.parametrize(
    ("model", "experts", "top_k", "intermediate", "layers"),
    [
        pytest.param(MIXTRAL, 8, 2, 512, 2, id="mixtral"),
        pytest.param(QWEN, 16, 4, 128, 2, id="qwen"),
        pytest.param(GPT_OSS, 8, 4, 512, 2, id="gpt-oss"),
        pytest.param(LLAMA4, 8, 1, 512, 2, id="llama4"),
        pytest.param(DEEPSEEK, 16, 4, 128, 1, id="deepseek"),
        pytest.param(JAMBA, 4, 2, 512, 1, id="jamba"),
    ],
)
def test_a_mixtures_experts_are_one_call(
    model: str, experts: int, top_k: int, intermediate: int, layers: int
) -> None:
    step = worked(model, DECODE)
    found = of_kind(step, "experts")
    assert len(found) == layers
    for layer in found:
        assert layer == Experts(
            dtype="bfloat16",
            tokens=2,
            hidden=256,
            intermediate=intermediate,
            experts=experts,
            top_k=top_k,
            pairs=2 * top_k,
            hit=layer.hit,
            fullest=layer.fullest,
            gated=True,
        )
        assert top_k <= layer.hit <= 2 * top_k and 1 <= layer.fullest <= 2
        assert from_row(Experts, to_row(layer)) == layer
    module = next(task.path for task in step.tasks if task.layer.kind == "experts")
    assert [task.layer.kind for task in under(step, module)] == ["experts"]  # nothing else is left of them
    assert not any(task.layer.kind == "movement" for task in under(step, module.rpartition(".")[0]))
    prompt = of_kind(worked(model, PREFILL), "experts")
    assert {(layer.tokens, layer.pairs) for layer in prompt} == {(64, 64 * top_k)}
    assert step.passes.index("expert_blocks") < step.passes.index("packed_products")


def test_the_load_of_experts_follows_the_routing() -> None:
    def load(routing: str) -> tuple[int, int, int]:
        layer = of_kind(worked(QWEN, PREFILL, routing=routing), "experts")[0]
        return layer.pairs, layer.hit, layer.fullest

    # 256 pairs over 16 experts, 16 each in the mean: the fullest gets 16 + sqrt(2 16 ln 16) = 25.4
    assert load("uniform") == (256, 16, 25)
    assert load("worst") == (256, 16, 16)
    assert load("64") == (256, 4, 64)
    found = worked(QWEN, PREFILL, routing="uniform")
    said = "routing uniform: 16 of 16 experts assumed active for 64 tokens, 25 at most for one"
    assert said in found.granted


def test_only_an_engine_replaces_blocks() -> None:
    for run in ("eager", "graph"):
        trace = worked(DEEPSEEK, DECODE, run=run)
        assert not {"experts", "latent_attention"} & {task.layer.kind for task in trace.tasks}
        assert "expert_blocks" not in trace.passes


@pytest.mark.parametrize(
    ("model", "latent", "rope", "nope", "value"),
    [
        pytest.param(DEEPSEEK, 512, 64, 128, 128, id="deepseek-v3"),
        pytest.param(SECOND, 512, 64, 128, 128, id="deepseek-v2"),
        pytest.param(MINI, 256, 32, 64, 64, id="minicpm3"),
        pytest.param(f"{DEEPSEEK}&v_head_dim=192", 512, 64, 128, 192, id="one size"),
    ],
)
def test_a_step_of_latent_attention_reads_the_cache_itself(
    model: str, latent: int, rope: int, nope: int, value: int
) -> None:
    step = worked(model, DECODE)
    kernels = of_kind(step, "latent_attention")
    assert len(kernels) == 2
    assert kernels[0] == LatentAttention(
        dtype="bfloat16",
        batch=2,
        query_heads=4,
        query_length=1,
        key_length=65,
        absorbed=True,
        causal=False,
        latent=latent,
        rope=rope,
        head_size=nope,
        value_size=value,
    )
    attention = under(step, "model.layers.0.self_attn")
    products = [task.layer for task in attention if task.layer.kind == "matmul"]
    assert [(p.batch, p.rows, p.inner, p.columns) for p in products] == [  # type: ignore[attr-defined]
        (4, 2, nope, latent),
        (4, 2, latent, value),
    ]
    assert not any(task.path.endswith("kv_b_proj") for task in step.tasks)
    assert [task.parts for task in attention].count(("cache",)) == 1
    assert "latent attention is absorbed: its heads read the cache itself" in step.granted
    assert step.flops < 0.5 * worked(model, DECODE, run="eager").flops


def test_a_prompt_of_latent_attention_is_expanded() -> None:
    prompt = worked(DEEPSEEK, PREFILL)
    (kernel, _) = of_kind(prompt, "latent_attention")
    assert (kernel.absorbed, kernel.causal, kernel.query_length, kernel.key_length) == (False, True, 32, 32)
    assert [task.layer.rows for task in prompt.tasks if task.path.endswith("kv_b_proj")] == [  # type: ignore[attr-defined]
        64,
        64,
    ]
    kinds = {task.layer.kind for task in under(prompt, "model.layers.0.self_attn")}
    assert not kinds & {"matmul", "softmax", "attention"}


def test_an_absorbed_step_keeps_no_keys_in_memory() -> None:
    phase = Phase.decode(context=2048)
    eager, engine = (forward_memory(followed(DEEPSEEK, phase, run=run).work) for run in ("eager", "engine"))
    # no keys and values for each of 4 heads, and no copy of the cache
    assert engine.activations_bytes < eager.activations_bytes


@pytest.mark.parametrize(
    ("model", "function"),
    [pytest.param(NEXT, GATED_DELTA, id="qwen3-next"), pytest.param(KIMI, KIMI_DELTA, id="kimi")],
)
def test_a_gated_delta_rule_is_one_call(model: str, function: str) -> None:
    key_heads, value_heads = (4, 8) if model == NEXT else (4, 4)
    for phase, length, chunk in ((DECODE, 1, 0), (PREFILL, 32, 64)):
        trace = worked(model, phase)
        (layer,) = of_kind(trace, "linear_attention")
        assert layer == LinearAttention(
            dtype="bfloat16",
            function=function,
            batch=2,
            length=length,
            chunk=chunk,
            key_heads=key_heads,
            value_heads=value_heads,
            key_size=32,
            value_size=32,
        )
        assert trace.unmodelled == ()
        assert "recurrences over tokens are assumed to run as one kernel a layer" in trace.granted


def test_a_scan_is_one_call() -> None:
    for phase, length, chunk in ((DECODE, 1, 0), (PREFILL, 32, 8)):
        trace = worked(STATE2, phase)
        found = of_kind(trace, "scan")
        sizes: dict[str, Any] = {"heads": 8, "head_size": 16, "state_size": 16, "groups": 2}
        made = Scan(dtype="bfloat16", function=MAMBA2, batch=2, length=length, chunk=chunk, **sizes)
        assert found == [made, made]
        kinds = [task.layer.kind for task in under(trace, "backbone.layers.0.mixer")]
        assert kinds == ["linear", "scan", "fused", "linear"]


@pytest.mark.parametrize("model", [STATE, JAMBA], ids=["mamba", "jamba"])
def test_a_loop_over_tokens_is_one_call(model: str) -> None:
    channels, path = (128, "backbone.layers.0.mixer") if model == STATE else (512, "model.layers.0.mamba")
    for phase, length in ((DECODE, 1), (PREFILL, 32)):
        trace = worked(model, phase)
        layer = of_kind(trace, "scan")[0]
        assert (layer.function, layer.heads, layer.head_size, layer.state_size) == (MAMBA, channels, 1, 16)
        assert (layer.batch, layer.length, layer.conv) == (2, length, 0)
        kinds = [task.layer.kind for task in under(trace, path) if "norm" not in task.path]
        assert kinds == ["linear", "conv1d", "linear", "matmul", "scan", "linear"]


def test_the_gated_delta_rule_is_that_of_transformers() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    torch.manual_seed(0)
    batch, length, heads, size = 2, 6, 2, 4
    query, key, value = (torch.randn(batch, length, heads, size) for _ in range(3))
    decay, strength = -torch.rand(batch, length, heads), torch.rand(batch, length, heads)
    expected, _ = torch_recurrent_gated_delta_rule(
        query, key, value, g=decay, beta=strength, initial_state=None, output_final_state=False,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    x = torch.cat([t.flatten(2) for t in (query, key, value)], -1)
    state = torch.zeros(batch, heads, size, size)
    found = torch.ops.neuralpower.linear_attention(x, None, decay, strength, state, heads, 0)
    assert torch.allclose(found / size**0.5, expected, atol=1e-3)
