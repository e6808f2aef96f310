"""Time calls as they run inside a network: interleaved rounds, warm inputs, cold weights.

    batch of ~60 calls, each built and warmed up
    round 1:  call 17 | call 4 | ... | sentinel | ... | call 52      a new random order in every round
    round 2:  call 33 | ...
    ...
    round 9:  ...                          runtime_s = 10th percentile of a call's 9 times

Within a round each call first writes its inputs afresh (a network has just computed them), then runs once.
Its weights were last touched a round ago, and are as cold as in a network. A whole network of less than
COLD_CALL_S comes just after an untimed run of its own: users run it again and again, so its code and small
weights are in the caches.

A backward pass is called through autograd, which takes 13 us and more to start, three times that when cold. A
network pays for that once a step, not once a layer: a pass through a mere view runs before, and its time is
subtracted.

Power has its own pass: half a second and more of one call, over copies of its tensors that together exceed
all caches (`power_columns`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from neuralpower.devices.host import steal_ticks, waits_s
from neuralpower.dtypes import FLOATING
from neuralpower.errors import NeuralPowerError
from neuralpower.layers.base import Call
from neuralpower.measure import ROUNDS
from neuralpower.measure.calls import (
    Backward,
    Gradient,
    Step,
    call_bytes,
    copy_call,
    seconds_of,
    settings_of,
    step_of,
    warm_of,
)
from neuralpower.measure.cpu.reached import keep_heap
from neuralpower.measure.meters import NullMeter, PowerMeter
from neuralpower.measure.power.energy import UNKNOWN, Clock, Known, PowerWindow, measure_power
from neuralpower.networks.users_code import raised, users_code

SENTINEL_EVERY = 12  # calls
SENTINEL_EVERY_S = 0.02
WARM_UP_S = 0.1
# A network that is timed in turn with others finds its code and small weights gone. That cost each of 80
# networks on a CPU up to 0.8 ms, a sixth of 5 ms; beyond 50 ms it did not show.
COLD_CALL_S = 0.05
SLOW_CALL_S = 0.3  # a call of this length and more is timed in fewer rounds
STEAL_LIMIT = 0.01
SWITCH_LIMIT = 3 / 9  # share of a call's rounds with an involuntary switch, above what its length explains
SWITCH_PERIOD_S = 0.004  # the scheduler's tick: longer calls meet it anyhow
COLD = 4  # times the last-level cache: the size of all copies of a call's tensors
MOST_COPIES = 512
BATCH_S = 0.001  # calls between two looks at the clock: a look takes microseconds, as do short calls
MEMORY_SHARE = 0.25  # of the machine's memory, for the copies
SHORTEST_NODE_S = 1e-7  # of a backward pass, without autograd's start
Waits = Callable[[], Mapping[str, float]]
"""Seconds that each thread of the process has waited for a core, by its name."""


@dataclass(frozen=True)
class Timing:
    """The times of one call on a CPU, in seconds, and how quiet it was while they were taken."""

    samples_s: tuple[float, ...]
    first_call_s: float
    sentinel_s: float  # 10th percentile of the sentinel's times in this call's rounds: the machine's speed
    sentinel_slowdown: float  # their median over the 10th percentile of all its times since the start
    switches_per_call: float
    faults: tuple[int, ...]  # page faults of each sample
    steal: float  # share of the machine's time that others took
    start_s: float = 0.0  # of autograd, which is not in the samples of a backward pass
    sentinel_again_s: float | None = None  # as `sentinel_s`, of the second of its two calls in a row
    waited_s: tuple[float, ...] = ()  # of each sample, for a core that another process had

    @property
    def runtime_s(self) -> float:
        """The 10th percentile: a shared machine only ever gets slower."""
        return float(np.percentile(self.samples_s, 10))

    @property
    def alone_s(self) -> float:
        """The same without the time that it waited for a core."""
        return float(np.percentile(np.subtract(self.samples_s, self.waited_s or 0.0), 10))

    @property
    def faults_per_call(self) -> float:
        return sum(self.faults) / max(len(self.faults), 1)

    def at_mean_faults(self, fault_s: float) -> Timing:
        """Each sample as if it had had as many page faults as all have on average, of `fault_s` each.

        A loop pays for all faults, but a pass for many or few, by chance of the heap: a low percentile would
        choose passes with few.
        """
        mean, least = self.faults_per_call, min(self.samples_s)
        evened = (s + (mean - n) * fault_s for s, n in zip(self.samples_s, self.faults, strict=True))
        return replace(self, samples_s=tuple(max(sample_s, least) for sample_s in evened))

    @property
    def noisy(self) -> bool:
        """Whether others ran on these cores; such a timing is taken again."""
        expected = self.runtime_s / SWITCH_PERIOD_S
        return self.steal > STEAL_LIMIT or self.switches_per_call > SWITCH_LIMIT + expected

    def to_row(self) -> dict[str, Any]:
        q25, median, q75 = (float(q) for q in np.percentile(self.samples_s, (25, 50, 75)))
        return {
            "runtime_s": self.runtime_s,
            "runtime_median_s": median,
            "runtime_q25_s": q25,
            "runtime_q75_s": q75,
            "runtime_min_s": min(self.samples_s),
            "n": len(self.samples_s),
            "samples_s": list(self.samples_s),
            "first_call_s": self.first_call_s,
            "sentinel_s": self.sentinel_s,
            "sentinel_again_s": self.sentinel_again_s,
            "sentinel_slowdown": self.sentinel_slowdown,
            "nivcsw_per_call": self.switches_per_call,
            "minflt_per_call": self.faults_per_call,
            "steal": self.steal,
            **({"start_s": self.start_s} if self.start_s else {}),
        }


class Sentinel:
    """One fixed layer, timed throughout: how fast the machine is right now, cores and memory together.

    Its input is warm and its weights are cold, as in a network's layers: each call takes another matrix, of
    more than any last-level cache holds. A matrix that stays in the caches misses what other tenants do to
    the memory.

    It is called twice in a row: the network that ran just before changes the first time by 5 % (one standard
    deviation), and the second by 1 %.
    """

    MATRICES = 27  # of 2.25 MiB

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock_ns = clock_ns
        self.times: list[float] = []
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(128, 768, generator=generator)
        self.weights = torch.randn(self.MATRICES, 768, 768, generator=generator)

    def __call__(self) -> tuple[float, float]:
        """Time it twice (s)."""
        first, again = (2 * len(self.times) + i for i in range(2))
        self.times.append(self._time(first))
        return self.times[-1], self._time(again)

    def _time(self, number: int) -> float:
        weight = self.weights[number % self.MATRICES]
        self.x.neg_()
        return seconds_of(partial(F.linear, self.x, weight), self.clock_ns)

    def settle(self, calls: int = 50) -> Sentinel:
        """Warm up, so that the first times count as much as later ones."""
        for _ in range(calls):
            self()
        return self


class Autograd:
    """Starts autograd, so that it is as warm as inside a network, and knows how long the mere start takes."""

    NODES = 11  # of the longer of two passes, whose difference is the nodes'

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock_ns = clock_ns
        self.one, self.many = (
            Backward(partial(_views, count)).step(torch.ones(2)) for count in (1, self.NODES)
        )
        self.one_s: list[float] = []
        self.many_s: list[float] = []

    def __call__(self) -> None:
        """A pass through one view, to be warm, and another, to be timed."""
        self.one()
        self.one_s.append(seconds_of(self.one, self.clock_ns))

    def settle(self, calls: int = 50) -> Autograd:
        """Warm up, and measure the nodes' time."""
        for _ in range(calls):
            self()
            self.many_s.append(seconds_of(self.many, self.clock_ns))
        return self

    @property
    def start_s(self) -> float:
        """Time of the start alone, without the node; from 10th percentiles, as a call's own time."""
        one, many = (float(np.percentile(times, 10)) for times in (self.one_s, self.many_s))
        return max(one - (many - one) / (self.NODES - 1), 0.0)


def _views(count: int, x: torch.Tensor) -> torch.Tensor:
    for _ in range(count):
        x = x.view(-1)
    return x


def prepare_process(threads: int) -> None:
    """Set a process up to measure: thread counts, denormals flushed to zero, a heap that stays."""
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # allowed once per process
        torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)
    keep_heap()


@dataclass
class _Sampled:
    """A call that ran, and the results of its rounds."""

    call: Call
    step: Step
    first_s: float
    samples_s: list[float] = field(default_factory=list)
    switches: int = 0
    faults: list[int] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)

    @property
    def slow(self) -> bool:
        """Whether it is timed in a third of the rounds."""
        return self.first_s >= SLOW_CALL_S

    def sample(self, autograd: Autograd | None, clock_ns: Callable[[], int], waits: Waits) -> None:
        """Run it once, its inputs written afresh."""
        step = self.step
        function, args, kwargs = (
            (step.function, step.args, step.kwargs) if isinstance(step, Call) else (step, (), {})
        )
        with contextlib.nullcontext() if isinstance(step, Call) else settings_of(self.call):
            if self.call.recurs and self.first_s < COLD_CALL_S:
                function(*args, **kwargs)
            _rewrite(warm_of(self.call, step))
            if autograd is not None and isinstance(step, Gradient):
                autograd()
            long = self.first_s >= SWITCH_PERIOD_S  # shorter ones find moments without others
            before = resource.getrusage(resource.RUSAGE_SELF)
            waited = waits() if long else {}
            start = clock_ns()
            function(*args, **kwargs)  # the result is freed here, as networks free theirs
            end = clock_ns()
            waited_then = waits() if long else {}
            after = resource.getrusage(resource.RUSAGE_SELF)
        self.samples_s.append((end - start) / 1e9)
        longest_s = max(
            (wait_s - waited.get(thread, 0.0) for thread, wait_s in waited_then.items()), default=0.0
        )  # the other threads wait for that one
        idle_s = max(self.samples_s[-1] - _worked_s(before, after), 0.0)  # work is counted in whole ticks
        self.waited_s.append(min(longest_s, idle_s))
        self.switches += after.ru_nivcsw > before.ru_nivcsw
        self.faults.append(after.ru_minflt - before.ru_minflt)

    def timing(self, speeds: np.ndarray, usual_s: float, steal: float, autograd: Autograd | None) -> Timing:
        """Its times; `speeds` [calls, 2]: the sentinel's in its rounds (s), `usual_s`: its usual time."""
        start_s = autograd.start_s if autograd and isinstance(self.step, Gradient) else 0.0
        least_s = SHORTEST_NODE_S if start_s else 0.0
        return Timing(
            tuple(max(sample_s - start_s, least_s) for sample_s in self.samples_s),
            self.first_s,
            float(np.percentile(speeds[:, 0], 10)),
            float(np.median(speeds[:, 0])) / usual_s,
            self.switches / len(self.samples_s),
            tuple(self.faults),
            steal,
            start_s,
            float(np.percentile(speeds[:, 1], 10)),
            tuple(self.waited_s),
        )


def time_calls(
    calls: Sequence[Call],
    sentinel: Sentinel,
    generator: random.Random,
    *,
    rounds: int = ROUNDS,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    waits: Waits = waits_s,
) -> list[Timing | Exception]:
    """Each call's times over interleaved rounds, or the exception that it raised.

    `rounds` holds for calls below SLOW_CALL_S; slower ones take a third of them. The forward pass of a
    backward pass runs once, before the first round. Calls that are timed in turn share the sentinel's times:
    the few just before one call tell more about that moment than about the machine.
    """
    with torch.inference_mode():
        begun = [_begun(call, clock_ns) for call in calls]
        alive = [sampled for sampled in begun if isinstance(sampled, _Sampled)]
        sentinels: list[list[tuple[float, float]]] = []  # by round
        backward = any(isinstance(sampled.step, Gradient) for sampled in alive)
        with torch.inference_mode(False):
            autograd = Autograd(clock_ns).settle() if backward else None
        stolen, ticks = steal_ticks()
        for number in range(rounds):
            order = [sampled for sampled in alive if number % 3 == 0 or not sampled.slow]
            generator.shuffle(order)
            sentinels.append([])
            due = 0
            for position, sampled in enumerate(order):
                if position % SENTINEL_EVERY == 0 or clock_ns() > due:
                    sentinels[-1].append(sentinel())
                    due = clock_ns() + round(SENTINEL_EVERY_S * 1e9)
                sampled.sample(autograd, clock_ns, waits)
        stolen_after, ticks_after = steal_ticks()
    steal = (stolen_after - stolen) / max(ticks_after - ticks, 1)
    usual_s = float(np.percentile(sentinel.times, 10)) if alive else 1.0
    rounds_of = sentinels, sentinels[::3]  # of quick calls, and of slow ones
    speeds = [np.array(list(itertools.chain.from_iterable(some))).reshape(-1, 2) for some in rounds_of]
    return [
        sampled.timing(speeds[sampled.slow], usual_s, steal, autograd)
        if isinstance(sampled, _Sampled)
        else sampled
        for sampled in begun
    ]


def _worked_s(before: resource.struct_rusage, after: resource.struct_rusage) -> float:
    """The least time in which its threads did what processors did for this process between two looks."""
    worked = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    return worked / torch.get_num_threads()


def _begun(call: Call, clock_ns: Callable[[], int]) -> _Sampled | Exception:
    """The call, built and warmed up, or the exception that it raised: the sweep continues."""
    try:
        with users_code("a call that is timed"), settings_of(call):
            step = step_of(call)
            return _Sampled(call, step, _warm_up(step, clock_ns))
    except NeuralPowerError as error:
        cause = raised(error)
        return cause if isinstance(cause, Exception) else error


def _warm_up(step: Step, clock_ns: Callable[[], int]) -> float:
    """Call until two times in a row agree within 5 % or WARM_UP_S is spent; the last call's time (s)."""
    spent = elapsed = 0.0
    for number in range(8):
        last, elapsed = elapsed, seconds_of(step, clock_ns)
        spent += elapsed
        if number >= 1 and (abs(elapsed - last) <= 0.05 * elapsed or spent > WARM_UP_S):
            break
    return elapsed


def _rewrite(warm: Sequence[torch.Tensor]) -> None:
    """Write the inputs in place, values of the same size."""
    for tensor in warm:
        if str(tensor.dtype).removeprefix("torch.") in FLOATING:
            tensor.neg_()


def copies_of(bytes_held: int, llc_bytes: int, memory_bytes: int | None) -> int:
    """How many sets of tensors fill the last-level cache COLD times, if memory allows; one at least."""
    wanted = math.ceil(COLD * llc_bytes / max(bytes_held, 1))
    room = MOST_COPIES if memory_bytes is None else int(MEMORY_SHARE * memory_bytes / max(bytes_held, 1))
    return max(1, min(wanted, room, MOST_COPIES))


def power_columns(
    call: Call,
    meter: PowerMeter,
    *,
    llc_bytes: int,
    memory_bytes: int | None = None,
    known: Known = UNKNOWN,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Power columns of one call on a CPU, which it has to itself meanwhile, and `flags`.

    Args:
        call: whose tensors are copied, views and strides as they are.
        meter: open.
        llc_bytes: the last-level cache.
        memory_bytes: the machine's memory; a quarter of it may be taken.
        known: what a self-test of the meter has found.
        clock: the process's own by default.

    Returns:
        The columns of `PowerWindow.to_row` and the list `flags`. What the call raises is raised.
    """
    if isinstance(meter, NullMeter):
        return {**PowerWindow(None, meter.reason).to_row(), "flags": []}
    clock = clock or Clock()
    with torch.inference_mode():
        count = copies_of(call_bytes(call), llc_bytes, memory_bytes)
        with settings_of(call):
            step = step_of(call)
            batch = max(1, int(BATCH_S / max(_warm_up(step, clock.now_ns), SHORTEST_NODE_S)))
            steps = itertools.cycle([step, *(step_of(copy_call(call)) for _ in range(count - 1))])

        def run_once() -> int:
            with settings_of(call):
                for step in itertools.islice(steps, batch):
                    step()
            return batch

        window = measure_power(run_once, meter, clock, known=known)
    return {**window.to_row(), "flags": window.flags}


def steady_load(size: int = 1024) -> Callable[[], None]:
    """A call of some milliseconds for the self-test of a CPU's meter: a product of two square matrices."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, size, size, generator=generator)

    def multiply() -> None:
        with torch.inference_mode():
            torch.mm(left, right)

    return multiply
