"""Whole runs of language models on several GPUs, measured by others: neuralpower and its rivals.

PipeWeave's (github zksainx/pipeweave, Apache-2.0; PATH/pipeweave), as in `benchmarks.gpu_runs`: a batch of
requests of different lengths through SGLang, prefilled together, then decoded in lock step. Its GPUs share
one node. Scored against the median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.gpu_runs import DEVICES, DTYPE, PARTS, RIVALS, folder_of, total
from neuralpower.devices.cluster import enough_for
from neuralpower.devices.spec import find_spec
from neuralpower.layout import Layout
from neuralpower.learn.any_device import for_device
from neuralpower.networks.phases import Phase
from neuralpower.predict.case import Case, predict_case
from neuralpower.predict.prediction import Prediction


def parallel_runs(given: argparse.Namespace) -> None:
    """Runs on several GPUs."""
    everything = pd.read_csv(given.path / "pipeweave" / "runs_dev.csv")
    requests = pd.read_csv(given.path / "pipeweave" / "requests.csv")
    several = everything[everything.tp * everything.pp > 1]
    print("\nRuns of PipeWeave on several GPUs: error against the median of the repeats.\n")
    print("| run | predictor | prefill | decode step | whole run | exchanges exposed |\n|" + "---|" * 6)
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for run in several.itertuples():
            for name, cells, exposed in _lines(run, requests, given, Path(temporary)):
                errors.setdefault(name, []).append(abs(cells[-1]))
                said = " | ".join("" if np.isnan(cell) else f"{cell:+.1%}" for cell in cells)
                print(f"| {run.run} | {name} | {said} | {exposed} |", flush=True)
    for name, of_whole in errors.items():
        known = [error for error in of_whole if np.isfinite(error)]
        if known:
            print(f"| {len(known)} runs | {name}, mean | | | {np.mean(known):.1%} | |")


def predicted(run: Any, lengths: list[int], model: Path) -> dict[str, Prediction]:
    """Prefill, and the decode step in the middle of the run, of the run's layout."""
    spec = find_spec(DEVICES[run.gpu])
    layout = Layout(tensor=int(run.tp), pipeline=int(run.pp))
    middle = [length + math.ceil((int(run.output_tokens_each) - 1) / 2) for length in lengths]
    phases = {"prefill_s": Phase.prefill(lengths=lengths), "decode_step_s": Phase.decode(lengths=middle)}
    how: dict[str, Any] = {"dtype": DTYPE, "run": "engine", "layout": layout}
    how |= {"cluster": enough_for(spec, layout), "batch_size": len(lengths)}
    predictor = for_device(spec)
    return {
        part: predict_case(Case(str(model), phase=phase, **how), predictor)[0]
        for part, phase in phases.items()
    }


def _lines(
    run: Any, requests: pd.DataFrame, given: argparse.Namespace, temporary: Path
) -> Iterator[tuple[str, list[float], str]]:
    """(predictor, errors of PARTS, exposed shares of prefill and step) of each predictor of a run."""
    measured = {part: float(getattr(run, f"{part}_median")) for part in PARTS}
    config = json.loads((given.path / "pipeweave" / "configs" / f"{run.model}.json").read_text())
    lengths = requests[requests.workload == run.workload].input_tokens.astype(int).tolist()
    found = predicted(run, lengths, folder_of(config, run.model, temporary))
    prefill, step = (found[part].runtime_s.value for part in PARTS[:2])
    values = {
        "prefill_s": prefill,
        "decode_step_s": step,
        "total_s": total(prefill, step, int(run.output_tokens_each)),
    }
    shares = [found[part].parallel for part in PARTS[:2]]
    exposed = ", ".join(f"{one.exposed_share:.0%}" for one in shares if one is not None)
    yield "neuralpower", [values[part] / measured[part] - 1 for part in PARTS], exposed
    for rival in RIVALS:
        yield rival, [float(getattr(run, f"{rival}_{part}")) / measured[part] - 1 for part in PARTS], ""
