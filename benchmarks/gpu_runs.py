"""Whole runs of language models, measured by others: errors of neuralpower and of other predictors.

`runs`: PipeWeave's (github zksainx/pipeweave, Apache-2.0; PATH/pipeweave): a batch of requests of different
lengths through SGLang, on one GPU. Requests are prefilled together, then decode in lock step. Scored against
the median of the repeats. `tracelens`: two networks that TraceLens' profiler tables hold (github
AMD-AGI/TraceLens, MIT; PATH/tracelens): eager passes in bfloat16 on an H100, the time that it was busy.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from benchmarks.gpu_tables import SYSTEMS
from benchmarks.train import relatives
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.devices.spec import chips_of_specs, find_spec
from neuralpower.learn.files.predictor_files import known_predictors
from neuralpower.learn.unmeasured import any_device
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.networks.phases import Phase
from neuralpower.prediction.prediction import Prediction
from neuralpower.report.cards import write_predictor

COLLECTED = "datasets/nvidia-h200-sxm-141gb"
KINDS_OF_RUNS = ("attention", "embedding", "fused", "linear")  # of dense language models under an engine
DEVICES = {
    "A100": "nvidia-a100-sxm4-80gb",
    "H100": "nvidia-h100-sxm5-80gb",
    "H200": "nvidia-h200-sxm-141gb",
    "H20": "nvidia-h20",
    "H800": "nvidia-h800-sxm5-80gb",
    "L20": "nvidia-l20",
    "L40": "nvidia-l40",
    "A40": "nvidia-a40",
    "RTX_6000_Ada": "nvidia-rtx-6000-ada",
    "RTX_A6000": "nvidia-rtx-a6000",
    "RTX_PRO_6000_S": "nvidia-rtx-pro-6000-server",
}
PARTS = ("prefill_s", "decode_step_s", "total_s")
RIVALS = ("pipeweave", "neusight", "habitat", "linear", "roofline")
DTYPE = "bfloat16"
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 2816,
}
# Configuration, batch, tokens, phase of each network of TraceLens (read off its tables' shapes).
NETWORKS: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "bert-small": (BERT, 1, 141, "forward"),
    "qwen1.5-0.5b": (QWEN, 16, 559, "prefill"),
}


def predictor_of(device: str) -> LoadedPredictor:
    """All that is included of a device, and of its relatives."""
    return LoadedPredictor(for_device(find_spec(device)))


def without_chip(device: str, path: Path, folder: Path) -> LoadedPredictor:
    """What were known of a device if no board of its chip had been measured by layers.

    The predictor of similar devices is trained again without them, and kept in the folder.
    """
    spec = find_spec(device)
    file = folder / f"nvidia-without-{spec.chip}.json"
    if not file.exists():
        datasets = relatives.every(path, relatives.collected([COLLECTED]), KINDS_OF_RUNS)
        others = [one for one in datasets if find_spec(one.device).chip != spec.chip]
        write_predictor(relatives.fitted(others), file)
    boards = tuple(slug for slug, chip in chips_of_specs().items() if chip == spec.chip)
    others_of = {name: at for name, at in known_predictors().items() if not name.startswith(boards)}
    known = {**others_of, any_device.POOLED: file}
    with mock.patch.object(any_device, "known_predictors", lambda: known):
        return LoadedPredictor(for_device(spec))


def folder_of(config: dict[str, Any], name: str, root: Path) -> Path:
    """A folder with a config.json, as a model is given."""
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run_parts(run: Any, lengths: list[int], model: Path, predictor: LoadedPredictor) -> dict[str, Prediction]:
    """Prefill, and the decode step in the middle of the run."""
    steps = int(run.output_tokens_each) - 1
    middle = [length + math.ceil(steps / 2) for length in lengths]
    how: dict[str, Any] = {"dtype": DTYPE, "run": "engine"}
    return {
        "prefill_s": predictor.predict(model, phase=Phase.prefill(lengths=lengths), **how),
        "decode_step_s": predictor.predict(model, phase=Phase.decode(lengths=middle), **how),
    }


def total(prefill: float, step: float, tokens: int) -> float:
    """Seconds of a whole run; the prefill makes the first token."""
    return prefill + step * (tokens - 1)


def runs(given: argparse.Namespace) -> None:
    """PipeWeave's runs on one GPU."""
    everything = pd.read_csv(given.path / "pipeweave" / "runs_dev.csv")
    left_out = {system.slug for name, system in SYSTEMS.items() if name not in given.system}
    alone = (everything.tp == 1) & (everything.pp == 1)
    some = everything[alone & ~everything.gpu.map(DEVICES).isin(left_out)]
    print("\nRuns of PipeWeave on one GPU: error against the median of the repeats.\n")
    print_runs(some, given, "in 90 % bounds", functools.partial(_answer, given))


Answered = tuple[dict[str, float], Callable[[Mapping[str, float]], str]]
"""Predicted seconds by PARTS, and the last cell of the row, given the measured seconds."""
Answer = Callable[[Any, list[int], Path], Answered]
"""(run, lengths of its requests, its model's folder) -> what is predicted of it."""


def print_runs(some: pd.DataFrame, given: argparse.Namespace, last: str, answer: Answer) -> None:
    """A table row per run and predictor, with the errors of PARTS and a last column, then mean errors."""
    requests = pd.read_csv(given.path / "pipeweave" / "requests.csv")
    print(f"| run | predictor | prefill | decode step | whole run | {last} |\n|" + "---|" * 6)
    errors: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for run in some.itertuples():
            for name, cells, said in _lines(run, requests, given.path, Path(temporary), answer):
                errors.setdefault(name, []).append(cells)
                shown = " | ".join("" if np.isnan(cell) else f"{cell:+.1%}" for cell in cells)
                print(f"| {run.run} | {name} | {shown} | {said} |", flush=True)
    for name, of_parts in errors.items():
        means = (some[np.isfinite(some)] for some in np.abs(of_parts).T)
        shown = " | ".join(f"{np.mean(some):.1%}" if len(some) else "" for some in means)
        print(f"| {len(of_parts)} runs | {name}, mean | {shown} | |")


def _lines(
    run: Any, requests: pd.DataFrame, path: Path, temporary: Path, answer: Answer
) -> Iterator[tuple[str, list[float], str]]:
    """(predictor, errors of PARTS, last cell) of each predictor of a run."""
    measured = {part: float(getattr(run, f"{part}_median")) for part in PARTS}
    config = json.loads((path / "pipeweave" / "configs" / f"{run.model}.json").read_text())
    lengths = requests[requests.workload == run.workload].input_tokens.astype(int).tolist()
    values, said = answer(run, lengths, folder_of(config, run.model, temporary))
    yield "neuralpower", [values[part] / measured[part] - 1 for part in PARTS], said(measured)
    for rival in RIVALS:
        yield rival, [float(getattr(run, f"{rival}_{part}")) / measured[part] - 1 for part in PARTS], ""


def seconds_of(found: Mapping[str, Prediction], tokens: int, bound: str = "value") -> dict[str, float]:
    """Seconds by PARTS, of a prefill and a decode step, at a bound of their intervals."""
    prefill, step = (getattr(found[part].runtime_s, bound) for part in PARTS[:2])
    return {"prefill_s": prefill, "decode_step_s": step, "total_s": total(prefill, step, tokens)}


def _answer(given: argparse.Namespace, run: Any, lengths: list[int], model: Path) -> Answered:
    """Predicted seconds, and which parts lie within the bounds."""
    device, folder = DEVICES[run.gpu], given.without_own_tables
    predictor = predictor_of(device) if folder is None else without_chip(device, given.path, folder)
    found = run_parts(run, lengths, model, predictor)
    bounds = ("value", "low", "high")
    value, low, high = (seconds_of(found, int(run.output_tokens_each), bound) for bound in bounds)

    def held(measured: Mapping[str, float]) -> str:
        inside = [part for part in PARTS if low[part] <= measured[part] <= high[part]]
        return ", ".join(part.removesuffix("_s") for part in inside) or "none"

    return value, held


def tracelens(given: argparse.Namespace) -> None:
    """Two networks as eager PyTorch ran them on an H100: the time that kernels took."""
    predictor = predictor_of(DEVICES["H100"])
    print("\nNetworks of TraceLens on an H100, eager, bfloat16: time that the GPU was busy.\n")
    print("| network | measured, ms | predicted, ms | error | coverage |\n|" + "---|" * 5)
    with tempfile.TemporaryDirectory() as temporary:
        for name, (config, batch, length, phase) in NETWORKS.items():
            table = pd.read_parquet(given.path / "tracelens" / f"{name}_h100.parquet")
            measured = table.kernel_us_sum.sum() / 1e3
            model = folder_of(config, name, Path(temporary))
            one = predictor.predict(
                model, batch_size=batch, seq_len=length, dtype=DTYPE, phase=phase, run="eager"
            )
            busy = sum(row.runtime_s for row in one.rows) * 1e3
            error = busy / measured - 1
            print(f"| {name} | {measured:.3f} | {busy:.3f} | {error:+.1%} | {one.coverage:.1%} |", flush=True)
