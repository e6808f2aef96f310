"""Predicted against real memory peaks on this CPU: a fresh process per network, inference and a training step.

    tensors    what a real run's operators returned and had not yet freed, at its peak (profiling's account)
    process    largest resident memory of a fresh process, less what it had before the network was built, with freed
               memory given back at once (MALLOC_MMAP_THRESHOLD_): what the step needs
    as it is   the same with glibc's own heap, which keeps what was freed

python -m benchmarks.memory [PART OF A NAME]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass

from neuralpower.errors import NeuralPowerError
from neuralpower.memory import TRAINING, Memory, forward_memory, training_memory
from neuralpower.sources import InputRequest, resolve
from neuralpower.trace import trace

LLAMA = "transformers:llama?num_hidden_layers=4&hidden_size=1024&intermediate_size=2816&num_attention_heads=16"
NETWORKS = (
    ("transformers:bert", 4, 128),
    ("transformers:gpt2", 2, 256),
    ("transformers:GPT2LMHeadModel", 1, 128),
    ("transformers:distilbert", 8, 128),
    (LLAMA, 1, 512),
    ("transformers:t5", 2, 128),
    ("transformers:vit", 4, None),
    ("transformers:swin", 2, None),
    ("transformers:convnext", 2, None),
    ("transformers:albert?hidden_size=768&intermediate_size=3072&num_attention_heads=12", 2, 64),
    ("zoo:shufflenet_v2", 8, None),
    ("zoo:squeezenet", 8, None),
    ("zoo:mobilenet_v2", 4, None),
    ("zoo:resnet18", 8, None),
    ("zoo:googlenet", 4, None),
    ("zoo:densenet121", 2, None),
    ("zoo:efficientnet_b0", 2, None),
    ("zoo:resnet50", 4, None),
    ("zoo:lstm_language_model", 4, None),
    ("zoo:alexnet", 16, None),
    ("zoo:vgg11", 2, None),
    ("zoo:unet", 1, None),
)
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
REAL = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils._pytree import tree_iter
from neuralpower.memory import default_loss
from neuralpower.profiling.steps import Step, _accounted
from neuralpower.profiling.stopwatch import HostClock
from neuralpower.sources import InputRequest, resolve

def resident(field):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
    return int(line.split()[1]) * 1024

name, batch, length, account = json.loads(sys.argv[1])
torch.set_num_threads(2)
source = resolve(name)
source.inputs(source.build("meta"), InputRequest(1, length))  # imports what the network needs
warm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
warm(torch.randn(2, 3, 8, 8)).sum().backward()
torch.optim.AdamW(warm.parameters()).step()
del warm
before = resident("VmRSS")
model = source.build("cpu")
inputs = source.inputs(model, InputRequest(batch, length), device="cpu")
for training in (False, True):
    model.train(training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6) if training else None
    step = Step(model, inputs.args, inputs.kwargs, "training" if training else "forward", default_loss, optimizer)
    Path("/proc/self/clear_refs").write_text("5")  # the largest resident memory counts from here
    for _ in range(2):
        step.run(HostClock())
    process = resident("VmHWM") - before
    print(json.dumps([process, _accounted(step, HostClock(), None)[1] if account else None]), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One network in one phase; bytes."""

    name: str
    predicted: Memory
    account: int
    process: int
    as_it_is: int

    @property
    def error(self) -> float:
        """Of the process's peak."""
        return self.predicted.value_bytes / self.process - 1

    @property
    def tensors_error(self) -> float:
        """Of the tensors' peak: activations and weights alone."""
        return self.predicted.tensor_bytes / self.account - 1


def real(name: str, batch: int, length: int | None, account: bool, **environment: str) -> list[tuple[int, int]]:
    """(bytes of the process, bytes of tensors if `account`) in a forward pass and in a training step, in one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, json.dumps([name, batch, length, account])],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()[-2:]]


def compared(name: str, batch: int, length: int | None) -> list[Row]:
    """Predict a forward pass and a training step, then run both."""
    source = resolve(name)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch, length))
    both = [
        forward_memory(trace(module, inputs.args, inputs.kwargs)),
        training_memory(module, inputs.args, inputs.kwargs),
    ]
    label = f"{name.partition('?')[0].partition(':')[2]} b{batch}{f' s{length}' if length else ''}"
    runs = zip(both, real(name, batch, length, True, **RETURNED), real(name, batch, length, False), strict=True)
    return [Row(f"{label} {m.phase}", m, account, process, usual) for m, (process, account), (usual, _) in runs]


def main() -> None:
    """Print the table, a line as soon as it is known, and the summary."""
    rows = []
    print(
        f"{'network':34} {'tensors':>8} {'real':>8} {'error':>7} {'whole':>8} {'real':>8} {'error':>7} {'as it is':>8} high"
    )
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, batch, length in (network for network in NETWORKS if wanted in network[0]):
        try:
            found = compared(name, batch, length)
        except (NeuralPowerError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            print(f"{name}: {reason.strip().splitlines()[-1][:150]}", flush=True)
            continue
        rows += found
        for row in found:
            sizes = (row.predicted.tensor_bytes, row.account, row.predicted.value_bytes, row.process, row.as_it_is)
            a, b, c, d, e = (f"{size / 1e6:8.1f}" for size in sizes)
            high = row.predicted.high_bytes / 1e6
            print(
                f"{row.name:34} {a} {b} {row.tensors_error:+7.1%} {c} {d} {row.error:+7.1%} {e} {high:8.1f}", flush=True
            )
    for phase in ("forward", TRAINING):
        some = [row for row in rows if row.predicted.phase == phase]
        if some:
            errors = [row.error for row in some]
            print(
                f"{phase}: {len(some)} networks, median error {statistics.median(map(abs, errors)):.1%} "
                f"(tensors {statistics.median(abs(row.tensors_error) for row in some):.1%}), farthest below "
                f"{min(errors):+.1%}, as it is within high {sum(r.as_it_is <= r.predicted.high_bytes for r in some)}"
            )


if __name__ == "__main__":
    main()
