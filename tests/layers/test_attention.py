"""Attention with sliding windows and with keys of a shorter type, in addition to every kind's contract."""

import dataclasses

import numpy as np
import pytest
import torch

from neuralpower.errors import DatasetError, InputError
from neuralpower.layers import Hardware, columns_of
from neuralpower.layers.attention import Attention
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.rows import from_row, identity, to_row
from neuralpower.platforms import platform_of

GPU = Hardware(cores=4, platform="accelerator", peak_flops_per_s={"float32": 1e12}, memory_bytes_per_s=1e11)
SHAPE = Attention(
    batch=2, query_heads=4, key_heads=2, query_length=6, key_length=6, head_size=8, causal=True, masked=False
)
DECODE = dataclasses.replace(SHAPE, query_length=1, key_length=1000, causal=False)


def test_a_window_limits_the_keys_that_count() -> None:
    # 4 * 2 sequences * 4 heads * 6 queries * 3 keys * 8 wide = 4,608; without a window 6 keys each: 9,216
    assert dataclasses.replace(SHAPE, window=3).flops() == 4_608
    assert SHAPE.flops() == dataclasses.replace(SHAPE, window=100).flops() == 9_216
    # six queries in a row reach all 6 keys between them; the last one alone reaches 16 of 1,000
    assert dataclasses.replace(SHAPE, window=3).bytes() == SHAPE.bytes()
    # keys and values: 2 * 4 B * 2 sequences * 2 heads * 16 keys * 8 wide = 4,096; query: 2 * 4 * 8 * 4 = 256
    assert dataclasses.replace(DECODE, window=16).bytes().input == 4_096 + 256


def test_keys_in_a_shorter_type_move_fewer_bytes() -> None:
    # 2 tensors * 2 sequences * 2 heads * 1,000 keys * 8 wide * 1 B = 64,000
    assert dataclasses.replace(DECODE, key_itemsize=1).bytes().input == 64_000 + 256
    assert DECODE.bytes().input == 4 * 64_000 + 256
    with pytest.raises(InputError, match="key_itemsize 1 cannot be built"):
        dataclasses.replace(DECODE, key_itemsize=1).build(torch.device("cpu"))


def test_a_window_is_built_as_a_mask() -> None:
    call = dataclasses.replace(SHAPE, window=2).build(torch.device("cpu"))
    assert call.kwargs["attn_mask"].sum(dim=1).tolist() == [1, 2, 2, 2, 2, 2]
    assert bool(torch.isfinite(call()).all())


def test_terms_on_an_accelerator_hold_for_a_table_as_for_its_layers() -> None:
    layers = [
        SHAPE,
        DECODE,
        dataclasses.replace(SHAPE, query_length=300, key_length=300, window=64),
        dataclasses.replace(
            SHAPE, query_length=300, key_length=500, causal=False, masked=True, head_size=512
        ),
        dataclasses.replace(DECODE, window=16, key_itemsize=1),
    ]
    table = columns_of(Attention, layers)
    kernels = Attention.views.kernels
    for formula in (kernels.terms, kernels.features):
        columns = {name: np.broadcast_to(value, 5) for name, value in formula(table, GPU).items()}
        for i, layer in enumerate(layers):
            single = formula(layer, GPU)
            assert single == pytest.approx({name: column[i] for name, column in columns.items()})
            assert formula is kernels.features or min(single.values()) >= 0


def test_a_causal_kernel_walks_half_of_the_keys() -> None:
    # 128 tiles of 64 queries; the first walks 64 keys, the last 8,192: half of 8,192 and half a tile
    terms = Attention.views.kernels.terms
    long = dataclasses.replace(SHAPE, query_length=8192, key_length=8192)
    full = terms(dataclasses.replace(long, causal=False), GPU)["tiles_64x64"]
    assert terms(long, GPU)["tiles_64x64"] == pytest.approx(full * (0.5 + 0.5 / 128))
    assert terms(dataclasses.replace(long, window=64), GPU)["tiles_64x64"] < 0.02 * full


def test_a_cache_of_another_type_is_code_of_its_own() -> None:
    fp8, by_size, int8 = (
        dataclasses.replace(DECODE, dtype="bfloat16", **own)
        for own in ({"key_dtype": "float8_e4m3fn"}, {"key_itemsize": 1}, {"key_dtype": "int8"})
    )
    plain = dataclasses.replace(DECODE, dtype="bfloat16")
    view = platform_of(GPU).alone
    groups = [str(view.group(layer)) for layer in (plain, fp8, by_size, int8)]
    assert groups == ["decode", *["decode [float8_e4m3fn] quantised"] * 2, "decode [int8] quantised"]
    assert view.group(columns_of(Attention, [plain, fp8, by_size, int8])).tolist() == groups


def test_neighbours_of_one_shape_share_a_fold() -> None:
    near = dataclasses.replace(DECODE, batch=3, key_length=1001)
    other = dataclasses.replace(DECODE, window=64)
    first, second, third = fingerprint(columns_of(Attention, [DECODE, near, other]).shape()).tolist()
    assert first == second != third
    assert DECODE.shape() == near.shape()


def test_torchs_kernels_are_code_of_their_own_under_the_old_names() -> None:
    layers = [dataclasses.replace(one, library="torch") for one in (SHAPE, DECODE)]
    assert [str(one.views.cpu.group(one)) for one in layers] == ["prefill torch", "decode torch"]
    assert Attention.views.cpu.group(columns_of(Attention, [SHAPE, *layers])).tolist() == [
        "prefill",
        "prefill torch",
        "decode torch",
    ]
    assert set(Attention.alone) == {"decode torch", "prefill torch", "dropout torch"}
    assert "library" not in identity(SHAPE)
    with pytest.raises(DatasetError, match="library of attention"):
        from_row(Attention, {**to_row(SHAPE), "library": "cudnn"})
