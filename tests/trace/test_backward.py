"""`Layer.backward`, compared with formulas and with autograd's own operators."""

import dataclasses
from typing import Any

import pytest
import torch

from neuralpower.errors import Unmodelled
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.activation import Activation
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.layers.norm import Norm
from neuralpower.layers.optimizer import Optimizer
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.softmax import Softmax
from neuralpower.layers.training import backward_of
from neuralpower.measure.calls import call_of, step_of
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.networks.running import META
from neuralpower.trace.tracer import trace_call

CPU = torch.device("cpu")
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def moved(layers: tuple[Layer, ...]) -> int:
    return sum(sum(layer.bytes()) for layer in layers)


def products(layers: tuple[Layer, ...]) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of each linear layer, as autograd's `mm` would be called."""
    return [(p.rows, p.in_features, p.out_features) for p in layers if isinstance(p, Linear)]


@every_kind
def test_backward_is_made_of_forward_passes_of_the_same_type(kind: type[Layer]) -> None:
    for layer in draw(kind, 30, 0, PRESETS["quick"]):
        layer = dataclasses.replace(layer, dtype="bfloat16", phase="backward")
        for part in backward_of(layer):
            assert part.dtype == "bfloat16"
            assert part.kind in KINDS
            assert sum(part.bytes()) > 0
            if kind.kind not in ("pool2d", "pool3d"):  # they stand for themselves
                assert part.phase == "forward"


@every_kind
def test_work_backward_is_at_most_a_few_times_the_work_forward(kind: type[Layer]) -> None:
    for layer in draw(kind, 30, 1, PRESETS["quick"]):
        table = (
            sum(layer.bytes()) + layer.itemsize * layer.parameters()
        )  # an embedding's gradient is its whole table
        assert moved(backward_of(layer)) <= 6 * table


@pytest.mark.parametrize("kind", ["linear", "matmul", "conv1d", "conv2d", "conv3d", "recurrent"])
def test_two_products_backward_for_one_forward(kind: str) -> None:
    for layer in draw(KINDS[kind], 30, 2, PRESETS["quick"]):
        multiplied = [part for part in backward_of(layer) if part.kind == kind]
        assert sum(part.flops() for part in multiplied) == 2 * layer.flops()


@pytest.mark.parametrize("kind", ["linear", "matmul"])
def test_products_backward_are_layers_that_can_be_traced(kind: str) -> None:
    for layer in draw(KINDS[kind], 30, 3, PRESETS["quick"]):
        for part in backward_of(layer):
            if part.kind == kind:
                assert trace_call(part.build(META)).layers == (part,)


@pytest.mark.parametrize("transposed", [True, False])
def test_a_linear_layers_products_are_those_of_autograd(transposed: bool) -> None:
    # y [5, 7] = x [5, 3] W [3, 7]: grad x [5, 3] = grad y [5, 7] W^T, grad W = x^T [3, 5] grad y, or its
    # transpose
    layer = Linear(rows=5, in_features=3, out_features=7, bias=True, transposed=transposed)
    assert products(backward_of(layer)) == [(5, 7, 3), (7, 5, 3) if transposed else (3, 5, 7)]
    assert backward_of(layer)[2] == Reduction(function="sum", elements=35, outputs=7, last=False)
    assert len(backward_of(dataclasses.replace(layer, bias=False))) == 2


def test_a_matmuls_products_are_those_of_autograd() -> None:
    # C [2, 5, 7] = A [2, 5, 3] B [2, 3, 7]: grad A = grad C [5, 7] B^T [7, 3], grad B = A^T [3, 5] grad C [5,
    # 7]
    left, right = backward_of(Matmul(batch=2, rows=5, inner=3, columns=7))
    assert left == Matmul(batch=2, rows=5, inner=7, columns=3, transposed=True)
    assert right == Matmul(batch=2, rows=3, inner=5, columns=7)


@pytest.mark.parametrize("kind", ["activation", "elementwise", "movement", "reduction"])
def test_what_says_it_is_differentiable_is_so_to_autograd(kind: str) -> None:
    drawn: list[Any] = [
        layer for layer in draw(KINDS[kind], 300, 4, PRESETS["quick"]) if layer.dtype == "float32"
    ]
    layers = {layer.function: layer for layer in drawn}
    differentiable = KINDS[kind].training.differentiable
    assert kind == "activation" or {*map(differentiable, layers.values())} == {True, False}
    for layer in layers.values():
        call = dataclasses.replace(layer, phase="backward")
        if differentiable(layer):
            assert all(gradient is not None for gradient in step_of(call_of(call, CPU))())
        else:
            with pytest.raises(Unmodelled, match="no gradient passes"):
                step_of(call_of(call, CPU))
    whole = Elementwise(dtype="int64", function="add", elements=4, operands=2, broadcast=False)
    assert not whole.training.differentiable(whole)


@pytest.mark.parametrize("function", ["copy", "cat", "append", "repeat", "pad", "triangle"])
def test_gradients_of_copies_and_of_what_joins_are_views_of_the_one_that_came(function: str) -> None:
    layer = Movement(function=function, elements=2000 * 64, phase="backward")
    step: Any = step_of(call_of(layer, CPU))
    came = {tensor.untyped_storage().data_ptr() for tensor in step.warm}
    left = {tensor.untyped_storage().data_ptr() for tensor in step() if tensor is not None}
    is_view = layer.views.cpu.group(layer) == "view"
    assert (left == came) == is_view == (function in ("copy", "cat", "append"))
    assert Movement.views.cpu.group(dataclasses.replace(layer, phase="forward")) != "view"


def test_what_is_repeated_in_the_sweep_is_repeated() -> None:
    drawn: list[Any] = list(draw(Movement, 2000, 5, PRESETS["quick"]))
    repeated = [layer for layer in drawn if layer.function == "repeat"]
    assert len(repeated) > 20
    for layer in repeated:
        call = layer.build(META)
        assert 2 * call.args[0].numel() == call().numel() == layer.elements


def pointwise(function: str, operands: int = 1, **fields: object) -> tuple[Layer, ...]:
    """What the backward pass of an element-wise function of 10 numbers does."""
    return backward_of(
        Elementwise(
            **{"function": function, "elements": 10, "operands": operands, "broadcast": False, **fields}
        )
    )


def test_a_sum_has_nothing_to_do_backward() -> None:
    assert pointwise("add", 2) == pointwise("add") == pointwise("ge", 2) == ()
    assert pointwise("mul", 2, dtype="int64") == ()


@pytest.mark.parametrize(
    ("function", "operands", "tensors"),
    [
        ("mul", 1, 2),  # grad in, grad out
        ("mul", 2, 6),  # for each factor: grad and the other factor in, grad out
        ("div", 1, 2),
        ("where", 2, 3),  # grad and mask in, grad out
        ("masked_fill", 2, 3),
        ("dropout", 1, 3),
        ("dropout_training", 1, 3),  # grad and mask in, their scaled product out: one kernel
        ("exp", 1, 3),  # grad and y in, grad out
        ("cube", 1, 7),  # x^2 (2), times 3 (2), times grad (3)
    ],
)
def test_tensors_that_element_wise_functions_move_backward(
    function: str, operands: int, tensors: int
) -> None:
    assert moved(pointwise(function, operands)) == tensors * 10 * 4


def test_the_gradient_of_a_broadcast_factor_is_summed() -> None:
    assert [part.kind for part in pointwise("mul", 2, broadcast=True)] == [
        "elementwise",
        "elementwise",
        "reduction",
    ]


def test_tensors_that_other_layers_move_backward() -> None:
    size = 4 * 12 * 50
    assert moved(backward_of(Activation(function="relu", elements=600))) == 3 * size
    assert moved(backward_of(Activation(function="gelu", elements=600))) == 3 * size
    assert moved(backward_of(Softmax(rows=12, width=50))) == 3 * size
    assert (
        moved(backward_of(Norm(function="layer", rows=12, width=50))) == 5 * size + 2 * 4 * 50
    )  # scale and shift
    assert moved(backward_of(Movement(function="copy", elements=600))) == 2 * size
    assert moved(backward_of(Reduction(function="mean", elements=600, outputs=12))) == size
    # the table's zeros; then 12 indices of 8 bytes and 12 rows, read and written
    looked_up = Embedding(tokens=12, vocabulary=90, width=50)
    assert moved(backward_of(looked_up)) == 4 * 90 * 50 + 12 * 8 + 2 * size


def test_what_was_picked_is_scattered() -> None:
    (back,) = backward_of(Movement(function="gather", elements=8))
    assert back == Movement(function="scatter", elements=8)


def test_what_no_gradient_passes_through_has_no_backward_pass() -> None:
    assert backward_of(Movement(function="fill", elements=8)) == ()
    assert backward_of(Movement(function="copy", elements=8, dtype="int64")) == ()
    assert backward_of(Reduction(function="argmax", elements=8, outputs=2)) == ()
    assert backward_of(Optimizer(function="sgd", tensors=2, elements=8)) == ()


def test_a_transformer_block_does_twice_its_products_backward() -> None:
    block = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, device="meta")
    layers = trace_call(
        lambda: block.linear2(torch.relu(block.linear1(torch.empty(2, 6, 32, device="meta"))))
    ).layers
    forward = sum(layer.flops() for layer in layers if layer.kind == "linear")
    backward = sum(part.flops() for layer in layers for part in backward_of(layer) if part.kind == "linear")
    assert backward == 2 * forward == 2 * 2 * 2 * (2 * 6) * 32 * 64
