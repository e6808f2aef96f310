"""A rig: one device that calls are timed on, and its meter if it has one. What collects needs to know nothing else.

`CpuRig` times on the processor (`measure.py`); an accelerator brings a rig of its own. A rig is opened inside the
measuring process, and everything that it answers can be written as JSON.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from neuralpower.errors import InputError, said
from neuralpower.layers.call import Call
from neuralpower.measure.cpu.timer import ROUNDS
from neuralpower.platforms import platform_for

POISONED = "poisoned"  # the status of a call that left the device unusable for this process


class Rig(Protocol):
    """A device under test."""

    device: torch.device
    block: int  # configurations that are measured in turn

    @property
    def power_reason(self) -> str | None:
        """Why power cannot be measured here; None where a meter works."""

    def time(self, calls: Sequence[Call], rounds: int = ROUNDS) -> list[dict[str, Any]]:
        """Per call the columns of a row with its runtime (s) and `status`, or the `status` of its failure."""

    def power(self, call: Call) -> dict[str, Any]:
        """Columns of a call's power (W) and energy (J), null with a `power_reason` where there is none.

        The reason of a meter that has stopped answering is `meter_lost`, `gpu_lost` or `reset_required`: it is not asked
        again. A call that fails has a `status`, as in `time`.
        """

    def self_test(self) -> dict[str, Any]:
        """What the meter can do here, kept with the dataset; empty where there is none."""

    def resume(self, tested: Mapping[str, Any]) -> None:
        """Take over what `self_test` found in a process before this one."""

    def hardware(self) -> dict[str, Any]:
        """What `dataset.json` says of the device: `type`, `name`, `cores`, and peaks where they are known."""

    def is_lost(self) -> bool:
        """Whether the device has stopped answering."""


def open_rig(device: str, power: str, threads: int, deep_idle: bool = False) -> Rig:
    """The rig of "cpu" or "cuda:0" and of the meter that `power` names; the process is set up to measure.

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
    rig: Rig = importlib.import_module(platform.rig).open_rig(device, power, threads, deep_idle)
    return rig


def failure(error: BaseException) -> dict[str, Any]:
    """What a configuration did to torch, as its result: status oom, poisoned or error, and the error's class and text.

    After a CUDA error other than a lack of memory every later call of the process fails, too (sticky, pytorch #17425).
    """
    text = said(error).strip()
    status = "error"
    if (
        isinstance(error, (MemoryError, torch.OutOfMemoryError))
        or "allocate" in text
        or "out of memory" in text
    ):
        status = "oom"
    elif "CUDA error" in text or "cudaError" in text:
        status = POISONED
    return {"status": status, "error_class": type(error).__name__, "error_msg": text[:500]}
