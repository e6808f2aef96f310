"""Operators of other libraries in traces: priced as the product's own kinds, by their names and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuralpower.layers.collective import Collective
from neuralpower.trace.operators import described
from neuralpower.traces.calls import Replay, Replays
from neuralpower.traces.events import Ran, read_recording
from tests.traces.made import BF16, NONE, Inputs, exchanged, kernel, operator, written
from tests.traces.test_explain import F32, Made, asked, h100, linear, tensor

FP8, I32, I64 = "c10::Float8_e4m3fn", "int", "long int"


def number(text: str) -> tuple[str, Any, Any, str]:
    return "Scalar", [], [], text


def replayed(folder: Path, name: str, inputs: Inputs, *around: Any, kernels: Any = ()) -> Replay:
    """What a call of that name comes to in a trace."""
    file = written(folder, [*around, operator(name, 10, 20, inputs), *kernel(1, 12, 3.0)])
    recording = read_recording(file)
    [call] = recording.operators
    return Replays(recording).of(call, kernels)


def said(replay: Replay) -> list[dict[str, Any]]:
    return [{"kind": layer.kind, **vars(layer)} for layer in replay.layers]


Q, KV = tensor(BF16, 96, 8, 64), tensor(BF16, 96, 2, 64)
ATTENDS = {"kind": "attention", "query_heads": 8, "key_heads": 2, "head_size": 64, "causal": True}
IMAGE = tensor(BF16, 2, 512, 16, 64)
X = tensor(BF16, 96, 256)
CALLS: dict[str, tuple[Inputs, dict[str, Any]]] = {
    "vllm::unified_attention_with_output": (
        [Q, KV, KV, Q],
        {**ATTENDS, "batch": 1, "query_length": 96, "key_length": 96},
    ),
    "flash_attn::_flash_attn_varlen_forward": (
        [
            Q,
            KV,
            KV,
            tensor(I32, 5),
            tensor(I32, 5),
            number("24"),
            number("24"),
            number("0."),
            number("False"),
        ],
        {**ATTENDS, "batch": 4, "query_length": 24, "key_length": 24, "causal": False},
    ),
    "FlashAttnFunc": ([IMAGE, IMAGE, IMAGE], {"kind": "attention", "batch": 2, "query_length": 512}),
    "_C::cutlass_scaled_mm": (
        [tensor(BF16, 96, 512), tensor(FP8, 96, 256), tensor(FP8, 256, 512, steps=[1, 256]), tensor(F32, 1)],
        {"kind": "linear", "rows": 96, "in_features": 256, "out_features": 512, "dtype": "float8_e4m3fn"},
    ),
    "aiter::gemm_a16w16": (
        [X, tensor(BF16, 768, 256), NONE, number("15")],
        {"kind": "linear", "rows": 96, "in_features": 256, "out_features": 768, "dtype": "bfloat16"},
    ),
    "_C::fused_add_rms_norm": ([X, X, tensor(BF16, 256)], {"bytes_read": 98304, "bytes_written": 98304}),
    "_C::silu_and_mul": ([tensor(BF16, 96, 128), X], {"bytes_read": 49152, "bytes_written": 24576}),
    "_C::rotary_embedding": (
        [tensor(I64, 96), X, tensor(BF16, 96, 64), number("64"), tensor(BF16, 131072, 64)],
        {"bytes_read": 96 * 320 * 2, "bytes_written": 96 * 320 * 2},
    ),
    "_C_cache_ops::reshape_and_cache_flash": (
        [KV, KV, tensor("unsigned char", 4000, 16, 2, 64), tensor("unsigned char", 4000, 16, 2, 64)],
        {"kind": "fused", "bytes_read": 49152, "bytes_written": 49152},
    ),
    "vllm::fused_experts": (
        [X, tensor(BF16, 8, 1024, 256), tensor(BF16, 8, 256, 512), tensor(F32, 96, 2), tensor(I32, 96, 2)],
        {"kind": "experts", "tokens": 96, "hidden": 256, "intermediate": 512, "experts": 8, "top_k": 2},
    ),
    "triton_red_fused_mean_mul_0": (
        [X, tensor(BF16, 256), tensor(BF16, 96, 256), number("96")],
        {"kind": "fused", "bytes_read": 49664, "bytes_written": 49152, "row": 256},
    ),
    "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function": (
        [tensor(F32, 6400), tensor(F32, 100), tensor(I64, 5000), tensor(I64, 129), tensor(I64, 3)],
        {"kind": "embedding", "tokens": 5000, "vocabulary": 100, "width": 64, "bags": 128},
    ),
    "aten::_fused_adamw_": (
        [("TensorList", [[8, 4], [8]], [[4, 1], [1]], ""), *[("TensorList", [], [], "")] * 4, number("0.1")],
        {"kind": "optimizer", "function": "adamw", "tensors": 2, "elements": 40, "implementation": "fused"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_is_a_layer_of_its_kind(tmp_path: Path, name: str) -> None:
    inputs, expected = CALLS[name]
    [layer] = said(replayed(tmp_path, name, inputs))
    assert {key: layer[key] for key in expected} == expected


def test_the_backward_pass_of_attention_is_two_passes(tmp_path: Path) -> None:
    q = tensor(BF16, 2, 16, 512, 64)
    inputs = [q, q, q, q, q, tensor(F32, 2, 16, 512), NONE, NONE, number("512"), number("512"), number("0.0")]
    found = said(
        replayed(tmp_path, "aten::_scaled_dot_product_flash_attention_backward", [*inputs, number("True")])
    )
    assert [(one["kind"], one["query_heads"], one["query_length"]) for one in found] == [
        ("attention", 16, 512)
    ] * 2


@pytest.mark.parametrize(
    ("step", "lengths"),
    [
        ("execute_context_2(96_4608)_generation_0(0)", [(2, 48, 48)]),
        (
            "execute_96_context_1(sq64sk100sqsq4096sqsk6400)_generation_32(sq32sk3200sqsq32sqsk3200)",
            [(1, 64, 100), (32, 1, 100)],
        ),
    ],
)
def test_a_step_of_an_engine_says_its_requests(
    tmp_path: Path, step: str, lengths: list[tuple[int, int, int]]
) -> None:
    about = {"ph": "X", "cat": "user_annotation", "pid": 7, "tid": 1, "ts": 1, "dur": 100, "name": step}
    cache = tensor(BF16, 4000, 16, 2, 64)
    for inputs in ([Q, KV, KV, Q], [Q, Q, cache, cache]):
        found = said(replayed(tmp_path, "vllm::unified_attention", inputs, about))
        assert [(one["batch"], one["query_length"], one["key_length"]) for one in found] == lengths
        assert {one["key_heads"] for one in found} == {2}


def test_a_mixture_without_its_weights_has_the_sizes_of_its_kernels(tmp_path: Path) -> None:
    inputs = [tensor(BF16, 888, 3072), tensor(BF16, 888, 128), NONE]
    first, second = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_swiGlu", "bmm_Bfloat16_MxE2m1_t128x16x256u2"
    kernels = [
        Ran(name, 0.0, 1.0, 0, "", grid=grid)
        for name, grid in ((first, "[8, 342, 1]"), (second, "[24, 342, 1]"))
    ]
    [layer] = said(replayed(tmp_path, "vllm::moe_forward", inputs, kernels=kernels))
    sizes = {"hidden": 3072, "intermediate": 512, "experts": 128, "top_k": 4, "weights_dtype": "mxfp4"}
    assert {name: layer[name] for name in sizes} == sizes
    assert replayed(tmp_path, "vllm::moe_forward", inputs).why  # without kernels nothing says them


def test_an_operator_without_a_rule_is_a_pass_over_its_tensors(tmp_path: Path) -> None:
    found = replayed(tmp_path, "mine::rescale", [X, X])
    assert said(found)[0]["bytes_read"] == 49152 and "by the bytes" in found.why


def test_the_backward_pass_of_a_lookup_has_the_width_of_its_tables(tmp_path: Path) -> None:
    name = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    node = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    events = [
        operator(name, 10, 20, CALLS[name][0]),
        *kernel(1, 12, 3.0),
        operator(node, 50, 20, [tensor(F32, 64, 128)]),
        operator("aten::empty_like", 52, 2, [tensor(I64, 5000)]),
        *kernel(2, 55, 3.0),
    ]
    recording = read_recording(written(tmp_path, events))
    replays = Replays(recording)
    order, update = said(replays.of(recording.operators[1]))
    assert (order["function"], order["elements"]) == ("sort", 5000)
    assert update["bytes_written"] == 4 * 64 * 100


def test_exchanges_are_priced_by_their_size_and_shared_out_after_what_computes(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512)  # from 1100 to 1200
    events = [
        *made.events,
        *exchanged(71, 400, 1150, 100, 2**20),
        *exchanged(72, 420, 1250, 40, 2**20),
        *exchanged(73, 440, 1290, 60, 2**24),
    ]
    found = asked(tmp_path, events)
    layers = [
        Collective(function="all_reduce", elements=size, ranks=8, dtype="bfloat16") for size in (2**20, 2**24)
    ]
    small, large = h100().estimate(layers).runtime_s
    rows = {row.calls: row for row in found.rows if row.operator == "record_param_comms"}
    assert rows[2].expected_s == pytest.approx(2 * small) and rows[1].expected_s == pytest.approx(large)
    assert rows[2].measured_s == pytest.approx(140e-6)
    assert (found.exposed_s, found.overlapped_s) == pytest.approx((150e-6, 50e-6))
    assert found.priced_s == pytest.approx(250e-6) and not found.unpriced_s


def test_an_exchange_between_unknown_ranks_has_no_price(tmp_path: Path) -> None:
    found = asked(
        tmp_path, [operator("vllm::all_reduce", 10, 20, [X]), *kernel(1, 12, 30.0, name="nccl_sum")]
    )
    assert found.priced_s == 0 and found.unpriced[0].name == "vllm::all_reduce"


def test_autocast_runs_products_in_its_type(tmp_path: Path) -> None:
    given = [tensor(F32, 512, 512), tensor(F32, 512, 512), NONE]
    cast = [tensor(BF16, 512, 512), tensor(BF16, 512, 512)]
    events = [
        operator("aten::linear", 10, 30, given),
        operator("aten::mm", 15, 20, cast),
        *kernel(1, 20, 30.0),
    ]
    found = asked(tmp_path, events)
    assert [(row.operator, row.dtype) for row in found.rows] == [("linear", "bfloat16")]


def test_copies_over_the_bus_are_priced_by_its_bandwidth(tmp_path: Path) -> None:
    copy = operator("aten::copy_", 10, 20, [tensor(F32, 2**20), tensor(F32, 2**20), number("False")])
    found = asked(tmp_path, [copy, *kernel(1, 12, 300.0, name="Memcpy HtoD (Pinned -> Device)")])
    assert found.rows[0].expected_s == pytest.approx(2**22 / 63e9, rel=0.3)
    assert found.priced_s == pytest.approx(300e-6)


def test_no_operator_of_a_trace_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> str:
        raise AssertionError("an operator was tried on real tensors")

    monkeypatch.setattr(described, "refused", run)
    assert not replayed(tmp_path, "aten::add", [tensor(I64, 8), tensor(I32, 8), number("1")]).why
