"""One rank of a layout: what it computes, keeps and exchanges."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuralpower.devices.layout import Layout
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.attention import Attention
from neuralpower.layers.collective import Collective
from neuralpower.networks.inputs.input_request import InputRequest
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.phases import Phase
from neuralpower.networks.sharding import ENGINE, TRAINING, Sharding, sharded
from neuralpower.networks.sharding.styles import names
from neuralpower.trace.recipe import default_loss
from neuralpower.trace.records import Trace, backward_calls
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

SMALL = "num_hidden_layers=2&hidden_size=64&intermediate_size=128&num_attention_heads=8&vocab_size=1000"
LLAMA = f"transformers:LlamaForCausalLM?{SMALL}&num_key_value_heads=2"
MIXTRAL = f"transformers:MixtralForCausalLM?{SMALL}&num_key_value_heads=8&num_local_experts=8"
GPT2 = "transformers:GPT2LMHeadModel?n_layer=2&n_embd=64&n_head=4&vocab_size=1000"
TOKENS = 32
HIDDEN = 64


def one_rank(model: Any, phase: Phase | None = None, **given: Any) -> Any:
    """The pass of a rank; `given` are degrees of a layout and fields of a sharding."""
    apart = {name: given.pop(name) for name in ("use", "plan", "require_plan", "per_node") if name in given}
    sharding = Sharding(Layout(**given), **{"per_node": 8, **apart})
    return asked_of(model, InputRequest(1, None if phase else TOKENS), phase or Phase(), sharding=sharding)


def traced(asked: Any, *, training: bool = False) -> Trace:
    loss = default_loss if training else None
    return trace(asked.module, asked.inputs.args, asked.inputs.kwargs, training=training, loss=loss)


def exchanged(calls: Any) -> Iterator[tuple[str, int]]:
    """(Function, numbers) of each collective."""
    layers: list[Layer] = [call.layer for call in calls]
    return ((one.function, one.elements) for one in layers if isinstance(one, Collective))


def products(found: Trace) -> dict[str, tuple[int, int]]:
    """Weights [out, in] of each plain product, by path."""
    return {c.path: c.inputs[1] for c in found.calls if c.operator == "aten.linear"}  # type: ignore[misc]


def test_a_rank_of_llama_has_the_shapes_of_megatron_and_two_sums_a_block() -> None:
    found = traced(one_rank(LLAMA, tensor=2))
    block = {path.removeprefix("model.layers.1."): shape for path, shape in products(found).items()}
    assert block["self_attn.q_proj"] == (32, 64)
    assert block["self_attn.k_proj"] == block["self_attn.v_proj"] == (8, 64)
    assert block["self_attn.o_proj"] == (64, 32)
    assert block["mlp.gate_proj"] == block["mlp.up_proj"] == (64, 64)
    assert block["mlp.down_proj"] == (64, 64)
    sums = Counter(exchanged(found.calls))
    assert sums == {("all_reduce", TOKENS * HIDDEN): 2 * 2 + 1, ("all_gather", TOKENS * 1000): 1}


def test_training_sums_two_gradients_a_block_and_shares_what_q_k_and_v_read() -> None:
    found = traced(one_rank(LLAMA, tensor=2, use=TRAINING), training=True)
    back = [*exchanged(backward_calls(found.calls, found.own_backward))]
    assert back == [("all_reduce", TOKENS * HIDDEN)] * 5  # the head's, and two of each block
    assert Counter(exchanged(found.calls))["all_reduce", TOKENS] == 3  # of a loss over a split vocabulary
    rows = products(found)["lm_head"][0]
    assert rows == 512  # 1000 rows padded to 2 x 128 x 4


def test_a_networks_own_loss_reads_the_logits_that_a_rank_has() -> None:
    asked = one_rank(LLAMA, tensor=2, use=TRAINING)
    ids = asked.inputs.kwargs["input_ids"]
    found = trace(asked.module, (), {"input_ids": ids, "labels": ids}, training=True, loss=default_loss)
    assert Counter(exchanged(found.calls))["all_reduce", TOKENS] == 3


def test_sequence_ranks_scatter_and_gather_what_tensor_ranks_would_sum() -> None:
    found = traced(one_rank(LLAMA, tensor=2, sequence=True, use=TRAINING), training=True)
    back = Counter(exchanged(backward_calls(found.calls, found.own_backward)))
    numbers = TOKENS * HIDDEN
    assert Counter(exchanged(found.calls))["reduce_scatter", numbers] == 4
    assert Counter(exchanged(found.calls))["all_gather", numbers] == 5  # and one after the last norm
    assert back["reduce_scatter", numbers] == 4
    assert (
        back["all_gather", numbers] == 4 + 4 + 1
    )  # of gradients, of tokens that were not kept, of the first slice
    norms = [c for c in found.calls if c.path.endswith("input_layernorm")]
    assert norms[0].inputs[0] == (1, TOKENS // 2, HIDDEN)


def test_sequence_ranks_keep_slices_of_what_products_read() -> None:
    kept = {}
    for sequence in (False, True):
        asked = one_rank(LLAMA, tensor=2, sequence=sequence, use=TRAINING)
        found = training_lifetimes(asked.module, asked.inputs.args, asked.inputs.kwargs, stepped=False)
        turn = found.passes[0]
        lives = [
            s.bytes for s in found.storages if s.birth and s.birth <= turn and (s.death or turn + 1) > turn
        ]
        kept[sequence] = lives.count(4 * TOKENS * HIDDEN)
    assert kept[True] <= kept[False] - 2 * 6  # of each block: inputs and outputs of norms, what products read


def test_key_heads_that_are_fewer_than_ranks_are_repeated() -> None:
    asked = one_rank(LLAMA, tensor=4)
    found = traced(asked)
    assert products(found)["model.layers.0.self_attn.k_proj"] == (8, 64)  # one head of two
    assert products(found)["model.layers.0.self_attn.q_proj"] == (16, 64)
    assert any(note.startswith("repeated: model.layers.*.self_attn.k_proj") for note in asked.sharding.notes)


@pytest.mark.parametrize(("ranks", "share"), [(2, 2), (4, 2), (8, 2)])
def test_a_cache_has_the_heads_of_the_rank(ranks: int, share: int) -> None:
    whole = one_rank(LLAMA, Phase.decode(1, 16), tensor=1)
    part = one_rank(LLAMA, Phase.decode(1, 16), tensor=ranks)
    assert part.cache_bytes * share == whole.cache_bytes
    traced(part)


def test_an_engine_splits_and_pads_vocabularies() -> None:
    asked = one_rank(LLAMA.replace("1000", "1001"), Phase.prefill(16), tensor=2, use=ENGINE)
    found = traced(asked)
    assert products(found)["lm_head"] == (512, 64)
    assert asked.module.model.embed_tokens.weight.shape == (512, 64)
    libraries = {one.library for one in found.layers if isinstance(one, Collective)}
    assert libraries == {"engine", "nccl"}


@pytest.mark.parametrize(
    ("degrees", "experts", "exchanges"),
    [
        ({"tensor": 2}, (8, 128, 64), {"all_reduce": 5}),
        ({"tensor": 2, "expert": 2}, (4, 256, 64), {"all_reduce": 5}),
        ({"data": 4, "expert": 4}, (2, 256, 64), {"all_to_all": 4}),
        ({"tensor": 2, "data": 4, "expert": 8}, (1, 256, 64), {"all_to_all": 4, "all_reduce": 3}),
    ],
)
def test_experts_are_split_or_placed(degrees: Any, experts: tuple[int, ...], exchanges: Any) -> None:
    asked = one_rank(MIXTRAL, **degrees)
    assert asked.module.model.layers[0].mlp.experts.gate_up_proj.shape == experts
    found = traced(asked)
    count = Counter(function for function, _ in exchanged(found.calls))
    assert {name: count[name] for name in exchanges} == exchanges
    rows = sum(c.inputs[0][0] for c in found.calls if c.operator == "aten._grouped_mm") // 4
    split = degrees["tensor"] if degrees.get("expert", 1) > 1 and "tensor" in degrees else 1
    assert rows == TOKENS * 2 // split  # each rank has its part of all choices


def test_parameters_of_placed_experts_name_their_group() -> None:
    module = one_rank(MIXTRAL, data=4, expert=4).module
    marked = {
        name.rpartition(".")[2] for name, p in module.named_parameters() if hasattr(p, "neuralpower_group")
    }
    assert marked == {"gate_up_proj", "down_proj"}


DEEPSEEK = (
    f"transformers:DeepseekV3ForCausalLM?{SMALL}&num_key_value_heads=8&n_routed_experts=8&n_group=1"
    "&topk_group=1&first_k_dense_replace=1&moe_intermediate_size=32"
)


def test_latent_attention_stays_whole_where_its_plan_leaves_it_out() -> None:
    asked = one_rank(DEEPSEEK, tensor=2)
    found = traced(asked)
    assert products(found)["model.layers.0.mlp.gate_proj"] == (64, 64)
    assert products(found)["model.layers.0.self_attn.o_proj"] == (64, 8 * 128)
    assert any("self_attn.o_proj" in note for note in asked.sharding.notes if note.startswith("whole"))


@pytest.mark.parametrize("use", [ENGINE, TRAINING])
def test_engines_and_training_split_latent_attention_all_the_same(use: str) -> None:
    asked = one_rank(DEEPSEEK, tensor=2, use=use)
    found = products(traced(asked))
    block = {path.removeprefix("model.layers.1.self_attn."): shape for path, shape in found.items()}
    assert block["q_a_proj"] == (1536, 64)  # a latent is whole
    assert block["q_b_proj"] == (4 * 192, 1536)
    assert block["kv_b_proj"] == (4 * 256, 512)
    assert block["o_proj"] == (64, 4 * 128)
    assert any(note.startswith("split by a rule: model.layers.*.self_attn") for note in asked.sharding.notes)


def test_a_network_without_a_plan_is_split_by_a_rule() -> None:
    asked = one_rank(GPT2, tensor=2)
    found = traced(asked)
    attention = next(layer for layer in found.layers if isinstance(layer, Attention))
    assert attention.query_heads == 2
    assert asked.module.transformer.h[1].mlp.c_fc.weight.shape == (64, 128)
    assert Counter(exchanged(found.calls)) == {("all_reduce", TOKENS * HIDDEN): 4}
    assert asked.sharding.source == "a rule"


def test_the_rule_splits_blocks_beside_a_loss_of_the_network() -> None:
    sharding = Sharding(Layout(tensor=2), per_node=8, use=TRAINING)
    asked: Any = asked_of(GPT2, InputRequest(1, TOKENS, labels=True), Phase(), sharding=sharding)
    assert asked.inputs.labelled
    assert asked.module.transformer.h[1].mlp.c_fc.weight.shape == (64, 128)


def test_strict_refuses_the_rule() -> None:
    with pytest.raises(InputError, match="has no plan for tensor ranks, and require_plan refuses a rule"):
        one_rank(GPT2, tensor=2, require_plan=True)


class Pair(nn.Module):
    """Two products around a nonlinearity, and one beside."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.relu(self.up(x)))
        return self.head(hidden + x)


def own(plan: Any = None, example: bool = False, **degrees: Any) -> tuple[Any, Sharding]:
    with torch.device("meta"):
        module = Pair()
    make = (lambda: Inputs((torch.empty(8, 16, device="meta"),))) if example else None
    return sharded(module, Sharding(Layout(**degrees), plan=plan), make)


def test_a_plan_of_ones_own_names_modules_and_styles() -> None:
    module, done = own({"up": "colwise", "down": "rowwise"}, tensor=4)
    found = trace(module, (torch.empty(8, 16, device="meta"),))
    assert products(found) == {"up": (16, 16), "down": (16, 16), "head": (10, 16)}
    assert [*exchanged(found.calls)] == [("all_reduce", 8 * 16)]
    assert done.source == "the plan given"


def test_a_plan_of_torchs_styles_is_read() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
        "head": PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),)),
    }
    module, _ = own(plan, tensor=4)
    found = trace(nn.Sequential(module.up, nn.ReLU(), module.down), (torch.empty(2, 16, device="meta"),))
    assert [*exchanged(found.calls)] == [("all_gather", 8 * 16), ("reduce_scatter", 8 * 16)]


def test_parameters_that_are_dtensors_say_their_plan() -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        module: Any = parallelize_module(Pair(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    finally:
        distributed.destroy_process_group()
    module, done = sharded(module, Sharding(Layout(tensor=4)))
    found = trace(module, (torch.empty(8, 16),))
    assert products(found) == {"up": (16, 16), "down": (16, 16), "head": (10, 16)}
    assert [*exchanged(found.calls)] == [("all_reduce", 8 * 16)]
    assert done.source == "the plan given"


def test_a_network_without_pairs_of_products_is_whole_on_every_rank() -> None:
    with torch.device("meta"):
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    example = lambda: Inputs((torch.empty(1, 3, 8, 8, device="meta"),), {}, "")  # noqa: E731
    module, done = sharded(network, Sharding(Layout(tensor=2)), example)
    assert done.notes[0].startswith("nothing is split: the network has no plan")
    assert sum(p.numel() for p in module.parameters()) == 3 * 8 * 9 + 8 + 8 * 8 * 9 + 8


def test_the_rule_finds_a_pair_and_leaves_the_rest() -> None:
    module, done = own(example=True, tensor=4)
    assert module.up.weight.shape == (16, 16)
    assert module.head.weight.shape == (10, 16)
    assert any(note.startswith("whole on every rank: head") for note in done.notes)


def test_a_copy_of_a_rank_exchanges_as_the_rank_does() -> None:
    module, _ = own({"up": "colwise", "down": "rowwise"}, tensor=4)
    copied = copy.deepcopy(module)
    assert [*exchanged(trace(copied, (torch.empty(8, 16, device="meta"),)).calls)] == [("all_reduce", 128)]


def test_there_are_all_styles_of_transformers() -> None:
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

    assert set(ALL_PARALLEL_STYLES.valid_keys()) <= set(names())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tensor": 3}, "q_proj has 8 heads, which 3 ranks do not divide; choose a divisor of 8"),
        ({"tensor": 16}, "q_proj has 8 heads, which 16 ranks do not divide"),
        (
            {"data": 2, "expert": 2},
            "expert 2: LlamaForCausalLM has no experts that ranks could share; choose 1",
        ),
        ({"tensor": 2, "plan": {"model.layer.0": "colwise"}}, "module of LlamaForCausalLM 'model.layer.0'"),
        ({"tensor": 2, "plan": {"lm_head": "columns"}}, "tensor-parallel style 'columns'"),
        ({"tensor": 2, "plan": {"lm_head": 3}}, "style 'int' of a plan"),
    ],
)
def test_what_cannot_be_sharded_is_said(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        one_rank(LLAMA, **given)


@pytest.mark.parametrize(("ranks", "said"), [(16, "more ranks than experts"), (3, "do not divide them")])
def test_experts_that_cannot_be_placed_are_said(ranks: int, said: str) -> None:
    with pytest.raises(InputError, match=f"expert {ranks}: .* has 8 experts; .*{said}"):
        one_rank(MIXTRAL, data=ranks, expert=ranks)


def test_sequence_ranks_that_do_not_divide_tokens_are_said() -> None:
    asked = asked_of(LLAMA, InputRequest(1, 31), Phase(), sharding=Sharding(Layout(tensor=2, sequence=True)))
    with pytest.raises(InputError, match="sequence: 2 tensor ranks do not divide 31 tokens"):
        traced(asked)
