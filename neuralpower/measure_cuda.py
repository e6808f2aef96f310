"""Device time of a call on a CUDA device: graphs of many calls over rotated tensors, and eager calls beside them.

    copies     R of the call, so that a copy's turn comes when the L2 cache has forgotten it
    graph      K calls over the copies, K so that a replay lasts BLOCK_S
    warm-up    replays for WARMUP_S, the device's condition read while they run
    samples    mark | replay | mark,  mark | replay | mark, ...      until the median is known within PRECISION
    eager      mark | call call call ... | mark                      what a user sees, and what the host takes for it
    condition  read again under load; slowed down by heat: all of it is discarded, and taken again once it is cool

`runtime_s`, the median of the samples over K, is what composes: the device's time without the host's. A call that no graph
can hold is sampled the same way, eagerly, and says so.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from neuralpower.calls import Step, call_bytes, copy_call, settings_of, step_of
from neuralpower.cuda import (
    Condition,
    Cuda,
    Graph,
    Mark,
    NotCapturable,
    Properties,
    describe,
    open_condition,
    open_cuda,
    to_columns,
)
from neuralpower.errors import DeviceError, LostDeviceError, PoisonedError, Unmodelled
from neuralpower.layers.base import Call

BLOCK_S = 1e-3  # of a replay, so that marks, which resolve 0.5 us, are exact
LONGEST_BLOCK_S = 5e-3  # of a replay, where copies are many
MOST_CALLS = 1024  # of a replay
MOST_COPIES = 256
L2_TURNS = 3  # so many L2 caches' worth of other bytes come between two turns of a copy
MEMORY_SHARE = 0.3  # of what is free may go to copies; results and workspaces need some, too
EAGER_CALLS = 3  # before anything is timed
WARMUP_S = 0.025
FEWEST, MOST = 11, 400  # samples
SHORTEST_S, LONGEST_S = 0.05, 2.0  # of sampling
PRECISION = 0.02  # relative half-width of the median's interval
CONFIDENCE = 0.95
KEPT_SAMPLES = 200
HOST_BOUND = 1.3  # eager time over device time
DISPATCH_S = 2e-3  # of the host's time at a stretch: some hundred kernels, which the queue holds
DISPATCH_CALLS = (2, 200)
DISPATCH_STRETCHES = 7
COOLINGS, COOL_S = 2, 10.0
QUEUED, QUEUED_CALLS_OF_METER = 3, 3.0  # replays ahead of the device, and times a reading of the meter
MOST_QUEUED = 64


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """(low, high): the order statistics between which the median lies with that confidence; None for five and fewer.

    The number of samples below the median is binomial (n, 1/2), whatever their distribution: of nine samples the second
    and the eighth hold it between them with 96.1 %.
    """
    from scipy.stats import binom

    outside = int(binom.ppf((1 - confidence) / 2, len(samples), 0.5)) - 1
    if outside < 0:
        return None
    ordered = sorted(samples)
    return ordered[outside], ordered[-1 - outside]


def converged(samples: Sequence[float]) -> bool:
    """Whether the median's interval is narrow enough."""
    interval = median_interval(samples)
    return interval is not None and interval[1] - interval[0] <= 2 * PRECISION * float(np.median(samples))


@dataclass(frozen=True)
class Block:
    """`size` calls over some copies, as one graph or, where `graph` is None, one by one."""

    steps: tuple[Step, ...]
    size: int
    graph: Graph | None
    replay_s: float = BLOCK_S  # about
    eager_s: float = BLOCK_S  # of one call, about

    def replay(self) -> None:
        """Queue all calls."""
        if self.graph is not None:
            self.graph.replay()
            return
        for i in range(self.size):
            self.steps[i % len(self.steps)]()


@dataclass(frozen=True)
class CudaTiming:
    """The times of one call on a CUDA device, in seconds, and the device's condition while they were taken."""

    samples_s: tuple[float, ...]  # of a call, each the mean of a replay
    eager_s: float
    dispatch_s: float
    first_call_s: float
    block: Block
    warmups: int
    before: Condition
    after: Condition

    @property
    def runtime_s(self) -> float:
        """The median: device time where a graph was replayed."""
        return float(np.median(self.samples_s))

    @property
    def host_bound(self) -> bool:
        """Whether the host takes longer to issue calls than the device to run them."""
        if self.block.graph is None:  # then runtime_s is itself an eager time
            return HOST_BOUND * self.dispatch_s > self.eager_s
        return self.eager_s > HOST_BOUND * self.runtime_s

    @property
    def throttled(self) -> bool:
        """Whether heat slowed the device down."""
        return self.before.throttled or self.after.throttled

    def to_row(self) -> dict[str, Any]:
        """Columns of a dataset row."""
        q25, q75 = (float(q) for q in np.percentile(self.samples_s, (25, 75)))
        low, high = median_interval(self.samples_s) or (None, None)
        return {
            "status": "throttled" if self.throttled else "ok",
            "runtime_s": self.runtime_s,
            "runtime_mean_s": float(np.mean(self.samples_s)),
            "runtime_q25_s": q25,
            "runtime_q75_s": q75,
            "runtime_min_s": min(self.samples_s),
            "runtime_low_s": low,
            "runtime_high_s": high,
            "n": len(self.samples_s),
            "block_k": self.block.size,
            "copies": len(self.block.steps),
            "warmups": self.warmups,
            "converged": len(self.samples_s) >= FEWEST and converged(self.samples_s),
            "timing": "eager" if self.block.graph is None else "graph",
            "cache_state": "rotated",
            "runtime_eager_s": self.eager_s,
            "dispatch_s": self.dispatch_s,
            "host_bound": self.host_bound,
            "first_call_s": self.first_call_s,
            "samples_s": list(self.samples_s[:KEPT_SAMPLES]),
            "flags": ["power_cap"] if self.before.power_capped or self.after.power_capped else [],
            **to_columns(self.before, self.after),
        }


@dataclass(frozen=True)
class CudaTimer:
    """Times calls on one device, one after the other."""

    cuda: Cuda
    condition: Callable[[], Condition] = Condition
    clock_ns: Callable[[], int] = time.perf_counter_ns
    sleep: Callable[[float], None] = time.sleep

    @cached_property
    def properties(self) -> Properties:
        """The device's."""
        return self.cuda.properties()

    def time(self, call: Call) -> CudaTiming:
        """Its times; raises what the call raises, PoisonedError where a capture has spoilt the context."""
        with settings_of(call), self.cuda.stream():
            first_call_s = self._waited_s(step_of(call))  # with all that libraries set up for it
            block = self.block(call)
            for attempt in range(1 + COOLINGS):
                if attempt:
                    self.sleep(COOL_S)
                timing = self._timed(block, first_call_s)
                if not timing.throttled:
                    break
        return timing

    def block(self, call: Call) -> Block:
        """A graph of the call whose replay lasts BLOCK_S; eager calls where it cannot be captured."""
        copies = [step_of(call)]
        eager_s = call_s = self._waited_s(copies[0], EAGER_CALLS)
        most = self._most_copies(call)
        for _ in range(3):  # eager calls of a small kernel take the host's time: the first graph is then too short
            size = min(max(math.ceil(BLOCK_S / call_s), 1), MOST_CALLS)
            wanted = min(most, max(size, int(LONGEST_BLOCK_S / call_s)), MOST_CALLS)
            fresh = [step_of(copy_call(call)) for _ in range(wanted - len(copies))]
            for step in fresh:
                step()
            copies += fresh
            block = self._captured(tuple(copies), max(size, wanted))
            replay_s = self._marked_s(block, 1)[0]
            if replay_s >= 0.8 * BLOCK_S or block.size == MOST_CALLS or block.graph is None:
                break
            call_s = replay_s / block.size / 1.1
        return replace(block, replay_s=replay_s, eager_s=eager_s)

    def host_bound(self, block: Block) -> bool:
        """Whether the device waits for the host where calls are issued one by one."""
        eager_s, dispatch_s = self._eager(block)
        return HOST_BOUND * dispatch_s > eager_s

    def _waited_s(self, step: Step, calls: int = 1) -> float:
        """The host's time until the device has finished, for each of so many calls."""
        self.cuda.synchronize()
        start = self.clock_ns()
        for _ in range(calls):
            step()
        self.cuda.synchronize()
        return max(self.clock_ns() - start, 1) / 1e9 / calls

    def _most_copies(self, call: Call) -> int:
        size = call_bytes(call)
        if not size:
            return 1
        cold = math.ceil(L2_TURNS * self.properties.l2_bytes / size)
        return max(min(cold, MOST_COPIES, int(MEMORY_SHARE * self.cuda.free_bytes() / size)), 1)

    def _captured(self, copies: tuple[Step, ...], size: int) -> Block:
        try:
            graph = self.cuda.capture([copies[i % len(copies)] for i in range(size)])
        except NotCapturable:
            if not self.cuda.works():
                raise PoisonedError(
                    "a call that no graph can hold has spoilt the process's CUDA context; "
                    "it is started again, and measures this configuration alone"
                ) from None
            return Block(copies, size, None)
        return Block(copies, size, graph)

    def _marked_s(self, block: Block, replays: int) -> list[float]:
        """Device times of so many replays in a row; one that is not timed goes ahead, so that the queue is never empty."""
        marks = []
        block.replay()
        for _ in range(replays):
            start = self.cuda.mark()
            block.replay()
            marks.append((start, self.cuda.mark()))
        self.cuda.synchronize()
        return [max(self.cuda.elapsed_s(start, end), 1e-9) for start, end in marks]

    def _timed(self, block: Block, first_call_s: float) -> CudaTiming:
        warmups = math.ceil(WARMUP_S / block.replay_s)
        before = self._under_load(block, warmups)
        samples = self._samples_s(block)
        after = self._under_load(block, math.ceil(WARMUP_S / 5 / block.replay_s))
        eager_s, dispatch_s = self._eager(block)
        return CudaTiming(tuple(samples), eager_s, dispatch_s, first_call_s, block, warmups, before, after)

    def _samples_s(self, block: Block) -> list[float]:
        """Of a call, in batches, until the stop rule is met."""
        samples: list[float] = []
        spent = 0.0
        batch = FEWEST if FEWEST * block.replay_s <= LONGEST_S else max(int(LONGEST_S / block.replay_s), 3)
        while len(samples) < MOST and spent < LONGEST_S:
            times = self._marked_s(block, min(batch, MOST - len(samples)))
            samples += [time_s / block.size for time_s in times]
            spent += sum(times)
            if len(samples) >= FEWEST and spent >= SHORTEST_S and converged(samples):
                break
        return samples

    def _under_load(self, block: Block, replays: int) -> Condition:
        """Replay, and read the device's condition while it works: an idle device holds its clocks down for that reason."""
        for _ in range(replays):
            block.replay()
        condition = self.condition()
        self.cuda.synchronize()
        return condition

    def _eager(self, block: Block) -> tuple[float, float]:
        """(device time, host time) of a call that is issued one by one: medians over stretches of calls.

        The host's time ends with the last call issued. Stretches are short enough for the device's queue, which would else
        make the host wait for the device.
        """
        calls = min(max(round(DISPATCH_S / block.eager_s), DISPATCH_CALLS[0]), DISPATCH_CALLS[1])
        stretches = DISPATCH_STRETCHES if calls > DISPATCH_CALLS[0] else 3
        device, host = [], []
        for _ in range(stretches):
            self.cuda.synchronize()
            first, start = self.cuda.mark(), self.clock_ns()
            for i in range(calls):
                block.steps[i % len(block.steps)]()
            end, last = self.clock_ns(), self.cuda.mark()
            self.cuda.synchronize()
            device.append(self.cuda.elapsed_s(first, last) / calls)
            host.append((end - start) / 1e9 / calls)
        return float(np.median(device)), float(np.median(host))


@dataclass
class Queue:
    """Keeps a few replays ahead of the device, so that it never idles while the host reads a meter."""

    cuda: Cuda
    block: Block
    depth: int
    ahead: deque[Mark] = field(default_factory=deque)

    def run_once(self) -> int:
        """Queue one replay, after waiting while `depth` are ahead; calls that the device has finished since the last time."""
        while len(self.ahead) >= self.depth:
            self.ahead[0].wait()
            if self.ahead[0].done():
                break
        finished = self._finished()
        self.block.replay()
        self.ahead.append(self.cuda.mark())
        return finished * self.block.size

    def drain(self) -> int:
        """Wait for all that is queued; calls that were."""
        self.cuda.synchronize()
        return self._finished() * self.block.size

    def _finished(self) -> int:
        count = 0
        while self.ahead and self.ahead[0].done():
            self.ahead.popleft()
            count += 1
        return count


@dataclass
class CudaBench:
    """A CUDA device that calls are measured on: times, power, what it is and whether it is still there."""

    device: torch.device
    timer: CudaTimer
    measure_power: Callable[[Queue], dict[str, Any]] | None = None  # power columns of replays that it asks for
    power_reason: str | None = "no_meter"  # why there are none
    meter_call_s: float = 0.01  # what a reading of the meter takes at worst, from its self-test
    report: Mapping[str, Any] = field(default_factory=dict)  # the meter's self-test

    block = 1  # configurations measured in turn: each rotates over memory of its own

    def time(self, calls: Sequence[Call], rounds: int = 0) -> list[dict[str, Any]]:
        """Columns of each, `status` among them; `rounds` is a CPU's: here a stop rule decides.

        Where a call leaves the device unusable for this process its status is `poisoned`, and that of those after it.
        """
        return [self._answer(partial(self._row, call)) for call in calls]

    def power(self, call: Call) -> dict[str, Any]:
        """Power columns of a call, in a steady loop of the graph that it is timed in; null with a reason where it has none."""
        if self.measure_power is None:
            return no_power(self.power_reason)
        measure = self.measure_power
        columns = self._answer(lambda: self._power(call, measure))
        return {**no_power(columns["status"]), **columns} if "status" in columns else columns

    def _row(self, call: Call) -> dict[str, Any]:
        return self.timer.time(call).to_row()

    def _answer(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return measure()
        except Exception as error:  # whatever a configuration does to torch, the sweep goes on
            return self._failure(error)

    def _failure(self, error: Exception) -> dict[str, Any]:
        """Status and error of a call that raised; what it held is freed."""
        error.__traceback__ = None  # its frames hold the tensors
        if isinstance(error, DeviceError) or not self.timer.cuda.works():
            status = "poisoned"
        else:
            self.timer.cuda.release()
            memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            status = (
                "oom" if memory else "unsupported" if isinstance(error, Unmodelled | NotImplementedError) else "error"
            )
        return {"status": status, "error_class": type(error).__name__, "error_msg": str(error).strip()[:500]}

    def _power(self, call: Call, measure: Callable[[Queue], dict[str, Any]]) -> dict[str, Any]:
        with settings_of(call), self.timer.cuda.stream():
            block = self.timer.block(call)
            if block.graph is None and self.timer.host_bound(block):
                return no_power("host_bound")  # the device idles between calls: its power is not theirs
            columns = measure(self._queue(block))
            capped = self.timer.condition().power_capped
            return {**columns, "flags": [*columns.get("flags", ()), *(["power_cap"] if capped else [])]}

    def _queue(self, block: Block) -> Queue:
        """So many replays ahead that the device outlasts a reading of the meter."""
        ahead = math.ceil(QUEUED_CALLS_OF_METER * self.meter_call_s / block.replay_s)
        return Queue(self.timer.cuda, block, min(max(ahead, QUEUED), MOST_QUEUED))

    def self_test(self) -> dict[str, Any]:
        """What the meter can do; empty where there is none."""
        return dict(self.report)

    def hardware(self) -> dict[str, Any]:
        """What `dataset.json` says of the device."""
        return describe(self.timer.properties)

    def is_lost(self) -> bool:
        """Whether the driver has lost the device; a context that is dead by itself is another process's start away."""
        try:
            self.timer.condition()
        except LostDeviceError:
            return True
        return False


def open_cuda_bench(device: torch.device) -> CudaBench:
    """The bench of a CUDA device, without a meter; raises DeviceError where there is no such device."""
    cuda = open_cuda(device)
    condition = open_condition(cuda.properties().uuid)
    return CudaBench(cuda.device, CudaTimer(cuda, condition or Condition))


def no_power(reason: str | None) -> dict[str, Any]:
    """Power columns where nothing was measured."""
    return {"power_w": None, "energy_j": None, "power_source": "none", "power_reason": reason}
