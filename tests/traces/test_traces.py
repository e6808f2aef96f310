"""Profiler traces: made-up ones, whose calls and times are known, and files that are none."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from neuralpower.data.dataset import read_dataset
from neuralpower.errors import InputError
from neuralpower.traces.calls import read_calls
from neuralpower.traces.rows import write_profiled
from tests.traces.made import BF16, FALSE, LIST, NONE, SCALAR, Inputs, X, kernel, operator, written

LINEAR: Inputs = [X, (BF16, [16, 8], [8, 1], ""), (BF16, [16], [1], "")]


@pytest.mark.parametrize("packed", [False, True])
def test_a_call_is_its_outermost_operator_with_the_kernels_of_all_within(
    tmp_path: Path, packed: bool
) -> None:
    events = [
        operator("aten::linear", 10, 20, LINEAR),
        operator("aten::addmm", 12, 15, []),
        operator("aten::silu", 40, 5, [X]),
        operator("aten::view", 50, 5, [X, (LIST, [], [], "[32]")]),
        *kernel(1, 14, 3.0),
        *kernel(2, 20, 2.0, name="splitK_reduce"),
        *kernel(3, 41, 1.5),
        *kernel(4, None, 7.0),
    ]
    found = read_calls(written(tmp_path, events, packed))
    assert found.device == "NVIDIA H100"
    assert found.elsewhere_s == pytest.approx(7e-6)
    assert [(one.operator, one.kernels, one.why) for one in found.calls] == [
        ("linear", 2, ""),
        ("silu", 1, ""),
    ]
    assert [one.device_s for one in found.calls] == pytest.approx([5e-6, 1.5e-6])
    (product,), (activation,) = (one.layers for one in found.calls)
    assert (product.flops(), product.dtype) == (2 * 4 * 8 * 16, "bfloat16")
    assert (activation.kind, sum(activation.bytes())) == ("activation", 2 * 2 * 32)


def test_operators_of_several_threads_do_not_lie_within_each_other(tmp_path: Path) -> None:
    events = [
        operator("aten::relu", 10, 100, [X], thread=2),
        operator("aten::silu", 20, 10, [X]),
        *kernel(1, 21, 2.0),
    ]
    assert [one.operator for one in read_calls(written(tmp_path, events)).calls] == ["silu"]


Q: tuple[str, Any, Any, str] = (BF16, [1, 4, 16, 8], [512, 8, 32, 1], "")


@pytest.mark.parametrize(
    ("name", "inputs", "kind", "size"),
    [
        # queries, keys, values and the context: 4 tensors of 512 numbers
        (
            "scaled_dot_product_attention",
            [Q, Q, Q, NONE, ("Scalar", [], [], "0."), FALSE, NONE, FALSE],
            "attention",
            4 * 1024,
        ),
        # tensors in a list are recorded without a type: float32, where the trace has no other
        (
            "cat",
            [("TensorList", [[4, 8], [4, 8]], [[8, 1], [8, 1]], ""), (SCALAR, [], [], "1")],
            "movement",
            512,
        ),
        # 8 wide: bfloat16 in, float32 out
        ("_to_copy", [X, (SCALAR, [], [], "6"), *[NONE] * 3, FALSE, NONE], "movement", 32 * (2 + 4)),
        ("mul", [X, ("double", [], [], "")], "elementwise", 2 * 64),
        ("mean", [X, (LIST, [], [], "[-1]"), (SCALAR, [], [], "True"), NONE], "reduction", 64 + 8),
        ("gelu", [X, NONE], "activation", 2 * 64),
    ],
)
def test_recorded_inputs_become_the_operators_arguments(
    tmp_path: Path, name: str, inputs: Inputs, kind: str, size: int
) -> None:
    events = [operator(f"aten::{name}", 10, 20, inputs), *kernel(1, 15, 3.0)]
    (call,) = read_calls(written(tmp_path, events)).calls
    assert [layer.kind for layer in call.layers] == [kind], call.why
    assert sum(call.layers[0].bytes()) == size
    assert getattr(call.layers[0], "library", "torch") == "torch"  # of attention


@pytest.mark.parametrize(
    ("name", "inputs", "why"),
    [
        ("__class__", [X], "not an operator"),
        ("os_system", [X], "not an operator"),
        ("from_file", [("", [], [], "/etc/passwd"), *[NONE] * 6], "without tensors"),
        ("empty", [(LIST, [], [], "[1000000000000000000]"), *[NONE] * 5], "sizes that no tensor"),
        ("relu", [], "without tensors"),
        ("relu", [(BF16, [2**41], [1], "")], "sizes that no tensor has"),
        ("relu", [(BF16, [-1], [1], "")], "sizes that no tensor has"),
        ("relu", [(BF16, ["4"], [1], "")], "sizes that no tensor has"),
        ("unbind", [(BF16, [2**40], [1], ""), (SCALAR, [], [], "0")], "several tensors"),
        ("mm", [X, X], "reduction dim|shapes"),
        ("linear", [X, (SCALAR, [], [], "__import__('os')"), NONE], "none of its forms"),
    ],
)
def test_what_cannot_be_made_again_says_why(tmp_path: Path, name: str, inputs: Inputs, why: str) -> None:
    events = [operator(f"aten::{name}", 10, 20, inputs), *kernel(1, 15, 3.0)]
    (call,) = read_calls(written(tmp_path, events)).calls
    assert not call.layers
    assert call.device_s == pytest.approx(3e-6)
    assert re.search(why, call.why)


def test_a_copy_over_the_bus_is_no_kernel_of_a_layer(tmp_path: Path) -> None:
    events = [
        operator("aten::relu", 10, 20, [X]),
        *kernel(1, 15, 3.0, cat="gpu_memcpy", name="Memcpy HtoD (Pageable -> Device)"),
    ]
    (call,) = read_calls(written(tmp_path, events)).calls
    assert (call.layers, call.why) == ((), "copies between host and device")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a trace"),
        (b"{", "is not a trace"),
        (b"[" * 100_000, "has no list traceEvents"),
        (b"\x1f\x8bnot gzip", "is not a trace"),
        (gzip.compress(b"{}" * 99, mtime=0)[:-9], "is not a trace"),
        (b"[]", "has no list traceEvents"),
        (b'{"traceEvents": {}}', "has no list traceEvents"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_a_line(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read_calls(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        None,
        {"ts": "a", "dur": 1, "cat": "kernel"},
        {"ts": 1, "dur": -1, "cat": "cpu_op", "name": "aten::relu"},
        {"ts": 1, "dur": 1, "cat": "cpu_op", "name": None, "args": 3},
        {"ts": 1, "dur": 1, "cat": "kernel", "args": {"correlation": [1]}},
        {"ts": 1, "dur": 1, "cat": [], "args": {}},
        {
            "ts": 1,
            "dur": 1,
            "cat": "cpu_op",
            "name": "aten::add",
            "args": {"Input type": [[]], "Input Dims": 3},
        },
    ],
)
def test_events_of_another_form_change_nothing(tmp_path: Path, event: Any) -> None:
    usual = [operator("aten::relu", 10, 20, [X]), *kernel(1, 15, 3.0)]
    assert read_calls(written(tmp_path, [event, *usual])).calls == read_calls(written(tmp_path, usual)).calls


def test_timed_layers_become_rows_of_a_dataset(tmp_path: Path) -> None:
    events = [operator("aten::linear", 100 * i, 20, LINEAR) for i in range(3)]
    for i, took in enumerate((5.0, 7.0, 90.0)):
        events += kernel(i + 1, 100.0 * i + 3, took, name="gemm_a")
    out = tmp_path / "rows"
    assert write_profiled(written(tmp_path, events), out) == {"linear": 1}
    table = read_dataset(out).tables["linear"]
    assert read_dataset(out).device == "NVIDIA H100"
    row = table.iloc[0]
    assert (row["rows"], row["in_features"], row["out_features"], row["dtype"]) == (4, 8, 16, "bfloat16")
    assert (row["runtime_s"], row["repeats"], row["source"]) == (pytest.approx(7e-6), 3, "profiled")
    assert row["kernels"] == "gemm_a"
