"""Power of the GPU tables: rows with watts, regressors of power alone, and errors on held-out shapes.

Watts were recorded on H200, B200 and GB200 with vLLM 0.22.0, which is older than the rows that train times.
So power has its own training rows, each with the time of its recording. Calls of less than 0.1 ms are
skipped, because a meter that is read every 100 ms shows little of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.aiconfigurator import predicted, refit
from benchmarks.gpu_held_out import Errors, joined
from benchmarks.gpu_tables import FOLDER, Part, attention, experts, products, rows_of
from neuralpower.data.screening import Rows, screen
from neuralpower.layers import Hardware
from neuralpower.learn.fitting.fit import fit
from neuralpower.learn.fitting.held_out import FOLDS
from neuralpower.learn.fitting.problem import FEWEST_ROWS, describe, describe_power
from neuralpower.learn.rows import SHORTEST_WITH_POWER_S
from neuralpower.platforms import platform_of

ENGINE, VERSION = "vllm", "0.22.0"
POWERED = ("h200_sxm", "b200_sxm", "gb200")
DRAW = 3000
AT_CAP = 0.97  # of the limit: from here on the cap sets the power


def parts(root: Path, system: str) -> Iterator[Part]:
    """Products, attention and experts with watts; none of a system without."""
    if system not in POWERED:
        return
    for kind, name, table, shape in tables(root / FOLDER, system):
        long = table[table.runtime_s >= SHORTEST_WITH_POWER_S].dropna(subset="power_w").reset_index(drop=True)
        if len(long) >= FEWEST_ROWS:
            yield Part(kind=kind, name=name, engine=f"vLLM {VERSION}", table=long, shape=shape, draw=DRAW)


def tables(folder: Path, system: str) -> Iterator[tuple[str, str, pd.DataFrame, tuple[str, ...]]]:
    """(kind, name, table in a dataset's columns, columns of a shape) of each."""
    rows = rows_of(folder / "gemm.parquet", system, ENGINE, VERSION)
    for name, fields in products.DTYPES.items():
        some = rows[rows.dtype == name]
        if len(some):
            table = products.table_of(some, fields).assign(power_w=some.power_w.to_numpy())
            yield "linear", name, table, products.SHAPE
    for step in ("context", "generation"):
        rows = rows_of(folder / f"{step}_attention.parquet", system, ENGINE, VERSION)
        for cache, key_dtype in attention.CACHE.items():
            some = rows[(rows.attn_dtype == "bfloat16") & (rows.kv_cache_dtype == cache)]
            if len(some):
                name = f"bfloat16, {step}" + f", cache {cache}" * bool(key_dtype)
                yield "attention", name, attention.decoder_table(some, key_dtype), attention.SHAPE
    rows = rows_of(folder / "moe.parquet", system, ENGINE, VERSION)
    for name in ("bfloat16", "fp8", "fp8_block", "nvfp4"):
        some = rows[rows.dtype == name]
        if len(some):
            yield "experts", name, experts.table_of(some, experts.FORMATS[name]), experts.SHAPE


def shapes(part: Part, hardware: Hardware, folds: int) -> Iterator[tuple[str, Errors]]:
    """Watts of the first `folds` tenths of the shapes, at predicted times, by fits of the others.

    Rows at the cap and below it apart.
    """
    rows = screen(part.kind, part.table, hardware=hardware)
    at = rows.line - 2  # a table's first row is line 2 of its file
    number = part.shapes()
    fold = np.random.default_rng(0).permutation(len(number))[number[at]] % FOLDS
    drawn = part.drawn()[at]
    group = np.broadcast_to(np.asarray(platform_of(hardware).alone.group(rows.layer)), (len(rows),))
    found = []
    for name in np.unique(group.astype(str)):
        index = np.flatnonzero(group == name)
        if drawn[index].sum() >= 10 * FEWEST_ROWS:
            found.append(_held_out(rows.at(index), fold[index], drawn[index], hardware, folds))
    everything = joined(found)
    capped = everything.measured >= AT_CAP * (hardware.limit_w or np.inf)
    for name, some in (("below the cap", ~capped), ("at the cap", capped)):
        cut = {field.name: getattr(everything, field.name)[some] for field in dataclasses.fields(everything)}
        yield name, Errors(**cut)


def _held_out(rows: Rows, fold: np.ndarray, drawn: np.ndarray, hardware: Hardware, folds: int) -> Errors:
    """The rows of one regressor: settings are chosen once, without the first fold."""
    times = describe(rows.layer, hardware, target=rows.runtime_s)
    watts = describe_power(rows.layer, hardware, rows.runtime_s, rows.power_w)
    first = np.flatnonzero(drawn & (fold != 0))
    time_settings, settings = fit(times.at(first)), fit(watts.at(first))
    found = []
    for one in range(folds):
        known, asked = np.flatnonzero(drawn & (fold != one)), np.flatnonzero(fold == one)
        if len(asked):
            runtime_s, _, _ = predicted(refit(times.at(known), time_settings), times.at(asked))
            problem = describe_power(rows.at(asked).layer, hardware, runtime_s, rows.power_w[asked])
            low_high = predicted(refit(watts.at(known), settings), problem)
            floor, limit = hardware.idle_w or 0.0, hardware.limit_w or np.inf
            value, low, high = (np.clip(bound, floor, limit) for bound in low_high)
            found.append(Errors(rows.power_w[asked], value, low, np.maximum(high, value)))
    return joined(found)
