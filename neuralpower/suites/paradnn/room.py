"""Whether a point fits into the memory of its device, before it is tried: a host that runs out of memory ends the process."""

from __future__ import annotations

import gc

import torch

from neuralpower.devices.machine import available_bytes as host_bytes
from neuralpower.dtypes import DTYPES
from neuralpower.errors import OutOfMemory
from neuralpower.report.tables import quantity
from neuralpower.suites.paradnn.formulas import TRAIN, counted
from neuralpower.suites.paradnn.learning import STATES
from neuralpower.suites.paradnn.points import BATCH, Point, family_named
from neuralpower.suites.paradnn.result import Setup

SHARE = 0.9  # of what is there may be asked for
OVERHEAD = 1.1  # on what is counted: workspaces, fragments


def needed_bytes(point: Point, setup: Setup) -> int:
    """Weights, gradients, the optimizer's states, and activations: all that training keeps, two of the largest else."""
    work = counted(point)
    itemsize = DTYPES[setup.dtype].itemsize
    stored = 4 if setup.amp else itemsize
    samples = point.batch_size * itemsize / 4  # activations are counted in float32
    if setup.mode != TRAIN:
        return int(OVERHEAD * (work.parameters * stored + 2 * samples * work.widest_bytes))
    states = 2 + STATES[setup.optimizer] + (itemsize / stored if setup.amp else 0)
    return int(OVERHEAD * (work.parameters * stored * states + samples * (work.activation_bytes + work.widest_bytes)))


def available_bytes(device: str) -> int | None:
    """Free memory of the device: of a host what the system and this process's control group leave. None: not known."""
    if device.startswith("cuda"):
        gc.collect()
        torch.cuda.empty_cache()  # what the allocator keeps is free, too
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    return host_bytes()


def check_room(point: Point, setup: Setup, available: int | None) -> None:
    """Raise OutOfMemory, with the largest sizes of the sweep that fit, where a point needs more than there is."""
    if available is None or (needed := needed_bytes(point, setup)) <= SHARE * available:
        return
    ways = []
    family = family_named(point.family)
    for name in dict.fromkeys((family.depth, family.width, BATCH)):
        smaller = [size for size in family.ranges[name] if size < point.named[name]]
        for size in reversed(smaller):
            if needed_bytes(point.replaced(**{name: size}), setup) <= SHARE * available:
                ways.append(f"--{name} {size}")
                break
    advice = (
        f"the largest that fits is {', or '.join(ways)}" if ways else "no single smaller size of the sweep makes it fit"
    )
    raise OutOfMemory(
        f"{point.label}: needs about {quantity(needed, 'B')} in {setup.dtype}, {quantity(available, 'B')} are free; {advice}"
    )
