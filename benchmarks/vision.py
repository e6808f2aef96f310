"""Whole vision networks on GPUs, measured by timm's authors, and predicted.

python -m benchmarks.vision PATH [--traces FILE] [--device rtx-4090] [--run eager] [--networks 100]

PATH holds timm/ (huggingface/pytorch-image-models, Apache-2.0); timm must be installed. Tracing takes about a
second a network, a minute a hundred: `--device` and `--run` (eager, compile, training) take some of the
table's sections, `--networks` some networks of each, drawn with seed 0.
Beside each error stands that of the bare sum of FLOP / peak + bytes / bandwidth over the same layers, which
has no parameter. These rows taught the prior: `benchmarks.train.prior --held-out` has errors of families and
devices held out.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.train.prior import parser_of
from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.learn.estimates import Totals
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.learn.unmeasured.laws import floors
from neuralpower.learn.unmeasured.prior_fit import Observation


def calls_of(networks: Sequence[Observation]) -> tuple[list[Layer], Any]:
    """(All layers of networks on a device, how often each network calls each: [networks, layers], sparse)."""
    from scipy.sparse import coo_array

    at: dict[Layer, int] = {}
    columns = [at.setdefault(layer, len(at)) for one in networks for layer in one.layers]
    rows = np.repeat(np.arange(len(networks)), [len(one.layers) for one in networks])
    counts = np.concatenate([one.counts for one in networks])
    return list(at), coo_array((counts, (rows, columns)), shape=(len(networks), len(at))).tocsr()


def bare(networks: Sequence[Observation]) -> Array:
    """Seconds of networks on a device by FLOP / peak + bytes / bandwidth, [networks]."""
    layers, counts = calls_of(networks)
    places: dict[str, list[int]] = defaultdict(list)
    for i, layer in enumerate(layers):
        places[layer.kind].append(i)
    seconds = np.zeros(len(layers))
    for kind, index in places.items():
        columns = columns_of(KINDS[kind], [layers[i] for i in index])
        seconds[index] = np.add(*floors(columns, networks[0].hardware, columns.law.traits(columns)))
    return np.asarray(counts @ seconds)


def predicted(networks: Sequence[Observation]) -> Totals:
    """Seconds of networks on a device by the shipped predictor, without the host's launches."""
    predictor = for_device(find_spec(networks[0].device)).of_torch()
    layers, counts = calls_of(networks)
    return predictor.estimate(layers).totals(counts, predictor.system, graphed=True)


def table(networks: Sequence[Observation], names: Sequence[str]) -> None:
    """Print a row for each device and way to run."""
    print("| device | run | networks | median | mean | bias | inside | high / low | bare sum: median, mean |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    groups: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for one, run in zip(networks, names, strict=True):
        groups[one.device, run].append(one)
    for (device, run), some in sorted(groups.items()):
        measured, said = np.array([one.seconds for one in some]), predicted(some)
        error, bias = errors(said.value, measured), np.median(said.value / measured - 1)
        inside, alone = (said.low <= measured) & (measured <= said.high), errors(bare(some), measured)
        figures = f"{np.median(error):.1%} | {error.mean():.1%} | {bias:+.1%} | {inside.mean():.0%}"
        sums = f"{np.median(alone):.1%}, {alone.mean():.1%}"
        width = np.median(said.high / said.low)
        print(f"| {device} | {run} | {len(some)} | {figures} | {width:.2f} | {sums} |", flush=True)


def errors(value: Array, measured: Array) -> Array:
    """Relative errors."""
    return np.asarray(np.abs(value / measured - 1))


def some_of(rows: pd.DataFrame, count: int | None) -> pd.DataFrame:
    """At most `count` rows of each device and way to run, drawn with seed 0; None: all."""
    drawn = rows.sample(frac=1, random_state=0)
    return rows if count is None else drawn.groupby(["device", "run", "layout"]).head(count)


def main() -> None:
    """Read, predict, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", help="take this device alone")
    parser.add_argument("--run", choices=("eager", "compile", "training"), help="take this way to run alone")
    parser.add_argument("--networks", type=int, help="of each device and way to run, drawn with seed 0")
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.vision needs a folder that holds timm/: skipped")
        return
    given.traces.parent.mkdir(parents=True, exist_ok=True)
    timm = importlib.import_module("benchmarks.teachers.timm")
    rows = timm.rows(given.path)
    if given.device is not None:
        rows = rows[rows.device.map(lambda name: find_spec(name).slug) == find_spec(given.device).slug]
    if given.run is not None:
        rows = rows[rows.run == given.run]
    rows = some_of(rows, given.networks)
    table(*timm.observations(rows, given.traces, of=lambda run: f"{run.run}, {run.layout}"))


if __name__ == "__main__":
    main()
