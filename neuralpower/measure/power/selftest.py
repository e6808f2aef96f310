"""The self-test of a power meter, run before a collection and stored with it.

    deep idle | wake | idle | spin under load | counter against samples | square waves, 4 phases | 0.5, 1, 2 s
       5 s              5 s        2 s                   4 s                      5 s                  5 s

No number comes from the meter's data sheet: the period of its counter, the cost of a read, whether it counts
all of the time, and whether its counter and its power agree are measured on this machine, by this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from neuralpower.measure.meters import MeterUnavailable, NullMeter, PowerMeter, Reading
from neuralpower.measure.power.counter import Ticking, Unreliable, ticking, window_power
from neuralpower.measure.power.energy import Clock, Known, RunOnce, measure_power, watch

BUSY_DISAGREEMENT = 0.05
IDLE_DISAGREEMENT, IDLE_DISAGREEMENT_W = 0.1, 5.0  # the larger of the two
SQUARE_PERIOD_S = 0.1
PHASES = 4
PART_TIME = 0.1  # spread over the phases; cut cycles explain a few per cent
NONLINEARITY = 0.02
SLOW_SAMPLES_S = 1.2  # until power averaged over a second has forgotten the time before


@dataclass(frozen=True)
class Durations:
    """How long each part takes (s)."""

    idle_s: float = 5.0
    spin_s: float = 2.0
    agreement_s: float = 3.0
    square_s: float = 1.0  # for each phase
    windows_s: tuple[float, ...] = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class SelfTest:
    """The results; None where the meter does not say, or was lost before (see `reason`)."""

    reason: str | None = None  # why there is no counter to measure with
    source: str = "none"
    update_period_s: float | None = None  # between two ticks under load, median
    update_period_p95_s: float | None = None
    tick_j: float | None = None  # energy of one tick under load, median
    read_s: float | None = None  # cost of a read, median
    read_p95_s: float | None = None
    idle_deep_w: float | None = None  # before the device was woken
    idle_w: float | None = None  # after: the baseline
    idle_sampled_w: float | None = None
    busy_w: float | None = None  # by the counter
    busy_sampled_w: float | None = None  # by samples over a short time
    busy_average_w: float | None = None  # by samples over a second
    square_w: tuple[float, ...] = ()  # one per phase
    linearity_w: tuple[float, ...] = ()  # one per length of the window

    @property
    def known(self) -> Known:
        """What measurements with this meter need."""
        return Known(self.idle_w, self.update_period_p95_s, self.use_counter)

    @property
    def consistent(self) -> bool | None:
        """Whether counter and samples agree, idle and busy; None where there is nothing to compare."""
        busy = [w for w in (self.busy_sampled_w, self.busy_average_w) if w is not None]
        if self.busy_w is None or not busy:
            return None
        agree = all(abs(w - self.busy_w) <= BUSY_DISAGREEMENT * self.busy_w for w in busy)
        if self.idle_w is not None and self.idle_sampled_w is not None:
            allowed_w = max(IDLE_DISAGREEMENT * self.idle_w, IDLE_DISAGREEMENT_W)
            agree &= abs(self.idle_sampled_w - self.idle_w) <= allowed_w
        return agree

    @property
    def meter_quality(self) -> str:
        """`ok`, `inconsistent`, `unchecked` (a counter alone), `no_counter` (samples alone) or `none`."""
        if self.busy_w is None:
            return "none" if self.busy_sampled_w is None else "no_counter"
        return {True: "ok", False: "inconsistent", None: "unchecked"}[self.consistent]

    @property
    def use_counter(self) -> bool:
        """Whether `measure_power` is to read the counter; else it integrates samples, where there are any."""
        return self.meter_quality not in ("inconsistent", "no_counter")

    @property
    def square_spread(self) -> float | None:
        """Largest less smallest power over the phases, over their mean."""
        return _spread(self.square_w, PHASES)

    @property
    def part_time(self) -> bool | None:
        """Whether the counter looks at the power part of the time only: calls may beat against it."""
        return None if self.square_spread is None else self.square_spread > PART_TIME

    @property
    def nonlinearity(self) -> float | None:
        """Largest less smallest power over the lengths of the window, over their mean."""
        return _spread(self.linearity_w, 2)

    @property
    def linear(self) -> bool | None:
        """Whether power does not depend on the length of the window."""
        return None if self.nonlinearity is None else self.nonlinearity <= NONLINEARITY

    def to_json(self) -> dict[str, Any]:
        verdicts = ("meter_quality", "use_counter", "square_spread", "part_time", "nonlinearity", "linear")
        lists = {"square_w": list(self.square_w), "linearity_w": list(self.linearity_w)}
        return {**asdict(self), **lists, **{name: getattr(self, name) for name in verdicts}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SelfTest:
        """The reverse; verdicts follow from the fields."""
        given: dict[str, Any] = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return cls(**given)


def _spread(powers_w: Sequence[float], count: int) -> float | None:
    return (max(powers_w) - min(powers_w)) / float(np.mean(powers_w)) if len(powers_w) >= count else None


def deep_idle_w(
    meter: PowerMeter, clock: Clock | None = None, durations: Durations | None = None
) -> float | None:
    """Power of a sleeping device by an open meter's counter; None without a meter, or if it does not say.

    A process asks before it makes the device's context; `run_self_test` comes after.
    """
    if isinstance(meter, NullMeter):
        return None
    test = _Test(meter, lambda: 0, None, clock or Clock(), durations or Durations())
    try:
        power_w: float | None = test.deep_idle()["idle_deep_w"]
    except MeterUnavailable:  # the self-test will find it lost, and say why
        return None
    return power_w


def run_self_test(
    meter: PowerMeter,
    load: RunOnce,
    wake: Callable[[], object],
    clock: Clock | None = None,
    *,
    drain: Callable[[], int | None] | None = None,
    durations: Durations | None = None,
    asleep: bool = True,
) -> SelfTest:
    """Test the meter; some 25 s.

    Args:
        meter: open, on a device that nobody uses.
        load: a steady, heavy call of a few milliseconds, as `measure_power` takes it.
        wake: called once, between deep and active idle: makes the device's context and warms it up.
        clock: the process's own by default.
        drain: waits until the queue of `load` is empty; None for a load that the host itself carries.
        durations: shorter ones for a test.
        asleep: whether the device still sleeps; otherwise its deep idle is not measured.

    Returns:
        The results. After a meter that is lost or silent, later results are None, with the reason.
    """
    if isinstance(meter, NullMeter):
        wake()
        return SelfTest(meter.reason)
    test = _Test(meter, load, drain, clock or Clock(), durations or Durations())
    tested: dict[str, Any] = {}
    try:
        tested["source"] = meter.describe().source
        tested.update(test.deep_idle() if asleep else {})
        wake()
        for part in (test.idle, test.spin, test.agreement, test.square, test.lengths):
            tested.update(part())
    except MeterUnavailable as error:
        tested["reason"] = error.reason
        if drain is not None:
            drain()
    return SelfTest(**tested)


@dataclass
class _Test:
    """The parts; each gives fields of `SelfTest`."""

    meter: PowerMeter
    load: RunOnce
    drain: Callable[[], int | None] | None
    clock: Clock
    durations: Durations
    ticking: Ticking | None = None

    def empty(self) -> None:
        if self.drain is not None:
            self.drain()

    def deep_idle(self) -> dict[str, Any]:
        """Power before the device is woken."""
        return {"idle_deep_w": self.counted(watch(self.meter, self.clock, self.durations.idle_s))[0]}

    def idle(self) -> dict[str, Any]:
        """Power of the device warm and ready: the baseline."""
        readings = watch(self.meter, self.clock, self.durations.idle_s)
        power_w, _ = self.counted(readings)
        sampled_w = _mean_of([reading.power_w for reading in readings])
        return {"idle_w": power_w if power_w is not None else sampled_w, "idle_sampled_w": sampled_w}

    def spin(self) -> dict[str, Any]:
        """Read without pause: period and size of a tick, and the cost of a read."""
        readings: list[Reading] = []
        costs_s: list[float] = []
        start = self.clock.now_ns()
        while self.clock.now_ns() < start + self.durations.spin_s * 1e9:
            if self.drain is not None:  # a load of the host's own would keep it from reading
                self.load()
            before = self.clock.now_ns()
            readings += self.meter.read()
            costs_s.append((self.clock.now_ns() - before) / 1e9)
        self.empty()
        read = {"read_s": float(np.median(costs_s)), "read_p95_s": float(np.percentile(costs_s, 95))}
        self.ticking = found = ticking(readings)
        if found is None:
            return read
        periods = {"update_period_s": found.period_s, "update_period_p95_s": found.period_p95_s}
        return {**periods, "tick_j": found.tick_j, **read}

    def agreement(self) -> dict[str, Any]:
        """Counter and samples under a steady load."""
        start = self.clock.now_ns()
        readings = watch(self.meter, self.clock, SLOW_SAMPLES_S + self.durations.agreement_s, self.load)
        self.empty()
        steady = [reading for reading in readings if reading.t_ns >= start + SLOW_SAMPLES_S * 1e9]
        power_w, reason = self.counted(steady)
        return {
            "busy_w": power_w,
            "busy_sampled_w": _mean_of([reading.power_w for reading in steady]),
            "busy_average_w": _mean_of([reading.average_w for reading in steady]),
            "reason": reason,
        }

    def square(self) -> dict[str, Any]:
        """A load that comes and goes, at four phases of the counter's period: it draws the same each time."""
        powers = [self.square_wave(phase / PHASES * SQUARE_PERIOD_S) for phase in range(PHASES)]
        return {"square_w": tuple(power for power in powers if power is not None)}

    def square_wave(self, phase_s: float) -> float | None:
        """Mean power of a square wave that begins `phase_s` after a tick."""
        self.await_tick()
        self.clock.sleep(phase_s)
        begin = self.clock.now_ns()
        readings: list[Reading] = []
        for cycle in range(round(self.durations.square_s / SQUARE_PERIOD_S)):
            start_s = (begin - self.clock.now_ns()) / 1e9 + cycle * SQUARE_PERIOD_S
            readings += watch(self.meter, self.clock, start_s + SQUARE_PERIOD_S / 2, self.load)
            self.empty()
            end_s = (begin - self.clock.now_ns()) / 1e9 + (cycle + 1) * SQUARE_PERIOD_S
            readings += watch(self.meter, self.clock, end_s)
        return self.counted(readings)[0]

    def await_tick(self) -> None:
        """Wait until the counter moves, for half a second at most."""
        start, first = self.clock.now_ns(), self.meter.read()
        while self.clock.now_ns() < start + 5e8:
            if [r.energy_j for r in self.meter.read()] != [r.energy_j for r in first]:
                return

    def lengths(self) -> dict[str, Any]:
        """The same load over windows of several lengths."""
        how: dict[str, Any] = {"drain": self.drain, "known": Known(period_s=self.period_s)}
        lengths_s = self.durations.windows_s
        windows = [measure_power(self.load, self.meter, self.clock, window_s=s, **how) for s in lengths_s]
        return {"linearity_w": tuple(window.power_w for window in windows if window.power_w is not None)}

    @property
    def period_s(self) -> float | None:
        """The counter's, if the spin found it."""
        return self.ticking.period_p95_s if self.ticking else None

    def counted(self, readings: Sequence[Reading]) -> tuple[float | None, str | None]:
        """Power by the counter, or the reason why there is none."""
        try:
            power = window_power(readings, period_s=self.period_s, limit_w=self.meter.describe().limit_w)
        except Unreliable as error:
            return None, str(error)
        return (None, "no_counter") if power.sampled else (power.power_w, None)


def _mean_of(powers_w: Sequence[float | None]) -> float | None:
    """The mean of samples; None where one is missing or no power."""
    known = [power for power in powers_w if power is not None and power > 0]
    return float(np.mean(known)) if known and len(known) == len(powers_w) else None
