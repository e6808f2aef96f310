"""Real memory peaks of networks, each in a process of its own that this one forks: `benchmarks.memory` starts it.

python -m benchmarks.memory_run JSON: a list of [model, batch, length, phases, context, recipe's settings]; prints a line
for each: bytes per phase, or null where it failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralpower.evaluate import Again, Case, TrainingStep, built
from neuralpower.layers import Call
from neuralpower.phases import DECODE, PREFILL, Phase
from neuralpower.sources import InputRequest, resolve
from neuralpower.training import TRAINING, Recipe

STEPS = 3  # the first makes the optimizer's state, the second finds a heap with holes
THREADS = 2


def resident(field: str) -> int:
    """Bytes of one line of this process's status: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def prepare(case: Case) -> None:
    """Have everything imported and every library started that the network needs."""
    torch.set_num_threads(THREADS)
    source = resolve(case.model)
    source.inputs(source.build("meta"), InputRequest(1, case.seq_len))
    warm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
    warm(torch.randn(2, 3, 8, 8)).sum().backward()
    torch.optim.AdamW(warm.parameters()).step()


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


def peaks(given: Sequence[Any]) -> list[int]:
    """Bytes at the peak of each phase, one after the other, less what the process had before the network was built."""
    model, batch, length, phases, context, settings = given
    asked = {DECODE: Phase.decode(context=context), PREFILL: Phase.prefill(length)}.get(phases[0], Phase())
    case = Case(model, batch, None if phases[0] == PREFILL else length, phase=asked)
    prepare(case)
    before = resident("VmRSS")
    call, found = built(case), []
    if phases[0] == DECODE and isinstance(call.function, Again):
        # it keeps the cache that it was given; a user's step does not
        call = Call(call.function.module, (), call.kwargs)
    for phase in phases:
        Path("/proc/self/clear_refs").write_text("5")  # the largest resident memory counts from here
        run(call, phase, Recipe(**settings))
        found.append(resident("VmHWM") - before)
    return found


def main() -> None:
    """Fork for each network of the argument; libraries are loaded once, and start their threads after the fork."""
    import_module("transformers")
    for given in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps(peaks(given)), flush=True)
            except Exception as error:
                print(f"{given[0]}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print("null", flush=True)


if __name__ == "__main__":
    main()
