"""Rows of measured GPU tables as layers: what stands in which field."""

from typing import Any

import pandas as pd
import pytest

from benchmarks.gpu_tables import attention, experts, scans
from neuralpower.layers import KINDS
from neuralpower.layers.expert_load import equal_load
from neuralpower.layers.rows import from_row


def layers(kind: str, table: pd.DataFrame) -> list[Any]:
    """The rows as layers of the kind."""
    return [from_row(KINDS[kind], row) for row in table.to_dict("records")]


def test_a_step_sees_the_cache_and_its_own_key() -> None:
    rows = pd.DataFrame(
        {
            "query_heads": 32,
            "key_heads": 8,
            "head_size": 128,
            "window": [0.0, None, 0.0],
            "batch": 4,
            "query_length": [1, 1, 512],
            "past_length": [127, 127, 0],
            "latency_ms": [1.0, 3.0, 5.0],
            "power_w": None,
        }
    )
    table = attention.decoder_table(rows, "float8_e4m3fn")
    assert table.runtime_s.tolist() == pytest.approx([2e-3, 5e-3])  # the median of the shape measured twice
    step, prompt = layers("attention", table)
    assert (step.key_length, step.causal, step.key_dtype) == (128, False, "float8_e4m3fn")
    assert (prompt.key_length, prompt.causal, prompt.window) == (512, True, 0)
    assert "power_w" not in table


def test_a_rank_computes_its_part_of_the_experts() -> None:
    rows = pd.DataFrame(
        {
            "hidden_size": [2048, 2688],
            "intermediate_size": [768, 1856],
            "experts_per_token": [8, 6],
            "experts": 128,
            "tensor_parallel": [2, 1],
            "expert_parallel": [1, 4],
            "distribution": "balanced",
            "tokens": 64,
            "latency_ms": 1.0,
            "power_w": 500.0,
        }
    )
    table = experts.table_of(rows, experts.FORMATS["int4_wo"])
    whole, part = layers("experts", table)
    assert (whole.intermediate, whole.experts, whole.pairs, whole.gated) == (384, 128, 512, True)
    assert (part.experts, part.routed, part.gated) == (32, 128, False)
    assert (part.pairs, part.hit, part.fullest) == equal_load(64, 6, 128, 4)
    assert {part.dtype, part.weights_dtype} == {"bfloat16", "int4"} and part.weights_group == 128
    assert table.power_w.tolist() == [500.0, 500.0]


def test_a_call_of_linear_attention_is_its_two_kernels_or_none() -> None:
    shape = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128, "d_conv": 4}
    rows = pd.DataFrame(
        [
            {"phase": "context", "batch": 1, "sequence": 64, "kernel": kernel, "latency_ms": time, **shape}
            for kernel, time in (("causal_conv1d_fn", 1.0), ("chunk_gated_delta_rule_triton", 2.0))
        ]
        + [{"phase": "generation", "batch": 1, "sequence": 1, "kernel": "causal_conv1d_update"} | shape]
    )
    calls = scans.calls_of(rows, scans.GDN_KERNELS, scans.HEADS)
    table = scans.linear_attention(calls, "gated_delta")
    (call,) = layers("linear_attention", table)
    assert table.runtime_s.tolist() == pytest.approx([3e-3])
    assert (call.length, call.value_heads, call.chunk, call.conv) == (64, 32, 64, 4)
