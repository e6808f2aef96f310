"""Kinds of serving engines' kernels: expected FLOP and bytes, tables, loads of experts, results."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from neuralpower.errors import DatasetError, InputError
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.expert_load import (
    Load,
    equal_counts,
    equal_load,
    fitting,
    fullest_rank,
    load_of,
    power_law_counts,
    power_law_load,
)
from neuralpower.layers.experts import Experts
from neuralpower.layers.grouped import Grouped
from neuralpower.layers.latent_attention import LatentAttention
from neuralpower.layers.linear import Linear
from neuralpower.layers.linear_attention import GATED_DELTA, KIMI_DELTA, LinearAttention
from neuralpower.layers.recurrences import convolved
from neuralpower.layers.rows import from_row, to_row
from neuralpower.layers.scan import MAMBA, MAMBA2, Scan
from neuralpower.measure.collect.plan import draw, kinds_named
from neuralpower.measure.collect.request import PRESETS

ENGINES = ("experts", "grouped", "latent_attention", "linear_attention", "scan")
GPU = Hardware(
    cores=8,
    platform="accelerator",
    peak_flops_per_s={"bfloat16": 1e14, "float32": 1e13},
    memory_bytes_per_s=1e12,
    l2_bytes=2**22,
)
# Mixtral-8x7B, one token
MIXTRAL: dict[str, Any] = {"hidden": 4096, "intermediate": 14336, "experts": 8, "top_k": 2}
ONE = Experts(dtype="bfloat16", tokens=1, **MIXTRAL, pairs=2, hit=2, fullest=1)
EXPERT = 3 * 4096 * 14336  # weights of one expert
# DeepSeek-V3, a step of one sequence, and a prompt
LATENT = LatentAttention(
    dtype="bfloat16",
    batch=1,
    query_heads=128,
    query_length=1,
    key_length=4096,
    absorbed=True,
    causal=False,
)
PROMPT = dataclasses.replace(LATENT, query_length=4096, absorbed=False, causal=True)
# Qwen3-Next
HEADS: dict[str, Any] = {"key_heads": 16, "value_heads": 32, "key_size": 128, "value_size": 128}
STEP = LinearAttention(dtype="bfloat16", function=GATED_DELTA, batch=4, length=1, chunk=0, **HEADS)
# Nemotron-H: 128 heads of 64, state 128, 8 groups
MAMBA_STEP = Scan(
    dtype="bfloat16",
    function=MAMBA2,
    batch=4,
    length=1,
    chunk=0,
    heads=128,
    head_size=64,
    state_size=128,
    groups=8,
)


def test_experts_multiply_all_pairs_and_read_the_weights_of_those_that_are_hit() -> None:
    assert ONE.flops() == 2 * 2 * EXPERT == 704_643_072
    assert ONE.bytes() == (2 * 4096, 2 * 2 * EXPERT, 2 * 4096)
    assert ONE.parameters() == 8 * EXPERT
    full = dataclasses.replace(ONE, tokens=64, pairs=128, hit=8, fullest=16)
    assert (full.flops(), full.bytes().weights) == (64 * ONE.flops(), 2 * 8 * EXPERT)
    plain = dataclasses.replace(ONE, gated=False)
    assert plain.flops() == 2 * 2 * 2 * 4096 * 14336


def test_quantised_experts_read_fewer_bytes() -> None:
    four = dataclasses.replace(ONE, weights_dtype="int4", weights_group=128)
    assert four.bytes() == (2 * 4096, EXPERT + 2 * 2 * EXPERT // 128, 2 * 4096)
    block = dataclasses.replace(
        ONE,
        dtype="float8_e4m3fn",
        output_dtype="bfloat16",
        weights_group=128,
        weights_rows_group=128,
        input_group=128,
        quantises=True,
    )
    assert block.bytes() == (2 * 4096, 2 * EXPERT + 2 * EXPERT // 128**2 * 4, 2 * 4096)
    assert block.operand_types.quantised and not ONE.operand_types.quantised
    with pytest.raises(InputError, match=r"^experts with weights_dtype int4 cannot be built"):
        four.build(torch.device("cpu"))


@pytest.mark.parametrize(
    "change",
    [{"hit": 3}, {"fullest": 2}, {"pairs": 3}, {"hit": 0}, {"experts": 1}, {"routed": 4}],
    ids=lambda change: next(iter(change)),
)
def test_a_load_that_cannot_be_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(DatasetError, match="hit experts share the pairs"):
        from_row(Experts, {**to_row(ONE), **change})


def test_an_equal_load_is_spread_over_all_experts() -> None:
    assert equal_counts(64, 2, 8).tolist() == [16] * 8
    assert equal_counts(1, 2, 8).tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    assert equal_load(1, 8, 128) == Load(8, 8, 1)
    assert equal_load(4096, 8, 256, ranks=8) == Load(4096, 32, 128)


def test_a_power_law_fills_some_experts_more() -> None:
    counts = power_law_counts(256, 8, 128, 1.2, seed=0)
    assert counts.sum() == 256 * 8 and counts.max() <= 256
    assert load_of(fullest_rank(counts, 4)).pairs > 256 * 8 / 4
    flat, steep = (power_law_load(4096, 8, 256, exponent) for exponent in (1.01, 1.2))
    assert flat.pairs == steep.pairs == 4096 * 8
    assert 128 < flat.fullest < steep.fullest <= 4096
    assert power_law_load(4096, 8, 256, 1.2, ranks=8).pairs > 4096
    assert power_law_load(4096, 8, 256, 1.2) == steep
    with pytest.raises(InputError, match="give another, such as 1.01"):
        power_law_counts(4, 2, 8, 1.0, seed=0)
    assert fitting(4, 9, 9) == Load(4, 4, 1)


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ranks"), [(1, 1, 16, 16), (7, 8, 128, 4), (9, 2, 8, 2)]
)
@pytest.mark.parametrize("exponent", [None, 1.01, 1.2])
def test_every_load_makes_a_layer(
    tokens: int, top_k: int, experts: int, ranks: int, exponent: float | None
) -> None:
    if exponent is None:
        load = equal_load(tokens, top_k, experts, ranks)
    else:
        load = power_law_load(tokens, top_k, experts, exponent, ranks)
    here = experts // ranks
    layer = Experts(
        tokens=tokens,
        hidden=64,
        intermediate=64,
        experts=here,
        top_k=top_k,
        **load._asdict(),
        routed=experts,
    )
    assert from_row(Experts, to_row(layer)) == layer


def test_an_uneven_load_has_more_tiles() -> None:
    even = Grouped(dtype="bfloat16", groups=8, rows=1024, fullest=128, inner=64, columns=128)
    uneven = dataclasses.replace(even, fullest=1017)
    few = dataclasses.replace(even, rows=8, fullest=1)
    tile = 128 * 128 * 2 * 64 / 1e14
    assert even.views.kernels.terms(even, GPU)["tiles_128x128"] == pytest.approx(8 * tile)
    assert uneven.views.kernels.terms(uneven, GPU)["tiles_128x128"] == pytest.approx((8 + 7) * tile)
    assert few.views.kernels.terms(few, GPU)["tiles_128x128"] == pytest.approx(8 * tile)


def test_latents_are_read_once_for_all_heads() -> None:
    assert LATENT.flops() == 2 * 128 * 4096 * (576 + 512)
    query, cache, result = 128 * 576, 4096 * 576, 128 * 512
    assert LATENT.bytes() == (2 * (query + cache), 0, 2 * result)
    assert dataclasses.replace(LATENT, key_dtype="float8_e4m3fn").bytes().input == 2 * query + cache
    assert PROMPT.flops() == 2 * 128 * 4096**2 * (192 + 128)
    assert PROMPT.bytes() == (2 * 128 * 4096 * (192 + 192 + 128), 0, 2 * 128 * 4096 * 128)
    groups = [LATENT, PROMPT, dataclasses.replace(LATENT, query_length=2)]
    assert [str(layer.views.cpu.group(layer)) for layer in groups] == ["decode", "expanded", "prefill"]
    with pytest.raises(InputError, match="^latent_attention with key_dtype int8 cannot be built"):
        dataclasses.replace(LATENT, key_dtype="int8").build(torch.device("cpu"))


def test_a_step_of_linear_attention_reads_and_writes_its_states() -> None:
    channels, state = 2 * 16 * 128 + 32 * 128, 32 * 128 * 128
    assert STEP.flops() == 4 * (7 * state + 2 * 4 * channels)
    kept = 4 * (4 * state + 2 * 3 * channels)  # float32 states, three tokens of the convolution
    token = channels + 32 + 32  # with a decay and a strength for each head
    assert STEP.bytes() == (2 * 4 * token + kept, 2 * 4 * channels, 2 * 4 * 32 * 128 + kept)
    kimi = dataclasses.replace(STEP, function=KIMI_DELTA)
    assert kimi.bytes().input - STEP.bytes().input == 2 * 4 * 32 * 127
    prompt = dataclasses.replace(STEP, batch=1, length=256, chunk=64, conv=0)
    each = 2 * 64 * (3 * 128 + 2 * 128) + 2 * 64**2 // 3 + 6 * 128 * 128
    assert prompt.flops() == 256 * 32 * each
    assert prompt.bytes() == (2 * 256 * token, 0, 2 * 256 * 32 * 128 + 4 * state)
    assert [str(layer.views.cpu.group(layer)) for layer in (STEP, prompt)] == ["step", "chunks"]


def test_a_step_of_a_scan_reads_and_writes_its_states() -> None:
    channels, state = 128 * 64 + 2 * 8 * 128, 128 * 64 * 128
    assert MAMBA_STEP.flops() == 4 * (5 * state + 2 * 4 * channels)
    kept = 4 * (4 * state + 2 * 3 * channels)
    assert MAMBA_STEP.bytes() == (
        2 * 4 * (channels + 128) + kept,
        2 * 4 * channels,
        2 * 4 * 128 * 64 + kept,
    )
    prompt = dataclasses.replace(MAMBA_STEP, batch=1, length=512, chunk=256, conv=0)
    assert prompt.flops() == 512 * (2 * 256 * 8 * 128 + 128 * (2 * 256 * 64 + 4 * 64 * 128))
    first = Scan(function=MAMBA, batch=1, length=512, heads=4096, head_size=1, state_size=16, conv=0)
    assert first.flops() == 512 * 7 * 4096 * 16
    with pytest.raises(DatasetError, match="mamba has heads of size 1"):
        from_row(Scan, {**to_row(first), "head_size": 64})


@pytest.mark.parametrize("kind", ENGINES)
def test_formulas_hold_for_a_table_as_for_its_layers(kind: str) -> None:
    layers = list(draw(KINDS[kind], 24, 5, PRESETS["quick"]))
    table = columns_of(KINDS[kind], layers)
    size = [np.broadcast_to(part, len(layers)) for part in table.bytes()]
    for i, layer in enumerate(layers):
        assert layer.flops() == table.flops()[i]  # type: ignore[index]  # of a table's rows
        assert layer.bytes() == tuple(part[i] for part in size)
        assert type(layer.flops()) is int
    views = table.views
    for formula in (views.kernels.terms, views.kernels.own_terms, views.kernels.features, views.cpu.terms):
        columns = {n: np.broadcast_to(v, len(layers)) for n, v in formula(table, GPU).items()}
        assert all(np.isfinite(column).all() for column in columns.values())
        assert formula is views.kernels.features or all((column >= 0).all() for column in columns.values())
        for i, layer in enumerate(layers):
            single = formula(layer, GPU)
            assert single == pytest.approx({name: column[i] for name, column in columns.items()})


@pytest.mark.parametrize("kind", ENGINES)
def test_engines_kernels_are_measured_where_they_are_named(kind: str) -> None:
    assert KINDS[kind] not in kinds_named(None)
    assert kinds_named([kind]) == [KINDS[kind]]
    assert not KINDS[kind].training.differentiable(draw_one(kind))


def draw_one(kind: str) -> Layer:
    return next(iter(draw(KINDS[kind], 1, 0, PRESETS["quick"])))


def test_blocks_share_scales_along_both_sides_and_dynamic_inputs_are_read_wide() -> None:
    fp8 = Linear(
        dtype="float8_e4m3fn", rows=2, in_features=256, out_features=384, bias=False, output_dtype="bfloat16"
    )
    assert fp8.bytes() == (2 * 256, 256 * 384, 2 * 2 * 384)
    dynamic = dataclasses.replace(fp8, quantises=True)
    assert dynamic.bytes() == (2 * 2 * 256, 256 * 384, 2 * 2 * 384)
    block = dataclasses.replace(dynamic, weights_group=128, weights_rows_group=128, input_group=128)
    assert block.bytes().weights == 256 * 384 + 4 * 2 * 3
    assert dataclasses.replace(block, quantises=False).bytes().input == 2 * 256 + 4 * 2 * 2
    kinds = [fp8, dynamic, block]
    assert columns_of(Linear, kinds).bytes().input.tolist() == [  # type: ignore[attr-defined]
        layer.bytes().input for layer in kinds
    ]
    wide = dataclasses.replace(fp8, dtype="mxfp8", weights_dtype="mxfp4")
    assert wide.bytes() == (2 * (256 + 8), 384 * (128 + 8), 2 * 2 * 384)


def test_experts_compute_what_a_loop_over_pairs_does() -> None:
    torch.manual_seed(0)
    x, up, down = torch.randn(3, 8), torch.randn(4, 12, 8), torch.randn(4, 8, 6)
    rows, ends, shares = torch.tensor([0, 2, 1, 0]), torch.tensor([2, 3, 4]), torch.rand(4, 1)
    found = torch.ops.neuralpower.experts(x, up, down, rows, ends, shares, 2, 2, 4)
    expected = torch.zeros(3, 8)
    for place, (row, expert) in enumerate(zip(rows.tolist(), [0, 0, 1, 2], strict=True)):
        gate, middle = (up[expert] @ x[row]).chunk(2)
        expected[row] += shares[place] * (down[expert] @ (F.silu(gate) * middle))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_two_forms_of_latent_attention_agree() -> None:
    torch.manual_seed(0)
    heads, nope, rope, latent, size, length = 2, 4, 2, 8, 3, 5
    latents, rotary = torch.randn(1, length, latent), torch.randn(1, length, rope)
    keys, values = torch.randn(heads, nope, latent), torch.randn(heads, size, latent)
    query = torch.randn(1, heads, length, nope + rope)
    expand = [torch.einsum("btl,hnl->bhtn", latents, matrix) for matrix in (keys, values)]
    key = torch.cat((expand[0], rotary[:, None].expand(-1, heads, -1, -1)), -1)
    expanded = torch.ops.neuralpower.latent_attention(query, key, expand[1], latent, rope, True)
    inner = torch.einsum("bhsn,hnl->bhsl", query[..., :nope], keys)
    scale = ((latent + rope) / (nope + rope)) ** 0.5  # each form divides by the root of its own width
    absorbed = torch.ops.neuralpower.latent_attention(
        torch.cat((inner, query[..., nope:]), -1) * scale,
        torch.cat((latents, rotary), -1),
        None,
        latent,
        rope,
        True,
    )
    assert torch.allclose(torch.einsum("bhsl,hvl->bhsv", absorbed, values), expanded, atol=1e-4)


def test_a_scan_is_the_recurrence_of_its_states() -> None:
    torch.manual_seed(0)
    heads, size, width, length = 2, 3, 4, 5
    x = torch.randn(1, length, heads * size + 2 * width)
    delta, decay = torch.rand(1, length, heads), -torch.rand(heads)
    found = torch.ops.neuralpower.scan(x, None, delta, decay, torch.zeros(1, heads, size, width), 1, 0)
    for head in range(heads):
        state = torch.zeros(size, width)
        for t in range(length):
            inputs, b, c = x[0, t].split((heads * size, width, width))
            step = delta[0, t, head]
            state = state * torch.exp(step * decay[head])
            state = state + step * torch.outer(inputs[head * size : (head + 1) * size], b)
            assert torch.allclose(found[0, t, head], state @ c, atol=1e-4)


def test_a_convolution_sees_no_later_token() -> None:
    x, weights = torch.randn(1, 6, 3), torch.randn(3, 4)
    later = x.clone()
    later[:, 4:] += 1
    assert torch.equal(convolved(x, weights)[:, :4], convolved(later, weights)[:, :4])
    assert not torch.equal(convolved(x, weights)[:, 4:], convolved(later, weights)[:, 4:])
