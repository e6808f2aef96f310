"""NeuSight's kernels and networks, predicted by neuralpower, by simpler and by published predictors.

python -m benchmarks.neusight PATH [--save FOLDER] [--trained FOLDER] [--without-portable]

PATH holds neusight/ (see benchmarks/peers.py). One predictor per GPU is trained on that GPU's training rows,
a portable one on all five; that takes half an hour on two cores, minutes with `--trained models`: those were
written by --save. Nothing is chosen by an error on test rows or measured networks, but for the form of the
portable predictor and the share of a launch that a queue hides (docs/accuracy.md). Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import graphs
from benchmarks.peers import (
    MODELS,
    REPORTED,
    TRAINED,
    Point,
    device_meta,
    flops_only,
    kernels,
    original,
    points,
    work,
    write_dataset,
)
from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.layers.columns import as_columns
from neuralpower.layers.rows import defaults, field_names
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.network_estimates import predict_many
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.rows import hardware_from
from neuralpower.learn.train import train
from neuralpower.report.cards import write_predictor

Array = np.ndarray

FAMILIES = {
    "linear": ("linear",),
    "batched matmul": ("matmul",),
    "element-wise": ("elementwise", "activation"),
    "softmax": ("softmax",),
    "layer norm": ("norm",),
}
PORTABLE = "nvidia-float32"
SHIPPED = ("nvidia-a100-pcie-40gb", "nvidia-v100-pcie-32gb", "nvidia-t4", "nvidia-p100-pcie-16gb", PORTABLE)
CONTRADICTORY = ("Tesla P4", "linear")  # its training and test rows do not describe the same machine
# Requests for memory delay a pass. The V100's three forward passes in training took 16 to 49 us
# longer for each segment than its own predictor says.
SEGMENT_S = 40e-6
METHODS = (
    "neuralpower",
    "NeuSight",
    "Li et al.",
    "Habitat",
    "Roofline",
)  # all but the first as NeuSight printed them


def columns_of_table(kind: str, table: pd.DataFrame) -> Layer:
    """The layers of a table's rows, as columns."""
    columns: dict[str, Any] = {name: [value] * len(table) for name, value in defaults(KINDS[kind]).items()}
    given = {name: table[name].to_numpy() for name in field_names(KINDS[kind]) if name in table}
    return as_columns(KINDS[kind], columns | given)


def roofline(columns: Layer, rows: int, hardware: Hardware) -> Array:
    """Seconds at the device's peaks."""
    flops, moved = work(columns, rows)
    return np.maximum(flops / hardware.peak_flops_per_s["float32"], moved / hardware.memory_bytes_per_s)


def baselines(known: pd.DataFrame, asked: pd.DataFrame, kind: str) -> dict[str, Array]:
    """Seconds of the asked rows by the simpler predictors, fitted per operation on rows of the same GPU."""
    found = {"FLOPs only": np.full(len(asked), np.nan), "original": np.full(len(asked), np.nan)}
    for operation in asked.op.unique():
        before, index = (
            known[(known.op == operation) & (known.runtime_s > 0)],
            (asked.op == operation).to_numpy(),
        )
        columns = [columns_of_table(kind, some) for some in (before, asked[index])]
        seconds = before.runtime_s.to_numpy()
        flops = [work(part, len(some))[0] for part, some in zip(columns, (before, asked[index]), strict=True)]
        found["FLOPs only"][index] = flops_only(flops[0], seconds, flops[1])
        found["original"][index] = original(columns[0], seconds, columns[1])
    return found


def kernel_errors(root: Path, device: str, predictor: Predictor) -> dict[str, dict[str, float]]:
    """By method, mean absolute percentage error on test rows of each family, and share in the interval."""
    hardware = hardware_from(device_meta(root, device))
    known, asked = (kernels(root / f"kernels_{part}.parquet", device) for part in ("train", "test"))
    errors: dict[str, dict[str, list[Array]]] = {}
    inside = []
    for family, kinds in FAMILIES.items():
        for kind in set(kinds) & set(asked):
            table = asked[kind]
            seconds, columns = table.runtime_s.to_numpy(), columns_of_table(kind, table)
            estimates = predictor.estimate_columns(columns)
            predicted = {
                "neuralpower": estimates.runtime_s,
                "roofline": roofline(columns, len(table), hardware),
            }
            if device in TRAINED:
                predicted |= baselines(known[kind], table, kind)
            for method, value in predicted.items():
                errors.setdefault(method, {}).setdefault(family, []).append(100 * np.abs(value / seconds - 1))
            if (device, kind) != CONTRADICTORY:
                inside.append((estimates.low_s <= seconds) & (seconds <= estimates.high_s))
    means = {
        method: {f: float(np.mean(np.concatenate(e))) for f, e in by.items()} for method, by in errors.items()
    }
    means["neuralpower"]["in interval"] = 100 * float(np.mean(np.concatenate(inside)))
    return means


def print_kernels(
    root: Path, title: str, devices: Iterable[str], predictor_of: Callable[[str], Predictor]
) -> None:
    """One table of all devices: methods against families."""
    columns = (*FAMILIES, "in interval")
    print(f"\n{title}\n\n| GPU | predictor | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for device in devices:
        for method, means in kernel_errors(root, device, predictor_of(device)).items():
            cells = [f"{means[column]:.1f}" if column in means else "" for column in columns]
            print(f"| {device} | {method} | {' | '.join(cells)} |", flush=True)


def predicted(root: Path, point: Point, mode: str, predictor: Predictor) -> Array:
    """(seconds, low, high) of the point's network: its passes, which were measured one after the other."""
    stem, length = MODELS[point.model]
    config, batch_size = root / "DLmodel_configs" / f"{stem}.json", point.batch_size
    passes = [graphs.forward(config, mode, batch_size, length)]
    if mode == "train":
        passes.append(graphs.backward(config, batch_size, length))
    totals = predict_many(predictor, passes)
    asking_s = graphs.segments(config, mode, batch_size, length) * SEGMENT_S
    return np.array([np.sum(part) + asking_s for part in (totals.value, totals.low, totals.high)])


def print_networks(
    root: Path, title: str, mode: str, asked: Sequence[Point], predictor_of: Callable[[str], Predictor]
) -> pd.DataFrame:
    """One row per network; returns absolute percentage errors by method, and `inside` the interval."""
    print(f"\n{title}\n\n| GPU | network | batch | measured, ms | predicted, ms | {' | '.join(METHODS)} |")
    print(f"|{'---|' * (5 + len(METHODS))}")
    found = []
    for device in dict.fromkeys(point.device for point in asked):
        some = [point for point in asked if point.device == device]
        for point in some:
            value, low, high = predicted(root, point, mode, predictor_of(device))
            error = 100 * (value / point.measured_s - 1)
            others = " | ".join(f"{point.errors[method]:.1f}" for method in METHODS[1:])
            times = f"{1e3 * point.measured_s:.1f} | {1e3 * value:.1f}"
            print(
                f"| {device} | {point.model} | {point.batch_size} | {times} | {error:+.1f} | {others} |",
                flush=True,
            )
            found.append({METHODS[0]: abs(error), **point.errors, "inside": low <= point.measured_s <= high})
    return pd.DataFrame(found)


def print_summary(results: Mapping[str, pd.DataFrame]) -> None:
    """Mean and median of every method over each set of networks."""
    print(
        "\nAll networks: mean / median absolute percentage error, and how many lie in neuralpower's 90 % "
        "interval.\n"
    )
    print(f"| networks | n | {' | '.join(METHODS)} | in interval |\n|{'---|' * (3 + len(METHODS))}")
    for name, errors in results.items():
        cells = [f"{errors[method].mean():.1f} / {errors[method].median():.1f}" for method in METHODS]
        print(f"| {name} | {len(errors)} | {' | '.join(cells)} | {int(errors.inside.sum())} |")


def fitted(datasets: Sequence[Dataset], name: str) -> Predictor:
    """A predictor of these datasets."""
    return dataclasses.replace(train(datasets, jobs=2).predictor, name=name)


def known_or_fitted(dataset: Dataset, folder: Path | None) -> Predictor:
    """The device's predictor out of the folder where it is there, else one that is trained now."""
    file = folder / f"{dataset.name}.json" if folder else None
    return load(file) if file and file.exists() else fitted([dataset], dataset.name)


def consistent(device: str, dataset: Dataset) -> Dataset:
    """The dataset without tables that do not describe the device: they say nothing about others."""
    kinds = {kind: table for kind, table in dataset.tables.items() if (device, kind) != CONTRADICTORY}
    return dataclasses.replace(dataset, tables=kinds)


def main() -> None:
    """Train, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder that holds neusight/")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the trained predictors there")
    parser.add_argument("--trained", type=Path, metavar="FOLDER", help="take predictors that lie there")
    parser.add_argument(
        "--without-portable", action="store_true", help="leave out what needs the portable predictor"
    )
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.neusight needs a folder that holds NeuSight's measurements: skipped")
        return
    root = given.path / "neusight"
    with tempfile.TemporaryDirectory() as temporary:
        datasets = {device: read_dataset(write_dataset(root, device, Path(temporary))) for device in TRAINED}
        predictors = {device: known_or_fitted(dataset, given.trained) for device, dataset in datasets.items()}
        together = [consistent(device, dataset) for device, dataset in datasets.items()]
        file = given.trained / f"{PORTABLE}.json" if given.trained else None
        portable = None
        if not given.without_portable:
            shipped = file is not None and file.exists()
            portable = load(file) if file is not None and shipped else fitted(together, PORTABLE)
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        for predictor in (*predictors.values(), *([portable] if portable else ())):
            if predictor.name in SHIPPED:
                write_predictor(predictor, given.save / f"{predictor.name}.json")
    inference = list(points(root, "inf"))
    unseen = [device for device in REPORTED if device not in TRAINED]

    def predictor_of(device: str) -> Predictor:
        if device in predictors or portable is None:
            return predictors[device]
        return portable.on(hardware_from(device_meta(root, device)), find_spec(device).slug)

    print_kernels(
        root,
        "Kernels, same device: mean absolute percentage error on each GPU's test rows, which no fit has "
        "seen; the predictor\nand the fitted baselines were trained on that GPU's training rows. "
        "Tesla P4's two collections of linear layers\ncontradict each other. Last column: share of test rows "
        "(without those) in the predicted 90 % interval.",
        TRAINED,
        predictor_of,
    )
    same = print_networks(
        root,
        "Networks, inference, same device: the predictor was trained on kernels of that GPU and saw no "
        "network. Error in percent\nof the whole network's time; those of the others, absolute, as NeuSight "
        "printed them.",
        "inf",
        [point for point in inference if point.device in TRAINED],
        predictor_of,
    )
    results = {"inference, same device": same}
    if portable is not None:
        print_kernels(
            root,
            "Kernels, zero-shot: the same errors of one portable predictor of the five GPUs above, on GPUs "
            "that it knows from\ntheir data sheets alone.",
            unseen,
            predictor_of,
        )
        zero = print_networks(
            root,
            "Networks, inference, zero-shot: the portable predictor, on GPUs that it knows from their data "
            "sheets alone.",
            "inf",
            [point for point in inference if point.device in unseen],
            predictor_of,
        )
        results |= {"inference, zero-shot": zero, "inference, all": pd.concat([same, zero])}
        results["training"] = print_networks(
            root,
            "Networks, training step (forward and backward): the V100's own predictor, zero-shot for the "
            "others. No backward\npass of a kernel was measured; they are made of forward passes "
            "(`Layer.backward`).",
            "train",
            list(points(root, "train")),
            predictor_of,
        )
    print_summary(results)


if __name__ == "__main__":
    main()
