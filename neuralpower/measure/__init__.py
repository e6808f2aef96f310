"""Time, power and energy of calls on this machine."""

from __future__ import annotations

from pathlib import Path

from neuralpower.devices.host import cuda_number
from neuralpower.errors import InputError

# ---- How often calls are timed; without torch, which a collection's supervisor does not import ----


ROUNDS = 9  # in which a layer is timed
NETWORK_ROUNDS = 21  # of whole networks, which are few: a 10th percentile that another run finds again


# ---- Devices of this machine, as torch names them: which one "cpu", "cuda" or "cuda:1" is ----


def target(device: str | Path | None) -> str | Path | None:
    """The device that a name means: None for this machine's CPU, a GPU's own name for cuda:0.

    Raises InputError for a GPU that is not here.
    """
    if device is None or str(device).partition(":")[0] not in ("cpu", "cuda"):
        return device
    number = cuda_number(str(device))
    if number is None:
        return None

    from neuralpower.measure.meters import MeterUnavailable
    from neuralpower.measure.meters.nvml import list_gpus

    try:
        return list_gpus()[number].name
    except (MeterUnavailable, IndexError):
        raise InputError(f"device {device!r}: there is no such GPU here; name one, such as h100") from None
