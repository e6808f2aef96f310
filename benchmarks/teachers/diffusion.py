"""Images and videos made on one GPU by diffusers (PATH/served/diffusion.csv, Apache-2.0; ML.ENERGY v3).

A row is a whole generation, which is followed as `predict` follows it (`pip install diffusers`).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.devices.spec import find_spec
from neuralpower.layers import Layer
from neuralpower.learn.unmeasured.prior_fit import NETWORK_NOISE, Observation
from neuralpower.platforms import platform_of
from neuralpower.prediction.case import followed
from neuralpower.prediction.request import request_of

DEVICES = {"H100": "nvidia-h100-sxm5-80gb", "B200": "nvidia-b200"}
BATCHES = (1, 4, 16)  # the others repeat what these say


def rows(root: Path, *, several: bool = False) -> Iterator[dict[str, str]]:
    """The generations on one GPU, or those on several; `root` holds served/."""
    with (root / "served" / "diffusion.csv").open(encoding="utf-8") as file:
        yield from (row for row in csv.DictReader(file) if (row["num_gpus"] != "1") == several)


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """The options of `predict` for a measured generation."""
    kind = "video" if row["video_width"] else "image"
    found: dict[str, Any] = {
        "batch_size": int(row["batch_size"]),
        "steps": int(row["inference_steps"]),
        "resolution": [int(float(row[f"{kind}_{side}"])) for side in ("width", "height")],
        "dtype": "bfloat16",
        **{degree: int(row[degree]) for degree in ("ulysses_degree", "ring_degree")},
    }
    if kind == "image":
        return found
    # mlenergy/diffusion/benchmark.py enables both for films
    return {**found, "frames": int(float(row["num_frames"])), "tiling": True, "slicing": True}


def observations(root: Path) -> list[Observation]:
    """One for each generation on one GPU with a batch of BATCHES; `root` holds served/."""
    return [one for _, one in named_observations(root)]


def named_observations(root: Path) -> Iterator[tuple[str, Observation]]:
    """The same, each with its model."""
    known: dict[tuple[str, int], Counter[Layer]] = {}
    for row in rows(root):
        name, batch = row["model_id"], int(row["batch_size"])
        if batch not in BATCHES:
            continue
        if (name, batch) not in known:
            known[name, batch] = layers_of(row)
        calls, spec = known[name, batch], find_spec(DEVICES[row["gpu_model"]])
        counts, took = np.array([*calls.values()], dtype=float), float(row["batch_latency_s"])
        yield (
            name,
            Observation(
                spec.slug, spec.hardware(), tuple(calls), counts, took, noise=NETWORK_NOISE, chip=spec.chip
            ),
        )


def layers_of(row: Mapping[str, str]) -> Counter[Layer]:
    """How often a measured generation calls each layer."""
    options, spec = options_of(row), find_spec(DEVICES[row["gpu_model"]])
    request = request_of(row["model_id"], options, dtype=options["dtype"])
    question = request.question(platform_of(spec.hardware()))
    found = followed(request.asked(request.source(), question.run), question)
    calls: Counter[Layer] = Counter()
    for task in found.work.tasks:
        calls[task.layer] += task.share  # type: ignore[assignment]
    return calls
