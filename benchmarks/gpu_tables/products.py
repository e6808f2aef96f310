"""Products of matrices, by dtype: gemm.parquet.

Where several engines were measured, vLLM's newest rows are taken: plain PyTorch in bfloat16, its kernels in
fp8 and nvfp4. SGLang's are taken for fp8 in blocks, as vLLM ran that without a CUDA graph, so that short
products are its host's time; on the A100, for bfloat16, where vLLM has fewer rows. TensorRT-LLM alone has
weights of int8 and int4, SmoothQuant, and static fp8.

Two groups are skipped: SGLang's rows of the B300, which repeat a GB300's, and rows faster than the memory:
weights of one row's products on L40S and RTX PRO 6000 stayed in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.gpu_tables import SYSTEMS, Part, rows_of
from neuralpower.devices.spec import known_hardware

DRAW = 24000
SHAPE = ("in_features", "out_features")
WIDE = {"output_dtype": "bfloat16"}
DTYPES: dict[str, dict[str, Any]] = {  # how a dtype of the tables is said in a layer's fields
    "bfloat16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "float8_e4m3fn", **WIDE, "quantises": True},
    "fp8_block": {
        "dtype": "float8_e4m3fn",
        **WIDE,
        "quantises": True,
        **{"weights_group": 128, "weights_rows_group": 128, "input_group": 128},
    },
    "fp8_static": {"dtype": "float8_e4m3fn", **WIDE},
    "nvfp4": {"dtype": "nvfp4", **WIDE, "quantises": True},
    "int8_wo": {"dtype": "bfloat16", "weights_dtype": "int8"},
    "int4_wo": {"dtype": "bfloat16", "weights_dtype": "int4", "weights_group": 128},
    "sq": {"dtype": "int8", **WIDE},
}
OWN = {"weights_dtype": "", "weights_group": 0, "weights_rows_group": 0, "input_group": 0}
OWN |= {"output_dtype": "", "quantises": False}
MAIN = ("vllm", "0.24.0")
ENGINES: dict[Any, tuple[str, str] | None] = {
    "fp8_block": ("sglang", "0.5.14"),
    ("bfloat16", "a100_sxm"): ("sglang", "0.5.10"),
    ("bfloat16", "b60"): ("vllm", "0.20.0"),
    ("fp8", "b60"): ("vllm", "0.20.0"),
    ("fp8_block", "b300_sxm"): None,  # a GB300's
    ("fp8_block", "l40s"): None,  # in vLLM alone, which took 280 us at least
    ("fp8_block", "rtx_pro_6000_server"): None,
    ("int8_wo", "h100_sxm"): ("sglang", "0.5.6.post2"),
    **{(name, "h200_sxm"): ("trtllm", "1.2.0rc5") for name in ("int8_wo", "int4_wo", "sq")},
    **{name: ("trtllm", "1.0.0") for name in ("int8_wo", "int4_wo", "sq")},
    ("fp8_static", "l40s"): ("trtllm", "1.3.0rc15"),
    ("fp8_static", "b200_sxm"): ("trtllm", "1.2.0rc5"),
    "fp8_static": ("trtllm", "1.3.0rc10"),
}
CALLED = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
BEYOND = {
    "n = 65,536 from n <= 8,192": (lambda x: x.out_features <= 8192, lambda x: x.out_features == 65536),
    "m > 8,192 from below": (lambda x: x.rows <= 8192, lambda x: x.rows > 8192),
}


def parts(tables: Path, system: str) -> Iterator[Part]:
    """One per dtype that the system has."""
    for name in DTYPES:
        chosen = ENGINES.get((name, system), ENGINES.get(name, MAIN))
        if chosen is None:
            continue
        engine, version = chosen
        rows = rows_of(tables / "gemm.parquet", system, engine, version)
        rows = possible(rows[rows.dtype == name], system)
        if len(rows):
            yield Part(
                kind="linear",
                name=name,
                engine=f"{CALLED[engine]} {version}",
                table=table_of(rows, DTYPES[name]),
                shape=SHAPE,
                draw=DRAW,
                beyond=BEYOND,
            )


def possible(rows: pd.DataFrame, system: str) -> pd.DataFrame:
    """Those that are not faster than the memory: weights beyond the cache cross it, in 4 bits at least."""
    hardware = known_hardware(SYSTEMS[system].slug)
    if hardware is None:
        return rows
    bits = rows.dtype.map({"bfloat16": 16, "nvfp4": 4, "int4_wo": 4}).astype(float).fillna(8)
    size = bits / 8 * rows.n * rows.k - hardware.llc_bytes
    return rows[size / hardware.memory_bytes_per_s <= rows.latency_ms / 1000]


def table_of(rows: pd.DataFrame, fields: dict[str, Any]) -> pd.DataFrame:
    """The rows in the columns of a dataset."""
    table = pd.DataFrame(
        {"rows": rows.m, "in_features": rows.k, "out_features": rows.n, "bias": False, "transposed": True}
    )
    same: dict[str, Any] = {"phase": "forward", **OWN, **fields}
    table = table.assign(**same, runtime_s=rows.latency_ms / 1000)
    return table.reset_index(drop=True)
