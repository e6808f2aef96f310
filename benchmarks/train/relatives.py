"""Train the predictor of all NVIDIA GPUs, `nvidia`, and one of each GPU measured here; hold whole GPUs out.

python -m benchmarks.train.relatives PATH [--dataset FOLDER ...] [--save DIR] [--hold-out] [--kinds NAME ...]

PATH holds neusight/ (see benchmarks/peers.py), aiconfigurator2/ (see benchmarks/gpu_tables) and
llmservingsim/: vLLM's layers by tokens, of its profiler (casys-kaist/LLMServingSim at 5daddb21, MIT).
--dataset adds folders that `collect-data` made on a GPU; each also gets its own predictor. --hold-out prints
errors of every kind on each GPU, held out. Rows are kernel times. NeuSight's rows include launch overhead:
most of it is subtracted, and rows that are hardly longer than a launch are skipped.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import gpu_tables
from benchmarks.peers import REPORTED, device_meta, kernels
from benchmarks.train.gpu_predictors import show
from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.data.screening import SHORTEST_KERNEL_S
from neuralpower.devices.spec import known_spec
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.columns import as_columns
from neuralpower.layers.rows import defaults, field_names
from neuralpower.learn.launch_overhead import Dispatch
from neuralpower.learn.networks.network_rows import read_totals
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.pricing import HIDDEN_SHARE
from neuralpower.learn.rows import hardware_from
from neuralpower.learn.train import train
from neuralpower.report.cards import write_predictor

NAME = "nvidia"
CONTRADICTORY = ("Tesla P4", "linear")  # two collections that do not describe the same machine
SOURCES = (
    "Lee et al., NeuSight, ASPLOS 2025 (MIT): PyTorch 2.1, float32; "
    "LLMServingSim at 5daddb21 (MIT): vLLM 0.19.0's layers, bfloat16; "
    "ai-dynamo/aiconfigurator at 095f58a5 (Apache-2.0): products and attention of engines; "
    "an H200 measured with collect-data: all kinds, bfloat16 and float32"
)
SHORTEST = 0.01  # the share of a kind's rows whose time is the launch
TELLING = 4.0  # times a launch: rows below say too little of the kernel
FIRST_LINE = 2  # of a table, below its header
HOST_BOUND = 0.9  # of the eager time: such a network's host never waited for the device
WARM_UP = 8  # llmservingsim: rows of fewer tokens were taken first, and are slower by chance
SERVED = {  # GPUs of llmservingsim, by the names that its tables have
    "RTX4090": "NVIDIA GeForce RTX 4090",
    "RTXPRO6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "RTX3090": "NVIDIA GeForce RTX 3090",
    "A6000": "NVIDIA RTX A6000",
    "H100": "NVIDIA H100 80GB HBM3",
}
# hidden, feed-forward, query heads, key heads, head size, vocabulary: the models' own config.json
MODELS = {
    "meta-llama/Llama-3.1-8B": (4096, 14336, 32, 8, 128, 128256),
    "meta-llama/Llama-3.1-70B": (8192, 28672, 64, 8, 128, 128256),
    "Qwen/Qwen3-32B": (5120, 25600, 64, 8, 128, 151936),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (2048, 768, 32, 4, 128, 151936),
    "mistralai/Mixtral-8x7B-v0.1": (4096, 14336, 32, 8, 128, 32000),
    "microsoft/Phi-mini-MoE-instruct": (4096, 960, 32, 8, 128, 32064),
}
AS_FUSED = 500  # rows of a kind that are taken for fused kernels, too
# Rows of a part of an engine's table: known GPUs are scarce, not rows. Twice as many products are drawn, as
# they make up most of a network's time.
DRAWN = 700
# What a GPU measured here teaches of itself: products and attention come from engines' tables, or relatives.
OWN_KINDS = [name for name in KINDS if name not in ("attention", "linear", "matmul")]
WIDELY = 160  # numbers of tokens that are drawn from 2,048, evenly in their logarithm


def without_launch(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of one operation that show the kernel's time, without the hidden part of a launch."""
    launch_s = float(table.runtime_s.quantile(SHORTEST))
    telling = table[table.runtime_s > TELLING * launch_s]
    return telling.assign(runtime_s=telling.runtime_s - HIDDEN_SHARE * launch_s)


def neusight(root: Path) -> Iterator[Dataset]:
    """A dataset of each GPU with training rows; convolutions of the A100 are of its larger sibling."""
    for device in REPORTED:
        tables = kernels(root / "kernels_train.parquet", device)
        tables = {kind: table for kind, table in tables.items() if (device, kind) != CONTRADICTORY}
        parts = {
            kind: pd.concat([without_launch(some) for _, some in table.groupby("op")], ignore_index=True)
            for kind, table in tables.items()
        }
        parts = {kind: table.drop(columns="op") for kind, table in parts.items() if len(table)}
        if parts:
            slug = device_meta(root, device)["device"]
            yield Dataset(Path(f"neusight-{slug}"), {"schema": 1, "device": slug, "source": SOURCES}, parts)


def served(root: Path) -> Iterator[Dataset]:
    """A dataset of each GPU of LLMServingSim: projections and embeddings, and the gated activation."""
    new, old = pd.read_parquet(root / "vllm_dense.parquet"), pd.read_parquet(root / "v0_layers.parquet")
    heads = pd.read_parquet(root / "vllm_per_sequence.parquet")
    new = new.assign(seconds=new.time_us * 1e-6)
    heads = heads.rename(columns={"sequences": "tokens"}).assign(seconds=heads.time_us * 1e-6)
    old = old.rename(columns={"layer_name": "layer"}).assign(seconds=old.latency_ns * 1e-9)
    old = _smoothed(old[old.gpu.isin(SERVED)])
    new = new.assign(engine=True)  # which looks up one row again and again: no time of an embedding
    rows = pd.concat([new, heads.assign(engine=True), old.assign(engine=False)])
    rows = rows[["gpu", "model", "tp", "layer", "tokens", "seconds", "engine"]]
    for gpu, some in rows.groupby("gpu"):
        spec = known_spec(SERVED[str(gpu)])
        if spec is None:
            print(f"{gpu}: no spec sheet of {SERVED[str(gpu)]}; skipped")
            continue
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in some.itertuples():
            found = _layer(row)
            if found is not None:
                kind, fields = found
                common = {"dtype": "bfloat16", "phase": "forward", "runtime_s": row.seconds}
                kinds.setdefault(kind, []).append({**common, **fields})
        tables = {kind: pd.DataFrame(some).drop_duplicates() for kind, some in kinds.items()}
        meta = {"schema": 1, "device": spec.slug, "source": SOURCES}
        yield Dataset(Path(f"llmservingsim-{spec.slug}"), meta, tables)


def of_engines(root: Path) -> Iterator[Dataset]:
    """A dataset of each GPU of AIConfigurator's tables: products and attention."""
    for name, system in gpu_tables.SYSTEMS.items():
        spec = known_spec(system.slug)
        if spec is None or spec.vendor != "NVIDIA":
            continue
        some = [part.thinned(DRAWN * (1 + (part.kind == "linear"))) for part in gpu_tables.parts(root, name)]
        if some:
            whole = gpu_tables.dataset(some, name)
            yield dataclasses.replace(whole, path=Path(f"aiconfigurator-{system.slug}"))


def _smoothed(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians of seven neighbours, at a few numbers of tokens: each row was measured once."""
    rows = rows.sort_values("tokens")
    by = ["gpu", "model", "tp", "layer"]
    median = rows.groupby(by).seconds.transform(lambda some: some.rolling(7, center=True).median())
    drawn = np.unique(np.geomspace(WARM_UP, 2040, WIDELY).astype(int))
    return rows.assign(seconds=median)[rows.tokens.isin(drawn) & median.notna()]


def _layer(row: Any) -> tuple[str, dict[str, Any]] | None:
    """(kind, fields) of a layer on one rank; None of those that are several kernels, or fused ones."""
    hidden, inner, heads, key_heads, size, vocabulary = MODELS[row.model]
    tp, tokens = int(row.tp), int(row.tokens)
    queries, keys = heads // tp * size, max(key_heads // tp, 1) * size
    sides = {
        "qkv_proj": (hidden, queries + 2 * keys),
        "q_proj": (hidden, queries),
        "k_proj": (hidden, keys),
        "o_proj": (queries, hidden),
        "gate_up_proj": (hidden, 2 * inner // tp),
        "up_proj": (hidden, inner // tp),
        "down_proj": (inner // tp, hidden),
        "lm_head": (hidden, vocabulary // tp),
    }
    if row.layer in sides:
        given, made = sides[row.layer]
        fields = {"rows": tokens, "in_features": given, "out_features": made, "bias": False}
        return "linear", fields
    moved = {  # numbers read and written for each token, and the width of rows that are reduced
        "layernorm": (2 * hidden, 2 * hidden, hidden),
        "final_layernorm": (2 * hidden, 2 * hidden, hidden),
        "rotary_emb": (queries + keys, queries + keys, 0),
        "act_fn": (2 * inner // tp, inner // tp, 0),
    }
    if row.layer in moved and row.engine:
        read, written, width = moved[row.layer]
        sizes = {"bytes_read": 2 * tokens * read, "bytes_written": 2 * tokens * written}
        return "fused", {**sizes, "operations": 4 * tokens * written, "row": width}
    if row.layer == "embedding" and not row.engine:
        return "embedding", {"tokens": tokens, "vocabulary": vocabulary // tp, "width": hidden}
    return None


def with_host(predictor: Predictor, dataset: Dataset) -> Predictor:
    """With how much longer a host took for whole networks than their layers say, where it set the pace."""
    if "network" not in dataset.tables or predictor.dispatch is None:
        return predictor
    table, said = dataset.tables["network"].reset_index(drop=True), predictor.dispatch
    totals, _ = read_totals(table, hardware_from(dataset.meta))
    eager_s = table.runtime_eager_s.to_numpy()
    free = [one for one in totals if one.dispatch_s > HOST_BOUND * eager_s[one.line - FIRST_LINE]]
    found = said.corrected(free)
    print(f"{len(free)} networks whose host sets the pace: {found.walk_s * 1e6:.1f} us around a call")
    return dataclasses.replace(predictor, dispatch=found)


def columns_of_table(kind: str, table: pd.DataFrame) -> Layer:
    """The layers of a table's rows, as columns; shards may lack those of later fields."""
    names = [name for name in field_names(KINDS[kind]) if name in table]
    table = table.fillna({name: value for name, value in defaults(KINDS[kind]).items() if name in names})
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in names}
    return as_columns(KINDS[kind], columns)


def devices_of(datasets: Sequence[Dataset]) -> list[str]:
    """In their order."""
    return list(dict.fromkeys(dataset.device for dataset in datasets))


def fitted(datasets: Sequence[Dataset]) -> Predictor:
    """One predictor of all of them."""
    return dataclasses.replace(train(list(datasets), jobs=1, show=show).predictor, name=NAME)


def held_out(datasets: Sequence[Dataset], device: str) -> pd.DataFrame:
    """A line for each kind and dtype of a GPU, by a predictor of the others."""
    others = [dataset for dataset in datasets if dataset.device != device]
    mine = [dataset for dataset in datasets if dataset.device == device]
    spec = known_spec(device)
    assert spec is not None
    trained = fitted(others).on(spec.hardware(), device)
    lines = []
    for dataset in mine:
        for kind, table in dataset.tables.items():
            if kind not in trained.kinds:
                continue
            for (dtype, phase), some in table.groupby(["dtype", "phase"]):
                lines.append(
                    {
                        "device": device,
                        "kind": kind,
                        "dtype": dtype,
                        "phase": phase,
                        **_errors(trained, kind, some),
                    }
                )
    return pd.DataFrame(lines)


def _errors(predictor: Predictor, kind: str, table: pd.DataFrame) -> dict[str, float]:
    """Mean and median absolute error of a kind's rows, and the share within the 90 % bounds."""
    found = predictor.estimate_columns(columns_of_table(kind, table))
    seconds = table.runtime_s.to_numpy()
    error = np.abs(found.runtime_s / seconds - 1)
    inside = (found.low_s <= seconds) & (seconds <= found.high_s)
    return {"rows": len(table), "mean": error.mean(), "median": np.median(error), "inside": inside.mean()}


def _by_slug(dataset: Dataset) -> Dataset:
    """With the device's name as its spec sheet has it, as the other sources'."""
    spec = known_spec(dataset.device)
    return (
        dataset if spec is None else dataclasses.replace(dataset, meta={**dataset.meta, "device": spec.slug})
    )


def with_fused(dataset: Dataset) -> Dataset:
    """With its passes over memory once more as fused kernels, which take what their bytes take, too."""
    parts = [dataset.tables["fused"]] if "fused" in dataset.tables else []
    for kind in ("elementwise", "activation", "norm", "softmax"):
        table = dataset.tables.get(kind)
        if table is None:
            continue
        table = table[(table.phase == "forward") & (table.runtime_s > SHORTEST_KERNEL_S)]
        table = table.iloc[:: max(len(table) // AS_FUSED, 1)]
        columns = columns_of_table(kind, table)
        moved, width = columns.bytes(), table.get("width", 0)
        parts.append(
            pd.DataFrame(
                {
                    "dtype": table.dtype,
                    "phase": table.phase,
                    "bytes_read": moved.input + moved.weights,
                    "bytes_written": moved.output,
                    "operations": columns.flops(),
                    "row": width,
                    "runtime_s": table.runtime_s,
                }
            )
        )
    tables = {**dataset.tables, **({"fused": pd.concat(parts, ignore_index=True)} if parts else {})}
    return dataclasses.replace(dataset, tables=tables)


def only(dataset: Dataset, kinds: Sequence[str]) -> Dataset:
    """Some kinds of it, all if none are named; forward passes, of which backward ones are made."""
    tables = {
        kind: table[table.phase == "forward"]
        for kind, table in dataset.tables.items()
        if kind != "network" and (not kinds or kind in kinds)
    }
    return dataclasses.replace(dataset, tables={kind: table for kind, table in tables.items() if len(table)})


def collected(folders: Sequence[str | Path]) -> list[Dataset]:
    """What `collect-data` measured on GPUs."""
    measured = [read_dataset(folder, samples=False) for folder in folders]
    return [with_fused(_by_slug(dataset)) for dataset in measured]


def every(path: Path, measured: Sequence[Dataset], kinds: Sequence[str]) -> list[Dataset]:
    """Some kinds of all that others measured, all if none are named, and of these datasets."""
    datasets = [*neusight(path / "neusight"), *served(path / "llmservingsim")]
    if not kinds or any(KINDS[kind].multiplies for kind in kinds):
        datasets += of_engines(path)
    datasets = [*map(with_fused, datasets), *measured]
    return [some for dataset in datasets if (some := only(dataset, kinds)).tables]


def main() -> None:
    """Train, write, hold out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--dataset", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.add_argument("--hold-out", action="store_true")
    parser.add_argument("--kinds", nargs="*", default=[])
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.train.relatives needs a folder that holds others' measurements: skipped")
        return
    measured = collected(given.dataset)
    datasets = every(given.path, measured, given.kinds)
    if given.save:
        hosts: list[Dispatch | None] = []
        for dataset in measured:
            own = with_host(train(only(dataset, given.kinds), jobs=1).predictor, dataset)
            kept = {key: one for key, one in own.regressors.items() if key[0] in OWN_KINDS}
            own = dataclasses.replace(own, regressors=kept)
            hosts.append(own.dispatch)
            spec = known_spec(dataset.device)
            file = given.save / f"{spec.slug if spec else dataset.name}-torch.json"
            write_predictor(dataclasses.replace(own, name=file.stem), file)
        together = dataclasses.replace(fitted(datasets), dispatch=next(iter(hosts), None))
        write_predictor(together, given.save / f"{NAME}.json")
    if given.hold_out:
        for device in reversed(devices_of(datasets)):
            lines = held_out(datasets, device)
            print(lines.to_string(index=False, float_format=lambda value: f"{value:.3f}"), flush=True)


if __name__ == "__main__":
    main()
