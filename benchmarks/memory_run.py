"""The real memory peak of a network in its own process: `benchmarks.memory` starts it for every run.

python -m benchmarks.memory_run JSON: [model, batch, length, phase, context, recipe's settings]; prints the
bytes at the peak of running it, less what the process had when torch and the network's classes were imported
and nothing was built.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from neuralpower.layers import Call
from neuralpower.measure.calls import TrainingStep
from neuralpower.networks.caches import Again
from neuralpower.networks.phases import DECODE, PREFILL, Phase
from neuralpower.networks.sources import resolve
from neuralpower.prediction.evaluation.evaluate import built
from neuralpower.prediction.request import Request
from neuralpower.trace.recipe import TRAINING, Recipe

STEPS = 3  # the first makes the optimizer's state, the second finds a heap with holes
THREADS = 2


def resident(field: str) -> int:
    """Bytes of one line of this process's status: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def run(call: Call, phase: str, recipe: Recipe) -> None:
    """Three passes or steps."""
    if phase == TRAINING:
        step = TrainingStep(call, recipe)
        for _ in range(STEPS):
            step()
        return
    with torch.inference_mode():
        for _ in range(STEPS):
            call()


def main() -> None:
    """Build the network, run it, and print what that took."""
    model, batch, length, phase, context, settings = json.loads(sys.argv[1])
    torch.set_num_threads(THREADS)
    asked = {DECODE: Phase.decode(context=context), PREFILL: Phase.prefill(length)}.get(phase, Phase())
    case = Request(model, batch, None if phase == PREFILL else length, phase=asked)
    resolve(model)  # imports the classes
    before = resident("VmRSS")
    call: Any = built(case)
    if isinstance(call.function, Again) and phase == DECODE:
        # it keeps the cache that it was given; a user's step does not
        call = Call(call.function.module, (), call.kwargs)
    # the largest resident memory counts from here: tied weights were made twice
    Path("/proc/self/clear_refs").write_text("5")
    run(call, phase, Recipe(**settings))
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main()
