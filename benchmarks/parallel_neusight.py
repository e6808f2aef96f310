"""Training steps on four GPUs that NeuSight's authors measured: neuralpower and NeuSight.

PATH/neusight/published_distributed.csv, of github sitar-lab/NeuSight (MIT; Lee et al., "Forecasting GPU
Performance for Deep Learning Training and Inference", 2025): whole batches in float32 under data, tensor and
pipeline parallelism of four ranks; a pipeline has one micro-batch.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu_runs import folder_of
from benchmarks.peers import MODELS
from neuralpower.devices.cluster import Layout, enough_for
from neuralpower.devices.spec import find_spec
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request

RANKS = 4
LAYOUTS = {"DP": Layout(data=RANKS), "TP": Layout(tensor=RANKS), "PP": Layout(pipeline=RANKS)}
DEVICES = {"A100": "a100-sxm4-40gb", "H100": "h100-sxm"}


class Figure(NamedTuple):
    """One measured step."""

    model: str
    batch: int
    gpu: str
    way: str
    measured_s: float
    rival: float  # NeuSight's error


def figures(path: Path) -> Iterator[Figure]:
    """The figures of the table, two lines each: measured, then NeuSight's."""
    with path.open(encoding="utf-8") as file:
        gpus, ways, *lines = list(csv.reader(file))
    model, gpu = "", ""
    columns = []
    for i, way in enumerate(ways):
        gpu = gpus[i].partition("x")[0] or gpu
        columns.append((gpu, way))
    for measured, rival in zip(lines[::2], lines[1::2], strict=True):
        model = measured[0] or model
        for (device, way), value, said in zip(columns, measured, rival, strict=True):
            if way in LAYOUTS and value:
                predicted = float(re.split(r"[ (]", said)[0])
                yield Figure(
                    model, int(measured[1]), device, way, float(value) / 1e3, predicted / float(value) - 1
                )


def parallel_neusight(given: argparse.Namespace) -> None:
    """Steps on four GPUs."""
    root = given.path / "neusight"
    print("\nSteps of training on four GPUs, float32: errors.\n")
    print("| network | batch | GPUs | layout | measured, ms | neuralpower | NeuSight |\n|" + "---|" * 7)
    errors = []
    with tempfile.TemporaryDirectory() as temporary:
        for one in figures(root / "published_distributed.csv"):
            name, tokens = MODELS[one.model]
            config = json.loads((root / "DLmodel_configs" / f"{name}.json").read_text())
            spec, layout = find_spec(DEVICES[one.gpu]), LAYOUTS[one.way]
            case = Request(
                str(folder_of(config, name, Path(temporary))),
                one.batch // layout.data,
                tokens,
                layout=layout,
                cluster=enough_for(spec, layout),
            )
            found, _ = predict_request(replace(case, phase=Phase("training")), for_device(spec))
            error = found.runtime_s.value / one.measured_s - 1
            errors.append((abs(error), abs(one.rival)))
            print(
                f"| {one.model} | {one.batch} | {RANKS} {one.gpu} | {one.way} | {one.measured_s * 1e3:.1f} | "
                f"{error:+.1%} | {one.rival:+.1%} |",
                flush=True,
            )
    mean, rival = np.mean(errors, axis=0)
    print(f"| mean of {len(errors)} | | | | | {mean:.1%} | {rival:.1%} |")
