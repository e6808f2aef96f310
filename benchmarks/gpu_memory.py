"""Memory of training steps on GPUs, predicted, beside measured peaks.

python -m benchmarks.gpu_memory [PATH]

Prints for each step the predicted value over the measured one and the upper bound over it, then for each GPU
the median and 90th percentile of the errors and the share below the bound:

    H200    gpu_memory.json: 104 steps (torch 2.11, float32, timm's networks at 224 x 224). The last 60 free
            gradients between the next forward and backward pass; the prediction frees them before both.
    A100    sixteen facts of PATH, the folder of other projects' measurements (see benchmarks/peers.py)

Then the share of cuDNN's measured work space (cudnn_workspace.csv) that the rules give, call by call. Needs
timm and torchvision.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
OPTIMIZERS = {"SGD": "sgd", "Adam": "adam", "momentum": "momentum"}
MIB = 2**20
FACTS = "gpu_memory_facts.md"
FACT = re.compile(r"\|\s*([a-z]\w+)\s*\|\s*(\d+)\s*\|\s*([\d,]+)\s*\|\s*[\d,]+\s*(?=\|)")


def facts(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of networks, batch sizes and MiB that the driver shows."""
    found = FACT.findall((path / FACTS).read_text())
    return [
        {
            "name": name,
            "batch": int(batch),
            "optimizer": "momentum",
            "driver": int(mib.replace(",", "")) * MIB,
        }
        for name, batch, mib in found
    ]


def memory(row: dict[str, Any], device: str) -> Any:
    """The predicted memory of the row's step."""
    import timm
    import torch

    from neuralpower.devices.spec import spec_of
    from neuralpower.platforms import platform_of
    from neuralpower.prediction.memory.peak import training_memory
    from neuralpower.trace.steps.step_lifetimes import training_lifetimes

    with torch.device("meta"):
        network = timm.create_model(row["name"])
        images = torch.empty(row["batch"], 3, 224, 224)
    platform = platform_of(spec_of(device).hardware())
    optimizer = OPTIMIZERS[row["optimizer"]]
    return training_memory(
        training_lifetimes(network, (images,), optimizer=optimizer, platform=platform), platform=platform
    )


def lines(rows: list[dict[str, Any]], device: str) -> Iterator[str]:
    """A table row per step, then the errors' summary."""
    found = []
    yield f"\n{device}\n\n| network | batch | optimizer | driver, MiB | predicted | upper bound |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        one = memory(row, device)
        found.append((one.value_bytes / row["driver"], one.high_bytes / row["driver"]))
        about = " | ".join(str(row[name]) for name in ("name", "batch", "optimizer"))
        yield f"| {about} | {row['driver'] // MIB:,} | {found[-1][0]:.3f} | {found[-1][1]:.2f} |"
    value, high = np.array(found).T
    errors = np.abs(value - 1)
    middle, ninth = np.percentile(errors, (50, 90))
    yield (
        f"\n{len(found)} steps: median {middle:.1%}, 90th percentile {ninth:.1%}, "
        f"{(high >= 1).mean():.0%} below the bound, which is {np.median(high / value):.2f} times the value"
    )


def workspace_lines() -> Iterator[str]:
    """Measured work space of convolutions, and how much of it the rules miss or add."""
    import torch

    from neuralpower.layers.workspace import workspace_blocks

    parts = ("forward", "input_gradient", "weight_gradient")
    measured: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with (HERE / "cudnn_workspace.csv").open() as file:
        for row in csv.DictReader(file):
            size = {name: int(text) for name, text in row.items() if name != "dtype"}
            kernel = (size["kernel_height"], size["kernel_width"])
            pads, stride = (size["padding_height"], size["padding_width"]), size["stride"]
            kind = {"device": "meta", "dtype": getattr(torch, row["dtype"])}
            x = torch.empty(size["batch"], size["input_channels"], size["height"], size["width"], **kind)
            w = torch.empty(size["output_channels"], x.shape[1] // size["groups"], *kernel, **kind)
            rest = ([stride] * 2, [*pads], [1, 1], False, [0, 0], size["groups"])
            y = torch.ops.aten.convolution(x, w, None, *rest)
            forward = workspace_blocks("aten.convolution", (x, w, None, *rest), {}, y, "cudnn") or (0,)
            back = (y, x, w, [0], *rest, [True, True, False])
            backward = workspace_blocks("aten.convolution_backward", back, {}, None, "cudnn") or (0, 0)
            for name, given in zip(parts, (*forward, *backward), strict=True):
                measured.setdefault((row["dtype"], name), []).append((size[name], given))
    yield "\n| cuDNN's work space | calls | measured, GiB | off, call by call |\n|---|---|---|---|"
    for (dtype, name), pairs in measured.items():
        true, given = np.array(pairs).T
        off = np.abs(given - true).sum() / true.sum()
        yield f"| {dtype}, {name.replace('_', ' ')} | {len(pairs)} | {true.sum() / 2**30:.1f} | {off:.0%} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder of other projects' measurements")
    given = parser.parse_args()
    for line in workspace_lines():
        print(line, flush=True)
    tables = {"nvidia-h200-sxm-141gb": json.loads((HERE / "gpu_memory.json").read_text())["rows"]}
    if given.path is not None:
        tables["nvidia-a100-pcie-40gb"] = facts(given.path)
    for device, rows in tables.items():
        for line in lines(rows, device):
            print(line, flush=True)


if __name__ == "__main__":
    main()
