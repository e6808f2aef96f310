"""Attention: context_attention.parquet, generation_attention.parquet and encoder_attention.parquet.

Which engine's rows: the newest vLLM's. On the A100 prompts are SGLang's, steps vLLM 0.14's, and SGLang's
where vLLM has no rows or wrong ones: it does not split the keys of one or two heads, so that a step takes up
to 34 times as long. SGLang's steps of grouped heads take 170 us where a run of it that was measured whole
leaves about 80 for them, and vLLM's rows say 97. TensorRT-LLM's steps on B200 and GB200 read their cache
faster than memory, and are not used. A shape that was measured several times has the median of its times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.gpu_tables import Part, rows_of
from benchmarks.gpu_tables.products import CALLED, MAIN

SHAPE = ("query_heads", "key_heads", "head_size", "window")
SIDES = ("batch", "query_length", "key_length")
DRAWS = {"context": 14000, "generation": 12000, "encoder": 3000}
# Where the cache is of a shorter type: mostly the same kernels, fewer rows tell.
DRAW_OF_SHORT_KEYS = 6000
ENGINES = {"a100_sxm": ("sglang", "0.5.10"), "b60": ("vllm", "0.20.0")}
STEPS_OF_BOTH, OLDER, FEW_HEADS = ("generation", "a100_sxm"), ("vllm", "0.14.0"), 2
LONG = 16384
BEYOND = {
    f"more than {LONG:,} keys from below": (lambda x: x.key_length <= LONG, lambda x: x.key_length > LONG)
}
CACHE = {"bfloat16": "", "fp8": "float8_e4m3fn"}


def parts(tables: Path, system: str) -> Iterator[Part]:
    """Prompts and steps, each with a cache of either type, and encoders."""
    engine, version = ENGINES.get(system, MAIN)
    for step in ("context", "generation"):
        rows = rows_of(tables / f"{step}_attention.parquet", system, engine, version)
        if (step, system) == STEPS_OF_BOTH:
            yield from steps_of_both(tables, system, rows)
            continue
        for cache, key_dtype in CACHE.items():
            some = rows[(rows.attn_dtype == "bfloat16") & (rows.kv_cache_dtype == cache)]
            if len(some):
                yield Part(
                    kind="attention",
                    name=f"bfloat16, {step}" + f", cache {cache}" * bool(key_dtype),
                    engine=f"{CALLED[engine]} {version}",
                    table=decoder_table(some, key_dtype),
                    shape=SHAPE,
                    draw=DRAW_OF_SHORT_KEYS if key_dtype else DRAWS[step],
                    beyond=BEYOND,
                )
    rows = rows_of(tables / "encoder_attention.parquet", system, *MAIN)
    if len(rows):
        yield Part(
            kind="attention",
            name="bfloat16, encoder",
            engine=f"{CALLED[MAIN[0]]} {MAIN[1]}",
            table=encoder_table(rows),
            shape=SHAPE,
            draw=DRAWS["encoder"],
        )


def steps_of_both(tables: Path, system: str, rows: pd.DataFrame) -> Iterator[Part]:
    """Steps of vLLM with more than FEW_HEADS heads; of missing shapes `rows`, which are another engine's."""
    heads = ["query_heads", "key_heads", "head_size"]
    first = rows_of(tables / "generation_attention.parquet", system, *OLDER)
    first = first[first.query_heads > FEW_HEADS]
    known = set(first[heads].itertuples(index=False, name=None))
    rest = rows[[shape not in known for shape in rows[heads].itertuples(index=False, name=None)]]
    for (engine, version), some in ((OLDER, first), (ENGINES[system], rest)):
        yield Part(
            kind="attention",
            name="bfloat16, generation",
            engine=f"{CALLED[engine]} {version}",
            table=decoder_table(some, ""),
            shape=SHAPE,
            draw=DRAWS["generation"],
            beyond=BEYOND,
        )


def decoder_table(rows: pd.DataFrame, key_dtype: str) -> pd.DataFrame:
    """Causal attention over a cache, in the columns of a dataset; a step's own key is in it by then."""
    table = pd.DataFrame(
        {
            "query_heads": rows.query_heads,
            "key_heads": rows.key_heads,
            "head_size": rows.head_size,
            "window": rows.window.fillna(0).astype(int),
            "batch": rows.batch,
            "query_length": rows.query_length,
            "key_length": rows.query_length + rows.past_length,
            "causal": rows.past_length == 0,
        }
    )
    return finished(table.assign(key_dtype=key_dtype), rows)


def encoder_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Attention of all to all, in the columns of a dataset."""
    table = pd.DataFrame(
        {
            "query_heads": rows.heads,
            "key_heads": rows.heads,
            "head_size": rows.head_size,
            "window": 0,
            "batch": rows.batch,
            "query_length": rows.sequence,
            "key_length": rows.sequence,
            "causal": False,
        }
    )
    return finished(table.assign(key_dtype=""), rows)


def finished(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """With times and, where known, watts: the median of what was measured several times."""
    fields = list(table.columns)
    table = table.assign(runtime_s=rows.latency_ms / 1000, power_w=rows.power_w)
    table = table.groupby(fields, as_index=False, sort=True).median()
    table = table.assign(dtype="bfloat16", phase="forward", masked=False)
    return table if table.power_w.notna().any() else table.drop(columns="power_w")
