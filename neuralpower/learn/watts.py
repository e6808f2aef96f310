"""Watts of layers by their kind of work, at any clock: what no regressor of the device's own says.

    W / limit = busy + compute (C / t)^p + memory (M / t)^q

C and M are a layer's FLOP at the peak and its distinct bytes at the bandwidth (`prior.floors`), t its time.
Products and attention of more memory than compute read weights and caches: works of their own. The constants
with their units and rows are in watts.json. At a lower clock, relative to the highest, the cores take longer
and the memory does not; the voltage V falls with the clock, and idle power with the voltage. The first two
terms are the cores' share of the power, the third the memory's:

    W = idle + (W(1) - idle(1)) (cores' share clock V^2 + memory's share t(1) / t)

    t = ((c / clock)^4 + M^4)^(1/4) / (c^4 + M^4)^(1/4) t(1),    c = max(C, cores_beside_memory M)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.attention import TORCH
from neuralpower.layers.base import Layer
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.file_struct import Log, NotNegative, Part, Positive
from neuralpower.learn.prior import POWER, floors
from neuralpower.learn.problem import Array
from neuralpower.learn.regressor import NINETY
from neuralpower.platforms import platform_of

SHIPPED = Path(__file__).with_name("watts.json")
# kinds of work
PRODUCTS, WEIGHTS, ATTENTION, CACHE, PASSES = "products", "weights", "attention", "cache", "passes"
TORCHS = "torch's attention"  # its code keeps older units busy, which draw as much for fewer FLOP/s
LOWEST_CLOCK = 0.1  # of the highest: a lower power limit cannot be kept
HALVINGS = 30  # of the search for the clock that a limit allows
AT_LIMIT = 0.97  # of the limit: from here on a trained power says that the limit was reached


class Work(Part, frozen=True):
    """What one kind of work draws, as shares of the board's limit."""

    busy: Positive  # in any case
    compute: NotNegative  # at the peak of FLOP/s
    compute_power: Positive  # exponent of the share of that peak
    memory: NotNegative  # at the memory's bandwidth
    memory_power: Positive  # exponent of the share of that bandwidth
    doubt: Positive  # standard deviation of log(measured / said) of one call on a device that was held out
    rows: str  # that it was fitted on


class Watts(Part, frozen=True):
    """The constants of the law."""

    source: str
    works: dict[str, Work]
    devices: dict[str, Log]  # logarithm of a device's watts over the law's, by short name
    device_doubt: Positive  # standard deviation of the same on a device that was held out
    voltage_falls: Positive  # share by which V falls for each share that the clock falls
    least_voltage: Positive  # relative to that at the highest clock
    cores_beside_memory: Positive  # time of the cores over that of the memory, where memory sets the pace
    network_doubt: Positive  # standard deviation of log(measured / said) that a network's layers share
    idle: Positive  # share of the limit that an idle device draws where its sheet does not state it
    least_idle: Positive
    most_idle: Positive
    idle_steady: NotNegative  # share of idle power that does not fall with the voltage


@functools.cache
def shipped_watts() -> Watts:
    """The constants that come with the package."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Watts)


@dataclass(frozen=True)
class Setting:
    """How a device is set: `nvidia-smi -pl` and `-lgc`."""

    limit_w: float | None = None
    clock: float = 1.0  # share of the highest


def voltage(clock: Array | float, law: Watts) -> Array:
    """Relative to that at the highest clock, by the clock relative to it."""
    return np.maximum(law.least_voltage, 1 - law.voltage_falls * (1 - np.asarray(clock, dtype=float)))


def unlimited_w(columns: Layer, hardware: Hardware, seconds: Array, device: str) -> tuple[Array, Array]:
    """(Watts that calls of `seconds` would draw without a limit, the cores' share of them), each [rows]."""
    law = shipped_watts()
    compute, memory = floors(columns, hardware, columns.law.traits(columns))
    long = np.maximum(seconds, np.finfo(float).tiny)
    flops, moved = np.minimum(compute / long, 1.0), np.minimum(memory / long, 1.0)
    cores, reads = np.zeros(len(long)), np.zeros(len(long))
    for name, here in _works(columns, compute >= memory):
        work = law.works[name]
        cores = cores + here * (work.busy + work.compute * flops**work.compute_power)
        reads = reads + here * work.memory * moved**work.memory_power
    watts = np.exp(law.devices.get(device, 0.0)) * (hardware.board_w or np.nan) * (cores + reads)
    return np.asarray(watts), np.asarray(cores / (cores + reads))


def _works(columns: Layer, computes: Array) -> list[tuple[str, Array]]:
    """The kinds of work that rows do, each with its rows, [rows]; `computes`: not bound by memory."""
    if "key_length" in columns.dimensions:
        torchs = computes & (np.asarray(getattr(columns, "library", "")) == TORCH)
        return [(ATTENTION, computes & ~torchs), (TORCHS, torchs), (CACHE, ~computes)]
    if columns.multiplies:
        return [(PRODUCTS, computes), (WEIGHTS, ~computes)]
    return [(PASSES, np.ones(len(computes), dtype=bool))]


def law_power(columns: Layer, hardware: Hardware, seconds: Array, device: str) -> tuple[Array, Array, Array]:
    """(W, low, high), each [rows], of layers that take `seconds`; NaN where the limit is not known."""
    limit, law = hardware.board_w, shipped_watts()
    if limit is None or platform_of(hardware).family == "cpu":
        unknown = np.full(len(seconds), np.nan)
        return unknown, unknown.copy(), unknown.copy()
    doubt = np.zeros(len(seconds))
    compute, memory = floors(columns, hardware, columns.law.traits(columns))
    for name, here in _works(columns, compute >= memory):
        doubt = np.where(here, law.works[name].doubt, doubt)
    if device not in law.devices:
        doubt = np.hypot(doubt, law.device_doubt)
    factor, value = np.exp(NINETY * doubt), unlimited_w(columns, hardware, seconds, device)[0]
    least = idle_power(hardware)[1]
    value, low, high = (np.clip(bound, least, limit) for bound in (value, value / factor, value * factor))
    return value, low, high


def idle_falls(clock: Array | float) -> Array:
    """Idle power at a clock over that at the highest."""
    law = shipped_watts()
    return np.asarray(law.idle_steady + (1 - law.idle_steady) * voltage(clock, law) ** 2)


def idle_power(hardware: Hardware, clock: float = 1.0) -> tuple[float, float, float]:
    """(W, low, high) of a device that is awake without work: its sheet's value, else a share of the limit."""
    law, limit = shipped_watts(), hardware.board_w or 0.0
    falls = float(idle_falls(clock))
    if hardware.idle_w is not None:
        return (hardware.idle_w * falls,) * 3
    return law.idle * limit * falls, law.least_idle * limit * falls, law.most_idle * limit * falls


def longer(columns: Layer, hardware: Hardware) -> Callable[[Array | float], Array]:
    """Times that calls take at a clock, relative to the highest, [rows], as a function of the clock."""
    compute, memory = floors(columns, hardware, columns.law.traits(columns))
    cores = np.maximum(compute, shipped_watts().cores_beside_memory * memory)
    cores = np.where(cores > 0, cores, 1.0)  # calls without work follow the clock
    before = (cores**POWER + memory**POWER) ** (1 / POWER)

    def at(clock: Array | float) -> Array:
        return np.asarray(((cores / clock) ** POWER + memory**POWER) ** (1 / POWER) / before)

    return at


def as_set(found: Estimates, columns: Layer, hardware: Hardware, device: str, setting: Setting) -> Estimates:
    """The estimates of calls on a device at a clock and below a power limit: longer, with fewer watts.

    A trained power at the board's limit says that the clock had fallen already: times are relative to that.
    """
    limit, t = hardware.board_w, found.runtime_s
    if limit is None or not len(t):
        return found
    by_law, cores = unlimited_w(columns, hardware, t, device)
    reached = found.power_w >= AT_LIMIT * limit
    full = np.where(reached, np.maximum(by_law, found.power_w), found.power_w)
    law, idle, stretched_at = shipped_watts(), idle_power(hardware)[0], longer(columns, hardware)

    def drawn(clock: Array) -> Array:
        square = voltage(clock, law) ** 2
        works = cores * clock * square + (1 - cores) / stretched_at(clock)
        return np.asarray(idle * idle_falls(clock) + np.maximum(full - idle, 0.0) * works)

    highest = np.ones(len(t))
    before = _clock_below(drawn, highest, limit)
    after = _clock_below(drawn, setting.clock * highest, min(setting.limit_w or limit, limit))
    times = stretched_at(after) / stretched_at(before)
    ratio = drawn(after) / np.maximum(drawn(before), 1e-9)
    floor, most = idle_power(hardware, setting.clock)[1], min(setting.limit_w or limit, limit)
    watts = {
        name: np.clip(getattr(found, name) * ratio, min(floor, most), most)
        for name in ("power_w", "power_low_w", "power_high_w")
    }
    stretched = {name: getattr(found, name) * times for name in ("runtime_s", "low_s", "high_s")}
    return replace(found, **watts, **stretched)


def _clock_below(drawn: Callable[[Array], Array], clock: Array, limit: float) -> Array:
    """The highest clocks up to `clock` at which calls draw no more than a limit, [rows]."""
    low, high = np.full(len(clock), LOWEST_CLOCK), clock
    kept = drawn(clock) <= limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = drawn(middle) <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(kept, clock, low)
