"""The step of a small network in two processes on this machine, measured and predicted.

Each process has one thread; torch's DistributedDataParallel sums gradients by gloo. The predictor is of this
machine with one thread, and has seen gloo's exchanges.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from neuralpower.devices.cluster import Layout
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.networks.phases import Phase
from neuralpower.networks.source import Source, by_shape
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request
from neuralpower.trace.recipe import Recipe, default_loss

RANKS, BATCH, WIDTH = 2, 64, 1024
WARM, STEPS = 10, 60
PERCENTILE = 10  # of the steps, as in datasets
LAYOUTS = {"each alone": Layout(), "data 2": Layout(data=RANKS)}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Three products of 1.3 million weights."""
    layers = (nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    return nn.Sequential(*layers).to(dtype)


def _process(rank: int, folder: str, exchange: bool) -> None:
    """Time the steps of one process, and write them down."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    module = network()
    model = DistributedDataParallel(module) if exchange else module
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, foreach=False)
    x, times = torch.randn(BATCH, 256), []
    for _ in range(WARM + STEPS):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = default_loss(model(x))
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    np.save(f"{folder}/{rank}.npy", times[WARM:])
    dist.destroy_process_group()


def measured_s(exchange: bool) -> float:
    """Seconds of a step of the slower process; both run at once."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_process, (folder, exchange), RANKS)  # type: ignore[no-untyped-call]
        times = [np.load(Path(folder) / f"{rank}.npy") for rank in range(RANKS)]
    return float(np.percentile(np.max(times, axis=0), PERCENTILE))


def parallel_gloo(given: argparse.Namespace) -> None:
    """A small network on two processes of this machine; `given.predictor` is of one thread of it."""
    if given.predictor is None:
        print("\nTwo processes here: name a predictor of one thread of this machine with --predictor.")
        return
    predictor = load(given.predictor)
    source = Source("mlp", network, lambda model, ask: by_shape("mlp", model, ask, (256,)))
    print("\nA step of a small network in two processes here, one thread each.\n")
    print("| layout | measured, ms | predicted, ms | error | exchanges exposed |\n|" + "---|" * 5)
    for name, layout in LAYOUTS.items():
        seconds = measured_s(layout.data > 1)
        recipe = Recipe("adamw", "loop")
        case = Request("mlp", BATCH, phase=Phase("training"), recipe=recipe, layout=layout)
        one, _ = predict_request(case, predictor, source)
        exposed = "" if one.parallel is None else f"{one.parallel.exposed_share:.0%}"
        value = one.runtime_s.value
        print(
            f"| {name} | {seconds * 1e3:.2f} | {value * 1e3:.2f} | {value / seconds - 1:+.1%} | {exposed} |"
        )
