"""Linear attention and scans: gdn.parquet, kda.parquet and mamba2.parquet, which have a row per kernel.

A call is the convolution and the recurrence behind it, so two rows of one shape are added. Which engine's
rows: the newest vLLM's of gated delta rules; SGLang's of Kimi's, as vLLM's convolutions were timed with their
host; mamba2 only where both kernels were measured, which is a B200's prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from benchmarks.gpu_tables import Part, rows_of
from benchmarks.gpu_tables.products import CALLED, MAIN

GDN = {"a100_sxm": ("sglang", "0.5.10")}
KDA = ("sglang", "0.5.16")
MAMBA2 = ("trtllm", "1.3.0rc15")
DRAW = 2000
CHUNK = 64
# The kernels that make up a call, by phase: of alternatives, what the engine runs by itself.
GDN_KERNELS = {
    "context": ("causal_conv1d_fn", "chunk_gated_delta_rule*"),
    "generation": ("causal_conv1d_update", "fused_recurrent_gated_delta_rule*"),
}
KDA_KERNELS = {
    "context": ("causal_conv1d_fn_qkv3", "chunk_kda"),
    "generation": ("causal_conv1d_update", "fused_recurrent_kda_packed_decode"),
    "verify": ("causal_conv1d_update", "fused_sigmoid_gating_delta_rule_update"),
}
MAMBA2_KERNELS = {"context": ("causal_conv1d_fn", "mamba_chunk_scan_combined")}
HEADS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "d_conv")
SIZES = ("heads", "head_size", "d_state", "groups", "d_conv", "chunk_size")


def parts(tables: Path, system: str) -> Iterator[Part]:
    """Gated delta rules, Kimi's, and mamba2."""
    ways = {
        "gated_delta": ("gdn", GDN.get(system, MAIN), GDN_KERNELS),
        "kimi_delta": ("kda", KDA, KDA_KERNELS),
    }
    for function, (file, (engine, version), kernels) in ways.items():
        calls = calls_of(rows_of(tables / f"{file}.parquet", system, engine, version), kernels, HEADS)
        if len(calls):
            yield Part(
                kind="linear_attention",
                name=f"bfloat16, {function}",
                engine=f"{CALLED[engine]} {version}",
                table=linear_attention(calls, function),
                shape=("key_heads", "value_heads"),
                draw=DRAW,
            )
    engine, version = MAMBA2
    calls = calls_of(rows_of(tables / "mamba2.parquet", system, engine, version), MAMBA2_KERNELS, SIZES)
    if len(calls):
        yield Part(
            kind="scan",
            name="bfloat16, mamba2",
            engine=f"{CALLED[engine]} {version}",
            table=scans(calls),
            shape=("heads", "state_size", "groups"),
            draw=DRAW,
        )


def calls_of(
    rows: pd.DataFrame, kernels: Mapping[str, tuple[str, str]], sides: tuple[str, ...]
) -> pd.DataFrame:
    """Both kernels' times added, for each phase and shape that has both."""
    by = ["phase", "batch", "sequence", *sides]
    found = []
    for phase, names in kernels.items():
        of_phase = rows[rows.phase == phase]
        halves = []
        for name in names:
            kernel = of_phase.kernel.astype(str)
            some = of_phase[kernel.str.startswith(name[:-1]) if name.endswith("*") else kernel == name]
            halves.append(some.groupby(by, observed=True)["latency_ms"].median())
        both = halves[0].add(halves[1]).dropna()  # of shapes that either lacks the sum is unknown
        found.append(both.reset_index())
    return pd.concat(found, ignore_index=True)


def linear_attention(calls: pd.DataFrame, function: str) -> pd.DataFrame:
    """The calls in the columns of a dataset."""
    table = pd.DataFrame(
        {
            "batch": calls.batch,
            "length": calls.sequence,
            "key_heads": calls.num_k_heads,
            "value_heads": calls.num_v_heads,
            "key_size": calls.head_k_dim,
            "value_size": calls.head_v_dim,
            "conv": calls.d_conv,
            "chunk": CHUNK * (calls.phase == "context").astype(int),
            "runtime_s": calls.latency_ms / 1000,
        }
    )
    return table.assign(dtype="bfloat16", phase="forward", function=function)


def scans(calls: pd.DataFrame) -> pd.DataFrame:
    """The calls in the columns of a dataset."""
    table = pd.DataFrame(
        {
            "batch": calls.batch,
            "length": calls.sequence,
            "heads": calls.heads,
            "head_size": calls.head_size,
            "state_size": calls.d_state,
            "groups": calls.groups,
            "conv": calls.d_conv,
            "chunk": calls.chunk_size,
            "runtime_s": calls.latency_ms / 1000,
        }
    )
    return table.assign(dtype="bfloat16", phase="forward", function="mamba2")
