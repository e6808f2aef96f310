"""Calls whose operands have several types, or do not lie in the order of the result: bytes by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.activation import Activation
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.rows import field_names, from_row, identity, to_row
from neuralpower.layers.softmax import Softmax
from neuralpower.layers.training import backward_of
from neuralpower.networks.running import META
from neuralpower.trace.tracer import trace, trace_call

ROWS, WIDTH = 32, 64
N = ROWS * WIDTH  # elements of each operand below


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def last_of(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """The layer of the last call that a function of tensors makes."""
    found = trace(Calls(function), inputs)
    assert not found.unmodelled
    return found.calls[-1].layer


def of(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.zeros(*(shape or (ROWS, WIDTH))).to(dtype)


SINGLE, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float64


@pytest.mark.parametrize(
    ("function", "given", "read", "written"),
    [  # bytes of one element
        (lambda x: x.to(HALF), (SINGLE,), 4, 2),
        (lambda x: x.to(SINGLE), (HALF,), 2, 4),
        (lambda x: x.to(torch.float16), (SINGLE,), 4, 2),
        (lambda x: x.double(), (HALF,), 2, 8),
        (lambda x: x.float(), (torch.int64,), 8, 4),
        (lambda x: x.float(), (torch.bool,), 1, 4),
        (lambda x: x.long(), (SINGLE,), 4, 8),
        (lambda x: x.int(), (torch.int64,), 8, 4),
        (lambda x, y: x.type_as(y), (DOUBLE, HALF), 8, 2),
        (lambda x, y: x.new_zeros(x.shape).copy_(y), (HALF, SINGLE), 4, 2),
        (lambda x: x.contiguous(memory_format=torch.contiguous_format).clone(), (HALF,), 2, 2),
        (lambda x: torch.zeros_like(x, dtype=torch.int64), (SINGLE,), 0, 8),
        (lambda x: x.cumsum(-1), (torch.bool,), 1, 8),
        (lambda x: x > 0, (SINGLE,), 4, 1),
        (lambda x, y: x == y, (torch.int64, torch.int64), 16, 1),
        (lambda x: ~x, (torch.bool,), 1, 1),
        (lambda x, y: x.masked_fill(y, 0.0), (SINGLE, torch.bool), 5, 4),
        (lambda m, x, y: torch.where(m, x, y), (torch.bool, HALF, HALF), 5, 2),
        (lambda m: torch.where(m, 1.0, 0.0), (torch.bool,), 1, 4),
        (lambda x, y: x + y, (HALF, SINGLE), 6, 4),
        (lambda x, y: x * y, (SINGLE, torch.bool), 5, 4),
        (lambda x: x * 0.5, (torch.int64,), 8, 4),
        (lambda x, y: x.add_(y), (HALF, SINGLE), 6, 2),
        (lambda x: x.sigmoid(), (torch.int64,), 8, 4),
        (lambda x: torch.softmax(x, -1, dtype=SINGLE), (HALF,), 2, 4),
        (lambda x: torch.log_softmax(x, -1), (HALF,), 2, 2),
    ],
)
def test_each_operand_and_the_result_are_counted_in_their_own_type(
    function: Callable[..., Tensor], given: tuple[torch.dtype, ...], read: int, written: int
) -> None:
    layer = last_of(function, *map(of, given))
    assert tuple(layer.bytes()) == (read * N, 0, written * N)


def test_a_gradient_of_a_cast_moves_back_and_one_to_integers_has_none() -> None:
    cast = last_of(lambda x: x.double(), of(SINGLE))
    assert [tuple(part.bytes()) for part in backward_of(cast)] == [(8 * N, 0, 4 * N)]
    to_integers = last_of(lambda x: x.long(), of(SINGLE))
    assert not to_integers.training.differentiable(to_integers)


TYPED = [
    *(
        Movement(dtype=dtype, function="cast", elements=N, from_dtype=own, to_dtype=to)
        for dtype, own, to in [
            ("float32", "", ""),
            ("bfloat16", "", ""),
            ("float32", "", "float16"),
            ("float32", "int64", "float32"),
            ("int64", "", "int32"),
        ]
    ),
    Movement(
        dtype="bfloat16", function="cast", elements=N, from_dtype="float32", to_dtype="bfloat16", inplace=True
    ),
    Movement(function="copy", elements=N, run=16, inplace=True),
    Elementwise(function="add", elements=N, operands=2, broadcast=False, from_dtype="bfloat16"),
    Elementwise(function="mul", elements=N, operands=1, broadcast=False, from_dtype="int64"),
    Elementwise(function="where", elements=N, operands=1, broadcast=False, from_dtype="bool"),
    Elementwise(function="masked_fill", elements=N, operands=2, broadcast=False),
    Activation(function="sigmoid", elements=N, from_dtype="int64"),
    Softmax(rows=ROWS, width=WIDTH, copied=True),
    Softmax(rows=ROWS, width=WIDTH, copied=True, strided=True),
    Softmax(dtype="bfloat16", rows=ROWS, width=WIDTH, to_dtype="float32"),
]


@pytest.mark.parametrize("layer", TYPED, ids=lambda layer: f"{layer.kind}-{layer.dtype}")
def test_a_built_call_of_several_types_or_with_jumps_is_traced_as_that_layer(layer: Layer) -> None:
    assert trace_call(layer.build(META)).layers == (layer,)
    layer.build(torch.device("cpu"))()
    assert from_row(type(layer), to_row(layer)) == layer


def test_tables_count_types_as_single_layers_do() -> None:
    for kind in {layer.kind for layer in TYPED}:
        layers = [layer for layer in TYPED if layer.kind == kind]
        table = columns_of(KINDS[kind], layers)
        for counted in (KINDS[kind].bytes, table.views.cpu.moved):
            moved = counted(table)
            assert [tuple(counted(layer)) for layer in layers] == [
                tuple(parts)
                for parts in zip(*(list(part + 0 * table.itemsize) for part in moved), strict=True)
            ]


def test_predictors_see_what_they_were_trained_on_where_types_are_the_usual_ones() -> None:
    # Tables measured before the two fields have a cast of float32 as 4 + 4 B an element.
    hardware = Hardware(cores=4)
    cast = Movement(function="cast", elements=N)
    copy = Movement(function="copy", elements=N)
    compared = Elementwise(function="ge", elements=N, operands=2, broadcast=False)
    added = dataclasses.replace(compared, function="add")
    for own, plain in ((cast, copy), (compared, added)):
        assert own.views.cpu.terms(own, hardware) == plain.views.cpu.terms(plain, hardware)
        assert own.views.kernels.terms(own, hardware) == plain.views.kernels.terms(plain, hardware)
        assert sum(own.bytes()) < sum(plain.bytes())
    # 8 + 4 B of a cast of int64 to float32 are twice the 4 + 2 B of the usual one
    wide = dataclasses.replace(cast, from_dtype="int64", to_dtype="float32")
    assert sum(wide.bytes()) == 2 * sum(cast.bytes())
    assert wide.views.cpu.terms(wide, hardware)["bytes"] == 2 * cast.views.cpu.terms(cast, hardware)["bytes"]


@pytest.mark.parametrize("kind", ["movement", "elementwise", "activation", "softmax"])
def test_a_configuration_without_the_new_fields_keeps_its_identity(kind: str) -> None:
    later = KINDS[kind].later
    needed = {"function": "add", "elements": 8, "operands": 1, "broadcast": False, "rows": 8, "width": 8}
    needed["function"] = {"movement": "cast", "activation": "relu"}.get(kind, "add")
    row = {name: value for name, value in needed.items() if name in field_names(KINDS[kind])}
    layer = from_row(KINDS[kind], row)
    assert later
    assert not later & set(identity(layer))


MAP = torch.zeros(2, 8, 6, 6).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "run"),
    [
        (lambda x: x + x, 0),
        (lambda x: x.t() + x.t(), 0),  # all operands and the result lie alike
        (lambda x: x.t() + x.t().contiguous(), 1),
        (lambda x: x[:, ::2] * x[:, ::2], 1),
        (lambda x: x[:, :16] * x[:, :16], 16),
        (lambda x: torch.relu(x[:, :16]), 16),
        (lambda x: torch.relu(x.t()), 0),
        (lambda x: x.t().contiguous(), 1),
        (lambda x: x[:, :16].clone(), 16),
        (lambda x: x.view(4, 8, WIDTH).transpose(0, 1).reshape(-1), WIDTH),
        (lambda x: torch.cat([x, x]), 0),
        (lambda x: torch.cat([x.t(), x.t()]), 1),
        (lambda x: torch.cat([x[:, :16], x[:, 16:]], 1), 16),
        (lambda x: x.new_zeros(ROWS, 2 * WIDTH)[:, :WIDTH].copy_(x), WIDTH),
        (lambda x: x.new_zeros(ROWS, 2 * WIDTH)[:, ::2].add_(x), 1),
    ],
)
def test_the_longest_stretch_that_lies_side_by_side_in_each_operand_is_noted(
    function: Callable[[Tensor], Tensor], run: int
) -> None:
    layer = last_of(function, of(SINGLE))
    assert layer.run == run
    strided = layer.views.cpu.terms(layer, Hardware(cores=4))["elements_strided"]
    assert strided == (layer.elements if run else 0)


@pytest.mark.parametrize(
    "function", [lambda x: x * x.sigmoid(), torch.relu, lambda x: x.add_(x), lambda x: x.clone()]
)
def test_maps_with_channels_last_that_lie_alike_have_no_jumps(function: Callable[[Tensor], Tensor]) -> None:
    assert last_of(function, MAP).run == 0


def test_an_expanded_operand_is_a_broadcast_one() -> None:
    row = of(SINGLE, 1, WIDTH)
    expanded = last_of(lambda x, y: x + y.expand(ROWS, WIDTH), of(SINGLE), row)
    assert expanded == last_of(lambda x, y: x + y, of(SINGLE), row)
    assert expanded.broadcast
    assert expanded.bytes().input == 4 * N
    scalar = last_of(lambda x, y: x + y[:, :1].expand(ROWS, WIDTH), of(SINGLE), row)
    assert (scalar.operands, scalar.broadcast) == (1, False)


def test_a_smaller_operand_is_repeated_in_the_order_of_memory() -> None:
    channels = of(SINGLE, 8, 1, 1)
    assert last_of(lambda x, y: x + y, MAP, channels).run == 8  # channels lie side by side
    assert last_of(lambda x, y: x + y, MAP.contiguous(), channels).run == 0  # maps of 36 numbers


def test_a_softmax_copies_what_does_not_lie_in_order() -> None:
    plain = last_of(lambda x: torch.softmax(x, -1), of(SINGLE))
    turned = last_of(lambda x: torch.softmax(x.t(), -1), of(SINGLE))
    assert not plain.copied
    assert turned.copied
    assert [layer.law.launches(layer) for layer in (plain, turned)] == [1, 2]
    assert sum(turned.bytes()) == 2 * sum(plain.bytes()) == 4 * 4 * N


def test_a_reduction_runs_along_rows_of_memory_or_across_them() -> None:
    def last(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
        layer = last_of(function, x)
        assert isinstance(layer, Reduction)
        return layer.last

    assert last(lambda x: x.sum(-1), of(SINGLE))
    assert not last(lambda x: x.sum(0), of(SINGLE))
    assert last(lambda x: x.t().sum(0), of(SINGLE))
    assert not last(lambda x: x.t().sum(-1), of(SINGLE))
    assert last(lambda x: x.mean((2, 3)), MAP.contiguous())
    assert not last(lambda x: x.mean((2, 3)), MAP)
