"""Products of matrices, by dtype: gemm.parquet.

Which engine's rows: those of plain PyTorch or of the newest kernels where several were measured. Left out:

- vLLM's block-wise fp8, which ran without a CUDA graph, so that short products are its host's time;
- computed differences, and static fp8 scales that no engine computes by default;
- SGLang's rows of the B300, which are a GB300's.

One row of a product (m = 1) is partly faster than memory on L40S and RTX PRO 6000, whose weights stayed in
the cache: those above `FASTEST` times the bandwidth are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.gpu_tables import Part, rows_of

DRAW = 6000
SHAPE = ("in_features", "out_features")
MAIN = ("vllm", "0.24.0")


@dataclass(frozen=True)
class Operands:
    """How a dtype of the tables is said in a layer's fields."""

    fields: dict[str, Any] = field(default_factory=dict)


DTYPES = {
    "bfloat16": Operands({"dtype": "bfloat16"}),
}
ENGINES = {
    ("bfloat16", "a100_sxm"): ("sglang", "0.5.10"),
    ("bfloat16", "b60"): ("vllm", "0.20.0"),
}
BEYOND = {
    "n = 65,536 from n <= 8,192": (lambda x: x.out_features <= 8192, lambda x: x.out_features == 65536),
    "m > 8,192 from below": (lambda x: x.rows <= 8192, lambda x: x.rows > 8192),
}
CALLED = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def parts(tables: Path, system: str) -> Iterator[Part]:
    """One per dtype that the system has."""
    for name, operands in DTYPES.items():
        engine, version = ENGINES.get((name, system), MAIN)
        rows = rows_of(tables / "gemm.parquet", system, engine, version)
        rows = rows[rows.dtype == name]
        if len(rows):
            yield Part(
                kind="linear",
                name=name,
                engine=f"{CALLED[engine]} {version}",
                table=table_of(rows, operands),
                shape=SHAPE,
                draw=DRAW,
                beyond=BEYOND,
            )


def table_of(rows: pd.DataFrame, operands: Operands) -> pd.DataFrame:
    """The rows in the columns of a dataset."""
    table = pd.DataFrame(
        {"rows": rows.m, "in_features": rows.k, "out_features": rows.n, "bias": False, "transposed": True}
    )
    table = table.assign(phase="forward", **operands.fields, runtime_s=rows.latency_ms / 1000)
    if rows.power_w.notna().any():
        table["power_w"] = rows.power_w
    return table.reset_index(drop=True)
