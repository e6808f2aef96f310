"""The device under test by its name."""

from __future__ import annotations

import importlib

from neuralpower.errors import InputError
from neuralpower.measure.bench import Bench
from neuralpower.platforms import platform_for


def open_bench(device: str, power: str, threads: int, deep_idle: bool = False) -> Bench:
    """The bench of "cpu" or "cuda:0" and of the meter that `power` names; the process is set up to measure.

    `deep_idle`: what a device that has a context draws without it is measured first, which takes some seconds.

    Raises:
        InputError: a device or meter that is not known.
        DeviceError: one that is not there, or does not work.
    """
    platform = platform_for(device)
    if not platform.rig:
        raise InputError(
            f"device {device!r}: nothing measures {platform.plural} of platform {platform.name} yet"
        )
    bench: Bench = importlib.import_module(platform.rig).open_rig(device, power, threads, deep_idle)
    return bench
