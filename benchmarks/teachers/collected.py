"""Calls that collect-data measured on a GPU: forward passes of the datasets in this checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from neuralpower.data.dataset import read_dataset
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.base import FORWARD
from neuralpower.layers.rows import from_row
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.prior_fit import CALL_NOISE, Observation

DATASETS = ("datasets/nvidia-h200-sxm-141gb",)
WEIGHT = 0.3  # of a call, which repeats what its neighbours in a sweep say
SHORTEST_S = 2e-5  # a call that is little but its launch says nothing of a factor
MOST = 8.0  # times its law: slower ones run code that networks avoid, and no trait tells it apart


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
            layer = from_row(KINDS[kind], {str(name): value for name, value in row.items()})
            if not layer.recurs and _usual(layer, hardware, row["runtime_s"]):
                yield Observation(
                    spec.slug, hardware, (layer,), np.ones(1), row["runtime_s"], WEIGHT, CALL_NOISE, spec.chip
                )


def _usual(layer: Layer, hardware: Hardware, seconds: float) -> bool:
    """Whether the call is one that networks make: it fits vectors and tensor cores, and is not far off."""
    columns = columns_of(type(layer), [layer])
    least = laws.least_s(columns, hardware)[0]
    return bool(least > 0 and seconds < MOST * least and not laws.loose(columns)[0])
