"""Whole runs of language models on several GPUs, measured by others: neuralpower and its rivals.

PipeWeave's (github zksainx/pipeweave, Apache-2.0; PATH/pipeweave), as in `benchmarks.gpu_runs`: a batch of
requests of different lengths through SGLang, prefilled together, then decoded in lock step. Its GPUs share
one node. Scored against the median of the repeats.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.gpu_runs import DEVICES, DTYPE, PARTS, Answered, print_runs, seconds_of
from neuralpower.devices.cluster import Layout, enough_for
from neuralpower.devices.spec import find_spec
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request


def parallel_runs(given: argparse.Namespace) -> None:
    """Runs on several GPUs."""
    everything = pd.read_csv(given.path / "pipeweave" / "runs_dev.csv")
    print("\nRuns of PipeWeave on several GPUs: error against the median of the repeats.\n")
    print_runs(everything[everything.tp * everything.pp > 1], given, "exchanges exposed", _answer)


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
        part: predict_request(Request(str(model), phase=phase, **how), predictor)[0]
        for part, phase in phases.items()
    }


def _answer(run: Any, lengths: list[int], model: Path) -> Answered:
    """Predicted seconds, and the exposed shares of prefill and step."""
    found = predicted(run, lengths, model)
    shares = [found[part].parallel for part in PARTS[:2]]
    exposed = ", ".join(f"{one.exposed_share:.0%}" for one in shares if one is not None)
    return seconds_of(found, int(run.output_tokens_each)), lambda measured: exposed
