"""Ranks of engines: whatever a plan of transformers says, each has its part of all blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from neuralpower.devices.cluster import Layout
from neuralpower.errors import InputError
from neuralpower.layers.collective import Collective
from neuralpower.layers.experts import Experts
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.sharding import ENGINE, Sharding
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed
from neuralpower.trace.question import ENGINE as RUN_ENGINE
from neuralpower.trace.question import Question

BATCH = 4
SMALL = "num_hidden_layers=2&hidden_size=256&intermediate_size=512&vocab_size=1024&num_attention_heads=16"
MAMBA = "num_hidden_layers=2&hidden_size=256&vocab_size=1024"
HYBRID = "mamba_n_heads=16&mamba_d_head=32&mamba_n_groups=1&mamba_d_state=16"
NETWORKS = {
    "gpt-oss": f"GptOssForCausalLM?{SMALL}&num_key_value_heads=8&head_dim=32&num_local_experts=8",
    "llama": f"LlamaForCausalLM?{SMALL}&num_key_value_heads=2",  # fewer key heads than ranks
    "mixtral": f"MixtralForCausalLM?{SMALL}&num_key_value_heads=8&num_local_experts=8",
    "deepseek": f"DeepseekV3ForCausalLM?{SMALL}&n_routed_experts=8&n_group=1&topk_group=1"
    "&moe_intermediate_size=128&first_k_dense_replace=1",
    "llama-4": f"Llama4ForCausalLM?{SMALL}&num_key_value_heads=8&head_dim=32&num_local_experts=8"
    "&intermediate_size_mlp=512&num_experts_per_tok=1&interleave_moe_layer_step=1",
    "falcon": "FalconForCausalLM?num_hidden_layers=2&hidden_size=256&vocab_size=1024&num_attention_heads=16"
    "&new_decoder_architecture=true&num_kv_heads=8",
    "bloom": "BloomForCausalLM?n_layer=2&hidden_size=256&n_head=16&vocab_size=1024",  # biases of all heads
    "starcoder": "GPTBigCodeForCausalLM?n_layer=2&n_embd=256&n_head=16&vocab_size=1024",  # one key head
    "command-r": f"CohereForCausalLM?{SMALL}&num_key_value_heads=8&use_qk_norm=true",  # norms of each head
    "mamba": f"MambaForCausalLM?{MAMBA}",
    "mamba-2": f"Mamba2ForCausalLM?{MAMBA}&num_heads=16&head_dim=32&n_groups=8&state_size=16",
    "granite": f"GraniteMoeHybridForCausalLM?{SMALL}&num_key_value_heads=8&{HYBRID}&num_local_experts=8"
    '&num_experts_per_tok=2&shared_intermediate_size=512&layer_types=["mamba","attention"]',
    "minimax": f"MiniMaxForCausalLM?{SMALL}&num_key_value_heads=8&num_local_experts=8"
    '&layer_types=["linear_attention","full_attention"]',
    "lfm2": f'Lfm2ForCausalLM?{SMALL}&num_key_value_heads=8&layer_types=["conv","full_attention"]',
}


REPEATED = """
    router mlp.gate. block_sparse_moe.gate q_a_proj kv_a_proj k_proj v_proj c_attn in_proj conv1d bias wpe
""".split()


def a_step(name: str, **degrees: int) -> Any:
    """A step of a rank against a cache, as it is asked for."""
    request = InputRequest(BATCH, None, None, torch.bfloat16)
    sharding = Sharding(Layout(**degrees), 8, ENGINE)
    model = f"transformers:{NETWORKS[name]}" if name in NETWORKS else name
    return asked_of(model, request, Phase.decode(batch=BATCH, context=32), sharding=sharding)


def run(asked: Any, **degrees: int) -> Followed:
    """The same as an engine runs it."""
    found = follow(asked, Question("forward", "bfloat16", run=RUN_ENGINE, layout=Layout(**degrees)))
    assert isinstance(found, Followed)
    return found


def numbers(asked: Any) -> dict[str, int]:
    """Numbers of each matrix, by path."""
    return {name: p.numel() for name, p in asked.module.named_parameters() if p.dim() > 1}


def repeated(name: str) -> bool:
    """Matrices that engines keep whole: routers, latents, and keys and values that are fewer than ranks."""
    return any(part in f"{name}." for part in REPEATED)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_rank_has_its_part_of_every_matrix_and_of_every_product(name: str, ranks: int) -> None:
    whole, part = a_step(name), a_step(name, tensor=ranks)
    before, after = numbers(whole), numbers(part)
    assert before.keys() == after.keys()
    apart = {path: after[path] * ranks / count for path, count in before.items() if not repeated(path)}
    assert apart == {path: pytest.approx(1) for path in apart}
    works = [run(whole).work, run(part, tensor=ranks).work]
    of_all, of_rank = (sum(int(c.layer.flops()) for c in one.calls if c.layer.multiplies) for one in works)
    assert of_all / ranks <= of_rank < of_all / ranks * 1.5
    sums = Counter(c.layer.function for c in works[1].calls if isinstance(c.layer, Collective))
    a_block = 1 if name == "mamba-2" else 2  # sums: of what it makes, or of attention and of what follows it
    assert sums["all_reduce"] in range(2 * a_block + 1, 3 * 2 + 2)  # of the table, and of shared experts


def test_experts_are_cut_between_groups_that_share_a_scale() -> None:
    asked = a_step("gpt-oss-20b?num_hidden_layers=2", tensor=4)
    experts = asked.module.model.layers[0].mlp.experts
    assert experts.down_proj.shape == (32, 736, 2880)  # 23 of the 90 groups of 32 inner features
    assert experts.gate_up_proj.shape == (32, 2880, 2 * 736)
    assert experts.gate_up_proj_bias.shape == (32, 2 * 736)
    assert experts.down_proj_bias.shape == (32, 2880)
    assert asked.module.model.layers[0].self_attn.sinks.shape == (16,)


def test_heads_that_ranks_do_not_divide_are_refused_without_a_plan_too() -> None:
    with pytest.raises(InputError, match=r"tensor 4: transformer.h.0.attn has 6 heads, which 4 ranks do not"):
        a_step("transformers:GPT2LMHeadModel?n_layer=2&n_embd=96&n_head=6&vocab_size=1024", tensor=4)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "deepseek", "llama-4"])
@pytest.mark.parametrize("degrees", [{"data": 4, "expert": 4}, {"data": 2, "tensor": 2, "expert": 4}])
def test_rows_are_brought_to_placed_experts_and_back_again(name: str, degrees: dict[str, int]) -> None:
    whole, asked = a_step(name), a_step(name, **degrees)
    work = run(asked, **degrees).work
    mixtures = [c for c in work.calls if c.layer.kind == "experts"]
    assert mixtures
    exchanges = [c for c in work.calls if getattr(c.layer, "function", "") == "all_to_all"]
    assert len(exchanges) == 2 * len(mixtures)
    for one, (out, back) in zip(mixtures, zip(exchanges[::2], exchanges[1::2], strict=True), strict=True):
        assert out.at < one.at < back.at
        assert out.layer.elements == back.layer.elements == one.layer.tokens * one.layer.hidden  # type: ignore[attr-defined]
    before, after = numbers(whole), numbers(asked)
    stacked = [path for path in before if "experts." in path and "shared" not in path]
    assert {after[path] * 4 / before[path] for path in stacked} == {1}


@pytest.mark.parametrize("degrees", [{"tensor": 4}, {"tensor": 4, "expert": 4}])
def test_what_every_expert_would_compute_is_not_summed_over_ranks(degrees: dict[str, int]) -> None:
    work = run(a_step("llama-4", **degrees), **degrees).work
    sums = [c.layer for c in work.calls if getattr(c.layer, "function", "") == "all_reduce"]
    assert {one.elements for one in sums if isinstance(one, Collective)} == {
        BATCH * 256
    }  # a row a token, not one for each expert besides
    mixtures = [c.layer for c in work.calls if isinstance(c.layer, Experts)]
    assert {one.tokens for one in mixtures} == {BATCH // degrees.get("expert", 1)}
