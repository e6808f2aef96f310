"""Power and energy of a call: repeat it until its power is known.

    | settle: 0.2 s, two ticks at least | window: 0.5 s, until five ticks and a call have been seen |  drain
    | call | call | call | call | call | call | call | call | call | call | call | call | call | call |
     reads .......................................................................................

Power is the mean over the window (`neuralpower.measure.power.counter`). Time is the window's, too, and energy
per call is their product.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from neuralpower.measure.meters import MeterUnavailable, NullMeter, PowerMeter, Reading, readings_of
from neuralpower.measure.power.counter import Pauses, Power, Unreliable, window_power

SETTLE_S = 0.2
SETTLE_TICKS = 2
WINDOW_S = 0.5
LONGEST_WINDOW = 4  # times the requested window, where ticks or calls are slow
ENOUGH_TICKS = 5  # four stretches, enough for their scatter
POLL_S = 0.001
SLOW_TICK_S = 0.005  # a counter that moves more seldom is polled around its next tick
FAST_POLL_S = 0.01  # one that moves more often needs no watching: its period dates each change
EARLY = 0.7  # share of the period between a tick and the search for the next one
ALIAS_S = (0.04, 0.2)  # calls of this length beat against a slow counter that sees part of the time only
ALIAS_PERIOD_S = 0.01
LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True)
class Clock:
    """Time as measurements use it; a test brings its own."""

    now_ns: Callable[[], int] = time.perf_counter_ns
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Known:
    """What a self-test has found of a meter and its device."""

    idle_w: float | None = None  # power of the idle device, warm and ready
    period_s: float | None = None  # the longest usual time between two ticks of the counter
    counter: bool = True  # False: samples of power are integrated instead


UNKNOWN = Known()


@dataclass(frozen=True)
class PowerWindow:
    """Power of a call that was repeated over a busy window, or the reason why there is none."""

    power: Power | None
    reason: str | None
    source: str = "none"
    scope: str | None = None
    runtime_s: float | None = None  # time per call in the window
    runtime_u_rel: float = 0.0
    window_s: float | None = None  # from the first tick to the last
    settle_s: float | None = None
    idle_w: float | None = None
    alias_risk: bool = False

    @property
    def power_w(self) -> float | None:
        return self.power.power_w if self.power is not None else None

    @property
    def energy_j(self) -> float | None:
        power_w, runtime_s = self.power_w, self.runtime_s
        return None if power_w is None or runtime_s is None else power_w * runtime_s

    @property
    def energy_u_rel(self) -> float | None:
        """Relative uncertainty of the energy (95 %), without the meter's gain; None without a scatter."""
        u_rel = self.power.u_rel if self.power is not None else None
        return None if u_rel is None else math.hypot(u_rel, self.runtime_u_rel)

    @property
    def power_dyn_w(self) -> float | None:
        """Power above the idle device's; derived, and useless where the two are close."""
        power_w, idle_w = self.power_w, self.idle_w
        return None if power_w is None or idle_w is None else power_w - idle_w

    @property
    def flags(self) -> list[str]:
        return ["alias_risk"] if self.alias_risk else []

    def to_row(self) -> dict[str, Any]:
        """The power columns of a dataset row; None for unknown values."""
        power = self.power
        return {
            "power_w": self.power_w,
            "power_sd_w": power.sd_w if power else None,
            "energy_j": self.energy_j,
            "energy_u_rel": self.energy_u_rel,
            "window_runtime_s": self.runtime_s,
            "window_s": self.window_s,
            "settle_s": self.settle_s,
            "ticks": power.ticks if power else None,
            "counter_start_j": power.start_j if power else None,
            "counter_end_j": power.end_j if power else None,
            "idle_w_used": self.idle_w,
            "power_dyn_w": self.power_dyn_w,
            "power_source": self.source if power else "none",
            "power_scope": self.scope if power else None,
            "dram_power_w": power.dram_w if power else None,
            "power_reason": self.reason,
        }


RunOnce = Callable[[], int | None]


@dataclass(frozen=True)
class _Busy:
    """A busy window as it was taken."""

    readings: list[Reading]
    pauses: Pauses
    length_s: float  # of the calls that ended in it
    runtime_s: float | None  # per call; None if none ended


class _Loop:
    """Keeps the device busy, and reads the meter meanwhile."""

    def __init__(
        self,
        run_once: RunOnce,
        meter: PowerMeter,
        clock: Clock,
        period_s: float | None,
        rest_s: float = POLL_S,
    ) -> None:
        self.run_once, self.meter, self.clock, self.rest_s = run_once, meter, clock, rest_s
        fast = period_s is not None and period_s < SLOW_TICK_S
        self.poll_ns = round((FAST_POLL_S if fast else rest_s) * 1e9)
        self.wait_ns = round(EARLY * period_s * 1e9) if period_s is not None and not fast else self.poll_ns
        self.last: list[Reading] = []
        self.due_ns = 0
        self.begin()

    def begin(self) -> None:
        """Count calls and ticks from here on."""
        self.readings: list[Reading] = []
        self.ticks = self.calls = 0
        self.begin_ns = self.finish_ns = self.clock.now_ns()

    def step(self) -> int:
        """Run once, and read the meter if it is due; how many calls have ended."""
        done = self.run_once()
        ended = 1 if done is None else int(done)
        if ended:
            self.calls += ended
            self.finish_ns = self.clock.now_ns()
        if not self.poll() and not ended:
            self.clock.sleep(self.rest_s)
        return ended

    def poll(self) -> bool:
        """Read the meter if it is due; raises MeterUnavailable."""
        now = self.clock.now_ns()
        if now < self.due_ns:
            return False
        readings = readings_of(self.meter)
        moved = any(
            a.energy_j != b.energy_j or (b.energy_j is None and a.power_w != b.power_w)
            for a, b in zip(self.last, readings, strict=False)
        )
        self.ticks += moved and bool(self.readings)
        self.readings += readings
        self.last = readings
        self.due_ns = now + (self.wait_ns if moved else self.poll_ns)
        return True

    def age_s(self) -> float:
        return (self.clock.now_ns() - self.begin_ns) / 1e9

    def settle(self, settle_s: float, longest_s: float) -> float | None:
        """Keep busy for `settle_s`, and until a call has ended; roughly, the time of a call (s)."""
        while self.age_s() < settle_s or (self.calls == 0 and self.age_s() < longest_s):
            self.step()
        return (self.finish_ns - self.begin_ns) / 1e9 / self.calls if self.calls else None

    def window(self, window_s: float) -> _Busy:
        """Keep busy until enough has been seen."""
        mark_ns = self.finish_ns  # a call ended then: from here on whole calls are counted
        self.begin()
        while not self.enough(window_s, 0.0):
            self.step()
        return self.taken(mark_ns, ())

    def paused_window(
        self, window_s: float, drain: Callable[[], int | None], generator: random.Random
    ) -> _Busy:
        """As `window`, but leave the device idle for a random time after every run."""
        drain()
        self.begin()
        mark_ns = self.begin_ns
        pauses: list[tuple[int, int]] = []
        while not self.enough(window_s, _length_s(pauses)):
            self.step()
            self.calls += drain() or 0
            self.finish_ns = self.clock.now_ns()
            pauses.append(self.pause(generator.uniform(0, LONGEST_PAUSE_S)))
        return self.taken(mark_ns, pauses)

    def pause(self, seconds: float) -> tuple[int, int]:
        """Leave the device idle; the start and the end (ns)."""
        start = self.clock.now_ns()
        while self.clock.now_ns() < start + seconds * 1e9:
            self.poll()
            self.clock.sleep(POLL_S)
        return start, self.clock.now_ns()

    def enough(self, window_s: float, paused_s: float) -> bool:
        """Whether the window is long enough and something was seen in it, or it gets too long."""
        seen = self.ticks >= ENOUGH_TICKS and self.calls > 0
        return self.age_s() >= LONGEST_WINDOW * window_s or (seen and self.age_s() - paused_s >= window_s)

    def taken(self, mark_ns: int, pauses: Pauses) -> _Busy:
        """The readings, and the time per call from `mark_ns` to the last call's end."""
        within = [pause for pause in pauses if pause[1] <= self.finish_ns]
        length_s = (self.finish_ns - mark_ns) / 1e9 - _length_s(within)
        return _Busy(self.readings, pauses, length_s, length_s / self.calls if self.calls else None)


def _length_s(pauses: Pauses) -> float:
    return sum(end - start for start, end in pauses) / 1e9


def measure_power(
    run_once: RunOnce,
    meter: PowerMeter,
    clock: Clock | None = None,
    *,
    window_s: float = WINDOW_S,
    drain: Callable[[], int | None] | None = None,
    known: Known = UNKNOWN,
) -> PowerWindow:
    """Repeat a call until its power is known.

    Args:
        run_once: makes the call and returns None; or queues calls for a device that works by itself, and
            returns how many calls have ended since the last time. When its queue is full it queues nothing,
            and is called again within a millisecond; the queue must outlast a read of the meter.
        meter: open.
        clock: the process's own by default.
        window_s: busy time that is counted; up to four times as much for want of five ticks and a call.
        drain: waits until the queue is empty, and returns how many calls were in it.
        known: what a self-test has found.

    Returns:
        The window; without power but with a reason for no meter, a lost one, or useless readings.

    A call of 40 to 200 ms beats against a slow counter, however long the window (`alias_risk`). If its
    idle power is known, the device then idles between calls for a random time up to 100 ms, whose energy
    is subtracted.
    """
    if isinstance(meter, NullMeter):
        return PowerWindow(None, meter.reason)
    drain, idle_w = drain or _nothing_queued, known.idle_w
    try:
        description = meter.describe()
        loop = _Loop(run_once, meter, clock or Clock(), known.period_s)
        timed, busy = _taken(loop, window_s, drain, known.period_s, paused=idle_w is not None)
    except MeterUnavailable as error:
        return PowerWindow(None, error.reason)
    finally:
        drain()
    about: dict[str, Any] = {"limit_w": description.limit_w, "pauses": busy.pauses}
    about |= {"period_s": known.period_s, "idle_w": idle_w or 0.0, "counter": known.counter}
    try:
        power = window_power(busy.readings, **about)
    except Unreliable as error:
        return replace(timed, reason=str(error))
    source = description.sampled_source if power.sampled else description.source
    window_s = (power.end_ns - power.start_ns) / 1e9
    scope = description.scope
    return replace(timed, power=power, source=source, scope=scope, window_s=window_s, idle_w=idle_w)


def _taken(
    loop: _Loop, window_s: float, drain: Callable[[], int | None], period_s: float | None, *, paused: bool
) -> tuple[PowerWindow, _Busy]:
    """A busy window and its times; `paused`: with pauses, where calls beat against the counter."""
    call_s = loop.settle(max(SETTLE_S, SETTLE_TICKS * (period_s or 0.0)), LONGEST_WINDOW * window_s)
    settled_s = loop.age_s()
    risk = _beats(call_s, period_s)
    busy = loop.paused_window(window_s, drain, random.Random(0)) if paused and risk else loop.window(window_s)
    unsure = POLL_S / busy.length_s if drain is not _nothing_queued and busy.length_s else 0.0
    timed = PowerWindow(
        None, None, runtime_s=busy.runtime_s, runtime_u_rel=unsure, settle_s=settled_s, alias_risk=risk
    )
    return timed, busy


def _nothing_queued() -> int:
    return 0


def _beats(call_s: float | None, period_s: float | None) -> bool:
    """Whether calls of this length beat against a counter of this period, or of an unknown one."""
    slow = period_s is None or period_s >= ALIAS_PERIOD_S
    return slow and call_s is not None and ALIAS_S[0] <= call_s <= ALIAS_S[1]


def watch(meter: PowerMeter, clock: Clock, seconds: float, run_once: RunOnce | None = None) -> list[Reading]:
    """Read the meter while `run_once` keeps the device busy, or, without it, while the device is idle.

    An idle device is read less often: on a CPU the reads wake it. Raises MeterUnavailable.
    """
    loop = _Loop(run_once or (lambda: 0), meter, clock, None, POLL_S if run_once else FAST_POLL_S)
    while clock.now_ns() < loop.begin_ns + seconds * 1e9:
        loop.step()
    return loop.readings
