"""Joules of a pass: the rows' watts weighed by their times, and what the device draws while it waits.

Layers of one kind err together, other kinds for themselves, and a network's layers have a part in common.
Time and watts err apart from each other: the square of a relative error of joules is the sum of both squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from neuralpower.layers import Hardware
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.watts import Setting, idle_power, shipped_watts
from neuralpower.prediction.rows import BOUNDS, Interval, Row

NEGLIGIBLE_IDLE = 0.02  # of the time, where idle power is not known
# Share of the time with trained power that energy needs, where no power limit bounds the other layers.
ENERGY_COVERAGE = 0.9
LIMITED = 0.999  # of the limit: from here on it sets the clock


def energy_of(
    rows: Sequence[Row],
    busy: Interval,
    runtime: Interval,
    hardware: Hardware | None,
    setting: Setting | None = None,
) -> tuple[Interval | None, Interval | None, str]:
    """(power, energy, why there is none): rows' powers weighed by their times, idle power between.

    A row of unknown power draws what the others do, within idle and limit.
    """
    known = [row for row in rows if row.power_w is not None]
    if not known or hardware is None:
        return None, None, "the predictor has no power data, and the device's power limit is not known"
    covered = sum(row.runtime_s for row in known) / (sum(row.runtime_s for row in rows) or 1.0)
    limit, setting = hardware.board_w, setting or Setting()
    if limit is not None:
        limit = min(limit, setting.limit_w or limit)
    if covered < ENERGY_COVERAGE and limit is None:
        said = f"power data covers {covered:.0%} of the time ({ENERGY_COVERAGE:.0%} needed)"
        return None, None, said
    waiting = 1 - busy.value / runtime.value if runtime.value > busy.value else 0.0
    if waiting > NEGLIGIBLE_IDLE and hardware.idle_w is None and limit is None:
        text = f"the device idles {waiting:.0%} of the time, and its idle power is not known"
        return None, None, text
    idle = Interval(*idle_power(hardware, setting.clock))
    working = _working(known, idle, limit or math.inf, covered)
    power = Interval(
        *(getattr(working, bound) * (1 - waiting) + waiting * getattr(idle, bound) for bound in BOUNDS)
    )
    return power, with_time(power, runtime), ""


def with_time(power: Interval, runtime: Interval) -> Interval:
    """Joules of a power over a time."""
    joules = power.value * runtime.value
    low, high = (math.hypot(_distance(power, bound), _distance(runtime, bound)) for bound in BOUNDS[1:])
    return Interval(joules, joules * math.exp(-low), joules * math.exp(high))


def mean_power(energy: Interval, runtime: Interval, parts: Sequence[Interval]) -> Interval:
    """Power of passes after each other, of powers `parts`, from the joules and the time of all.

    The inverse of how `energy_of` joins their bounds; within those of the parts.
    """
    value = energy.value / runtime.value
    low, high = (
        math.sqrt(max(_distance(energy, bound) ** 2 - _distance(runtime, bound) ** 2, 0.0))
        for bound in BOUNDS[1:]
    )
    least = max(value * math.exp(-low), min((part.low for part in parts), default=0.0))
    most = min(value * math.exp(high), max((part.high for part in parts), default=math.inf))
    return Interval(value, min(least, value), max(most, value))


def clock_not_held(rows: Sequence[Row], setting: Setting | None) -> tuple[str, ...]:
    """What to say where a limit lowers the clock that was requested."""
    if setting is None or setting.limit_w is None or setting.clock >= 1:
        return ()
    limit = setting.limit_w
    held = [row.runtime_s for row in rows if row.power_w and row.power_w.value >= LIMITED * limit]
    share = sum(held) / (sum(row.runtime_s for row in rows) or 1.0)
    return (f"--clock is not held for {share:.0%} of the time: {limit:g} W allow less",) if held else ()


def awake_w(hardware: Hardware | None, clock: float = 1.0) -> float | None:
    """Watts of a device that is awake without work; None where neither they nor its limit are known."""
    if hardware is None or (hardware.idle_w is None and hardware.board_w is None):
        return None
    return idle_power(hardware, clock)[0]


def _distance(one: Interval, bound: str) -> float:
    """How far a bound is from the value, as a logarithm; 0 where either is not positive."""
    ends = one.value, getattr(one, bound)
    return abs(math.log(ends[1] / ends[0])) if min(ends) > 0 else 0.0


def _working(rows: Sequence[Row], idle: Interval, limit: float, covered: float) -> Interval:
    """Mean power of rows of known power with its bounds; at other times it is within idle and limit."""
    kinds: dict[tuple[str, bool], list[float]] = {}
    joules = 0.0
    for row in rows:
        power = row.power_w or idle
        joules += power.value * row.runtime_s
        sums = kinds.setdefault((row.kind, row.power_trained), [0.0, 0.0])
        for i, bound in enumerate(BOUNDS[1:]):
            sums[i] += power.value * row.runtime_s * _distance(power, bound)
    seconds = sum(row.runtime_s for row in rows)
    if not joules:
        return Interval(idle.value, idle.low, idle.high)
    value, common = joules / seconds, NINETY * shipped_watts().network_doubt
    low, high = (
        math.sqrt(common**2 + sum((sums[i] / joules) ** 2 for sums in kinds.values())) for i in (0, 1)
    )
    least, most = max(value * math.exp(-low), idle.low), min(value * math.exp(high), limit)
    if math.isfinite(limit):
        least = covered * least + (1 - covered) * idle.low
        most = covered * most + (1 - covered) * limit
    return Interval(value, min(least, value), max(most, value))
