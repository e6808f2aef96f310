"""Ways to run: fused, packed and removed calls, and the bytes of each kernel."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.norm import Norm
from neuralpower.layers.rows import to_row
from neuralpower.layers.training import backward_of
from neuralpower.networks.inputs.requests import asked_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.running import META
from neuralpower.platforms import CPU, platform_named
from neuralpower.prediction.memory.peak import forward_memory
from neuralpower.trace.dataflow import Dataflow
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed, Grown
from neuralpower.trace.passes import applied
from neuralpower.trace.question import RUNS, Question, checked_run, usual_run
from neuralpower.trace.records import LayerCall, Task, Trace
from neuralpower.trace.tracer import trace

SIZES = "num_hidden_layers=2&hidden_size=256&num_attention_heads=4&vocab_size=1000&intermediate_size=512"
GROUPED = f"{SIZES}&num_key_value_heads=2"
LLAMA = f"transformers:LlamaForCausalLM?{GROUPED}"


@functools.cache
def worked(model: str, phase: Phase, run: str, batch: int = 2) -> Trace:
    """A network's tasks in bfloat16."""
    asked = asked_of(model, InputRequest(batch, None, None, torch.bfloat16), phase)
    found = follow(asked, Question(dtype="bfloat16", run=run))
    assert isinstance(found, Followed)
    return found.work


def tasks_of(model: str, phase: Phase, run: str) -> tuple[Task, ...]:
    return worked(model, phase, run).tasks


def block(tasks: tuple[Task, ...], number: int = 0) -> list[Task]:
    """The tasks of a block."""
    return [task for task in tasks if f".{number}." in f".{task.path}."]


class Chain(nn.Module):
    """Point-wise calls and a norm between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Norm an activation with its residual, between two products."""
        y = self.first(x)
        return self.second(self.norm(F.silu(y) * 2 + x))


def traced(module: nn.Module, *shape: int, run: str = "compile", training: bool = False) -> Trace:
    found = trace(module.to(META), (torch.empty(*shape, device=META),), training=training)
    return applied(found, Question(run=run))


def test_a_chain_between_products_is_one_kernel_that_reads_and_writes_its_border() -> None:
    tasks = traced(Chain(), 32, 64).tasks
    assert [task.layer.kind for task in tasks] == ["linear", "fused", "linear"]
    layer = tasks[1].layer
    rows = 32 * 64 * 4
    # y and x in, with scale and shift; the normed rows out
    assert layer == FusedPointwise(
        bytes_read=2 * rows + 2 * 64 * 4,
        bytes_written=rows,
        operations=32 * 64 * (4 + 1 + 1 + 5),
        row=64,
    )
    assert tasks[1].parts == ("silu", "mul", "add", "layer_norm")
    assert tasks[1].path == "norm"  # the module of its reduction


def test_what_is_read_outside_is_written_and_counted() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            return x + self.inner(self.norm(x))

    tasks = traced(Residual(), 32, 64).tasks
    assert [task.layer.kind for task in tasks] == ["fused", "linear", "elementwise"]
    rows = 32 * 64 * 4
    assert tasks[0].layer.bytes().input == rows + 2 * 64 * 4
    assert tasks[0].layer.bytes().output == 2 * rows  # the sum is added again after the product


def test_calls_that_would_wait_for_each_other_in_a_circle_stay_apart() -> None:
    class Circle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()
            return y.sin() + self.inner(y)

    found = traced(Circle(), 32, 64)
    assert [task.layer.kind for task in found.tasks] == ["fused", "linear", "elementwise"]
    assert found.tasks[0].parts == ("exp", "sin")


def test_reductions_of_other_rows_are_other_kernels_and_sorts_stay_calls() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).sum(-1).softmax(-1).sort().values

    assert [task.layer.kind for task in traced(Rows(), 8, 32, 16).tasks] == ["fused", "softmax", "movement"]


def test_the_results_of_a_writing_call_are_read_after_it() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            z = self.inner(y)
            y.add_(z)
            return y * 3

    found = trace(Writing().to(META), (torch.empty(4, 64, device=META),))
    flow = Dataflow(found)
    names = [node.call.operator for node in flow.nodes if isinstance(node.call, LayerCall)]
    assert names == ["aten.mul", "aten.linear", "aten.add_", "aten.mul"]
    assert flow.nodes[3].sources == [2]
    assert flow.nodes[2].after == {0, 1}  # it changes what both have read or written
    assert [task.layer.kind for task in applied(found, Question(run="compile")).tasks] == [
        "elementwise",
        "linear",
        "fused",
    ]


def test_training_fuses_the_forward_pass_and_takes_the_gradient_of_the_kernel() -> None:
    found = trace(
        Chain().to(META), (torch.empty(32, 64, device=META),), training=True, loss=lambda y: y.square().mean()
    )
    work = applied(found, Question("training", run="compile"))
    steps = Counter((task.step, task.layer.kind) for task in work.tasks)
    assert steps["forward", "fused"] and steps["backward", "fused"]
    assert work.passes[:3] == ("baseline", "fusion", "savings")
    forward = next(task.layer for task in work.tasks if task.parts[:1] == ("silu",))
    (back,) = backward_of(forward)
    assert back.bytes().input == sum(forward.bytes())
    assert back.bytes().output == forward.bytes().input


class Block(nn.Module):
    """A norm and a product, then a chain whose last sum is read by the next block's norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Add what is dropped to what is read."""
        return x + F.dropout(F.silu(self.linear(self.norm(x))) * 2)


class Blocks(nn.Module):
    """Two blocks that run again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_kernels_of_checkpointed_blocks_are_joined_forward_and_when_they_run_again() -> None:
    found = trace(
        Blocks().to(META),
        (torch.empty(32, 64, device=META),),
        training=True,
        loss=lambda y: y.square().mean(),
    )
    plain = applied(found, Question("training"))
    work = applied(found, Question("training", run="compile"))
    again = [(task.layer.kind, task.parts) for task in work.tasks if task.again]
    chain = ("silu", "mul", "dropout")
    assert again == [("norm", ()), ("linear", ()), ("fused", chain)] * 2
    assert [task.layer.kind for task in plain.tasks if task.again].count("elementwise") == 2 * 2
    forward = [task for task in work.tasks if task.step == "forward"]
    # the first block's end and the second one's norm are one kernel, but each block runs again by itself
    assert [task.layer.kind for task in forward] == ["norm", "linear", "fused", "linear", "fused"]
    assert forward[2].parts == (*chain, "add", "layer_norm")


def test_a_graph_changes_no_call() -> None:
    eager, graph = (traced(Chain(), 32, 64, run=run) for run in ("eager", "graph"))
    assert graph.tasks == eager.tasks
    assert (eager.graphed, graph.graphed) == (False, True)
    assert graph.passes == ("graph", "forward")


@pytest.mark.parametrize("phase", [Phase.decode(context=100), Phase.prefill(prompt=64)], ids=lambda p: p.name)
def test_a_block_of_llama_is_eight_kernels_of_an_engine(phase: Phase) -> None:
    work = worked(LLAMA, phase, "engine")
    tokens = 2 * (64 if phase.name == "prefill" else 1)
    wide = tokens * 256 * 2  # bytes of a hidden state
    tasks = block(work.tasks, 1)
    assert [task.layer.kind for task in tasks] == [
        *("fused", "linear", "fused", "attention", "linear", "fused", "linear", "fused", "linear")
    ]
    norm, packed, rotary, attention, _, again, gate_up, gated, _ = tasks
    for one in (norm, again):  # what comes in is added to the residual, which is written, too
        assert one.layer.bytes() == (2 * wide + 256 * 2, 0, 2 * wide)
        assert to_row(one.layer)["row"] == 256
    assert packed.parts == ("q_proj", "k_proj", "v_proj")
    assert to_row(packed.layer)["out_features"] == 256 + 2 * 128
    assert gate_up.parts == ("gate_proj", "up_proj")
    assert to_row(gate_up.layer)["out_features"] == 2 * 512
    assert rotary.parts[-1] == "cache"
    positions = 64 if phase.name == "prefill" else 1
    # queries, keys and values in, with cosines and sines; queries out, keys and values to the cache
    assert rotary.layer.bytes() == (2 * wide + 2 * positions * 64 * 2, 0, 2 * wide)
    assert isinstance(attention.layer, Attention)
    assert (attention.layer.key_heads, attention.layer.masked) == (2, False)
    assert attention.layer.causal == (phase.name == "prefill")
    assert gated.parts == ("silu", "mul")
    assert gated.layer.bytes() == (2 * 2 * wide, 0, 2 * wide)
    assert work.graphed == (phase.name == "decode")


def test_an_engine_makes_logits_of_the_last_token_and_chooses_one() -> None:
    *_, head, chosen = tasks_of(LLAMA, Phase.prefill(prompt=64), "engine")
    assert isinstance(head.layer, Linear)
    assert (head.layer.rows, head.layer.out_features) == (2, 1000)
    assert chosen.parts == ("argmax",)
    assert chosen.layer.bytes().input == 2 * 1000 * 2
    without = worked(LLAMA.replace("ForCausalLM", "Model"), Phase.decode(context=8), "engine")
    assert any("no head" in text for text in without.granted)


def test_the_last_logits_are_computed_where_a_model_makes_all() -> None:
    work = worked(LLAMA, Phase.prefill(prompt=64), "engine")
    calls = [
        *(call for call in work.calls if not call.path.startswith("lm_head") and call.parts != ("argmax",)),
    ]
    assert all(getattr(call.layer, "rows", 128) == 128 for call in calls if call.layer.kind == "linear")


NORMED = f"transformers:Qwen3ForCausalLM?{GROUPED}&head_dim=64"
BLOCKS = {
    LLAMA: 9,
    f"transformers:Qwen2ForCausalLM?{GROUPED}": 9,
    NORMED: 10,  # with norms of queries and keys
    "transformers:GPT2LMHeadModel?n_layer=2&n_embd=256&n_head=4&vocab_size=1000": 9,
    f"transformers:GemmaForCausalLM?{GROUPED}&head_dim=64": 9,
    f"transformers:Gemma2ForCausalLM?{GROUPED}&head_dim=64": 9,  # scores that are capped
    f"transformers:Phi3ForCausalLM?{GROUPED}&pad_token_id=1": 9,  # packed as it comes
}


@pytest.mark.parametrize("model", BLOCKS, ids=lambda name: name.partition("?")[0].partition(":")[2])
@pytest.mark.parametrize("phase", [Phase.decode(context=20), Phase.prefill(prompt=16)], ids=lambda p: p.name)
def test_blocks_have_as_many_kernels_as_engines_launch(model: str, phase: Phase) -> None:
    work = worked(model, phase, "engine")
    kinds = Counter(task.layer.kind for task in block(work.tasks, 1))
    assert sum(kinds.values()) == BLOCKS[model]
    assert kinds["attention"] == 1
    assert kinds["linear"] == 4
    assert not {"movement", "matmul", "softmax", "elementwise", "reduction"} & kinds.keys()
    assert work.savings is not None
    assert work.savings.calls == len(work.tasks)
    assert work.savings.bytes < work.savings.bytes_before
    assert not work.unmodelled


def test_norms_of_queries_and_keys_are_one_kernel_before_the_rotation() -> None:
    tasks = block(tasks_of(NORMED, Phase.decode(context=20), "engine"), 1)
    normed = next(task for task in tasks if task.path.endswith("q_norm"))
    assert to_row(normed.layer)["row"] == 64
    # 4 heads of queries and 2 of keys, with both weights
    assert normed.layer.bytes() == (2 * 6 * 64 * 2 + 2 * 64 * 2, 0, 2 * 6 * 64 * 2)


def test_a_window_is_what_the_module_says() -> None:
    model = f"transformers:MistralForCausalLM?{GROUPED}&sliding_window=16"
    tasks = tasks_of(model, Phase.prefill(prompt=64), "engine")
    attention = [task.layer for task in tasks if isinstance(task.layer, Attention)]
    assert [(one.window, one.causal, one.masked, one.key_length) for one in attention] == [
        (16, True, False, 64)
    ] * 2
    step = tasks_of(model, Phase.decode(context=64), "engine")
    attention = [task.layer for task in step if isinstance(task.layer, Attention)]
    assert [(one.query_heads, one.key_heads, one.query_length, one.key_length) for one in attention] == [
        (4, 2, 1, 16)
    ] * 2
    short = tasks_of(model, Phase.prefill(prompt=8), "engine")
    assert {one.layer.window for one in short if isinstance(one.layer, Attention)} == {0}


def test_a_pair_masks_its_decoders_own_tokens_alone() -> None:
    model = (
        "transformers:whisper?encoder_layers=1&decoder_layers=2&d_model=64&encoder_attention_heads=2"
        "&decoder_attention_heads=2&encoder_ffn_dim=64&decoder_ffn_dim=64"
    )
    tasks = tasks_of(model, Phase.prefill(), "engine")
    found = {task.path: task.layer for task in tasks if isinstance(task.layer, Attention)}
    assert not any(layer.masked for layer in found.values())
    assert [path.rpartition(".")[0] for path, layer in found.items() if layer.causal] == [
        "decoder.layers.0",
        "decoder.layers.1",
    ]
    crossed = found["decoder.layers.0.encoder_attn"]
    assert (crossed.query_length, crossed.key_length) == (128, 1500)
    packed = [task.parts for task in tasks if task.path == "decoder.layers.0.encoder_attn" and task.parts]
    assert ("k_proj", "v_proj") in packed


def test_networks_that_are_no_language_models_are_compiled_and_graphed() -> None:
    asked = asked_of("transformers:vit?num_hidden_layers=1", InputRequest(2, dtype=torch.bfloat16), Phase())
    compiled, engine = (
        follow(asked, Question(dtype="bfloat16", run=run)).work for run in ("compile", "engine")
    )
    assert engine.passes == ("baseline", "fusion", "graph", "savings", "forward")
    kinds = [
        [task.layer for task in one.tasks if task.layer.kind != "embedding"] for one in (compiled, engine)
    ]
    assert kinds[0] == kinds[1]
    assert engine.graphed and not compiled.graphed
    assert not any(isinstance(task.layer, Norm) and task.parts for task in engine.tasks)


def test_fused_results_take_no_memory() -> None:
    eager, engine = (
        forward_memory(worked(LLAMA, Phase.decode(context=2000), run)) for run in ("eager", "engine")
    )
    # eager concatenates a layer's keys and values with the new ones beside the old
    assert engine.tensor_bytes < eager.tensor_bytes
    cache = 2 * 2 * 2 * 2 * 64 * 2  # layers, keys and values, samples, heads, size, bytes of each token
    assert engine.cache_bytes / cache == pytest.approx(2000, rel=1e-3)


def test_steps_between_two_traced_ones_are_interpolated_as_they_are_run() -> None:
    asked = asked_of(LLAMA, InputRequest(2, dtype=torch.bfloat16), Phase.generate(16, 40))
    grown = follow(asked, Question(dtype="bfloat16", run="engine"))
    assert isinstance(grown, Grown)
    steps = [*grown.steps]
    assert {len(step.tasks) for step in steps} == {22}
    lengths = [t.layer.key_length for s in steps for t in s.tasks[:6] if isinstance(t.layer, Attention)]
    assert lengths == list(range(17, 17 + len(steps)))
    assert all(step.graphed for step in steps) and not grown.work.graphed


def test_language_models_on_gpus_run_as_engines_unless_it_is_said() -> None:
    gpu = platform_named("nvidia")
    assert {usual_run(gpu, phase) for phase in ("prefill", "decode", "generate")} == {"engine"}
    assert {usual_run(gpu, phase) for phase in ("forward", "training", "backward")} == {"eager"}
    assert {usual_run(CPU, phase) for phase in ("decode", "forward")} == {"eager"}
    assert [checked_run(run) for run in RUNS] == [*RUNS]
    with pytest.raises(InputError, match="unknown way to run 'fast'"):
        checked_run("fast")
    with pytest.raises(InputError, match="run engine serves a trained network"):
        checked_run("engine", "training")
