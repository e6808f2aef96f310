"""A CPU as the device under test."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.layers.base import Call
from neuralpower.measure import ROUNDS
from neuralpower.measure.cpu.reached import reached
from neuralpower.measure.cpu.timer import Sentinel, power_columns, prepare_process, steady_load, time_calls
from neuralpower.measure.meters import NullMeter, PowerMeter, open_meter
from neuralpower.measure.power.selftest import SelfTest, run_self_test
from neuralpower.measure.rig import failure

BLOCK = 60  # configurations that a CPU measures in turn


class CpuRig:
    """The processor: interleaved rounds with a sentinel, and an open meter."""

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
        prepare_process(self.threads)
        return power_columns(
            call,
            self.meter,
            llc_bytes=self.cpu.llc_bytes or 0,
            memory_bytes=self.cpu.memory_bytes,
            known=self.tested.known,
        )

    def self_test(self) -> dict[str, Any]:
        """As in the protocol; some 25 s."""
        if self.power_reason is not None:
            return {}
        prepare_process(self.threads)
        self.tested = run_self_test(self.meter, steady_load(), lambda: None)
        return self.tested.to_json()

    def resume(self, tested: Mapping[str, Any]) -> None:
        self.tested = SelfTest.from_json(tested)

    def hardware(self) -> dict[str, Any]:
        """The processor as the system describes it, what it reaches, and the cost of fresh memory."""
        described = {"type": "cpu", "l2_bytes": self.cpu.l2_bytes, **self.cpu.to_json()}
        return {**described, **reached(self.cpu)}

    def is_lost(self) -> bool:
        """Never: without it nothing would run."""
        return False


def open_rig(device: str, power: str, threads: int, deep_idle: bool = False) -> CpuRig:
    """This machine's processor, and the meter that `power` names; raises InputError, DeviceError."""
    prepare_process(threads)
    return CpuRig(threads, open_meter(power, device))
