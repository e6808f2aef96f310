"""A remembered operator call gives what a real one gives, and what may differ is not remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neuralpower.networks import caches, running
from neuralpower.networks.caches import Repeats, key_of
from neuralpower.networks.running import META
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace import tracer as trace
from neuralpower.trace.operators import described

aten = torch.ops.aten


class Counted:
    """An operator that counts how often it is asked."""

    def __init__(self, func: Any) -> None:
        self.func, self.calls = func, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.func(*args, **kwargs)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def about(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.untyped_storage().nbytes()


def test_a_repeated_call_gives_a_new_tensor_of_the_same_shape() -> None:
    made, add = Repeats(), Counted(aten.add.Tensor)
    first, second = (made(add, (meta(4, 3).t(), meta(3, 4)), {}) for _ in range(2))
    assert add.calls == 1
    assert about(first) == about(second)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
    largest = Counted(aten.max.dim)
    pairs = [made(largest, (meta(5, 6), 1), {"keepdim": True}) for _ in range(2)]
    assert largest.calls == 1
    assert [about(t) for t in pairs[0]] == [about(t) for t in pairs[1]]
    assert [t.dtype for t in pairs[1]] == [torch.float32, torch.int64]


def test_types_strides_and_numbers_tell_calls_apart() -> None:
    # int64 times 2 is int64, times 2.0 float32, though 2 == 2.0
    made = Repeats()
    ones = meta(3, dtype=torch.int64)
    assert [made(aten.mul.Tensor, (ones, by), {}).dtype for by in (2, 2.0, 2)] == [
        torch.int64,
        torch.float32,
        torch.int64,
    ]
    whole = meta(4, 6)
    keys = [
        key_of(v)
        for v in (whole, whole.t(), whole[:, :3], whole[:, 3:], whole.half(), (whole, whole), (whole, 1))
    ]
    assert len(set(keys)) == len(keys)
    assert key_of((whole, whole)) != key_of((whole, meta(4, 6)))  # of one memory, and of two
    assert key_of((whole, [1, 2])) == key_of((meta(4, 6), [1, 2]))


def test_views_values_and_unknown_arguments_are_not_remembered() -> None:
    made, transpose, write = Repeats(), Counted(aten.t.default), Counted(aten.add_.Tensor)
    for _ in range(2):
        matrix = meta(2, 3)
        assert made(transpose, (matrix,), {}).untyped_storage()._cdata == matrix.untyped_storage()._cdata
        assert made(write, (matrix, 1), {}) is matrix
    add = Counted(aten.add.Tensor)
    assert [float(made(add, (torch.tensor(1.0), value), {})) for value in (1, 2)] == [2.0, 3.0]
    assert (transpose.calls, write.calls, add.calls) == (2, 2, 2)
    assert key_of(torch.ones(1)) is None
    assert key_of((meta(1), object())) is None
    assert key_of({"weight": torch.nn.Parameter(meta(1)), "bias": torch.ones(1)}) is None


def test_no_more_calls_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MOST_CALLS", 2)
    made, add = Repeats(), Counted(aten.add.Tensor)
    for size in (1, 2, 2, 3, 1, 3):  # the third size takes the place of both before
        assert made(add, (meta(size), meta(size)), {}).shape == (size,)
    assert add.calls == 4


@pytest.mark.parametrize(
    "model",
    [
        "zoo:googlenet",
        "zoo:deep_mnist",
        "transformers:llama?num_hidden_layers=3&vocab_size=99&hidden_size=64",
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_trace_is_what_it_is_without_a_memory(
    model: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(2))
    remembered = trace.trace(module, inputs.args, inputs.kwargs, training=training)
    monkeypatch.setattr(described, "key_of", lambda *values: None)
    monkeypatch.setattr(running, "REPEATS", lambda func, args, kwargs: func(*args, **kwargs))
    assert trace.trace(module, inputs.args, inputs.kwargs, training=training) == remembered
