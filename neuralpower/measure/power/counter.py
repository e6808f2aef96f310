"""Mean power of a window, from the stream of a meter's readings: arithmetic alone.

    load    |--- settle ---|-------------- window --------------|
    counter    '     '     '  a  '     '     '     '     '  b  '        ' a tick: the counter moves
    reads   ............................................................

    P = (E_b - E_a) / (t_b - t_a)     a, b: the first and the last tick that were seen in the window

A counter moves in ticks of 1 to 100 ms; read at arbitrary instants it is wrong by up to a tick at both ends
(0.41 of a tick over the window, as a standard deviation). From tick to tick, only the time between two reads
remains of that.

Every uncertainty here is relative and holds with 95 %: the scatter of up to 10 stretches of the window and
the time stamps of the two ticks, widened by Student's t for the number of stretches. It excludes the meter's
own gain, some 5 % from card to card.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neuralpower.devices.spec import HIGHEST_W
from neuralpower.measure.meters import Reading

STRETCHES = 10
JUMP = 3  # times the power limit
STOPPED = 5  # times the usual time between two ticks


class Unreliable(Exception):  # noqa: N818  # a verdict on a stream of readings, not a fault
    """Readings that give no number; the text is the `power_reason` of the row."""


class Tick(NamedTuple):
    """A change of the counter, which happened after `early_ns` and not after `late_ns`."""

    early_ns: int
    late_ns: int
    energy_j: float

    @property
    def t_ns(self) -> float:
        """The middle: the best estimate of its time."""
        return (self.early_ns + self.late_ns) / 2

    @property
    def variance_s2(self) -> float:
        """Variance of that stamp (s^2): the tick may lie anywhere in between."""
        return ((self.late_ns - self.early_ns) / 1e9) ** 2 / 12


@dataclass(frozen=True)
class Power:
    """Mean power of a window, and how it was found."""

    power_w: float
    sd_w: float | None  # of the stretches; None for fewer than two
    u_rel: float | None  # 95 %
    ticks: int  # that were seen
    start_ns: float
    end_ns: float
    start_j: float | None = None  # the counter at the first tick and at the last
    end_j: float | None = None
    dram_w: float | None = None

    @property
    def sampled(self) -> bool:
        """Whether it was integrated from samples of power, not read from a counter."""
        return self.start_j is None


Pauses = Sequence[tuple[int, int]]  # (start, end) in ns: times in which the device was left idle


def ticks_of(readings: Sequence[Reading], period_s: float | None = None) -> list[Tick]:
    """The changes of one domain's counter, in the order of time.

    `period_s`, the longest time between two ticks, dates a change that was seen late: a counter that moves
    every millisecond moved in the last one.
    """
    ticks: list[Tick] = []
    for before, reading in pairwise(readings):
        if reading.energy_j is not None and reading.energy_j != before.energy_j:
            earliest_ns = before.t_ns if period_s is None else reading.t_ns - round(period_s * 1e9)
            ticks.append(Tick(max(before.t_ns, earliest_ns), reading.t_ns, reading.energy_j))
    return ticks


def window_power(
    readings: Sequence[Reading],
    *,
    period_s: float | None = None,
    limit_w: float | None = None,
    pauses: Pauses = (),
    idle_w: float = 0.0,
    counter: bool = True,
) -> Power:
    """Mean power while the device was busy.

    Args:
        readings: all domains' readings of the window, in the order of time.
        period_s: the longest time between two ticks of the counter, where it is known.
        limit_w: the device's power limit; three times as much is a jump of the counter.
        pauses: times in which the device was idle; their energy, at `idle_w`, is subtracted.
        idle_w: power of the idle device.
        counter: False integrates samples of power, for a counter that was found to disagree with them.

    Returns:
        Power summed over the domains, DRAM apart.

    Raises:
        Unreliable: no counter and no samples; a counter that stands still, falls or jumps; fewer than two
        ticks.
    """
    domains: dict[str, list[Reading]] = {}
    for reading in readings:
        domains.setdefault(reading.domain, []).append(reading)
    if not domains:
        raise Unreliable("no_readings")
    ceiling_w = JUMP * limit_w if limit_w is not None else HIGHEST_W
    parts: list[Power] = []
    for domain, series in domains.items():
        if domain.startswith("dram"):
            continue
        counted = counter and any(reading.energy_j is not None for reading in series)
        power_of = _counted if counted else _sampled
        parts.append(power_of(series, period_s, ceiling_w, pauses, 0.0 if parts else idle_w))
    return _together(parts, None if pauses else _dram(domains, period_s, ceiling_w), ceiling_w)


def _together(parts: Sequence[Power], dram_w: float | None, ceiling_w: float) -> Power:
    """The domains' sum; their correlation is unknown, so uncertainties add up."""
    if not parts:
        raise Unreliable("no_counter")
    power_w = sum(part.power_w for part in parts)
    if power_w > ceiling_w:
        raise Unreliable(f"counter_anomaly: jumps, {power_w:.0f} W")
    u_rels = [part.u_rel * part.power_w / power_w if part.u_rel is not None else None for part in parts]
    return Power(
        power_w=power_w,
        sd_w=_sum([part.sd_w for part in parts]),
        u_rel=_sum(u_rels),
        ticks=min(part.ticks for part in parts),
        start_ns=min(part.start_ns for part in parts),
        end_ns=max(part.end_ns for part in parts),
        start_j=_sum([part.start_j for part in parts]),
        end_j=_sum([part.end_j for part in parts]),
        dram_w=dram_w,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Their sum; None if one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _dram(domains: dict[str, list[Reading]], period_s: float | None, ceiling_w: float) -> float | None:
    series = [readings for domain, readings in domains.items() if domain.startswith("dram")]
    try:
        return sum(_counted(one, period_s, ceiling_w, (), 0.0).power_w for one in series) if series else None
    except Unreliable:
        return None


def _counted(
    readings: Sequence[Reading], period_s: float | None, ceiling_w: float, pauses: Pauses, idle_w: float
) -> Power:
    """From tick to tick of one domain's counter."""
    energies = [reading.energy_j for reading in readings]
    if any(e is None or not math.isfinite(e) or e <= 0 for e in energies):
        raise Unreliable("counter_anomaly: unreadable")
    steps = np.diff(np.array(energies, dtype=np.float64))
    if (steps < 0).any():
        raise Unreliable("counter_anomaly: runs backwards")
    ticks = ticks_of(readings, period_s)
    if len(readings) > 1 and _stands_still(readings, ticks):
        raise Unreliable("counter_anomaly: stands still")
    if len(ticks) < 2:
        raise Unreliable("too_few_ticks")
    if any(b.energy_j - a.energy_j > ceiling_w * (b.late_ns - a.early_ns) / 1e9 for a, b in pairwise(ticks)):
        raise Unreliable("counter_anomaly: jumps")
    stretches = min(STRETCHES, len(ticks) - 1)
    bounds = [ticks[round(i * (len(ticks) - 1) / stretches)] for i in range(stretches + 1)]
    t_ns = np.array([tick.t_ns for tick in bounds])
    stamps_s2 = 2 * float(np.mean([tick.variance_s2 for tick in bounds]))
    joules = np.diff([tick.energy_j for tick in bounds])
    mean = _mean(t_ns, joules, pauses, idle_w, stamps_s2)
    a, b = ticks[0], ticks[-1]
    stamps = math.sqrt(a.variance_s2 + b.variance_s2) / ((b.t_ns - a.t_ns) / 1e9)
    u_rel = mean.u_rel
    if u_rel is not None:
        u_rel = math.hypot(u_rel, _student(stretches - 1) * stamps)
    return Power(
        power_w=mean.power_w,
        sd_w=mean.sd_w,
        u_rel=u_rel,
        ticks=len(ticks),
        start_ns=a.t_ns,
        end_ns=b.t_ns,
        start_j=a.energy_j,
        end_j=b.energy_j,
    )


def _stands_still(readings: Sequence[Reading], ticks: Sequence[Tick]) -> bool:
    """Whether a counter never moved, or stopped: after three ticks, for STOPPED times its usual period."""
    if len(ticks) < 3:
        return not ticks
    usual_ns = float(np.median(np.diff([tick.late_ns for tick in ticks])))
    return readings[-1].t_ns - ticks[-1].late_ns > STOPPED * usual_ns


def _sampled(
    readings: Sequence[Reading], period_s: float | None, ceiling_w: float, pauses: Pauses, idle_w: float
) -> Power:
    """The integral of one domain's samples of power, by the trapezoidal rule."""
    powers = [reading.power_w for reading in readings]
    if all(power is None for power in powers):
        raise Unreliable("no_counter")
    if any(p is None or not math.isfinite(p) or p <= 0 for p in powers):
        raise Unreliable("power_anomaly: unreadable")
    samples_w = np.array(powers, dtype=np.float64)
    if (samples_w > ceiling_w).any():
        raise Unreliable("power_anomaly: jumps")
    updates = 1 + int(np.count_nonzero(np.diff(samples_w)))
    if updates == 1:
        raise Unreliable("power_anomaly: stands still" if len(powers) > 1 else "too_few_ticks")
    t_ns = np.array([reading.t_ns for reading in readings], dtype=np.float64)
    joules = np.concatenate([[0.0], np.cumsum(np.diff(t_ns) / 1e9 * (samples_w[1:] + samples_w[:-1]) / 2)])
    bounds_ns = np.linspace(t_ns[0], t_ns[-1], min(STRETCHES, updates) + 1)
    mean = _mean(bounds_ns, np.diff(np.interp(bounds_ns, t_ns, joules)), pauses, idle_w)
    return Power(
        power_w=mean.power_w,
        sd_w=mean.sd_w,
        u_rel=mean.u_rel,
        ticks=updates,
        start_ns=t_ns[0],
        end_ns=t_ns[-1],
    )


class _Mean(NamedTuple):
    """Mean power of the busy device over all stretches, as in `Power`."""

    power_w: float
    sd_w: float | None
    u_rel: float | None


def _mean(
    bounds_ns: np.ndarray, joules: np.ndarray, pauses: Pauses, idle_w: float, stamps_s2: float = 0.0
) -> _Mean:
    """Power of the busy device and its scatter, from the energies between the bounds.

    The uncertainty is that of a sum: the stretches' surplus over the mean power, in joules, scatters with s;
    their sum with s * sqrt(n). The scatter that the stamps of a stretch's two bounds add (their variances add
    up to `stamps_s2`) is subtracted: a late stamp gives to one stretch what it takes from the next, and only
    the outermost two change the sum.
    """
    length_s = np.diff(bounds_ns) / 1e9
    paused_s = np.zeros_like(length_s)
    for start, end in pauses:
        paused_s += np.maximum(np.minimum(bounds_ns[1:], end) - np.maximum(bounds_ns[:-1], start), 0) / 1e9
    busy_s, joules = length_s - paused_s, joules - idle_w * paused_s
    total_s = float(busy_s.sum())
    power_w = float(joules.sum()) / total_s if total_s > 0 else math.nan
    if not power_w > 0:
        raise Unreliable("counter_anomaly: no energy")
    count = len(joules)
    if count < 2:
        return _Mean(power_w, None, None)
    variance_j2 = float(np.var(joules - power_w * busy_s, ddof=1)) - power_w**2 * stamps_s2
    scatter_j = math.sqrt(max(variance_j2, 0.0))
    u_w = _student(count - 1) * scatter_j * math.sqrt(count) / total_s
    return _Mean(power_w, sd_w=scatter_j * count / total_s, u_rel=u_w / power_w)


def _student(degrees: int) -> float:
    """Student's t at 97.5 %, of as many degrees of freedom."""
    from scipy.special import stdtrit  # not above: predictions import this file, and take no power

    return float(stdtrit(degrees, 0.975))


@dataclass(frozen=True)
class Ticking:
    """The ticks of a counter that is read without pause."""

    period_s: float  # median time between two ticks, or between two reads for fast counters
    period_p95_s: float
    tick_j: float  # median energy of one


def ticking(readings: Sequence[Reading]) -> Ticking | None:
    """Period and size of the first counted domain's ticks; None for fewer than three of them."""
    first = next((reading.domain for reading in readings if reading.energy_j is not None), None)
    ticks = ticks_of([reading for reading in readings if reading.domain == first])
    if len(ticks) < 3:
        return None
    periods_s = np.diff([tick.t_ns for tick in ticks]) / 1e9
    tick_j = float(np.median(np.diff([tick.energy_j for tick in ticks])))
    return Ticking(float(np.median(periods_s)), float(np.percentile(periods_s, 95)), tick_j)
