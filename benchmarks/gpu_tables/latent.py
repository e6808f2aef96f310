"""Multi-head latent attention: context_mla.parquet, generation_mla.parquet; its products: mla_bmm.parquet.

Prompts were measured with keys and values of each head, steps over the latents themselves. Which engine's
rows: SGLang's, as vLLM has none of these kernels but on the A100. A shape that was measured several times has
the median of its times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.gpu_tables import Part, rows_of
from benchmarks.gpu_tables.attention import CACHE
from benchmarks.gpu_tables.products import CALLED

MAIN = ("sglang", "0.5.14")
ENGINES = {"a100_sxm": ("vllm", "0.14.0")}
PRODUCTS = {"a100_sxm": ("sglang", "0.5.10")}
SHAPE = ("query_heads",)
LATENT = 512
SIDES = {"mla_gen_pre": (128, LATENT), "mla_gen_post": (LATENT, 128)}  # inner, columns


def parts(tables: Path, system: str) -> Iterator[Part]:
    """Prompts and steps with a cache of either type, and the products of the absorbed form."""
    engine, version = ENGINES.get(system, MAIN)
    for step in ("context", "generation"):
        rows = rows_of(tables / f"{step}_mla.parquet", system, engine, version)
        for cache, key_dtype in CACHE.items():
            some = rows[rows.kv_cache_dtype == cache]
            if len(some):
                yield Part(
                    kind="latent_attention",
                    name=f"bfloat16, {step}" + f", cache {cache}" * bool(key_dtype),
                    engine=f"{CALLED[engine]} {version}",
                    table=table_of(some, step == "generation", key_dtype),
                    shape=SHAPE,
                    draw=2000,
                )
    engine, version = PRODUCTS.get(system, MAIN)
    rows = rows_of(tables / "mla_bmm.parquet", system, engine, version)
    rows = rows[rows.dtype == "bfloat16"]
    if len(rows):
        yield Part(
            kind="matmul",
            name="bfloat16, of latent attention",
            engine=f"{CALLED[engine]} {version}",
            table=products_of(rows),
            shape=("batch", "inner"),
            draw=1000,
        )


def table_of(rows: pd.DataFrame, absorbed: bool, key_dtype: str) -> pd.DataFrame:
    """The rows in the columns of a dataset."""
    table = pd.DataFrame(
        {
            "batch": rows.batch,
            "query_heads": rows.query_heads,
            "query_length": rows.query_length,
            "key_length": rows.query_length + rows.past_length,
        }
    )
    fields = list(table.columns)
    table = table.assign(runtime_s=rows.latency_ms / 1000).groupby(fields, as_index=False).median()
    same: dict[str, Any] = {"dtype": "bfloat16", "phase": "forward", "latent": LATENT, "rope": 64}
    return table.assign(**same, absorbed=absorbed, causal=not absorbed, key_dtype=key_dtype)


def products_of(rows: pd.DataFrame) -> pd.DataFrame:
    """A product per head, in the columns of a dataset."""
    table = pd.DataFrame(
        {
            "batch": rows.query_heads,
            "rows": rows.tokens,
            "inner": rows.function.map(lambda name: SIDES[name][0]).astype(int),
            "columns": rows.function.map(lambda name: SIDES[name][1]).astype(int),
        }
    )
    fields = list(table.columns)
    table = table.assign(runtime_s=rows.latency_ms / 1000).groupby(fields, as_index=False).median()
    return table.assign(dtype="bfloat16", phase="forward")
