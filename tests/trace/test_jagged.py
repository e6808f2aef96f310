"""Jagged nested tensors run as operators on their values: FLOP by the rows that there are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neuralpower
from neuralpower.errors import InputError
from neuralpower.trace.tracer import trace

# torch says which of its functions a jagged tensor is not made for yet
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROWS = torch.randn(8, 16)  # of samples of 3 and 5 rows
LENGTHS = (3, 5)
PRODUCT = 2 * 8 * 16 * 16  # FLOP of a square layer over all rows


def jagged() -> Tensor:
    return torch.nested.nested_tensor([*ROWS.split(LENGTHS)], layout=torch.jagged)


class Network(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


@pytest.mark.parametrize("phase", ["forward", "backward", "training"])
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda layer, x: layer(x), jagged()),
        (lambda layer, x: F.relu(layer(x)) + x, jagged()),
        (lambda layer, x: F.layer_norm(layer(x), (16,)), jagged()),
        (lambda layer, x: layer(x).to_padded_tensor(0.0), jagged()),
        (
            lambda layer, x: layer(torch.nested.as_nested_tensor([*x.split(LENGTHS)], layout=torch.jagged)),
            ROWS,
        ),
        (
            lambda layer, x: layer(
                torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 3, 8], device=x.device))
            ).values(),
            ROWS,
        ),
    ],
)
def test_the_rows_of_a_jagged_tensor_are_counted(
    function: Callable[..., Any], given: Tensor, phase: str
) -> None:
    found = neuralpower.load("amd-epyc-2c").predict(Network(function), given, phase=phase)
    assert found.unmodelled == ()
    assert found.tree()
    calls = trace(Network(function), (given,)).calls
    assert sum(int(call.layer.flops()) for call in calls if call.layer.multiplies) == PRODUCT


def attention(layer: nn.Module, x: Tensor) -> Tensor:
    heads = layer(x).unflatten(-1, (2, 8)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads)


def parted(x: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([*x.split(LENGTHS)], layout=torch.jagged)


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize(
    ("network", "given"),
    [
        (Network(attention), jagged()),
        (Network(lambda layer, x: attention(layer, parted(x)).values()), ROWS),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), jagged()),
        (Network(lambda layer, x: layer(torch.nested.nested_tensor([x, x]))), ROWS),
    ],
)
def test_attention_over_jagged_tensors_is_refused_with_a_way_out(
    network: nn.Module, given: Tensor, phase: str
) -> None:
    with pytest.raises(InputError, match="sparse or nested, .*; make them dense"):
        neuralpower.load("amd-epyc-2c").predict(network, given, phase=phase)
