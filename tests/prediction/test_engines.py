"""The pools of engines, against what their logs say and against their rules worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import neuralpower
from benchmarks import engine_memory as logged
from neuralpower.devices.cluster import Layout
from neuralpower.devices.spec import find_spec
from neuralpower.errors import InputError
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.platforms import CPU, PLATFORMS
from neuralpower.prediction.fits.fit import Fit, fit
from neuralpower.prediction.memory.engines import (
    ENGINES,
    LONGEST,
    Board,
    EngineMemory,
    EngineRequest,
    Served,
    board_of,
    served,
)
from neuralpower.prediction.memory.engines.caches import CROSS, FULL, SLIDING, STATE, CacheLayer
from neuralpower.prediction.memory.engines.pages import Pages
from neuralpower.prediction.memory.engines.shares import last_more, middle_first
from neuralpower.prediction.memory.engines.vllm import VllmSettings, graphs, profile_run
from neuralpower.prediction.request import Request
from neuralpower.prediction.weights import served_dtype
from tests.asking import requested
from tests.program import done

GIB = 2**30
H100 = Board("H100", 80 * GIB, int(79.19 * GIB), cores=132, linked=True, year=2022)
MIXTURE = (
    "mixtral-8x7b?num_hidden_layers=2&hidden_size=256&intermediate_size=512&vocab_size=1024"
    "&num_attention_heads=8&num_key_value_heads=4&max_position_embeddings=64"
)
FIVES = (
    "tinyllama-1.1b?num_hidden_layers=1&num_attention_heads=5&num_key_value_heads=5&hidden_size=320"
    "&intermediate_size=640&vocab_size=1000"
)
NARROW = "qwen3-30b-a3b?num_hidden_layers=1&moe_intermediate_size=64&num_experts=6&vocab_size=1024"
SMALL = "tinyllama-1.1b?num_hidden_layers=2&vocab_size=1024&max_position_embeddings=4096"


def network(name: str, dtype: torch.dtype = torch.bfloat16) -> Served:
    """A model as an engine serves it."""
    return served(resolve(name).build("meta", dtype), InputRequest(dtype=dtype), name)


def asked(engine: str, room_bytes: float = 24 * GIB, **given: Any) -> Fit:
    """The answer of a small model under an engine."""
    count = given.pop("concurrency", None)
    names = ("phase", "layout", "margin", "batch_size", "context")
    own = {name: given.pop(name) for name in names if name in given}
    model, board = given.pop("model", SMALL), given.pop("board", None)
    request = EngineRequest(engine, given, count, board)
    platform = own.pop("platform", PLATFORMS["nvidia"])
    how: dict[str, Any] = {"dtype": "bfloat16", "platform": platform, "engine": request}
    return fit(requested(model, **how, **own), room_bytes)


def memory(engine: str = "vllm", **given: Any) -> EngineMemory:
    """The memory of a small model under an engine on an H100."""
    found = asked(engine, 80 * GIB, **{"board": H100, **given}).engine
    assert found is not None
    return found


def pool(name: str, room: int, **settings: Any) -> EngineMemory:
    """The memory of a model under vLLM on a board whose budget is `room` bytes."""
    board = Board("a board", room, room)
    return EngineRequest("vllm", {"gpu_memory_utilization": 1.0, **settings}, board=board).memory(
        network(name), room
    )


@pytest.mark.parametrize(
    ("name", "run_gib"),
    [
        ("llama-3.1-8b", 1.89),
        ("qwen2.5-7b", 2.21),
        ("gemma-2-2b", 3.62),
        ("phi-4", 1.52),
        ("phi-2", 0.79),
        ("qwen3-30b-a3b", 2.68),
        ("deepseek-v2-lite", 1.93),
        ("codellama-7b", 0.77),  # the one whose widest block takes more than its sampler
    ],
)
def test_the_profile_run_takes_what_vllm_logged_on_an_h100(name: str, run_gib: float) -> None:
    found = profile_run(network(name), H100, 1024, 8192) / GIB
    assert found == pytest.approx(run_gib, abs=0.045 if name == "codellama-7b" else 0.015)


def test_the_pool_of_an_h100_is_what_vllm_logged() -> None:
    found = VllmSettings(gpu_memory_utilization=0.95).memory(network("llama-3.1-8b"), H100, None)
    assert found.part("weights") / GIB == pytest.approx(14.99, abs=0.005)
    assert found.pool_bytes / GIB == pytest.approx(58.11, rel=0.002)
    assert found.pool.tokens == pytest.approx(476_016, rel=0.002)
    halved = VllmSettings(gpu_memory_utilization=0.95, cache_dtype="fp8")
    assert halved.memory(network("llama-3.1-8b"), H100, None).pool.tokens == pytest.approx(952_032, rel=0.002)


def test_a_log_is_read_and_its_blocks_are_met(tmp_path: Path) -> None:
    asked = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 32768, "dtype": "bfloat16"}
    log = {"gpu": "RTX4090", "model": "llama-3.1-8b", "engine_kwargs": asked}
    (tmp_path / "a.meta.json").write_text(json.dumps({**log, "kv_cache": {"num_gpu_blocks": 2588}}))
    (tmp_path / "b.meta.json").write_text(json.dumps(log))
    first, second = map(logged.row, logged.runs(tmp_path))
    assert first[0] == "a"
    assert abs(float(first[-1].rstrip("%"))) < 3
    assert second[-2:] == ["-", "-"]
    with pytest.raises(InputError, match=r"has no \*.meta.json"):
        logged.runs(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("llama-3.1-8b", {CacheLayer(FULL, 2 * 8 * 128): 32}),
        ("deepseek-v2-lite", {CacheLayer(FULL, 512 + 64): 27}),
        ("gpt-oss-20b", {CacheLayer(FULL, 2 * 8 * 64): 12, CacheLayer(SLIDING, 2 * 8 * 64, 128): 12}),
        ("mamba-130m", {CacheLayer(STATE, state_numbers=1536 * 16, conv_numbers=1536 * 3): 24}),
        (
            "deepseek-v3.2?num_hidden_layers=4",
            {CacheLayer(FULL, 512 + 64, index_numbers=128, rotary_numbers=64): 4},
        ),
        (  # a convolution of 3 keeps 2 inputs
            "lfm2-1.2b",
            {CacheLayer(STATE, conv_numbers=2048 * 2): 10, CacheLayer(FULL, 2 * 8 * 64): 6},
        ),
        (
            "mamba2-2.7b?num_hidden_layers=2",
            {CacheLayer(STATE, state_numbers=80 * 64 * 128, conv_numbers=5376 * 3): 2},
        ),
        (
            "qwen3-next-80b-a3b?num_hidden_layers=4",
            {
                CacheLayer(STATE, state_numbers=32 * 128 * 128, conv_numbers=8192 * 3): 3,
                CacheLayer(FULL, 2 * 2 * 256): 1,
            },
        ),
        ("whisper-tiny", {CacheLayer(FULL, 2 * 384): 4, CacheLayer(CROSS, 2 * 384, tokens=1500): 4}),
        (
            "llama-3.2-11b-vision",
            {CacheLayer(FULL, 2 * 8 * 128): 32, CacheLayer(CROSS, 2 * 8 * 128, tokens=4 * 1601): 8},
        ),
    ],
)
def test_a_cache_is_read_from_the_model_itself(name: str, layers: dict[CacheLayer, int]) -> None:
    found = network(name).layers
    assert {layer: found.count(layer) for layer in found} == layers


@pytest.mark.parametrize(
    ("name", "cache_dtype", "token_bytes"),
    [
        # 512 numbers of 8 bits, 4 scales, 64 rotary numbers of 16 bits; an index key of 128 and its scale
        ("deepseek-v3.2?num_hidden_layers=4", "fp8", 656 + 132),
        ("deepseek-v3.2?num_hidden_layers=4", "auto", 2 * 576 + 132),
        ("deepseek-v2-lite?num_hidden_layers=4", "fp8", 576),
        ("deepseek-v2-lite?num_hidden_layers=4", "auto", 2 * 576),
        ("llama-3.1-8b?num_hidden_layers=4", "fp8", 2 * 8 * 128),
    ],
)
def test_a_token_takes_the_bytes_that_engines_give_it(name: str, cache_dtype: str, token_bytes: int) -> None:
    found = pool(name, 2**40, cache_dtype=cache_dtype)
    assert found.pool.block_bytes == 4 * token_bytes * found.pool.block_size
    assert found.pool.block_size == (64 if "deepseek" in name else 16)
    other = {"auto": "auto", "fp8": "fp8_e4m3"}[cache_dtype]
    radix = EngineRequest("sglang", {"cache_dtype": other}, board=Board("a board", 2**40, 2**40))
    assert radix.memory(network(name), 2**40).pool.block_bytes == 4 * token_bytes


@pytest.mark.parametrize(
    ("name", "cache_dtype", "gib", "tokens"),
    [  # pools and tokens in public logs of vLLM, which round to 0.01 GiB
        ("qwen3-30b-a3b", "fp8", 10.55, 230_528),
        (
            "gpt-oss-120b",
            "auto",
            5.38,
            78_384,
        ),  # half of the layers have a window, which one token fills, too
    ],
)
def test_a_pool_holds_as_many_tokens_as_a_log_says(
    name: str, cache_dtype: str, gib: float, tokens: int
) -> None:
    held = pool(name, 2**40, cache_dtype=cache_dtype).pool
    token_bytes = held.blocks * held.block_bytes / held.tokens
    assert tokens * token_bytes / GIB == pytest.approx(gib, abs=0.0051)


HYBRID = {  # the widths of Qwen3.5-27B, with four of its layers
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}


def test_a_hybrids_blocks_hold_a_state_with_a_convolutions_last_inputs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    found = asked(
        "vllm", 80 * GIB, model=str(tmp_path), layout=Layout(tensor=2), board=H100, cache_dtype="fp8"
    )
    # Of a rank: a state of 24 heads x 128 x 128 in 4 bytes, 3 inputs of 5,120 channels in 2 bytes; a token
    # has keys and values of 2 heads x 256 in 1 byte.
    state, token = 24 * 128 * 128 * 4 + 3 * 5120 * 2, 2 * 2 * 256
    assert math.ceil(state / token / 16) * 16 == 1568
    assert found.engine is not None and found.engine.pool.block_size == 1568


@pytest.mark.parametrize(
    ("engine", "published", "model_type", "has_bfloat16", "served"),
    [
        ("vllm", "float32", "gpt2", True, "bfloat16"),
        ("vllm", "float32", "gpt2", False, "float16"),
        ("vllm", "bfloat16", "llama", True, "bfloat16"),
        ("vllm", "bfloat16", "llama", False, "float16"),
        ("vllm", "float16", "opt", True, "float16"),
        ("vllm", "float32", "gemma3_text", False, "float32"),
        ("sglang", "float32", "gpt2", True, "float16"),
        ("sglang", "float32", "gemma", True, "bfloat16"),
        ("sglang", "bfloat16", "llama", False, "float16"),
        ("sglang", "bfloat16", "llama", True, "bfloat16"),
        ("llama.cpp", "float32", "gpt2", True, "bfloat16"),
        ("llama.cpp", "bfloat16", "llama", False, "bfloat16"),
    ],
)
def test_an_engine_chooses_the_type_by_its_own_rule(
    engine: str, published: str, model_type: str, has_bfloat16: bool, served: str
) -> None:
    assert served_dtype(engine, published, model_type, has_bfloat16) == served


@pytest.mark.parametrize(
    ("engine", "device", "dtype"),
    [
        ("vllm", "h100", "bfloat16"),
        ("vllm", "t4", "float16"),
        ("sglang", "h100", "float16"),
        ("llama.cpp", "rtx-4090", "bfloat16"),
    ],
)
def test_a_float32_checkpoint_is_served_in_16_bits_unless_float32_is_asked(
    engine: str, device: str, dtype: str
) -> None:
    found = neuralpower.fit("gpt2", device=device, engine=engine)
    assert found.request is not None and found.request.dtype == dtype
    assert found.memory.weights_bytes == pytest.approx(2 * 124_439_808, rel=0.01)
    assert any(f"{engine} serves it in {dtype}" in note for note in found.notes)
    kept = neuralpower.fit("gpt2", device=device, engine=engine, dtype="float32")
    assert kept.memory.weights_bytes == pytest.approx(4 * 124_439_808, rel=0.01)
    assert not any("serves it in" in note for note in kept.notes)
    printed = done("fit", "gpt2", "--device", device, "--engine", engine)
    assert dtype in printed.splitlines()[0] and f"{engine} serves it in {dtype} (dtype auto)" in printed


def test_vllm_wants_its_budget_to_be_free() -> None:
    found = asked("vllm", gpu_memory_utilization=1.0)
    assert not found.fits
    assert "choose --gpu-memory-utilization 0.97" in str(found)
    assert asked("vllm", gpu_memory_utilization=0.97).fits


def test_a_block_is_a_page_of_every_layer() -> None:
    found = pool("llama-3.1-8b", 28 * GIB, max_model_len=1000)
    page = 16 * 2 * 8 * 128 * 2
    assert found.pool.block_bytes == 32 * page
    assert found.pool.blocks == found.pool_bytes // (32 * page)
    assert found.pool.sequence_bytes(1000) == 63 * 32 * page  # 63 blocks of 16 hold 1000 tokens
    assert found.sequences == found.pool.blocks // 63
    assert found.longest == found.pool.blocks * 16


def test_windows_and_global_layers_share_pages_in_groups() -> None:
    found = pool("gpt-oss-20b", 60 * GIB, max_num_batched_tokens=2048)
    assert found.pool.block_bytes == 12 * 16 * 2 * 8 * 64 * 2
    assert found.pool.tokens == found.pool.blocks // 2 * 16
    window = -(-(128 - 1 + 2048) // 16) + 1  # of the tokens of one more step
    assert found.pool.sequence_bytes(100_000) == (6250 + window) * found.pool.block_bytes


def test_the_rarest_sort_of_layers_sets_the_size_of_groups() -> None:
    gemma = network("gemma-3-1b")  # 22 layers with windows and 4 without
    pages = Pages.of(gemma, 16, 2, 2048, 8192)
    assert pages.group_size == 4
    assert [group.layer.kind for group in pages.groups].count(SLIDING) == 6  # of 4, the last one padded
    near = dataclasses.replace(gemma, layers=(*gemma.layers[:6], *[gemma.layers[5]] * 4))
    assert Pages.of(near, 16, 2, 2048, 8192).group_size == 5


def test_blocks_grow_until_a_page_holds_a_state() -> None:
    layers = (CacheLayer(FULL, 1024), CacheLayer(STATE, state_numbers=40_000, conv_numbers=1_000))
    hybrid = dataclasses.replace(network("llama-3.2-1b"), layers=layers)
    pages = Pages.of(hybrid, 16, 2, 2048, 4096)
    assert pages.block_size == 48  # 16 x 1024 numbers are fewer than 41,000; three times that are more
    assert pages.blocks_of(4096) == -(-4096 // 48) + 1
    wide = Pages.of(dataclasses.replace(hybrid, wide_state=True), 16, 2, 2048, 4096)
    assert wide.block_size == 80
    assert "a page holds a state" in str(pages.note)


def test_a_model_of_states_alone_takes_sequences_of_any_length() -> None:
    found = pool("mamba-130m", 8 * GIB)
    assert found.longest == LONGEST
    assert found.sequences == found.pool.blocks


def test_an_encoders_keys_count_once_for_each_sequence() -> None:
    found = pool("whisper-tiny", 8 * GIB)
    assert found.pool.sequence_bytes(448) == (28 + 94) * found.pool.block_bytes


def test_llama_cpp_reserves_the_buffer_that_it_logs() -> None:
    for name, mib in (("llama-3.1-8b", 258.5), ("qwen2.5-0.5b", 298.5)):
        found = ENGINES["llama.cpp"]().memory(network(name), H100, None)
        assert found.part("activations") / 2**20 == mib
    eight = ENGINES["llama.cpp"](cache_dtype="q8_0", max_model_len=8192).memory(network(name), H100, None)
    full = ENGINES["llama.cpp"](max_model_len=8192).memory(network(name), H100, None)
    assert eight.pool.sequence_bytes(8192) * 2 * 32 == full.pool.sequence_bytes(8192) * 34
    assert full.pool.sequence_bytes(1) == full.pool.sequence_bytes(256)  # a cache has whole 256 tokens


def test_sglang_chooses_its_share_by_the_memory() -> None:
    found = ENGINES["sglang"]().memory(network("llama-3.1-8b"), H100, None)
    assert "mem-fraction-static 0.836" in found.notes[0]  # 80 GiB: chunks of 8192, graphs of up to 256
    assert found.pool.tokens == found.pool_bytes // (32 * 2 * 8 * 128 * 2)
    given = ENGINES["sglang"](mem_fraction_static=0.9).memory(network("llama-3.1-8b"), H100, None)
    assert given.pool_bytes - found.pool_bytes == pytest.approx(
        0.064 * (H100.total_bytes - 0.6 * GIB), rel=0.01
    )


def test_sglang_keeps_fewer_tokens_of_windows() -> None:
    found = ENGINES["sglang"]().memory(network("gpt-oss-20b"), H100, None)
    layer = 2 * 8 * 64 * 2
    assert found.pool.block_bytes == 12 * layer + int(12 * layer * 0.8 + 0.999)


def test_boards_have_less_than_their_sheets_say() -> None:
    for name, gib in (
        ("rtx-4090", 23.516),
        ("l40s", 44.3),
        ("h100-sxm", 79.19),
        ("rtx-pro-6000-server", 94.97),
    ):
        spec = find_spec(name)
        size = spec.get("memory_bytes") or 0
        assert board_of(spec, size).total_bytes / GIB == pytest.approx(gib, rel=0.006)


def test_ranks_share_the_pool_and_pay_for_exchanges() -> None:
    one, two = memory(), memory(layout=Layout(tensor=2))
    assert two.pool.block_bytes * 2 == one.pool.block_bytes
    assert two.part("weights") < one.part("weights")
    assert two.part("outside PyTorch") > one.part("outside PyTorch")


def test_the_fullest_stage_decides_for_all() -> None:
    one, two = memory(), memory(layout=Layout(pipeline=2))
    assert two.devices == 2 and two.stage == 2  # the last one samples, too
    assert two.pool.block_bytes * 2 == one.pool.block_bytes
    table = 1024 * 2048 * 2  # of embeddings; the head is as large
    assert one.part("weights") - two.part("weights") == pytest.approx(
        table + (one.part("weights") - 2 * table) / 2, rel=0.01
    )
    assert "on stage 2 of 2, which has the fewest blocks" in str(asked("vllm", layout=Layout(pipeline=2)))
    early = VllmSettings().memory(dataclasses.replace(network(SMALL), last=False), H100, None)
    assert early.part("outside PyTorch") == pytest.approx(0.07 * GIB, rel=0.01)


def test_engines_share_out_layers_that_do_not_divide_in_their_own_ways() -> None:
    assert [middle_first(*sizes) for sizes in ((8, 4), (9, 4), (11, 4), (7, 2))] == [
        [2, 2, 2, 2],
        [2, 2, 3, 2],
        [3, 3, 3, 2],
        [4, 3],
    ]
    assert [last_more(*sizes) for sizes in ((9, 4), (11, 4), (7, 2))] == [[2, 2, 2, 3], [2, 3, 3, 3], [3, 4]]


def test_the_first_stage_profiles_what_vllm_logged_on_an_h100() -> None:
    llama = network("llama-3.1-8b")
    first, last = dataclasses.replace(llama, layout=Layout(pipeline=2)).stages([16, 16])
    assert first.weights_bytes / GIB == pytest.approx(7.51, abs=0.04)
    assert profile_run(first, H100, 1024, 8192) / GIB == pytest.approx(
        1.05, abs=0.06
    )  # of 2: 1.10, of 4: 1.05
    assert profile_run(last, H100, 1024, 8192) > profile_run(first, H100, 1024, 8192)
    assert {layer.block for layer in last.layers} == {*range(16, 32)}


def test_groups_of_layers_are_spread_over_stages() -> None:
    gemma = network("gemma-3-1b")  # 22 layers with windows and 4 without: 7 groups of 4
    pages = Pages.of(gemma, 16, 2, 2048, 8192)
    first = pages.block_bytes([layer for layer in gemma.layers if layer.block < 13])
    assert first == 2 * pages.page_bytes  # half of each group, not whole groups
    assert pages.block_bytes(gemma.layers) == 4 * pages.page_bytes


def test_replicas_have_pools_of_their_own() -> None:
    one, four = memory(), memory(layout=Layout(data=4))
    assert four.sequences == 4 * one.sequences
    assert four.replicas == 4 and four.pool == one.pool
    assert memory(layout=Layout(data=4), concurrency=3 * one.sequences).fits
    assert " in 4 replicas" in str(asked("vllm", layout=Layout(data=4)))


@pytest.mark.parametrize(
    ("engine", "layout", "share"),
    [
        ("vllm", Layout(tensor=2), 2),
        ("vllm", Layout(tensor=2, expert=2), 2),
        ("vllm", Layout(tensor=2, data=2), 4),  # vllm has experts on all ranks, with expert ranks or without
        ("vllm", Layout(tensor=2, data=2, expert=4), 4),
        ("sglang", Layout(tensor=2, data=2), 2),
        ("sglang", Layout(tensor=2, data=2, expert=4), 4),
    ],
)
def test_experts_lie_on_all_ranks(engine: str, layout: Layout, share: int) -> None:
    whole, rank = memory(engine, model=MIXTURE), memory(engine, model=MIXTURE, layout=layout)
    experts = 2 * 8 * 3 * 256 * 512 * 2
    others = whole.part("weights") - experts
    assert rank.part("weights") - experts // share == pytest.approx(others / layout.tensor, rel=0.1)
    assert whole.pool.block_bytes == layout.tensor * rank.pool.block_bytes  # keys: by tensor ranks alone


def test_vocabularies_are_shared_out_under_an_engine() -> None:
    small = "gpt-oss-20b?num_hidden_layers=1&num_local_experts=4&vocab_size=65536"
    one, two = memory(model=small), memory(model=small, layout=Layout(tensor=2))
    assert two.part("weights") * 2 == pytest.approx(one.part("weights"), rel=0.04)


def test_heads_are_shared_out_where_a_plan_leaves_them_whole() -> None:
    packed = "phi-3-medium?num_hidden_layers=1&max_position_embeddings=64"
    one, two = memory(model=packed), memory(model=packed, layout=Layout(tensor=2))
    assert one.pool.block_bytes == 2 * two.pool.block_bytes


def test_modules_that_a_plan_leaves_whole_are_shared_out() -> None:
    falcon = "falcon-40b?num_hidden_layers=1&vocab_size=1024"
    one, ranks = memory(model=falcon), asked("vllm", model=falcon, layout=Layout(tensor=4))
    four = ranks.engine
    assert four is not None and any(note.startswith("split by a rule: ") for note in ranks.notes)
    assert four.part("weights") * 4 == pytest.approx(one.part("weights"), rel=0.02)
    images = "transformers:llava"  # an encoder, which no step of words runs
    one, two = memory(model=images), memory(model=images, layout=Layout(tensor=2))
    assert two.part("weights") * 2 == pytest.approx(one.part("weights"), rel=0.02)
    assert "the engine shares out what the plan leaves whole" in two.notes


def test_a_pool_of_given_bytes_needs_no_budget() -> None:
    found = memory(kv_cache_memory_bytes=GIB, gpu_memory_utilization=0.5)
    assert found.pool_bytes == GIB and found.fits
    assert found.budget_bytes == found.used_bytes
    large = memory(kv_cache_memory_bytes=79 * GIB)
    most = int(large.reason.split("--kv-cache-memory-bytes ")[1].split()[0])
    assert not large.fits and memory(kv_cache_memory_bytes=most).fits


def test_versions_differ_in_their_rules() -> None:
    model = (
        "tinyllama-1.1b?num_hidden_layers=2&max_position_embeddings=4096"  # with words enough for the sampler
    )
    usual, sorts, less, later = (
        memory(model=model, engine_version=version) for version in ("0.19.0", "0.16.0", "0.17.1", "v0.21")
    )
    words, programs = 32_000, 132
    assert sorts.part("activations") - less.part("activations") == (24 * 1024 - 4 * programs) * words
    assert less.part("activations") == usual.part("activations")
    assert usual.part("outside PyTorch") - less.part("outside PyTorch") == pytest.approx(0.12 * GIB, rel=0.01)
    assert later.budget_bytes / usual.budget_bytes == pytest.approx(0.92 / 0.9)
    more = later.budget_bytes - usual.budget_bytes
    assert usual.pool_bytes + more - later.pool_bytes == later.part("CUDA graphs") > 0.5 * GIB
    eager = memory(model=model, engine_version="0.21", enforce_eager=True)
    assert eager.pool_bytes == usual.pool_bytes + more
    assert "another runner" in memory(model=model, engine_version="0.27.1").notes[0]
    assert (graphs(2), graphs(8), graphs(256), graphs(1024)) == (3 + 2, 5 + 4, 51 + 35, 51 + 51)


def test_images_are_held_while_the_text_model_runs() -> None:
    served = network("gemma-3-4b")
    found = VllmSettings(max_model_len=8192).memory(served, H100, None)
    held = 32 * (3 * 896**2 + 256 * served.hidden) * 2  # 8192 tokens of 256 an image
    assert found.part("images") == held
    assert (found.part("activations") + held) / GIB == pytest.approx(3.89, abs=0.015)
    assert served.rotary_bytes == (8 + 1) * 131_072 * 256 * 2  # one of two tables is stretched by 8


def test_an_encoder_that_takes_more_than_the_text_model_decides() -> None:
    board = Board("a board", 24 * GIB, 23 * GIB)
    served = network("qwen2.5-vl-3b")
    found = VllmSettings(max_model_len=8192).memory(served, board, None)
    pixels = 4 * 16_384 * 3 * 2 * 14**2 * 2
    assert served.images is not None and served.images.images(2048, 256, 8192) == 1
    assert found.part("activations") + found.part("images") > 1.2 * GIB > pixels


def test_a_length_that_the_pool_does_not_hold_is_refused() -> None:
    tight = {"model": "tinyllama-1.1b?num_hidden_layers=2&max_position_embeddings=9999999"}
    with pytest.raises(InputError, match="vllm starts only if its pool holds a sequence") as refused:
        asked("vllm", 16 * GIB, **tight, max_model_len=9_000_000)
    fitting = int(str(refused.value).split("--max-model-len ")[-1].split()[0])
    found = asked("vllm", 16 * GIB, **tight, max_model_len=fitting)
    assert found.fits and found.longest == fitting
    assert not asked("vllm", 16 * GIB, **tight, phase="decode", context=9_000_000).fits  # not of the engine
    assert not asked(
        "sglang", 16 * GIB, **tight, max_model_len=9_000_000
    ).fits  # starts, and refuses requests


def test_the_answer_is_of_the_sequences_that_are_asked_for() -> None:
    found = asked("vllm", concurrency=10)
    assert found.fits
    assert found.engine is not None
    assert found.to_json()["engine"]["sequences"] == found.largest_batch == found.engine.sequences
    assert found.memory.cache_bytes == found.engine.pool_bytes
    assert found.longest == 4096 and found.longest_reason == "the model's positions"
    many = asked("vllm", concurrency=10**6)
    assert not many.fits
    assert "not 1000000" in str(many)
    tight = asked("vllm", 0.55 * GIB)
    assert not tight.fits and "choose more devices" in str(tight)


@pytest.mark.parametrize(
    ("engine", "given", "words"),
    [
        ("vllm", {"gpu_memory_utilization": 0}, "above 0 and at most 1"),
        ("vllm", {"gpu_memory_utilization": 1.01}, "above 0 and at most 1"),
        ("vllm", {"gpu_memory_utilization": "much"}, "must be a number"),
        ("vllm", {"block_size": 20}, "vllm takes 16, 32"),
        ("vllm", {"max_model_len": 5000}, "made for 4096 positions"),
        ("vllm", {"max_num_seqs": 4096, "max_num_batched_tokens": 512}, "is below max-num-seqs 4096"),
        ("vllm", {"mem_fraction_static": 0.8}, "belongs to --engine sglang, not to vllm"),
        ("vllm", {"cache_dtype": "q8_0"}, "unknown cache dtype of vllm"),
        ("vllm", {"phase": "training"}, "engines serve and do not train"),
        ("vllm", {"batch_size": 8}, "say --concurrency 8"),
        ("vllm", {"margin": 0.1}, "keeps memory free by itself"),
        ("vllm", {"concurrency": 0}, "concurrency is 0"),
        ("vllm", {"engine_version": "new"}, "two numbers, such as 0.19.0"),
        ("vllm", {"engine_version": 0.21}, "must be a text; choose 0.19.0"),
        ("vllm", {"cache_dtype": ["fp8"]}, "must be a text; choose auto"),
        ("vllm", {"enforce_eager": "yes"}, "must be True or False"),
        ("vllm", {"engine_version": "0.7.3"}, "known from 0.8 on"),
        ("vllm", {"layout": Layout(tensor=3)}, "3 ranks do not divide"),
        ("vllm", {"layout": Layout(tensor=5), "model": FIVES}, "a vocabulary of 1024 words with padding"),
        ("vllm", {"layout": Layout(tensor=2), "model": "gpt2?n_layer=1&n_head=3"}, "has 3 attention heads"),
        ("vllm", {"layout": Layout(data=3), "model": NARROW}, "add --expert-parallel 3"),
        ("vllm", {"layout": Layout(pipeline=3)}, "2 layers, one a stage at least; choose 2"),
        ("vllm", {"layout": Layout(data=2, shard="zero3")}, "--zero with --engine vllm"),
        ("vllm", {"layout": Layout(tensor=2, sequence=True)}, "--sequence-parallel with --engine vllm"),
        ("vllm", {"layout": Layout(pipeline=2, schedule="interleaved", interleave=2)}, "belongs to training"),
        ("vllm", {"layout": Layout(tensor=2, expert=2)}, "no experts that ranks could share"),
        ("vllm", {"layout": Layout(tensor=2, data=2, expert=2)}, "all 4 tensor x data ranks; choose 4 or 1"),
        ("sglang", {"enforce_eager": True}, "--enforce-eager belongs to --engine vllm"),
        ("vllm", {"max_num_seqs": 0}, "max_num_seqs is 0"),
        ("vllm", {"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0"),
        ("sglang", {"mem_fraction_static": 1.0}, "below 1"),
        ("sglang", {"block_size": 64, "max_num_batched_tokens": 100}, "whole pages of 64"),
        ("sglang", {"gpu_memory_utilization": 0.8}, "belongs to --engine vllm, not to sglang"),
        ("llama.cpp", {"block_size": 16}, "belongs to --engine vllm or sglang"),
        ("llama.cpp", {"layout": Layout(tensor=2)}, "predicted on one device"),
        ("tgi", {}, "unknown engine 'tgi'"),
    ],
)
def test_what_an_engine_refuses(engine: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        asked(engine, **given)
    assert "\n" not in str(refused.value)


def test_engines_serve_language_models_on_gpus() -> None:
    for model in ("zoo:resnet18", "transformers:bert?num_hidden_layers=1"):
        request = Request(model, platform=PLATFORMS["nvidia"], engine=EngineRequest("vllm"))
        with pytest.raises(InputError, match="leave --engine out"):
            fit(request, 24 * GIB)
    with pytest.raises(InputError, match="the device is a CPU"):
        fit(Request(SMALL, platform=CPU, engine=EngineRequest("vllm")), 24 * GIB)
