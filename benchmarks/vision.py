"""Whole vision networks on GPUs, measured by timm's authors, and predicted.

python -m benchmarks.vision PATH [--traces FILE]

PATH holds timm/ (huggingface/pytorch-image-models, Apache-2.0); timm must be installed. Beside each error
stands that of the bare sum of FLOP / peak + bytes / bandwidth over the same layers, which has no parameter.
These rows taught the prior: `benchmarks.train.prior --held-out` has errors of families and devices held out.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.train.prior import parser_of
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.learn.any_device import for_device
from neuralpower.learn.laws import floors
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.prior_fit import Observation
from neuralpower.learn.problem import Array


def bare(one: Observation) -> float:
    """Seconds by FLOP / peak + bytes / bandwidth."""
    kinds: dict[str, list[tuple[Layer, float]]] = defaultdict(list)
    for layer, count in zip(one.layers, one.counts.tolist(), strict=True):
        kinds[layer.kind].append((layer, count))
    parts = ((columns_of(KINDS[kind], [layer for layer, _ in some]), some) for kind, some in kinds.items())
    total = 0.0
    for columns, some in parts:
        seconds = np.add(*floors(columns, one.hardware, columns.law.traits(columns)))
        total += float(np.array([count for _, count in some]) @ seconds)
    return total


def said(predictor: Predictor, one: Observation) -> tuple[float, float, float]:
    """(Seconds, low, high) of a network on the device, without the host's launches."""
    found = predictor.estimate(list(one.layers))
    total = found.totals(one.counts[None], predictor.system, graphed=True)
    return float(total.value[0]), float(total.low[0]), float(total.high[0])


def table(networks: Sequence[Observation], names: Sequence[str]) -> None:
    """Print a row for each device and way to run."""
    print("| device | run | networks | median | mean | bias | inside | high / low | bare sum: median, mean |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    groups: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for one, run in zip(networks, names, strict=True):
        groups[one.device, run].append(one)
    for (device, run), some in sorted(groups.items()):
        predictor = for_device(find_spec(device)).of_torch()
        measured = np.array([one.seconds for one in some])
        value, low, high = np.array([said(predictor, one) for one in some]).T
        error, bias = errors(value, measured), np.median(value / measured - 1)
        inside = (low <= measured) & (measured <= high)
        alone = errors(np.array([bare(one) for one in some]), measured)
        figures = f"{np.median(error):.1%} | {error.mean():.1%} | {bias:+.1%} | {inside.mean():.0%}"
        sums = f"{np.median(alone):.1%}, {alone.mean():.1%}"
        print(
            f"| {device} | {run} | {len(some)} | {figures} | {np.median(high / low):.2f} | {sums} |",
            flush=True,
        )


def errors(value: Array, measured: Array) -> Array:
    """Relative errors."""
    return np.asarray(np.abs(value / measured - 1))


def main() -> None:
    """Read, predict, print."""
    given = parser_of(__doc__).parse_args()
    if given.path is None:
        print("benchmarks.vision needs a folder that holds timm/: skipped")
        return
    given.traces.parent.mkdir(parents=True, exist_ok=True)
    timm = importlib.import_module("benchmarks.teachers.timm")
    networks, names = timm.observations(given.path, given.traces, of=lambda run: f"{run.run}, {run.layout}")
    table(networks, names)


if __name__ == "__main__":
    main()
