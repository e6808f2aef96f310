"""Whole vision networks that timm's authors timed on GPUs (PATH/timm, Apache-2.0).

Each is traced on the meta device as it was run: eager networks under autocast, compiled ones in float16. That
takes a second each, so traces are kept in a file, and a run that is interrupted resumes.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from neuralpower.devices.spec import find_spec
from neuralpower.layers import Layer
from neuralpower.learn.prior_fit import Observation
from neuralpower.platforms import PLATFORMS
from neuralpower.trace.casts import cast_rules
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import EAGER, Question
from neuralpower.trace.tracer import trace

NVIDIA = PLATFORMS["nvidia"]
TORCHVISION = ("nms(Tensor dets, Tensor scores, float threshold) -> Tensor",)  # which its import asks for


class Run(NamedTuple):
    """A network as it ran."""

    model: str
    image: int
    batch: int
    layout: str  # nchw, nhwc
    run: str  # eager, compile


def rows(root: Path) -> pd.DataFrame:
    """The inference rows of GPUs."""
    table = pd.read_csv(root / "timm" / "networks.csv")
    return table[table.device.str.startswith("RTX") & (table.phase == "infer")].reset_index(drop=True)


def observations(
    root: Path, traces: Path, of: Callable[[Run], str] = lambda run: run.model
) -> tuple[list[Observation], list[str]]:
    """(One for each row whose network can be traced, what `of` says of it); `traces`: the file of traces."""
    table, found, names = rows(root), [], []
    known = dict(kept(traces))
    specs = {device: find_spec(device) for device in table.device.unique()}
    with traces.open("ab") as file:
        row: Any
        for row in table.itertuples():
            run, spec = _run(row), specs[row.device]
            if run not in known:
                known[run] = _traced(run)
                pickle.dump((tuple(run), known[run]), file)
            layers = known[run]
            if layers:
                counts = np.array(list(layers.values()), dtype=float)
                seconds = float(row.step_ms) / 1e3
                found.append(
                    Observation(spec.slug, spec.hardware(), tuple(layers), counts, seconds, chip=spec.chip)
                )
                names.append(of(run))
    return found, names


def kept(traces: Path) -> Iterator[tuple[Run, Counter[Layer] | None]]:
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


def _traced(run: Run) -> Counter[Layer] | None:
    """Layers with how often each is called; None where the network cannot be traced in full."""
    try:
        network, autocast = _built(run), torch.float16 if run.run == EAGER else None
        dtype = torch.float32 if run.run == EAGER else torch.float16
        network = network.eval().to(dtype)
        x = torch.empty(run.batch, 3, run.image, run.image, dtype=dtype, device="meta")
        if run.layout == "nhwc":
            network, x = (
                network.to(memory_format=torch.channels_last),
                x.contiguous(memory_format=torch.channels_last),
            )
        asked = Question(
            dtype=str(dtype).removeprefix("torch."), run=run.run, platform=NVIDIA, autocast=autocast
        )
        with cast_rules(NVIDIA):
            found = trace(network, (x,), autocast=autocast)
        work = applied(applied(found, asked, OF_CALLS), asked)
    except Exception as error:  # noqa: BLE001  # strangers' networks: one that fails is left out, and named
        print(f"{run.model}: {error!s:.120}", flush=True)
        return None
    layers: Counter[Layer] = Counter()
    for task in work.tasks:
        layers[task.layer] += task.share  # type: ignore[assignment]
    return None if work.unmodelled else layers


def _built(run: Run) -> Any:
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in TORCHVISION:
        library.define(schema)
    import timm

    usual = timm.get_pretrained_cfg(run.model).input_size[-1]
    with torch.device("meta"):
        if run.image != usual:
            try:
                return timm.create_model(run.model, img_size=run.image)
            except TypeError:  # takes any size
                pass
        return timm.create_model(run.model)
