"""For benchmarks on others' measurements: simpler predictors, and NeuSight's measurements as datasets.

NeuSight is Lee et al., ASPLOS 2025. Its folder, neusight/, holds kernels_train.parquet and
kernels_test.parquet (one row per kernel and GPU), device_configs/ (one JSON per GPU),
networks_e2e_measured.csv (ms) and published_nvidia_{inf,train}.csv (the absolute errors that it printed, in
percent).
"""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neuralpower.data.schema import write_meta
from neuralpower.devices.spec import find_spec
from neuralpower.layers import Layer

Array = np.ndarray

FLOAT = "float32"
REPORTED = {  # device name in the tables -> file of its configuration
    "NVIDIA A100-PCIE-40GB": "NVIDIA_A100-PCIE-40GB",
    "Tesla V100-PCIE-32GB": "Tesla_V100-PCIE-32GB",
    "Tesla P100-PCIE-16GB": "Tesla_P100-PCIE-16GB",
    "Tesla T4": "Tesla_T4",
    "Tesla P4": "Tesla_P4",
    "NVIDIA H100 80GB HBM3": "NVIDIA_H100_80GB_HBM3",
    "NVIDIA L4": "NVIDIA_L4",
    "NVIDIA A100 80GB PCIe": "NVIDIA_A100_80GB_PCIe",
}
TRAINED = tuple(REPORTED)[:5]  # GPUs with training rows
MODELS = {
    "BERT-Large": ("bert_large", 512),
    "GPT2-Large": ("gpt2_large", 1024),
    "GPT3-XL": ("gpt3_xl", 2048),
    "OPT-1.3B": ("opt_13", 2048),
    "GPT3-2.7B": ("gpt3_27", 2048),
    "SwitchTrans": ("switchxl4", 512),
}  # printed name -> configuration, tokens
ACTIVATIONS = ("relu", "gelu", "tanh")
ELEMENTWISE = ("add", "mul", "div", "pow")  # of two tensors; with a trailing u of a tensor and a number


def table_of(operation: str, rows: pd.DataFrame) -> tuple[str, dict[str, Any]]:
    """(kind, its columns) of the rows of one operation."""
    if operation == "linear":
        return "linear", {
            "rows": rows.B * rows.M,
            "in_features": rows.N,
            "out_features": rows.K,
            "bias": True,
        }
    if operation == "bmm":
        return "matmul", {"batch": rows.B, "rows": rows.M, "inner": rows.N, "columns": rows.K}
    if operation == "softmax":
        return "softmax", {"rows": rows.B, "width": rows.H}
    if operation == "ln":
        return "norm", {"function": "layer", "rows": rows.B, "width": rows.H, "spatial": 1}
    if operation in ACTIVATIONS:
        return "activation", {"function": operation, "elements": rows.B * rows.H}
    if operation.removesuffix("u") in ELEMENTWISE:
        function = operation.removesuffix("u")
        operands = 1 if operation.endswith("u") else 2
        elements = rows.B * rows.H
        return "elementwise", {
            "function": function,
            "elements": elements,
            "operands": operands,
            "broadcast": False,
        }
    columns = {"batch": rows.B, "in_channels": rows.Input_Channel, "out_channels": rows.Output_Channel}
    sizes: dict[str, Any] = {"in": rows.Input_Size, "kernel": rows.Kernel_Size, "stride": rows.Stride}
    sizes |= {"padding": rows.Padding, "dilation": 1}
    columns |= {f"{name}_{axis}": size for name, size in sizes.items() for axis in ("height", "width")}
    return "conv2d", {**columns, "groups": 1, "bias": False}


def kernels(file: Path, device: str) -> dict[str, pd.DataFrame]:
    """Tables by kind, with the columns that a dataset needs and `op`, of one device's rows."""
    rows = pd.read_parquet(file)
    parts: dict[str, list[pd.DataFrame]] = {}
    for operation, some in rows[rows.device == device].groupby("op"):
        kind, columns = table_of(str(operation), some)
        table = pd.DataFrame({"dtype": FLOAT, "phase": "forward", **columns}, index=some.index)
        table = table.assign(runtime_s=some.latency_ms / 1000, op=operation)
        parts.setdefault(kind, []).append(table)
    return {kind: pd.concat(tables, ignore_index=True) for kind, tables in parts.items()}


def device_meta(root: Path, device: str) -> dict[str, Any]:
    """`dataset.json` of a device: peaks from NeuSight's file, all else from the spec sheet."""
    config = json.loads((root / "device_configs" / f"{REPORTED[device]}.json").read_text())
    spec = find_spec(device)
    cache = int(config["L2Cache"] * 2**20)
    hardware = {
        "accelerator": True,
        "cores": int(spec.get("cores") or config["Num_Sm"]),  # that file has twice a P4's number
        "l2_bytes": cache,
        "llc_bytes": cache,
        "peak_flops_per_s": {FLOAT: config["SingleFLOPs"] * 1e9},
        "memory_bytes_per_s": config["Mem_Bw"] * 1e9,
        "base_clock": spec.hardware().base_clock,
        "limit_w": spec.get("limit_w"),
        "year": spec.year,
        "lanes_per_scheduler": spec.hardware().lanes_per_scheduler,
    }
    how = "PyTorch 2.1, CUDA 12.1, float32, mean of the 5 fastest of 25"
    source = f"Lee et al., NeuSight, ASPLOS 2025 (MIT): {how}"
    return {"schema": 1, "device": spec.slug, "hardware": hardware, "source": source, "includes_launch": True}


def write_dataset(root: Path, device: str, out: Path) -> Path:
    """One device's training rows as a folder that `read_dataset` reads."""
    meta = device_meta(root, device)
    folder = out / str(meta["device"])
    folder.mkdir(parents=True)
    write_meta(folder, meta)
    for kind, table in kernels(root / "kernels_train.parquet", device).items():
        table.drop(columns="op").to_parquet(folder / f"{kind}.parquet", index=False)
    return folder


def work(columns: Layer, rows: int) -> tuple[Array, Array]:
    """(FLOP, bytes) of each row."""
    return np.broadcast_to(columns.flops(), rows), np.broadcast_to(sum(columns.bytes()), rows)


def flops_only(train_flops: Array, train_s: Array, flops: Array) -> Array:
    """Seconds per FLOP of least mean absolute percentage error on the training rows: a weighted median."""
    ratio = train_s / train_flops
    order = np.argsort(ratio)
    weight = np.cumsum(1 / ratio[order])
    return np.asarray(flops * ratio[order][np.searchsorted(weight, weight[-1] / 2)])


def original(known: Layer, known_s: Array, asked: Layer) -> Array:
    """NeuralPower as published: a Lasso of a cubic polynomial, FLOP and bytes, on seconds, ten folds."""
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    def variables(columns: Layer, rows: int) -> tuple[Array, Array]:
        return np.column_stack([getattr(columns, name) for name in columns.dimensions]), np.column_stack(
            work(columns, rows)
        )

    best: tuple[float, Array] | None = None
    for degree in (1, 2, 3):
        power = PolynomialFeatures(degree, include_bias=False)
        x, special = variables(known, len(known_s))
        model = make_pipeline(
            StandardScaler(), LassoCV(cv=KFold(10, shuffle=True, random_state=0), max_iter=5000)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the polynomial's columns are nearly collinear
            model.fit(np.hstack([power.fit_transform(x), special]), known_s)
        error = float(model[-1].mse_path_.mean(axis=1).min())
        x, special = variables(asked, len(np.atleast_1d(asked.dtype)))
        if best is None or error < best[0]:
            best = error, model.predict(np.hstack([power.transform(x), special]))
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Point:
    """One network on one GPU: what it took, and by how many percent others' predictions were off."""

    device: str
    model: str
    batch_size: int
    measured_s: float
    errors: dict[str, float]  # method -> absolute percentage error


def points(root: Path, mode: str) -> Iterator[Point]:
    """The published points of a mode, "inf" or "train", with their measurements."""
    measured = pd.read_csv(root / "networks_e2e_measured.csv")
    measured = measured[(measured["mode"] == mode) & measured.option.isna()]
    times = measured.set_index(["device", "model", "seqlen", "batch"]).e2e_latency / 1000
    devices = {file: name for name, file in REPORTED.items()}
    with (root / f"published_nvidia_{mode}.csv").open() as file:
        lines = [line for line in csv.reader(file) if any(line)]
    for start in range(0, len(lines), 7):
        (name, *_), (_, *models), (_, *batches), *methods = lines[start : start + 7]
        for column, batch in enumerate(batches):
            model = models[column] or models[column - 1]
            errors = {method: float(cells[column]) for method, *cells in methods if cells[column]}
            if errors:
                stem, length = MODELS[model]
                yield Point(
                    devices[name], model, int(batch), float(times[name, stem, length, int(batch)]), errors
                )
