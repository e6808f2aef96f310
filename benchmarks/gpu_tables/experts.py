"""Experts of mixtures, by dtype: moe.parquet. Both grouped products and what lies between, on one rank.

Which engine's rows: the newest vLLM's, but SGLang's on the A100, where it was measured with more models. A
shape that was measured several times has the median of its times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.gpu_tables import Part, rows_of
from benchmarks.gpu_tables.products import CALLED, MAIN
from neuralpower.layers.expert_load import Load, equal_load, power_law_load

DRAW, DRAW_OF_FEW_MODELS = 6000, 1200
SHAPE = ("hidden", "model_intermediate", "routed", "top_k")
# How a dtype of the tables is said in a layer's fields.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int4_wo": {"dtype": "bfloat16", "weights_dtype": "int4", "weights_group": 128},
    "w4a16_mxfp4": {"dtype": "bfloat16", "weights_dtype": "mxfp4"},
    "fp8": {"dtype": "float8_e4m3fn", "output_dtype": "bfloat16", "quantises": True},
    "fp8_block": {
        "dtype": "float8_e4m3fn",
        "output_dtype": "bfloat16",
        "quantises": True,
        "weights_group": 128,
        "weights_rows_group": 128,
        "input_group": 128,
    },
    "nvfp4": {"dtype": "nvfp4", "output_dtype": "bfloat16", "quantises": True},
    "w4a8_mxfp4_mxfp8": {
        "dtype": "mxfp8",
        "weights_dtype": "mxfp4",
        "output_dtype": "bfloat16",
        "quantises": True,
    },
}
FEW_MODELS = ("int4_wo", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")  # 1 to 5 were measured
ENGINES = {
    ("bfloat16", "a100_sxm"): ("sglang", "0.5.10"),
    ("int4_wo", "a100_sxm"): ("sglang", "0.5.10"),
    ("fp8", "b60"): ("vllm", "0.12.0"),
    ("bfloat16", "b60"): ("vllm", "0.20.0"),
    ("w4a16_mxfp4", "b60"): ("vllm", "0.20.0"),
}
# Nemotron's have one matrix up and squared ReLU, no gate: TensorRT-LLM's kernels of theirs say so.
UNGATED = ((2688, 1856), (2048, 5120), (8192, 5120), (1024, 2688), (4096, 2688))
POWER_LAW = "power_law_"


def parts(tables: Path, system: str) -> Iterator[Part]:
    """One per dtype that the system has."""
    for name in FORMATS:
        engine, version = ENGINES.get((name, system), MAIN)
        rows = rows_of(tables / "moe.parquet", system, engine, version)
        rows = rows[rows.dtype == name]
        if len(rows):
            yield Part(
                kind="experts",
                name=name,
                engine=f"{CALLED[engine]} {version}",
                table=table_of(rows, FORMATS[name]),
                shape=SHAPE,
                draw=DRAW_OF_FEW_MODELS if name in FEW_MODELS else DRAW,
            )


def table_of(rows: pd.DataFrame, fields: Mapping[str, Any]) -> pd.DataFrame:
    """The rows in the columns of a dataset: what one rank computes."""
    measured = ["hidden_size", "intermediate_size", "experts_per_token", "experts", "tensor_parallel"]
    measured += ["expert_parallel", "distribution", "tokens"]
    times = rows.groupby(measured, observed=True, as_index=False)[["latency_ms", "power_w"]].median()
    asked = zip(*(times[name] for name in measured[2:4] + measured[5:]), strict=True)
    loads = pd.DataFrame([load_of(*one) for one in asked], columns=Load._fields)
    sides = zip(times.hidden_size, times.intermediate_size, strict=True)
    table = pd.DataFrame(
        {
            "tokens": times.tokens,
            "hidden": times.hidden_size,
            "intermediate": times.intermediate_size // times.tensor_parallel,
            "experts": times.experts // times.expert_parallel,
            "top_k": times.experts_per_token,
            "gated": [pair not in UNGATED for pair in sides],
            "routed": times.experts,
            "model_intermediate": times.intermediate_size,
            "runtime_s": times.latency_ms / 1000,
            "power_w": times.power_w,
        }
    )
    table = pd.concat([table, loads], axis=1).assign(phase="forward", **fields)
    return table if table.power_w.notna().any() else table.drop(columns="power_w")


def load_of(top_k: int, experts: int, ranks: int, distribution: str, tokens: int) -> Load:
    """What the measured rank has to do."""
    if distribution == "balanced":
        load = equal_load(tokens, top_k, experts, ranks)
    else:
        load = power_law_load(tokens, top_k, experts, float(distribution.removeprefix(POWER_LAW)), ranks)
    return load if load.pairs else Load(1, 1, 1)  # fewer pairs than ranks: one is what a rank may get
