"""Calls that collect-data measured on a GPU: forward passes of the datasets in this checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from neuralpower.data.dataset import read_dataset
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS
from neuralpower.layers.base import FORWARD
from neuralpower.learn.prior_fit import CALL_NOISE, Observation

DATASETS = ("datasets/nvidia-h200-sxm-141gb",)
WEIGHT = 0.3  # of a call, which repeats what its neighbours in a sweep say
SHORTEST_S = 4e-6  # a call that is little but its launch says nothing of a factor


def observations(root: Path) -> list[Observation]:
    """One for each usable row; `root` is the checkout."""
    return [one for name in DATASETS for one in _of(root / name)]


def _of(folder: Path) -> Iterator[Observation]:
    dataset = read_dataset(folder)
    spec = find_spec(dataset.device)
    hardware = spec.hardware()
    for kind, table in dataset.tables.items():
        if kind not in KINDS:
            continue
        for row in table.to_dict("records"):
            if (
                row.get("phase") != FORWARD
                or row.get("status", "ok") != "ok"
                or not row["runtime_s"] > SHORTEST_S
            ):
                continue
            layer = KINDS[kind].from_row(row)
            if sum(layer.bytes()) + layer.flops() > 0 and not layer.recurs:
                yield Observation(
                    spec.slug, hardware, (layer,), np.ones(1), row["runtime_s"], WEIGHT, CALL_NOISE, spec.chip
                )
