"""Images and videos made on one GPU by diffusers (PATH/served/diffusion.csv, Apache-2.0; ML.ENERGY v3).

A row is a whole generation: text encoders, all steps, the decoder. Its calls are those that the product
predicts for the same question.
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
from neuralpower.learn.prior_fit import NETWORK_NOISE, Observation
from neuralpower.platforms import PLATFORMS
from neuralpower.prediction.request import request_of
from neuralpower.trace.follow import Followed, follow
from neuralpower.trace.question import EAGER

DEVICES = {"H100": "nvidia-h100-sxm5-80gb", "B200": "nvidia-b200"}
BATCHES = (1, 4, 16)  # the others repeat what these say


def rows(root: Path) -> Iterator[dict[str, str]]:
    """The generations on one GPU; `root` holds served/."""
    with (root / "served" / "diffusion.csv").open(encoding="utf-8") as file:
        yield from (row for row in csv.DictReader(file) if row["num_gpus"] == "1")


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """The options of `predict` for a measured generation."""
    kind = "video" if row["video_width"] else "image"
    found: dict[str, Any] = {
        "batch_size": int(row["batch_size"]),
        "steps": int(row["inference_steps"]),
        "resolution": [int(float(row[f"{kind}_{side}"])) for side in ("width", "height")],
        "dtype": "bfloat16",
    }
    return {**found, "frames": int(float(row["num_frames"]))} if kind == "video" else found


def observations(root: Path) -> list[Observation]:
    """One for each generation on one GPU with a batch of BATCHES; `root` holds served/."""
    return [one for _, one in named_observations(root)]


def named_observations(root: Path) -> Iterator[tuple[str, Observation]]:
    """The same, each with its model."""
    calls: dict[tuple[str, str], Counter[Layer]] = {}
    for row in rows(root):
        model, batch = row["model_id"], row["batch_size"]
        if int(batch) not in BATCHES:
            continue
        if (model, batch) not in calls:
            calls[model, batch] = calls_of(model, options_of(row))
        mine, spec = calls[model, batch], find_spec(DEVICES[row["gpu_model"]])
        counts, took = np.array([*mine.values()], dtype=float), float(row["batch_latency_s"])
        yield (
            model,
            Observation(
                spec.slug, spec.hardware(), tuple(mine), counts, took, noise=NETWORK_NOISE, chip=spec.chip
            ),
        )


def calls_of(model: str, options: Mapping[str, Any]) -> Counter[Layer]:
    """How often a generation calls each layer, eagerly on a GPU."""
    request = request_of(model, options, dtype=options["dtype"])
    question = request.question(PLATFORMS["nvidia"], run=EAGER)
    found = follow(request.asked(request.source(), EAGER), question)
    assert isinstance(found, Followed)
    calls = Counter[Layer]()
    for task in found.work.tasks:
        calls[task.layer] += task.share  # type: ignore[assignment]  # a Counter adds shares as well
    return calls
