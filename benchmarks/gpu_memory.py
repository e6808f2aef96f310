"""Peaks of training steps on a GPU, replayed by PyTorch's allocator, beside measured ones.

python -m benchmarks.gpu_memory

The 48 measured peaks are those of `benchmarks/gpu_memory.json` (NVIDIA H200, torch 2.11.0, float32, timm's
networks at 224 x 224). Prints, for each, allocated and reserved bytes over the measured ones, then the median
and 90th percentile of the errors. CONTEXT is the median difference of the driver's value and reserved bytes
there: it is measured, not predicted. Needs timm and torchvision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 774 * 2**20  # B: CUDA's context and the kernels that a step loads, on that GPU and driver
OPTIMIZERS = {"SGD": "sgd", "Adam": "adam"}
MIB = 2**20


def ratios(row: dict[str, Any]) -> tuple[float, float, float]:
    """Predicted over measured bytes: allocated, reserved, and what the driver shows."""
    import timm
    import torch

    from neuralpower.platforms import platform_named
    from neuralpower.predict.memory.cuda_allocator import replayed
    from neuralpower.trace.step_lifetimes import training_lifetimes

    with torch.device("meta"):
        network = timm.create_model(row["name"])
        images = torch.empty(row["batch"], 3, 224, 224)
    nvidia = platform_named("nvidia")
    step = training_lifetimes(network, (images,), optimizer=OPTIMIZERS[row["optimizer"]], platform=nvidia)
    done = replayed(step.storages)
    return (
        done.peak_allocated / row["allocated"],
        done.peak_reserved / row["reserved"],
        (done.peak_reserved + CONTEXT) / row["driver"],
    )


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table row per step, then the errors' summary."""
    found = []
    yield "| network | batch | optimizer | reserved, MiB | allocated | reserved | driver |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        found.append(ratios(row))
        cells = " | ".join(f"{ratio:.3f}" for ratio in found[-1])
        about = " | ".join(str(row[name]) for name in ("name", "batch", "optimizer"))
        yield f"| {about} | {row['reserved'] // MIB:,} | {cells} |"
    errors = np.abs(np.array(found) - 1)
    for name, values in zip(("allocated", "reserved", "driver"), errors.T, strict=True):
        yield f"\n{name}: median {np.median(values):.1%}, 90th percentile {np.percentile(values, 90):.1%}"


def main() -> None:
    """Print the table."""
    measured = json.loads(Path(__file__).with_name("gpu_memory.json").read_text())
    for line in lines(measured["rows"]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
