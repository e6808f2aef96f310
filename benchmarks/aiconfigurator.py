"""AIConfigurator's measurements of an H200, predicted by neuralpower, with published errors.

python -m benchmarks.aiconfigurator PATH [--save FILE]

PATH holds aiconfigurator/ (ai-dynamo/aiconfigurator, Apache-2.0) with h200_gemm, h200_context_attention and
h200_generation_attention.parquet. No choice used the errors on these rows, except for the learner's own
settings, see `held_out`. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.peers import flops_only, original, work
from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.data.schema import write_meta
from neuralpower.data.screening import Rows, screen
from neuralpower.layers import Hardware
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.tiles import chosen_tile
from neuralpower.layers.views import peak_flops
from neuralpower.learn.fitting import fit as regress
from neuralpower.learn.fitting.held_out import FOLDS, fit_residual
from neuralpower.learn.fitting.lasso import fit_base
from neuralpower.learn.fitting.problem import Problem, describe, describe_power
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.rows import SHORTEST_WITH_POWER_S, hardware_from
from neuralpower.learn.train import train
from neuralpower.platforms import platform_of
from neuralpower.report.cards import write_predictor

Array = np.ndarray

DEVICE = "nvidia-h200-sxm-141gb"
META = {
    "device": DEVICE,
    "hardware": {
        "accelerator": True,
        "cores": 132,
        "l2_bytes": 62914560,
        "llc_bytes": 62914560,
        "peak_flops_per_s": {"bfloat16": 989e12, "float8_e4m3fn": 1979e12, "float32": 67e12},
        "memory_bytes_per_s": 4.8e12,
        "limit_w": 700,
        "idle_w": None,
        "year": 2024,
    },
    "source": "ai-dynamo/aiconfigurator at 095f58a5 (Apache-2.0): vLLM 0.22.0, CUDA-graph replay, "
    "power by NVML",
}
DTYPES = {"bfloat16": "bfloat16", "fp8_block": "float8_e4m3fn"}
FEW = 5000  # training rows that the original learner is given: on all of them it takes hours
WIDEST, NARROW = 65536, 8192  # out_features that are predicted from narrower ones
TABLES = ("h200_gemm", "h200_context_attention", "h200_generation_attention")


def table_of(name: str, rows: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """(kind, its table) of one of AIConfigurator's files."""
    measured = {"runtime_s": rows.latency / 1000, "power_w": rows.power}
    if name == "h200_gemm":
        shape = {
            "rows": rows.m,
            "in_features": rows.k,
            "out_features": rows.n,
            "bias": False,
            "transposed": True,
        }
        return "linear", pd.DataFrame({"dtype": rows.gemm_dtype.map(DTYPES), **shape, **measured})
    context = name == "h200_context_attention"
    shape = {
        "batch": rows.batch_size,
        "query_heads": rows.num_heads,
        "key_heads": rows.num_key_value_heads,
        "query_length": rows.isl,
        "key_length": rows.isl + rows.step,  # a step's own key is in the cache by then
        "head_size": rows.head_dim,
        "causal": context,
        "masked": False,
        "window": rows.window_size,
        "key_itemsize": (rows.kv_cache_dtype == "fp8").astype(int),
    }
    return "attention", pd.DataFrame({"dtype": "bfloat16", **shape, **measured})


def write_dataset(root: Path, name: str, out: Path) -> Dataset:
    """One file as a dataset of its own."""
    kind, table = table_of(name, pd.read_parquet(root / f"{name}.parquet"))
    folder = out / name
    folder.mkdir(parents=True)
    write_meta(folder, META)
    table.to_parquet(folder / f"{kind}.parquet", index=False)
    return read_dataset(folder)


def parts(dataset: Dataset, hardware: Hardware) -> Iterator[tuple[str, Rows]]:
    """(dtype, rows) of each regressor, as `train` makes them."""
    for kind, table in dataset.tables.items():
        rows = screen(kind, table, hardware=hardware)
        group = np.broadcast_to(
            np.asarray(platform_of(hardware).alone.group(rows.layer)), (len(rows),)
        ).astype(str)
        dtype = np.asarray(rows.layer.dtype).astype(str)
        for some in sorted(set(zip(dtype, group, strict=True))):
            yield some[0], rows.at(np.flatnonzero((dtype == some[0]) & (group == some[1])))


@dataclass(frozen=True)
class Result:
    """Predictions of held-out rows, by method, and the bounds of neuralpower's; each [rows]."""

    measured: Array
    predicted: Mapping[str, Array]
    low: Array
    high: Array
    runtime_s: Array

    def at(self, index: Array) -> Result:
        """Some of the rows."""
        cut = {method: value[index] for method, value in self.predicted.items()}
        return Result(self.measured[index], cut, self.low[index], self.high[index], self.runtime_s[index])

    def line(self, method: str) -> str:
        """Median, 90th percentile and mean absolute percentage error, and the share in the interval."""
        error = 100 * np.abs(self.predicted[method] / self.measured - 1)
        share = 100 * np.mean((self.low <= self.measured) & (self.measured <= self.high))
        inside = f"{share:.0f} %" if method == "neuralpower" else ""
        return f"{np.median(error):.2f} | {np.percentile(error, 90):.1f} | {np.mean(error):.2f} | {inside}"


def joined(results: list[Result]) -> Result:
    """All rows of several results."""
    methods = results[0].predicted
    return Result(
        np.concatenate([r.measured for r in results]),
        {method: np.concatenate([r.predicted[method] for r in results]) for method in methods},
        np.concatenate([r.low for r in results]),
        np.concatenate([r.high for r in results]),
        np.concatenate([r.runtime_s for r in results]),
    )


def predicted(regressor: Regressor, asked: Problem) -> tuple[Array, Array, Array]:
    """(prediction, low, high), each [rows]."""
    value, outside = regressor.predict(asked)
    low, high = regressor.spread.bounds(value, outside)
    return value, value * np.exp(low), value * np.exp(high)


def refit(problem: Problem, like: regress.Fitted) -> Regressor:
    """A regressor fitted to other rows, with the old parts, reach, intervals, scores and alignment."""
    old = like.regressor
    base = fit_base(problem, like.parts)
    if old.alignment:
        saved = old.alignment.saved(problem.special, base.base(problem))
        problem = dataclasses.replace(problem, target=problem.target * np.exp(saved))
        base = fit_base(problem, like.parts)
    trees = fit_residual(problem, base) if old.trees is not None else None
    kept = {name: getattr(old, name) for name in ("reach", "alignment", "spread", "scores")}
    return dataclasses.replace(base, trees=trees, **kept)


def held_out(problem: Problem, asked: Problem) -> tuple[Array, Array, Array]:
    """(prediction, low, high) of each row by a fit without its fold.

    Bases, alpha, alignment, reach and intervals are chosen once, without the first fold; weights and trees
    are fitted ten times.
    """
    fold = (problem.config % np.uint64(FOLDS)).astype(int)
    settings = regress.fit(problem.at(fold != 0))
    result = np.empty((3, len(problem)))
    for one in range(FOLDS):
        regressor = refit(problem.at(fold != one), settings)
        result[:, fold == one] = predicted(regressor, asked.at(fold == one))
    return result[0], result[1], result[2]


def simple(known: Rows, asked: Rows, hardware: Hardware) -> dict[str, Array]:
    """What simpler predictors say of `asked`."""
    flops, moved = work(asked.layer, len(asked))
    peak = peak_flops(asked.layer, hardware)
    few = known.at(np.random.default_rng(0).permutation(len(known))[:FEW])
    return {
        "roofline": np.maximum(flops / peak, moved / hardware.memory_bytes_per_s),
        "FLOPs only": flops_only(work(known.layer, len(known))[0], known.runtime_s, flops),
        "original": original(few.layer, few.runtime_s, asked.layer),
    }


def whole_shapes(rows: Rows) -> Array:
    """A number per (in_features, out_features), to make folds of."""
    columns: Any = rows.layer
    return fingerprint(dataclasses.replace(columns, rows=np.ones(len(rows))))


def ten_folds(rows: Rows, hardware: Hardware, config: Array) -> Result:
    """Every row predicted without its fold."""
    problem = dataclasses.replace(describe(rows.layer, hardware, target=rows.runtime_s), config=config)
    value, low, high = held_out(problem, problem)
    others: dict[str, Array] = {}
    fold = (config % np.uint64(FOLDS)).astype(int)
    for one in range(FOLDS):
        for method, guess in simple(rows.at(fold != one), rows.at(fold == one), hardware).items():
            others.setdefault(method, np.empty(len(rows)))[fold == one] = guess
    return Result(rows.runtime_s, {"neuralpower": value, **others}, low, high, rows.runtime_s)


def widest(rows: Rows, hardware: Hardware) -> Result:
    """Products with WIDEST columns predicted by a fit of those with NARROW and fewer."""
    columns: Any = rows.layer
    known, asked = rows.at(columns.out_features <= NARROW), rows.at(columns.out_features == WIDEST)
    regressor = regress.fit(describe(known.layer, hardware, target=known.runtime_s)).regressor
    value, low, high = predicted(regressor, describe(asked.layer, hardware, target=asked.runtime_s))
    guesses = {"neuralpower": value, **simple(known, asked, hardware)}
    return Result(asked.runtime_s, guesses, low, high, asked.runtime_s)


def watts(rows: Rows, hardware: Hardware, runtime_s: Array, config: Array) -> Result:
    """Power predicted from predicted times, by fits without the row's shape."""
    long = rows.runtime_s >= SHORTEST_WITH_POWER_S
    rows, runtime_s, config = rows.at(long), runtime_s[long], config[long]
    known = describe_power(rows.layer, hardware, rows.runtime_s, rows.power_w)
    asked = describe_power(rows.layer, hardware, runtime_s, rows.power_w)
    value, low, high = held_out(dataclasses.replace(known, config=config), asked)
    return Result(rows.power_w, {"neuralpower": value}, low, high, rows.runtime_s)


def compiled(rows: Rows, hardware: Hardware) -> Array:
    """Whether a product's kernel was compiled right before its power was read, [rows], bool.

    DeepGEMM compiles a kernel for each (n, k) and tile, and these rows were measured from the largest m down.
    The meter tells the mean of the last second: where the device waited for a compiler, it starts near idle.
    """
    columns: Any = rows.layer
    sides = [
        np.broadcast_to(side, len(rows)) for side in (columns.rows, columns.out_features, columns.in_features)
    ]
    tile = chosen_tile(hardware, *sides)
    kernels = np.stack([*sides[1:], tile["tile_rows"], tile["tile_columns"], tile["tile_shared"]], axis=1)
    order = np.argsort(-sides[0], kind="stable")
    _, first = np.unique(kernels[order], axis=0, return_index=True)
    new = np.zeros(len(rows), dtype=bool)
    new[order[first]] = True
    return np.asarray(new & (np.asarray(rows.layer.itemsize) < 2))


def beside_mean(result: Result, shortest_s: float) -> Result:
    """The rows of `shortest_s` and more, and what the mean of them all would say."""
    result = result.at(result.runtime_s >= shortest_s)
    mean = np.full(len(result.measured), result.measured.mean())
    return dataclasses.replace(result, predicted={**result.predicted, "always the mean": mean})


def print_table(title: str, rows: Mapping[str, tuple[Result, str]]) -> None:
    """One line per error and method, published and neuralpower's."""
    print(
        f"\n{title}\n\n| | rows | predictor | median | 90th percentile | mean | in 90 % interval "
        f"|\n|{'---|' * 7}"
    )
    for name, (result, published) in rows.items():
        if published:
            print(f"| {name} | | AIConfigurator, published | {published} | | |")
        for method in result.predicted:
            print(f"| {name} | {len(result.measured)} | {method} | {result.line(method)} |", flush=True)


def main() -> None:
    """Import, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder that holds aiconfigurator/")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write the predictor of all three tables there"
    )
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.aiconfigurator needs a folder that holds AIConfigurator's measurements: skipped")
        return
    with tempfile.TemporaryDirectory() as temporary:
        datasets = {
            name: write_dataset(given.path / "aiconfigurator", name, Path(temporary)) for name in TABLES
        }
    hardware = hardware_from(datasets[TABLES[0]].meta)
    if given.save:
        trained = train(list(datasets.values())).predictor
        write_predictor(trained, given.save)
    products: dict[str, list[Result]] = {}
    power: dict[str, list[Result]] = {}
    apart: dict[str, list[Result]] = {}
    wide: dict[str, list[Result]] = {}
    for dtype, rows in parts(datasets["h200_gemm"], hardware):
        config = whole_shapes(rows)
        products.setdefault(dtype, []).append(ten_folds(rows, hardware, config))
        runtime_s = products[dtype][-1].predicted["neuralpower"]
        power.setdefault(dtype, []).append(watts(rows, hardware, runtime_s, config))
        new = compiled(rows, hardware)[rows.runtime_s >= SHORTEST_WITH_POWER_S]
        for name, some in (("kernel just compiled", new), ("kernel there", ~new)) if new.any() else ():
            apart.setdefault(f"{dtype}, {name}", []).append(power[dtype][-1].at(some))
        wide.setdefault(dtype, []).append(widest(rows, hardware))
    for table in (power, wide):
        table["both"] = [result for some in table.values() for result in some]
    lines = {
        f"{dtype}, whole (n, k) held out": (joined(found), "3.63 | 14.7") for dtype, found in products.items()
    }
    lines |= {
        f"{dtype}, n = {WIDEST:,} from n <= {NARROW:,}": (
            joined(found),
            "10.1 | 83" if dtype == "bfloat16" else "",
        )
        for dtype, found in wide.items()
    }
    for name in TABLES[1:]:
        found = [
            ten_folds(rows, hardware, fingerprint(rows.layer)) for _, rows in parts(datasets[name], hardware)
        ]
        lines[name.removeprefix("h200_").replace("_", " ")] = (
            joined(found),
            "2.00 | 9.7" if "context" in name else "1.1 | ",
        )
    print_table(
        "H200, runtime: absolute percentage error on rows that the fit has not seen, ten folds. "
        "AIConfigurator's are those that\nit prints for its own tables of H100, H200 and GB200 (n = 65,536: "
        "H200, vLLM 0.24.0): same protocol, other rows.\nThe original is NeuralPower's polynomial Lasso on "
        f"seconds, given {FEW:,} of the training rows.",
        lines,
    )
    print_table(
        "H200, power of matrix products, whole (n, k) held out, at the predicted runtime: absolute "
        "percentage error.",
        {
            f"{dtype}, {1e3 * shortest:.1f} ms and more": (beside_mean(joined(found), shortest), "")
            for dtype, found in power.items()
            for shortest in (SHORTEST_WITH_POWER_S, 2 * SHORTEST_WITH_POWER_S)
        }
        | {name: (joined(found), "") for name, found in apart.items()},
    )


if __name__ == "__main__":
    main()
