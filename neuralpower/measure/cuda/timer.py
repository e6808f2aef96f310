"""Device time of a call on a CUDA device: graphs of many calls over rotated tensors, and eager calls.

    copies     R of the call, so that a copy's turn comes when the L2 cache has forgotten it
    graph      K calls over the copies, K so that a replay lasts BLOCK_S
    warm-up    replays for WARMUP_S; the device's condition is read while they run
    samples    mark | replay | mark,  mark | replay | mark, ...   until the median is known within PRECISION,
               sooner where it is known within SETTLED
    eager      mark | call call call ... | mark                   the time that a user sees, and the host's
    condition  read again under load; if heat slowed the device: discard all, and repeat once it is cool

`runtime_s`, the median of the samples over K, is the time that composes: the device's without the host's. A
call that no graph can hold is sampled the same way, eagerly, and says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from neuralpower.errors import PoisonedError
from neuralpower.layers.base import Call
from neuralpower.measure.calls import Gradient, Step, call_bytes, copy_call, settings_of, step_of
from neuralpower.measure.cuda.runtime import Condition, Cuda, NotCapturable, Properties, to_columns

BLOCK_S = 1e-3  # of a replay, so that marks, which resolve 0.5 us, are exact
LONGEST_BLOCK_S = 5e-3  # of a replay, where copies are many
MOST_CALLS = 1024  # of a replay
MOST_COPIES = 256
L2_TURNS = 3  # L2 caches' worth of other bytes between two turns of a copy
MEMORY_SHARE = 0.3  # of free memory, for copies; results and workspaces need some, too
EAGER_CALLS = 3  # before anything is timed
WARMUP_S = 0.025
FEWEST, MOST = 11, 400  # samples
SHORTEST_S, LONGEST_S = 0.05, 2.0  # of sampling
PRECISION = 0.02  # relative half-width of the median's interval
# Nine in ten calls are so steady that half of the time is enough: of 2,043 rows of an H200 that would have
# ended here, half moved by less than 0.01 %, 99 % by less than 0.7 %.
SETTLED_S, SETTLED = 0.02, 0.002
CONFIDENCE = 0.95
KEPT_SAMPLES = 200
HOST_BOUND = 1.3  # eager time over device time
DISPATCH_S = 2e-3  # of the host's time at a stretch: some hundred kernels, which the queue holds
DISPATCH_CALLS = (1, 200)
DISPATCH_STRETCHES = 7
COOLINGS, COOL_S = 2, 10.0


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """(low, high): order statistics around the median, with CONFIDENCE; None for five and fewer samples.

    The number of samples below the median is binomial (n, 1/2), whatever their distribution: with nine
    samples the median lies between the second and the eighth with 96.1 %.
    """
    from scipy.stats import binom

    outside = int(binom.ppf((1 - CONFIDENCE) / 2, len(samples), 0.5)) - 1
    if outside < 0:
        return None
    ordered = sorted(samples)
    return ordered[outside], ordered[-1 - outside]


def converged(samples: Sequence[float], precision: float = PRECISION) -> bool:
    """Whether the median's interval is narrow enough."""
    interval = median_interval(samples)
    return interval is not None and interval[1] - interval[0] <= 2 * precision * float(np.median(samples))


def enough(samples: Sequence[float], spent_s: float) -> bool:
    """Whether samples that took `spent_s` meet the stop rule."""
    usual = spent_s >= SHORTEST_S and converged(samples)
    return len(samples) >= FEWEST and (usual or (spent_s >= SETTLED_S and converged(samples, SETTLED)))


@dataclass(frozen=True)
class Block:
    """`size` calls over some copies, as one graph or, where `graph` is None, one by one."""

    steps: tuple[Step, ...]
    size: int
    graph: torch.cuda.CUDAGraph | None
    replay_s: float = BLOCK_S  # about
    eager_s: float = BLOCK_S  # of one call, about

    def replay(self) -> None:
        if self.graph is not None:
            self.graph.replay()
            return
        for i in range(self.size):
            self.steps[i % len(self.steps)]()


@dataclass(frozen=True)
class CudaTiming:
    """The times of one call on a CUDA device, in seconds, and the device's condition meanwhile."""

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
        return self.before.throttled or self.after.throttled

    def to_row(self) -> dict[str, Any]:
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
        # eager calls of a small kernel take the host's time: the first graph is then too short
        for _ in range(3):
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
        """The host's time until the device has finished, divided by `calls`."""
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
        if isinstance(copies[0], Gradient) and copies[0].seeded_by_host():
            return Block(copies, size, None)
        try:
            return Block(copies, size, self.cuda.capture([copies[i % len(copies)] for i in range(size)]))
        except NotCapturable:
            if not self.cuda.works():
                raise PoisonedError(
                    "a call that no graph can hold has spoilt the process's CUDA context; "
                    "it is started again, and measures this configuration alone"
                ) from None
            return Block(copies, size, None)

    def _marked_s(self, block: Block, replays: int) -> list[float]:
        """Device times of replays in a row; an untimed one goes ahead, so that the queue is never empty."""
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
        """Times of a call, in batches, until the stop rule is met."""
        samples: list[float] = []
        spent = 0.0
        batch = FEWEST if FEWEST * block.replay_s <= LONGEST_S else max(int(LONGEST_S / block.replay_s), 3)
        while len(samples) < MOST and spent < LONGEST_S:
            times = self._marked_s(block, min(batch, MOST - len(samples)))
            samples += [time_s / block.size for time_s in times]
            spent += sum(times)
            if enough(samples, spent):
                break
        return samples

    def _under_load(self, block: Block, replays: int) -> Condition:
        """Replay, and read the device's condition meanwhile: an idle device holds its clocks down."""
        for _ in range(replays):
            block.replay()
        condition = self.condition()
        self.cuda.synchronize()
        return condition

    def _eager(self, block: Block) -> tuple[float, float]:
        """(device time, host time) of a call that is issued one by one: medians over stretches of calls.

        The host's time ends with the last call issued. A stretch fits the device's queue, which would
        otherwise make the host wait for the device.
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
