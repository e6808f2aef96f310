"""Operators of torch in float32 on Macs and on a V100 (PATH/mlx, MIT; TristanBilot/mlx-benchmark).

Each is built on meta tensors as its benchmark builds it, and traced. Times hold the wait for the device.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.learn.unmeasured.prior_fit import CALL_NOISE, Observation
from neuralpower.trace.tracer import trace_call

WEIGHT = 1.0  # nothing else is known of these chips
SHORTEST_S = 1e-3  # below, launch and the wait for the device take a large part
V100, V100_SHEET = "Tesla V100 NVLink", "nvidia-v100-sxm2-32gb"


def observations(root: Path) -> list[Observation]:
    """One for each row of 1 ms or more that torch ran on a GPU; `root` holds mlx/."""
    found = []
    with (root / "mlx" / "operators.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["operation"] in CALLS]
    built: dict[tuple[str, str], tuple[Layer, ...]] = {}
    for row in rows:
        spec, took = _spec(row["chip"]), row["cuda_ms"] if row["chip"].startswith(V100) else row["mps_ms"]
        if spec is None or not took or float(took) / 1e3 < SHORTEST_S:
            continue
        key = row["operation"], row["dims"]
        if key not in built:
            built[key] = _layers(*key)
        layers = built[key]
        if layers:
            counts, about = np.ones(len(layers)), (WEIGHT, CALL_NOISE, spec.chip)
            found.append(Observation(spec.slug, spec.hardware(), layers, counts, float(took) / 1e3, *about))
    return found


def _spec(chip: str) -> DeviceSpec | None:
    """The sheet of a chip as the table names it: "M1 Max (64GB)"; None where there is none."""
    try:
        return find_spec(V100_SHEET if chip.startswith(V100) else f"Apple {chip.partition('(')[0].strip()}")
    except InputError:
        return None


def _layers(operation: str, dims: str) -> tuple[Layer, ...]:
    """The layers of an operation, of float32 tensors; empty where any of it is not modelled."""
    shapes = [[int(one) for one in shape.split("x")] for shape in re.findall(r"dim=([\dx]+)", dims)]
    axis = re.search(r"axi=(-?\d+)", dims)
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    found = trace_call(lambda: CALLS[operation](tensors, int(axis.group(1)) if axis else 0))
    return () if found.unmodelled else tuple(map(by_torch, found.layers))


def _index(tensors: Sequence[Tensor]) -> Tensor:
    return torch.empty(len(tensors[1]), dtype=torch.int64, device="meta")


def _scatter(reduce: str) -> Callable[[Sequence[Tensor], int], Any]:
    def call(tensors: Sequence[Tensor], _: int) -> Tensor:
        rows, index = tensors[0], _index(tensors)
        source = rows.new_empty(len(index), rows.shape[1])
        return torch.scatter_reduce(rows, 0, index.unsqueeze(1), source, reduce=reduce)

    return call


CALLS: Mapping[str, Callable[[Sequence[Tensor], int], Any]] = {
    "Argmax": lambda some, axis: torch.argmax(some[0], dim=axis),
    "BCE": lambda some, _: F.binary_cross_entropy(some[0], some[1]),
    "Concat": lambda some, axis: torch.cat([*some], dim=axis),
    "Conv1d": lambda some, _: F.conv1d(some[0].mT, some[1].mT),
    "Conv2d": lambda some, _: F.conv2d(some[0].permute(0, 3, 1, 2), some[1].permute(0, 3, 1, 2)),
    "Gather": lambda some, _: some[0][_index(some)],
    "LayerNorm": lambda some, _: F.layer_norm(some[0], some[0].shape[2:]),
    "LeakyReLU": lambda some, _: F.leaky_relu(some[0]),
    "Linear": lambda some, _: F.linear(some[0], some[1].T, some[2]),
    "MatMul": lambda some, _: some[0] @ some[1],
    "PReLU": lambda some, _: F.prelu(some[0], some[1]),
    "ReLU": lambda some, _: F.relu(some[0]),
    "ScatterMax": _scatter("amax"),
    "ScatterSum": _scatter("sum"),
    "SeLU": lambda some, _: F.selu(some[0]),
    "Sigmoid": lambda some, _: F.sigmoid(some[0]),
    "Softmax": lambda some, axis: F.softmax(some[0], dim=axis),
    "Softplus": lambda some, _: F.softplus(some[0]),
    "Sort": lambda some, axis: torch.sort(some[0], dim=axis),
    "Sum": lambda some, axis: torch.sum(some[0], dim=axis),
    "SumAll": lambda some, _: torch.sum(some[0]),
    "Scatter": lambda some, _: some[0].index_put_(
        (_index(some),), some[0].new_empty(len(some[1]), some[0].shape[1])
    ),
    "ScaledDotProductAttention": lambda some, _: F.scaled_dot_product_attention(
        some[0], some[1], some[2], attn_mask=some[0].new_empty(some[0].shape[2], some[1].shape[2])
    ),
}
