"""A device that is known exactly: its runtime is a polynomial, its power is known, and its clock is its own.

`SimulatedRig` stands for a rig inside the measuring process; `Simulated` stands for the process, so that a
collection of half an hour passes in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from neuralpower.layers.base import Call
from neuralpower.measure.collect.process import Results
from neuralpower.measure.collect.schedule import POWER, Batch

START_S = 41.0  # process, libraries, self-test
RESTART_S = 14.0
BUILD_S, CAPTURE_S, WARM_S, REPLAY_S, EAGER_S = 0.02, 0.04, 0.025, 0.05, 0.02
SETTLE_S, WINDOW_S = 0.25, 0.5
NETWORK_S = 1.6
IDLE_W, FULL_W = 75.0, 700.0
FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 4e13, 4e12, 4e-6


def runtime_s(flops: float, size: float) -> float:
    """The time of one call."""
    return LAUNCH_S + flops / FLOPS_PER_S + size / BYTES_PER_S


def power_w(flops: float, size: float) -> float:
    """The power of the same call in a loop."""
    return IDLE_W + (FULL_W - IDLE_W) * (flops / FLOPS_PER_S) / runtime_s(flops, size)


@dataclasses.dataclass
class Simulated:
    """An executor on the simulated device's clock."""

    plan: list[dict[str, Any]]
    now_s: float = 0.0
    lanes: int = 1
    slower: float = 1.0  # than the planning values have it
    starts: int = 0

    def clock(self) -> float:
        """To give to `collect`."""
        return self.now_s

    def hold(self) -> None:
        """As an executor's."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """As an executor's."""
        if request["do"] == "plan":
            return {"plan": self.plan}
        if request["do"] == "self_test":
            return {"self_test": {"update_period_s": 0.1}}
        self._start()
        hardware = {"type": "cuda", "name": "Simulated GPU", "cores": 132}
        return {"hardware": hardware, "block": 1, "power_reason": None, "versions": {"torch": "2.13.0"}}

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Results, float]]:
        """As an executor's."""
        for batch in batches:
            begun = self.now_s
            if batch.fresh:
                self.now_s += RESTART_S * self.slower
            results = [self._measured(task.item, batch.tier) for task in batch.tasks]
            yield batch, results, self.now_s - begun

    def close(self) -> None:
        """As an executor's."""

    def _start(self) -> None:
        self.now_s += START_S * self.slower
        self.starts += 1

    def _measured(self, item: dict[str, Any], tier: str) -> dict[str, Any]:
        call_s, watts = (f(item["flops"], item["bytes"]) for f in (runtime_s, power_w))
        if tier == POWER:
            self.now_s += self.slower * (BUILD_S + CAPTURE_S + SETTLE_S + max(WINDOW_S, 4 * call_s))
            columns = {
                "power_w": watts,
                "energy_j": watts * call_s,
                "power_source": "simulated",
                "power_reason": None,
            }
            return {"config_id": item["config_id"], **columns}
        network = NETWORK_S if item["kind"] == "network" else 0.0
        self.now_s += self.slower * (
            BUILD_S + CAPTURE_S + WARM_S + EAGER_S + network + max(REPLAY_S, 11 * call_s)
        )
        return {"config_id": item["config_id"], "status": "ok", "runtime_s": call_s}


class SimulatedRig:
    """The same device behind a real measuring process; some widths of softmax fail in the ways tests need."""

    device = torch.device("cpu")
    block = 1
    power_reason: str | None = None

    def __init__(self) -> None:
        self.poisoned = False
        self.lost = False

    def time(self, calls: Sequence[Call], rounds: int = 9) -> list[dict[str, Any]]:
        """The times of calls to softmax, by the size of their first argument."""
        return [
            {"runtime_s": runtime_s(5 * n, 8 * n), "status": "ok", "n": rounds} for n in map(_elements, calls)
        ]

    def power(self, call: Call) -> dict[str, Any]:
        """The power of a call, without noise."""
        watts = power_w(5 * _elements(call), 8 * _elements(call))
        return {"power_w": watts, "power_source": "simulated", "power_reason": None}

    def self_test(self) -> dict[str, Any]:
        """The meter's period and the idle power."""
        return {"update_period_s": 0.1, "idle_w": IDLE_W}

    def resume(self, tested: Mapping[str, Any]) -> None:
        """Do nothing: there is no self-test to take over."""

    def hardware(self) -> dict[str, Any]:
        """The simulated GPU."""
        return {"type": "cuda", "name": "Simulated GPU", "cores": 132, "limit_w": FULL_W}

    def is_lost(self) -> bool:
        """Never."""
        return False


class FreshRig(SimulatedRig):
    """The same, where fresh memory is measured."""

    def hardware(self) -> dict[str, Any]:
        """What a byte of it costs besides."""
        return {**super().hardware(), "fresh_s_per_byte": 5e-10}


def _elements(call: Call) -> int:
    return next(argument.numel() for argument in call.args if isinstance(argument, torch.Tensor))
