"""A bench: one device that calls are timed on, and its meter if it has one. What collects needs to know nothing else.

`CpuBench` times on the processor (`measure.py`); an accelerator brings a bench of its own. A bench is opened inside the
measuring process, and everything that it answers can be written as JSON.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.errors import DeviceError, unknown
from neuralpower.layers.base import Call
from neuralpower.measure import ROUNDS, Sentinel, prepare_process, time_calls

BLOCK = 60  # configurations that a CPU measures in turn
POISONED = "poisoned"  # the status of a call that left the device unusable for this process


class Bench(Protocol):
    """A device under test."""

    device: torch.device
    block: int  # configurations that are measured in turn
    power_reason: str | None  # why power cannot be measured here; None where a meter works

    def time(self, calls: Sequence[Call], rounds: int = ROUNDS) -> list[dict[str, Any]]:
        """Per call the columns of a row with its runtime (s) and `status`, or the `status` of its failure."""

    def power(self, call: Call) -> dict[str, Any]:
        """Columns of a call's power (W) and energy (J), null with a `power_reason` where there is none.

        The reason of a meter that has stopped answering is `meter_lost`, `gpu_lost` or `reset_required`: it is not asked
        again. A call that fails has a `status`, as in `time`.
        """

    def self_test(self) -> dict[str, Any]:
        """What the meter can do here, kept with the dataset; empty where there is none."""

    def hardware(self) -> dict[str, Any]:
        """What `dataset.json` says of the device: `type`, `name`, `cores`, and peaks where they are known."""

    def is_lost(self) -> bool:
        """Whether the device has stopped answering."""


class CpuBench:
    """The processor: interleaved rounds beside a sentinel; power where a function that measures it is given."""

    device = torch.device("cpu")
    block = BLOCK

    def __init__(
        self,
        threads: int,
        power_reason: str | None = "no meter was read",
        measure_power: Callable[[Call], dict[str, Any]] | None = None,
    ) -> None:
        self.threads, self.power_reason, self.measure_power = threads, power_reason, measure_power
        self.generator = random.Random(0)
        self.sentinel: Sentinel | None = None

    def time(self, calls: Sequence[Call], rounds: int = ROUNDS) -> list[dict[str, Any]]:
        """As in the protocol; `noisy` is the status of a call that others disturbed."""
        if self.sentinel is None:
            prepare_process(self.threads)
            self.sentinel = Sentinel().settle()
        timings = time_calls(calls, self.sentinel, self.generator, rounds=rounds)
        return [
            failure(timing)
            if isinstance(timing, Exception)
            else {**timing.to_row(), "status": "noisy" if timing.noisy else "ok"}
            for timing in timings
        ]

    def power(self, call: Call) -> dict[str, Any]:
        """As in the protocol."""
        if self.measure_power is None:
            return {"power_source": "none", "power_reason": self.power_reason}
        return self.measure_power(call)

    def self_test(self) -> dict[str, Any]:
        """Nothing: no meter is read."""
        return {}

    def hardware(self) -> dict[str, Any]:
        """The processor as the operating system describes it."""
        cpu = read_cpu()
        return {"type": "cpu", "l2_bytes": cpu.l2_bytes, **cpu.to_json()}

    def is_lost(self) -> bool:
        """Never: without it nothing would run."""
        return False


def open_bench(device: str, power: str, threads: int) -> Bench:
    """The bench of `cpu`; raises InputError for a device that is not known, DeviceError for a meter that is not there."""
    if device != "cpu":
        raise unknown("device", device, ["cpu"])
    if power == "none":
        return CpuBench(threads, power_reason="not asked for")
    if power != "auto":
        raise DeviceError(f"power {power!r}: no such meter works here; --power auto measures runtime alone")
    return CpuBench(threads)


def failure(error: Exception) -> dict[str, Any]:
    """What a configuration did to torch, as its result: status oom, poisoned or error, and the error's class and text.

    After a CUDA error other than a lack of memory every later call of the process fails, too (sticky, pytorch #17425).
    """
    text = str(error).strip()
    status = "error"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate" in text or "out of memory" in text:
        status = "oom"
    elif "CUDA error" in text or "cudaError" in text:
        status = POISONED
    return {"status": status, "error_class": type(error).__name__, "error_msg": text[:500]}
