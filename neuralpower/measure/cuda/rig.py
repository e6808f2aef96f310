"""A CUDA device as collections see it: times, power, what it is, and whether it is still there.

Power is measured on the graph that is timed, replayed without a pause: a queue of replays keeps the device
busy while the host reads the meter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from neuralpower.errors import DeviceError, LostDeviceError, Unmodelled
from neuralpower.layers.base import Call
from neuralpower.measure.calls import settings_of
from neuralpower.measure.cuda.runtime import (
    Condition,
    Cuda,
    Mark,
    describe,
    device_named,
    open_condition,
    open_cuda,
)
from neuralpower.measure.cuda.timer import WARMUP_S, Block, CudaTimer
from neuralpower.measure.meters import NullMeter, PowerMeter, open_meter
from neuralpower.measure.meters.base import no_power
from neuralpower.measure.power.energy import Clock, measure_power
from neuralpower.measure.power.selftest import SelfTest, deep_idle_w, run_self_test
from neuralpower.measure.rig import POISONED, outcome

# A queue holds at least QUEUED replays, work for QUEUED_S (a loop with nothing to do sleeps for a
# millisecond), and work for QUEUED_READS of the longest usual readings of the meter.
QUEUED, MOST_QUEUED = 3, 64
QUEUED_S = 0.005
QUEUED_READS = 3.0
READ_S = 0.01  # of a meter that was not tested
LOAD_SIZE = 4096  # of the square matrices of the self-test's load, and of the sentinel
SENTINEL_CALLS = 50  # between two times of the sentinel
DRIFT = 0.03  # of the sentinel, beyond which rows are flagged


@dataclass
class Queue:
    """Keeps replays ahead of the device, so that it never idles while the host does something else."""

    cuda: Cuda
    block: Block
    depth: int
    ahead: deque[Mark] = field(default_factory=deque)

    def run_once(self) -> int:
        """Fill the queue, without waiting; the number of calls that have ended since the last time."""
        finished = self._finished()
        while len(self.ahead) < self.depth:
            self.block.replay()
            self.ahead.append(self.cuda.mark())
        return finished

    def drain(self) -> int:
        """Wait for the queue to empty; the number of calls that were in it."""
        self.cuda.synchronize()
        return self._finished()

    def _finished(self) -> int:
        replays = 0
        while self.ahead and self.ahead[0].done():
            self.ahead.popleft()
            replays += 1
        return replays * self.block.size


@dataclass
class CudaRig:
    device: torch.device
    timer: CudaTimer
    meter: PowerMeter = NullMeter("no_meter")  # open
    tested: SelfTest = field(default_factory=SelfTest)  # of the meter, once `self_test` was called
    idle_deep_w: float | None = None  # before this process made its context; None where it was not looked at
    sentinel: Call | None = None  # timed every SENTINEL_CALLS calls: whether the device is as fast as before
    sentinels_s: list[float] = field(default_factory=list)
    timed: int = 0  # calls so far

    block = 1  # configurations that are measured in turn: each rotates over memory of its own

    @property
    def power_reason(self) -> str | None:
        """Why power cannot be measured; None where a meter works."""
        return self.meter.reason if isinstance(self.meter, NullMeter) else None

    def time(self, calls: Sequence[Call], rounds: int = 0) -> list[dict[str, Any]]:
        """As in the protocol; `rounds` is a CPU's: here a stop rule decides.

        A call that leaves the device unusable for this process is `poisoned`, and so are all calls after it.
        """
        return [self._answer(partial(self._row, call)) for call in calls]

    def power(self, call: Call) -> dict[str, Any]:
        """As in the protocol, in a steady loop of the graph that the call is timed in."""
        if self.power_reason is not None:
            return no_power(self.power_reason)
        columns = self._answer(partial(self._power, call))
        return {**no_power(columns["status"]), **columns} if "status" in columns else columns

    def self_test(self) -> dict[str, Any]:
        """As in the protocol, idle and under a product of large matrices; some 25 s."""
        if self.power_reason is not None:
            return {}
        queues: list[Queue] = []

        def wake() -> None:
            queues.append(self._load())

        with self.timer.cuda.stream(), torch.inference_mode():
            tested = run_self_test(
                self.meter,
                lambda: queues[0].run_once(),
                wake,
                self._clock(),
                drain=lambda: queues[0].drain() if queues else 0,
                asleep=False,  # this process has made its context
            )
        self.tested = replace(tested, idle_deep_w=self.idle_deep_w)
        return self.tested.to_json()

    def resume(self, tested: Mapping[str, Any]) -> None:
        """Take over what `self_test` found in a process before this one."""
        self.tested = SelfTest.from_json(tested)

    def hardware(self) -> dict[str, Any]:
        """As in the protocol; its idle power only once `self_test` was called."""
        idle_w = self.tested.idle_w
        known = describe(self.timer.properties, self.timer.condition)
        return known if idle_w is None else {**known, "idle_w": idle_w}

    def is_lost(self) -> bool:
        """Whether the driver has lost the device; a new process cures a context that is dead by itself."""
        try:
            self.timer.condition()
        except LostDeviceError:
            return True
        return False

    def _row(self, call: Call) -> dict[str, Any]:
        if self.sentinel is not None and self.timed % SENTINEL_CALLS == 0:
            self.sentinels_s.append(self.timer.time(self.sentinel).runtime_s)
        self.timed += 1
        row = self.timer.time(call).to_row()
        if not self.sentinels_s:
            return row
        last_s, usual_s = self.sentinels_s[-1], float(np.percentile(self.sentinels_s, 10))
        slowdown = last_s / usual_s
        flags = [*row["flags"], *(["sentinel_drift"] if abs(slowdown - 1) > DRIFT else [])]
        return {**row, "flags": flags, "sentinel_s": last_s, "sentinel_slowdown": slowdown}

    def _answer(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The columns, or what became of a call that raised."""
        try:
            return measure()
        except Exception as error:  # whatever a configuration does to torch, the sweep continues
            return self._failed(error)

    def _failed(self, error: Exception) -> dict[str, Any]:
        """Status and error of a call that raised; the memory that it held is freed.

        The error's class decides, not its text: whether the device still works is tried out.
        """
        error.__traceback__ = error.__context__ = None  # their frames hold the tensors
        if isinstance(error, DeviceError) or not self.timer.cuda.works():
            return outcome(POISONED, error)
        self.timer.cuda.release()
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return outcome("oom", error)
        if isinstance(error, Unmodelled | NotImplementedError):
            return outcome("unsupported", error)
        return outcome("error", error)

    def _power(self, call: Call) -> dict[str, Any]:
        with settings_of(call), self.timer.cuda.stream():
            block = self.timer.block(call)
            if block.graph is None and self.timer.host_bound(block):
                return no_power("host_bound")  # the device idles between calls: its power is not theirs
            queue = self._queue(block)
            window = measure_power(
                queue.run_once, self.meter, self._clock(), drain=queue.drain, known=self.tested.known
            )
            queue.run_once()
            capped = self.timer.condition().power_capped  # while it works
            queue.drain()
        return {**window.to_row(), "flags": [*window.flags, *(["power_cap"] if capped else [])]}

    def _queue(self, block: Block) -> Queue:
        """A queue long enough for the device to outlast a reading of the meter."""
        read_s = self.tested.read_p95_s or READ_S
        ahead = math.ceil(max(QUEUED_READS * read_s, QUEUED_S) / block.replay_s)
        return Queue(self.timer.cuda, block, min(max(ahead, QUEUED), MOST_QUEUED))

    def _load(self) -> Queue:
        queue = self._queue(self.timer.block(product(self.device)))
        for _ in range(math.ceil(WARMUP_S / queue.block.replay_s)):
            queue.block.replay()
        self.timer.cuda.synchronize()
        return queue

    def _clock(self) -> Clock:
        return Clock(self.timer.clock_ns, self.timer.sleep)


def open_cuda_rig(device: torch.device, power: str = "auto", deep_idle: bool = False) -> CudaRig:
    """The rig of a CUDA device; its meter is opened first, which asks who else uses the device.

    `deep_idle`: the device is then watched for some seconds, unless torch already uses CUDA in this process.

    Raises:
        DeviceError: there is no such device, or the meter of that name does not work.
        InputError: there is no meter of that name.
    """
    meter = open_meter(power, f"cuda:{device.index or 0}")
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    idle_deep_w = deep_idle_w(meter) if deep_idle and not begun else None
    cuda = open_cuda(device)
    condition = open_condition(cuda.properties().uuid)
    timer = CudaTimer(cuda, condition or Condition)
    return CudaRig(cuda.device, timer, meter, idle_deep_w=idle_deep_w, sentinel=product(cuda.device))


def product(device: torch.device) -> Call:
    """A product of large square matrices, which keeps the device busy."""
    operands = [torch.randn(LOAD_SIZE, LOAD_SIZE, device=device, dtype=torch.bfloat16) for _ in range(2)]
    return Call(torch.mm, tuple(operands))


def open_rig(device: str, power: str, threads: int, deep_idle: bool = False) -> CudaRig:
    """The GPU "cuda:0", as `open_cuda_rig`; the host's threads are left as they are."""
    return open_cuda_rig(device_named(device), power, deep_idle)
