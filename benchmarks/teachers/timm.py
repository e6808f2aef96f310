"""Whole vision networks that timm's authors timed on GPUs (PATH/timm, Apache-2.0).

Each is traced on the meta device as it was run. That takes a second each, for a step of training four, so
traces are kept in a file, and a run that is interrupted resumes. Of a network's steps of training one memory
format is taken.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from neuralpower.devices.spec import find_spec
from neuralpower.errors import NeuralPowerError
from neuralpower.layers import Layer
from neuralpower.layers.base import TRAINING
from neuralpower.learn.networks.network_rows import AMP, Way, calls_of, traced
from neuralpower.learn.unmeasured.prior_fit import Observation
from neuralpower.platforms import PLATFORMS
from neuralpower.trace.question import EAGER
from neuralpower.trace.recipe import Recipe

NVIDIA = PLATFORMS["nvidia"]
SAID = 100  # traces, after which to say how many are left
STEP = Recipe("momentum", "loop")  # of PyTorch 1.12, whose optimizers take parameters one by one


class Run(NamedTuple):
    """A network as it ran."""

    model: str
    image: int
    batch: int
    layout: str  # nchw, nhwc
    run: str  # eager, compile, training


def rows(root: Path) -> pd.DataFrame:
    """The rows of GPUs; of steps of training every other network's in channels last."""
    table = pd.read_csv(root / "timm" / "networks.csv")
    table = table[table.device.str.startswith("RTX")].reset_index(drop=True)
    trains = table.phase == "train"
    number = table.model.map({name: i for i, name in enumerate(sorted(table.model[trains].unique()))})
    taken = (table.layout == "nhwc") == (number % 2 == 1)
    return table.assign(run=table.run.where(~trains, TRAINING))[~trains | taken].reset_index(drop=True)


def observations(
    table: pd.DataFrame, traces: Path, of: Callable[[Run], str] = lambda run: run.model
) -> tuple[list[Observation], list[str]]:
    """(One for each of `rows` whose network can be traced, what `of` says of it); `traces`: their file."""
    found, names, known = [], [], dict(kept(traces))
    missing = {_run(row) for row in table.itertuples()} - set(known)
    print(f"{len(known)} traces in {traces}, {len(missing)} to make", flush=True)
    specs = {device: find_spec(device) for device in table.device.unique()}
    with traces.open("ab") as file:
        row: Any
        for row in table.itertuples():
            run, spec = _run(row), specs[row.device]
            if run not in known:
                known[run] = _traced(run)
                pickle.dump((tuple(run), known[run]), file)
                file.flush()
                missing.remove(run)
                if len(missing) % SAID == 0:
                    print(f"{len(missing)} to make", flush=True)
            layers = known[run]
            if layers:
                counts = np.array(list(layers.values()), dtype=float)
                seconds = float(row.step_ms) / 1e3
                found.append(
                    Observation(spec.slug, spec.hardware(), tuple(layers), counts, seconds, chip=spec.chip)
                )
                names.append(of(run))
    return found, names


def kept(traces: Path) -> Iterator[tuple[Run, Mapping[Layer, float] | None]]:
    """The traces of a file that this script wrote."""
    if not traces.exists():
        return
    with traces.open("rb") as file:
        while True:
            try:
                run, layers = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):  # the last was cut off
                return
            yield Run(*run), layers


def _run(row: Any) -> Run:
    return Run(row.model, int(row.image), int(row.batch), row.layout, row.run)


def _traced(run: Run) -> dict[Layer, float] | None:
    """How often it calls each layer; None where the network cannot be traced in full."""
    from timm.layers import set_fused_attn

    recipe = STEP if run.run == TRAINING else None
    set_fused_attn(enable=recipe is None)  # PyTorch 1.12 has no fused attention
    way, shape = Way(AMP, run.layout, EAGER if recipe else run.run, recipe), (3, run.image, run.image)
    for sized in ("", f"?img_size={run.image}"):  # the latter for those that take images of one size
        try:
            work = traced(f"timm:{run.model}{sized}", run.batch, None, shape, NVIDIA, way)
        except NeuralPowerError as error:
            reason = str(error)
        else:
            return None if work.unmodelled else calls_of(work)
    print(f"{run.model}: {reason:.120}", flush=True)
    return None
