"""Whole generations of diffusers on GPUs against predictions: python -m benchmarks.diffusion PATH.

PATH holds served/diffusion.csv (Apache-2.0; ML.ENERGY Benchmark v3): images and videos by five pipelines on
H100 and B200. Prints a Markdown table: the error of each GPU's seconds and watts, and how many bounds hold.
With --several, those on two to eight GPUs; with --held-out, the prior of each pipeline is first taught
without it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.teachers import diffusion
from benchmarks.train.prior import laws, with_calls, with_few
from neuralpower.api.loaded import LoadedPredictor, load
from neuralpower.learn.unmeasured.prior import Law
from neuralpower.learn.unmeasured.prior_files import shipped_prior
from neuralpower.prediction.prediction import Prediction

Chosen = Callable[[str, str], LoadedPredictor]  # (model, GPU) -> what predicts it


def line(name: str, found: list[tuple[Mapping[str, str], Prediction]]) -> str:
    """A row of the table."""
    errors = [abs(said.runtime_s.value / float(row["batch_latency_s"]) - 1) for row, said in found]
    watts = [
        abs(int(row["num_gpus"]) * said.power_w.value / float(row["avg_power_watts"]) - 1)
        for row, said in found
        if said.power_w
    ]
    inside = [
        said.runtime_s.low <= float(row["batch_latency_s"]) <= said.runtime_s.high for row, said in found
    ]
    wide = statistics.median(said.runtime_s.high / said.runtime_s.low for _, said in found)
    times = f"{statistics.median(errors):.1%} | {statistics.mean(errors):.1%}"
    held = f"{sum(inside) / len(inside):.0%} | {wide:.2f}"
    return f"| {name} | {len(found)} | {times} | {statistics.mean(watts):.1%} | {held} |"


def shipped(model: str, gpu: str) -> LoadedPredictor:
    """The predictor as it comes."""
    return load(diffusion.DEVICES[gpu])


def without(root: Path) -> Chosen:
    """Predictors whose prior was taught without the model that is asked for."""
    observed = [*diffusion.named_observations(root)]
    taught: dict[str, Mapping[str, Law]] = {}
    for name in dict.fromkeys(name for name, _ in observed):
        known = with_calls([one for other, one in observed if other != name], root)
        taught[name] = laws(with_few(shipped_prior(), known), [one for _, one in observed])

    def chosen(model: str, gpu: str) -> LoadedPredictor:
        found = shipped(model, gpu)
        if model not in taught:
            return found
        return LoadedPredictor(replace(found.predictor, law=taught[model][diffusion.DEVICES[gpu]]))

    return chosen


def main() -> None:
    """Read, predict, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder that holds served/")
    parser.add_argument("--held-out", action="store_true", help="teach each pipeline's prior without it")
    parser.add_argument("--several", action="store_true", help="generations on several GPUs, not on one")
    parser.add_argument("--batches", default="", help="batch sizes, with commas; default: all")
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.diffusion needs a folder that holds served/diffusion.csv: skipped")
        return
    chosen = without(given.path) if given.held_out else shipped
    batches = set(filter(None, given.batches.split(",")))
    found: dict[str, list[tuple[Mapping[str, str], Prediction]]] = {}
    for row in diffusion.rows(given.path, several=given.several):
        if not batches or row["batch_size"] in batches:
            loaded = chosen(row["model_id"], row["gpu_model"])
            said = loaded.predict(row["model_id"], **diffusion.options_of(row))
            found.setdefault(row["gpu_model"], []).append((row, said))
    print("| GPU | generations | seconds, median | mean | watts, mean | bounds hold | high / low |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for gpu, rows in sorted(found.items()):
        print(line(gpu, rows))


if __name__ == "__main__":
    main()
