"""A bench: one device that calls are timed on, and its meter if it has one. What collects needs to know nothing else.

`CpuBench` times on the processor (`measure.py`); an accelerator brings a bench of its own. A bench is opened inside the
measuring process, and everything that it answers can be written as JSON.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.errors import said
from neuralpower.layers.base import Call
from neuralpower.measure.cpu.timer import ROUNDS, Sentinel, power_columns, prepare_process, steady_load, time_calls
from neuralpower.measure.cuda.bench import open_cuda_bench
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.measure.meters import NullMeter, PowerMeter, open_meter
from neuralpower.measure.power.selftest import SelfTest, run_self_test

BLOCK = 60  # configurations that a CPU measures in turn
POISONED = "poisoned"  # the status of a call that left the device unusable for this process


class Bench(Protocol):
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


class CpuBench:
    """The processor: interleaved rounds beside a sentinel, and a meter that is open."""

    device = torch.device("cpu")
    block = BLOCK

    def __init__(self, threads: int, meter: PowerMeter) -> None:
        self.threads, self.meter = threads, meter
        self.power_reason = meter.reason if isinstance(meter, NullMeter) else None
        self.cpu = read_cpu()
        self.tested = SelfTest()
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
        prepare_process(self.threads)
        return power_columns(
            call,
            self.meter,
            llc_bytes=self.cpu.llc_bytes or 0,
            memory_bytes=self.cpu.memory_bytes,
            idle_w=self.tested.idle_w,
            period_s=self.tested.update_period_p95_s,
            counter=self.tested.use_counter,
        )

    def self_test(self) -> dict[str, Any]:
        """As in the protocol; some 25 s."""
        if self.power_reason is not None:
            return {}
        prepare_process(self.threads)
        self.tested = run_self_test(self.meter, steady_load(), lambda: None)
        return self.tested.to_json()

    def resume(self, tested: Mapping[str, Any]) -> None:
        """As in the protocol."""
        self.tested = SelfTest.from_json(tested)

    def hardware(self) -> dict[str, Any]:
        """The processor as the operating system describes it."""
        return {"type": "cpu", "l2_bytes": self.cpu.l2_bytes, **self.cpu.to_json()}

    def is_lost(self) -> bool:
        """Never: without it nothing would run."""
        return False


def open_bench(device: str, power: str, threads: int, deep_idle: bool = False) -> Bench:
    """The bench of "cpu" or "cuda:0" and of the meter that `power` names; the process is set up to measure.

    `deep_idle`: what a device that has a context draws without it is measured first, which takes some seconds.

    Raises:
        InputError: a device or meter that is not known.
        DeviceError: one that is not there, or does not work.
    """
    if device == "cpu":
        prepare_process(threads)
        return CpuBench(threads, open_meter(power, device))
    return open_cuda_bench(device_named(device), power, deep_idle)


def failure(error: BaseException) -> dict[str, Any]:
    """What a configuration did to torch, as its result: status oom, poisoned or error, and the error's class and text.

    After a CUDA error other than a lack of memory every later call of the process fails, too (sticky, pytorch #17425).
    """
    text = said(error).strip()
    status = "error"
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate" in text or "out of memory" in text:
        status = "oom"
    elif "CUDA error" in text or "cudaError" in text:
        status = POISONED
    return {"status": status, "error_class": type(error).__name__, "error_msg": text[:500]}
