"""A rig: one device that calls are timed on, and its meter if it has one.

`CpuRig` times on the processor; an accelerator brings a rig of its own. A rig is opened inside the measuring
process, and everything that it answers can be written as JSON.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from neuralpower.errors import InputError, said
from neuralpower.layers.base import Call
from neuralpower.measure import ROUNDS
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
        """The columns of a row for each call, with its runtime (s) and `status`, or its `failure`."""

    def power(self, call: Call) -> dict[str, Any]:
        """Columns of a call's power (W) and energy (J), null with a `power_reason` where there is none.

        A meter that has stopped answering gives the reason `meter_lost`, `gpu_lost` or `reset_required`, and
        is not asked again. A call that fails has a `status`, as in `time`.
        """

    def self_test(self) -> dict[str, Any]:
        """The abilities of the meter here, kept with the dataset; empty without a meter."""

    def resume(self, tested: Mapping[str, Any]) -> None:
        """Take over what `self_test` found in a process before this one."""

    def hardware(self) -> dict[str, Any]:
        """The device in `dataset.json`: `type`, `name`, `cores`, and peaks where they are known."""

    def is_lost(self) -> bool:
        """Whether the device has stopped answering."""


def open_rig(device: str, power: str, threads: int, deep_idle: bool = False) -> Rig:
    """The rig of "cpu" or "cuda:0" and of the meter that `power` names; the process is set up to measure.

    `deep_idle`: the power of a device without a context is measured first, which takes some seconds.

    Raises:
        InputError: the device or the meter is unknown.
        DeviceError: it is not there, or does not work.
    """
    platform = platform_for(device)
    if not platform.rig:
        raise InputError(
            f"device {device!r}: nothing measures {platform.plural} of platform {platform.name} yet"
        )
    rig: Rig = importlib.import_module(platform.rig).open_rig(device, power, threads, deep_idle)
    return rig


def failure(error: BaseException) -> dict[str, Any]:
    """The result of a configuration that raised: oom, poisoned or error, by the error's class and its text.

    After a CUDA error other than a lack of memory every later call of the process fails, too (sticky, pytorch
    #17425).
    """
    text = said(error)
    status = "error"
    if (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "allocate" in text
        or "out of memory" in text
    ):
        status = "oom"
    elif "CUDA error" in text or "cudaError" in text:
        status = POISONED
    return outcome(status, error)


def outcome(status: str, error: BaseException) -> dict[str, Any]:
    """The result of a configuration that raised: this status, and the error's class and text."""
    return {
        "status": status,
        "error_class": type(error).__name__,
        "error_msg": said(error).strip()[:500],
    }
