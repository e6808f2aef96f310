"""Devices of this machine, as torch names them: which one "cpu", "cuda" or "cuda:1" is."""

from __future__ import annotations

import re
from pathlib import Path

from neuralpower.errors import InputError

HERE = re.compile(r"cpu|cuda(?::(\d+))?")


def target(device: str | Path | None) -> str | Path | None:
    """The device that a name means: None for this machine's CPU, a GPU's own name for cuda:0.

    Raises InputError for a GPU that is not here.
    """
    found = HERE.fullmatch(str(device))
    if device is None or not found:
        return device
    if device == "cpu":
        return None
    from neuralpower.measure.meters import MeterUnavailable
    from neuralpower.measure.meters.nvml import list_gpus

    try:
        return list_gpus()[int(found[1] or 0)].name
    except (MeterUnavailable, IndexError):
        raise InputError(f"device {device!r}: there is no such GPU here; name one, such as h100") from None
