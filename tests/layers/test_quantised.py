"""Layers whose operands have types of their own: bytes, tables, names, groups, and refusals to build them."""

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from neuralpower.data.schema import config_id
from neuralpower.data.screening import screen
from neuralpower.dtypes import DTYPES
from neuralpower.errors import DatasetError, InputError
from neuralpower.layers import KINDS, Bytes, Hardware, Layer, columns_of
from neuralpower.layers.attention import Attention
from neuralpower.layers.base import Draw
from neuralpower.layers.columns import as_columns, fingerprint
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.operands import OWN, Operand
from neuralpower.layers.rows import from_row, identity, plain_dimensions, to_row
from neuralpower.layers.softmax import Softmax
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.notes import assumed
from neuralpower.platforms import CPU, platform_named

NVIDIA = platform_named("nvidia")
GPU = Hardware(
    cores=8,
    platform="accelerator",
    peak_flops_per_s={"bfloat16": 1e14, "int8": 2e14},
    memory_bytes_per_s=1e12,
    l2_bytes=2**22,
)
PLAIN = Linear(dtype="bfloat16", rows=1, in_features=4096, out_features=4096, bias=False)
W4A16 = dataclasses.replace(PLAIN, weights_dtype="int4", weights_group=128)
W8A8 = dataclasses.replace(PLAIN, dtype="int8", output_dtype="bfloat16")
FP8 = dataclasses.replace(W8A8, dtype="float8_e4m3fn", weights_group=128, input_group=128)
ALL = [PLAIN, W4A16, W8A8, FP8, dataclasses.replace(PLAIN, dtype="mxfp4", output_dtype="bfloat16", bias=True)]
PLAINLY: dict[str, Any] = {"weights_dtype": "", "weights_group": 0}
PRODUCT = Matmul(dtype="bfloat16", batch=3, rows=5, inner=7, columns=9)
ATTENTION = Attention(
    dtype="bfloat16",
    batch=2,
    query_heads=4,
    key_heads=2,
    query_length=1,
    key_length=1000,
    head_size=64,
    causal=False,
    masked=False,
)


def numbers(column: Any) -> list[Any]:
    """A field or formula of a table's columns, which the types call that of one layer."""
    return list(column.tolist())


def test_four_bit_weights_take_half_a_byte_and_a_scale_for_each_group() -> None:
    # 4,096 * 4,096 / 2 = 8,388,608; 4,096 rows of 32 groups, each with a scale of 2 B: 262,144
    assert W4A16.bytes() == (2 * 4096, 8_388_608 + 262_144, 2 * 4096)
    assert PLAIN.bytes() == (2 * 4096, 33_554_432, 2 * 4096)
    # the zero points of uint4 are half a byte for each group: 4,096 * 32 / 2 = 65,536
    assert dataclasses.replace(W4A16, weights_dtype="uint4").bytes().weights == 8_388_608 + 262_144 + 65_536
    # without groups, one scale for all is nothing; a group that is not full has a scale: 4,096 * 41 * 2 B
    assert dataclasses.replace(W4A16, weights_group=0).bytes().weights == 8_388_608
    assert dataclasses.replace(W4A16, weights_group=100).bytes().weights == 8_388_608 + 335_872


def test_eight_bit_operands_have_a_wider_output() -> None:
    assert W8A8.bytes() == (4096, 16_777_216, 2 * 4096)
    # scales of 4 B: 32 of the one row of inputs, 32 of each of 4,096 rows of weights
    assert FP8.bytes() == (4096 + 128, 16_777_216 + 524_288, 2 * 4096)


def test_formats_with_scales_of_their_own_need_no_group() -> None:
    mx, nv = (dataclasses.replace(PLAIN, weights_dtype=name) for name in ("mxfp4", "nvfp4"))
    assert mx.bytes().weights == 8_388_608 + 4096 * 4096 // 32  # a byte for 32 numbers
    assert nv.bytes().weights == 8_388_608 + 4096 * 4096 // 16
    assert dataclasses.replace(mx, weights_group=64).bytes().weights == 8_388_608 + 4096 * 4096 // 64


def test_a_fraction_of_a_byte_is_rounded_up_for_each_operand() -> None:
    small = Linear(dtype="bfloat16", rows=1, in_features=3, out_features=1, bias=True, weights_dtype="int4")
    assert small.bytes() == (6, 2 + 2, 2)  # three numbers of 4 bits, and a bias in the output's type
    assert dataclasses.replace(small, input_dtype="int4").bytes().input == 2
    assert Operand("int4", 2).bytes(1, 3) == 2 + 4
    assert Softmax(dtype="int4", rows=1, width=3).bytes() == (2, 0, 2)
    assert Bytes(1.5, np.array([0.5, 2.0]).sum(), 3) == (2, 3, 3)


def test_a_products_right_factor_has_the_types_of_weights() -> None:
    whole = PRODUCT.bytes()
    assert whole == (2 * 3 * (5 * 7 + 7 * 9), 0, 2 * 3 * 5 * 9)
    experts = dataclasses.replace(PRODUCT, weights_dtype="int4", weights_group=7)
    # 189 numbers of 4 bits are 94.5 B, rounded up to 95; 3 * 9 scales of 2 B
    assert experts.bytes() == (2 * 3 * 5 * 7 + 95 + 54, 0, whole.output)


def test_keys_of_another_type_move_their_own_bytes() -> None:
    query, keys = 2 * 2 * 4 * 64, 2 * 2 * 2 * 1000 * 64  # B of the query; numbers of keys and values
    assert ATTENTION.bytes().input == query + 2 * keys
    assert dataclasses.replace(ATTENTION, key_dtype="float8_e4m3fn").bytes().input == query + keys
    assert dataclasses.replace(ATTENTION, key_dtype="int4").bytes().input == query + keys // 2
    assert dataclasses.replace(ATTENTION, key_dtype="mxfp4").bytes().input == query + keys // 2 + keys // 32
    with pytest.raises(DatasetError, match="contradict each other; .* key_itemsize is 0 where"):
        from_row(Attention, {**to_row(ATTENTION), "key_dtype": "int4", "key_itemsize": 1})
    assert ATTENTION.operand_types.weights.dtype == "bfloat16"
    assert dataclasses.replace(ATTENTION, key_dtype="int8").operand_types.weights.dtype == "int8"


def test_sums_are_kept_in_a_wider_type() -> None:
    assert PLAIN.operand_types.accumulate.dtype == FP8.operand_types.accumulate.dtype == "float32"
    assert W8A8.operand_types.accumulate.dtype == "int32"
    assert dataclasses.replace(PLAIN, dtype="float64").operand_types.accumulate.dtype == "float64"
    assert columns_of(Linear, [PLAIN, W8A8]).operand_types.accumulate.dtype.tolist() == ["float32", "int32"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_operands_are_of_the_layers_type_unless_it_says_otherwise(kind: type[Layer]) -> None:
    draw, itemsizes = Draw(3), {name: dtype.itemsize for name, dtype in DTYPES.items()}
    drawn = [kind.sample(draw) for _ in range(200)]
    for i, layer in enumerate(drawn):
        types = layer.operand_types
        assert {one.dtype for one in (types.input, types.weights, types.output)} == {layer.dtype}
        assert not layer.operand_types.quantised
        if layer.dtype == "float32":
            wide, short = layer.bytes(), dataclasses.replace(layer, dtype="bfloat16").bytes()
            fixed = [2 * b - a for a, b in zip(wide, short, strict=True)]  # indices and the like
            assert all(part >= 0 for part in fixed), i
        assert all(part == math.ceil(part) for part in layer.bytes())
        if isinstance(layer, Linear):
            size, weights = itemsizes[layer.dtype], layer.in_features * layer.out_features
            weights += layer.out_features * layer.bias
            assert layer.bytes() == (
                size * layer.rows * layer.in_features,
                size * weights,
                size * layer.rows * layer.out_features,
            )
        if isinstance(layer, Matmul):
            operands = layer.rows * layer.inner + layer.inner * layer.columns
            size = itemsizes[layer.dtype] * layer.batch
            assert layer.bytes() == (size * operands, 0, size * layer.rows * layer.columns)


def test_formulas_hold_for_a_table_of_all_sorts_as_for_its_layers() -> None:
    table, rows = columns_of(Linear, ALL), len(ALL)
    size, quantised = table.bytes(), table.operand_types.quantised
    for i, layer in enumerate(ALL):
        assert layer.bytes() == tuple(part[i] for part in size)  # type: ignore[index]  # of a table's rows
        assert layer.operand_types.quantised == quantised[i]
    kernels = Linear.views.kernels
    for formula in (Linear.views.cpu.terms, kernels.terms, kernels.own_terms, kernels.features):
        columns = {name: np.broadcast_to(value, rows) for name, value in formula(table, GPU).items()}
        for i, layer in enumerate(ALL):
            single = formula(layer, GPU)
            assert single == pytest.approx({name: column[i] for name, column in columns.items()})
    keys = [
        ATTENTION,
        dataclasses.replace(ATTENTION, key_dtype="mxfp4"),
        dataclasses.replace(ATTENTION, key_itemsize=1),
    ]
    assert numbers(columns_of(Attention, keys).bytes().input) == [layer.bytes().input for layer in keys]


def test_fewer_bytes_of_weights_are_fewer_seconds_of_memory() -> None:
    plain, short = (layer.views.kernels.terms(layer, GPU) for layer in (PLAIN, W4A16))
    assert short["flops"] == plain["flops"]
    assert short["bytes"] == pytest.approx(sum(W4A16.bytes()) / 1e12)
    own_short, own_plain = (Linear.views.kernels.own_terms(layer, GPU) for layer in (W4A16, PLAIN))
    assert own_short["loads_128x128"] < own_plain["loads_128x128"]


@pytest.mark.parametrize(
    ("layer", "name", "number"),
    [
        (PLAIN, "13f5a71454f8805d", 12822217573576814798),
        (PRODUCT, "2fa9648b5db5dfb7", 8223866915773115628),
        (ATTENTION, "7bc01c7c66fe72dc", 15515340168435769058),
    ],
    ids=["linear", "matmul", "attention"],
)
def test_names_of_configurations_stay_what_they_were(layer: Layer, name: str, number: int) -> None:
    assert config_id(identity(layer)) == name
    assert fingerprint(columns_of(type(layer), [layer]))[0] == number


def test_operands_tell_configurations_apart() -> None:
    assert len({config_id(identity(layer)) for layer in ALL}) == len(ALL)
    assert len(set(fingerprint(columns_of(Linear, ALL)).tolist())) == len(ALL)
    assert set(OWN).isdisjoint(plain_dimensions(Linear))


SHORT_KEYS = dataclasses.replace(ATTENTION, key_dtype="int4")


@pytest.mark.parametrize("layer", [*ALL, PRODUCT, ATTENTION, SHORT_KEYS])
def test_a_row_gives_its_layer_back(layer: Layer) -> None:
    row = to_row(layer)
    assert from_row(type(layer), row) == layer
    of_text = {name: str(value) for name, value in row.items()}
    assert from_row(type(layer), of_text) == layer  # as a csv has it
    empty = {name: math.nan if value == "" else value for name, value in row.items()}
    assert from_row(type(layer), empty) == layer  # as pandas reads a csv's empty cells


def test_a_type_that_nobody_knows_is_refused_for_an_operand() -> None:
    with pytest.raises(DatasetError, match="unknown weights_dtype of linear 'int5': did you mean .*int4"):
        from_row(Linear, {**to_row(PLAIN), "weights_dtype": "int5"})
    assert from_row(Linear, {**to_row(PLAIN), "weights_dtype": "torch.int8"}).weights_dtype == "int8"


def table_of(layers: list[Layer], **columns: Any) -> pd.DataFrame:
    rows = pd.DataFrame([to_row(layer) for layer in layers])
    return rows.assign(runtime_s=1e-3 * (1 + np.arange(len(layers))), **columns)


def test_tables_hold_operands_or_leave_them_out() -> None:
    assert len(screen("linear", table_of(ALL))) == len(ALL)
    short = table_of([PLAIN]).drop(columns=list(OWN))
    rows = screen("linear", short)
    assert rows.layer.operand_types.quantised.tolist() == [False]
    assert numbers(rows.layer.bytes().weights) == [PLAIN.bytes().weights]
    empty = screen("linear", table_of([PLAIN, W4A16], weights_dtype=[np.nan, "torch.int4"]))
    assert numbers(vars(empty.layer)["weights_dtype"]) == ["", "int4"]
    wrong = screen("linear", table_of([PLAIN, W4A16], weights_dtype=["int5", "int4"]))
    assert [row.reason.partition(":")[0] for row in wrong.rejected] == ["unknown weights_dtype 'int5'"]


def test_columns_that_a_table_lacks_hold_the_defaults() -> None:
    given = {name: [value] * 3 for name, value in to_row(PLAIN).items() if name not in (*OWN, "recurs")}
    columns = as_columns(Linear, given)
    assert numbers(columns.weights_dtype) == ["", "", ""]
    assert numbers(columns.bytes().weights) == [PLAIN.bytes().weights] * 3
    with pytest.raises(KeyError, match="rows"):
        as_columns(Linear, {"in_features": [1]})


def test_what_is_quantised_is_a_group_of_its_own() -> None:
    assert [str(CPU.alone.group(layer)) for layer in (PLAIN, W4A16)] == ["vector", "vector [int4] quantised"]
    again = dataclasses.replace(W4A16, recurs=True)
    assert str(CPU.alone.group(again)) == "vector [int4] quantised recurring"
    assert str(NVIDIA.alone.group(again)) == "vector [int4] quantised"
    assert NVIDIA.pooled.group(columns_of(Linear, [PLAIN, W4A16])).tolist() == [
        "vector",
        "vector [int4] quantised",
    ]


@pytest.mark.parametrize("layer", [W4A16, W8A8, FP8, dataclasses.replace(PRODUCT, weights_dtype="int8")])
def test_what_torch_cannot_multiply_is_not_built(layer: Layer) -> None:
    for device in ("cpu", "meta"):
        with pytest.raises(InputError, match=f"^{layer.kind} with .* cannot be built: .*; leave it out, or"):
            layer.build(torch.device(device))


def test_attention_with_keys_of_another_type_is_not_built() -> None:
    with pytest.raises(InputError, match="^attention with key_dtype int4 cannot be built: .*; leave it"):
        dataclasses.replace(ATTENTION, key_dtype="int4").build(torch.device("cpu"))


@pytest.mark.parametrize(("kind", "group"), [("linear", "vector"), ("linear", "matrix"), ("matmul", "all")])
def test_where_no_such_layers_were_trained_those_without_stand_in(kind: str, group: str) -> None:
    predictor = load("amd-epyc-2c")
    key = (kind, "float32", "forward", group)
    assert predictor.own.lookup.of(key) == (key, True)
    assert predictor.own.lookup.of((*key[:3], f"{group} quantised")) == (key, False)
    assert predictor.own.lookup.of((*key[:3], f"{group} quantised recurring")) == (key, False)


def test_a_prediction_says_what_stands_in() -> None:
    layer = dataclasses.replace(W4A16, dtype="float32")
    said = "linear (float32, forward) with quantised weights was not measured here"
    predictor = load("amd-epyc-2c")
    assert any(text.startswith(said) for text in assumed(predictor, [layer]))
    plain, found = (predictor.estimate([one]) for one in (dataclasses.replace(layer, **PLAINLY), layer))
    assert found.deviation[0] > 1.5 * plain.deviation[0]
    # of each weight 4.125 bits are read instead of 32; arithmetic stays
    assert 0.1 < found.runtime_s[0] / plain.runtime_s[0] < 0.4


def test_sweeps_draw_no_such_layers() -> None:
    draw = Draw(1)
    assert not any(kind.sample(draw).operand_types.quantised for kind in (Linear, Matmul) for _ in range(100))
