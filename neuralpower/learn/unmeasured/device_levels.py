"""The level of each of several devices: its time over the prediction of one regressor for all of them.

No sheet states it: it depends on the share of its peaks that a device reaches. A device that was trained on
keeps its own level. A new one has, for products on tensor cores, the level of the devices whose cores are as
wide as its own: they have the same units and run the same kernels, unless their power limit sets the pace.
For exchanges between devices it has the level of the devices with links as fast: held out, an H100's
all-reduce by NCCL is off by 12.8 % instead of 29.9. For all else, and where there is none, it has the usual
level, 1. With it, bfloat16 products of a device held out are off by 8.9 % instead of 10.6 on an H100, by 7.9
instead of 10.6 on a B200. Float32 of one width says nothing: such levels of ten devices, each held out, are
off by 10 %, 1 by 7.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import KINDS
from neuralpower.learn.fitting.problem import FEWEST_ROWS, Problem
from neuralpower.learn.keys import Key
from neuralpower.learn.regressor import Regressor

AS_WIDE = 0.25  # octaves between the widths of cores of one kind


def levels_of(regressor: Regressor, problem: Problem) -> tuple[float | None, ...]:
    """The median of time over prediction of each device, by its number; None where there are few rows."""
    apart = np.log(problem.target / regressor.predict(problem)[0])
    rows = [apart[problem.device == number] for number in range(int(problem.device.max()) + 1)]
    return tuple(float(np.exp(np.median(some))) if len(some) >= FEWEST_ROWS else None for some in rows)


def level(
    key: Key, regressor: Regressor, devices: Mapping[str, Hardware], device: str, hardware: Hardware
) -> float:
    """The level of a device; `devices`: those it was trained on, in the order of the regressor's levels."""
    known = {name: found for name, found in zip(devices, regressor.levels, strict=False) if found}
    if device in known:
        return known[device]
    kind, dtype, *_ = key
    mine = KINDS[kind].law.alike_by(KINDS[kind], hardware, dtype)
    if mine is None:
        return 1.0
    widths = {name: KINDS[kind].law.alike_by(KINDS[kind], devices[name], dtype) for name in known}
    wide = [
        np.log(known[name])
        for name, width in widths.items()
        if width and abs(np.log2(width / mine)) < AS_WIDE and not _held(kind, devices[name])
    ]
    return float(np.exp(np.median(wide))) if wide else 1.0


def _held(kind: str, hardware: Hardware) -> bool:
    """Whether a device's power limit sets its pace in such layers."""
    return KINDS[kind].multiplies and hardware.held_by_power
