"""Watts of layers by their kind of work, at any clock: what no regressor of the device's own says.

    W = limit (busy + compute (C / t)^p) + bandwidth memory (M / t)^q

C and M are a layer's FLOP at the peak and its distinct bytes at the bandwidth (`laws.floors`), t its time.
Products and attention of more memory than compute read weights and caches: works of their own. The constants
with their units and rows are in watts.json. At a lower clock, relative to the highest, the cores take longer
and the memory does not; the voltage V falls with the clock, to a floor, and idle power with the voltage. The
first two terms are the cores' share of the power, the third the memory's. The DRAM takes a share of a byte's
joules, whatever the clock; caches and wires between it and the cores take the other part, at their voltage:

    W = idle + (W(1) - idle(1)) (cores' share clock V^2 + memory's share (DRAM's + (1 - DRAM's) V^2) t(1) / t)

    t = ((c / clock)^4 + M^4)^(1/4) / (c^4 + M^4)^(1/4) t(1),    c = max(C, cores_beside_memory M)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.attention import TORCH
from neuralpower.layers.base import Layer
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.files.file_struct import Log, NotNegative, Part, Positive
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured.laws import floors
from neuralpower.learn.unmeasured.prior import POWER
from neuralpower.platforms import platform_of

SHIPPED = Path(__file__).with_name("watts.json")
# kinds of work
WORKS = PRODUCTS, WEIGHTS, ATTENTION, CACHE, PASSES = "products", "weights", "attention", "cache", "passes"
LOWEST_CLOCK = 0.1  # of the highest: a lower power limit cannot be kept
HALVINGS = 30  # of the search for the clock that a limit allows
# Bandwidth over limit of an A100 of 40 GB. Boards without HBM move fewer bytes for each watt of their limit,
# and draw no smaller share of it (decoding: 395 W on an RTX 4090, 545 W on a 5090; club-3090).
LEAST_BYTES_PER_J = 3.8e9
AT_LIMIT = 0.97  # of the limit: from here on a trained power says that the limit was reached


class Work(Part, frozen=True):
    """What one kind of work draws: the cores a share of the board's limit, the memory joules of each byte."""

    busy: Positive  # share of the limit, in any case
    compute: NotNegative  # share of the limit at the peak of FLOP/s
    compute_power: Positive  # exponent of the share of that peak
    memory: NotNegative  # J per byte at the memory's bandwidth
    memory_power: Positive  # exponent of the share of that bandwidth
    doubt: Positive  # standard deviation of log(measured / said) of one call on a device that was held out
    rows: str  # that it was fitted on


class Watts(Part, frozen=True):
    source: str
    works: dict[str, Work]
    devices: dict[str, Log]  # logarithm of a device's watts over the law's, by short name
    device_doubt: Positive  # standard deviation of the same on a device that was held out
    # V is what the watts above idle say, leaks and losses of regulators with it: the supply's falls less
    voltage_falls: Positive  # share by which V falls for each share that the clock falls
    least_voltage: Positive  # relative to that at the highest clock
    dram: NotNegative  # share of a byte's joules that does not fall with the voltage
    cores_beside_memory: Positive  # time of the cores over that of the memory, where memory sets the pace
    network_doubt: Positive  # standard deviation of log(measured / said) that a network's layers share
    idle: Positive  # share of the limit that an awake device draws where its sheet does not state it
    least_idle: Positive
    most_idle: Positive
    idle_doubt: Positive  # standard deviation of its logarithm among boards of a kind
    idle_steady: NotNegative  # share of idle power that does not fall with the voltage


@functools.cache
def shipped_watts() -> Watts:
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Watts)


@dataclass(frozen=True)
class Setting:
    """How a device is set: `nvidia-smi -pl` and `-lgc`."""

    limit_w: float | None = None
    clock: float = 1.0  # share of the highest


def voltage(clock: Array | float, law: Watts) -> Array:
    """Relative to that at the highest clock, by the clock relative to it."""
    return np.maximum(law.least_voltage, 1 - law.voltage_falls * (1 - np.asarray(clock, dtype=float)))


@dataclass(frozen=True)
class Demand:
    """What calls ask of a device, each [rows]."""

    compute_s: Array  # of their FLOP at the peak
    memory_s: Array  # of their distinct bytes at the bandwidth
    work: Array  # position in WORKS

    @classmethod
    def of(cls, columns: Layer, hardware: Hardware) -> Demand:
        """The demand of calls on a device."""
        compute, memory = floors(columns, hardware, columns.law.traits(columns))
        return cls(compute, memory, _work(columns, compute >= memory))

    def constants(self, name: str, law: Watts) -> Array:
        """One constant of each call's kind of work, [rows]."""
        return np.asarray([getattr(law.works[work], name) for work in WORKS], dtype=float).take(self.work)


def _work(columns: Layer, computes: Array) -> Array:
    """The kind of work of each row, as its position in WORKS; `computes`: not bound by memory."""
    if "key_length" in columns.dimensions:  # torch's own kernels draw as much as products, engines' less
        by_torch = np.broadcast_to(np.asarray(getattr(columns, "library", "")) == TORCH, computes.shape)
        computing, reading = np.where(by_torch, WORKS.index(PRODUCTS), WORKS.index(ATTENTION)), CACHE
    elif columns.multiplies:
        computing, reading = np.full(computes.shape, WORKS.index(PRODUCTS)), WEIGHTS
    else:
        return np.full(computes.shape, WORKS.index(PASSES))
    return np.where(computes, computing, WORKS.index(reading))


@dataclass(frozen=True)
class Board:
    """What a device's watts follow from; of one, or of each call [rows]."""

    limit_w: Array | float
    bytes_per_s: Array | float  # of its memory, of HBM that takes as much
    factor: Array | float  # its watts over the law's

    @classmethod
    def of(cls, hardware: Hardware, device: str, law: Watts) -> Board:
        """The board of a device, by its short name."""
        limit, factor = hardware.board_w or math.nan, math.exp(law.devices.get(device, 0.0))
        return cls(limit, max(hardware.memory_bytes_per_s, LEAST_BYTES_PER_J * limit), factor)


def unlimited_w(demand: Demand, seconds: Array, board: Board, law: Watts) -> tuple[Array, Array]:
    """(Watts that calls of `seconds` would draw without a limit, the cores' share of them), each [rows]."""
    long = np.maximum(seconds, np.finfo(float).tiny)
    of = functools.partial(demand.constants, law=law)
    busy = np.minimum(demand.compute_s / long, 1.0)
    cores = board.limit_w * (of("busy") + of("compute") * busy ** of("compute_power"))
    moved = np.minimum(demand.memory_s / long, 1.0)
    reads = board.bytes_per_s * of("memory") * moved ** of("memory_power")
    return np.asarray(board.factor * (cores + reads)), np.asarray(cores / (cores + reads))


def law_power(columns: Layer, hardware: Hardware, seconds: Array, device: str) -> tuple[Array, Array, Array]:
    """(W, low, high), each [rows], of layers that take `seconds`; NaN where the limit is not known."""
    limit, law = hardware.board_w, shipped_watts()
    if limit is None or platform_of(hardware).family == "cpu":
        unknown = np.full(len(seconds), np.nan)
        return unknown, unknown.copy(), unknown.copy()
    demand = Demand.of(columns, hardware)
    doubt = demand.constants("doubt", law)
    if device not in law.devices:
        doubt = np.hypot(doubt, law.device_doubt)
    factor, value = (
        np.exp(NINETY * doubt),
        unlimited_w(demand, seconds, Board.of(hardware, device, law), law)[0],
    )
    least = idle_power(hardware)[1]
    value, low, high = (np.clip(bound, least, limit) for bound in (value, value / factor, value * factor))
    return value, low, high


def idle_falls(clock: Array | float, law: Watts) -> Array:
    """Idle power at a clock over that at the highest."""
    return np.asarray(law.idle_steady + (1 - law.idle_steady) * voltage(clock, law) ** 2)


def idle_power(hardware: Hardware, clock: float = 1.0) -> tuple[float, float, float]:
    """(W, low, high) of a device that is awake without work: its sheet's value, else a share of the limit.

    It is never below what its sheet states of the lowest state.
    """
    law, limit, known = shipped_watts(), hardware.board_w or 0.0, hardware.idle_w
    if known is not None:
        doubt = math.exp(NINETY * law.idle_doubt)
        ends = known, known / doubt, known * doubt
    else:
        ends = law.idle * limit, law.least_idle * limit, law.most_idle * limit
    least = hardware.deep_idle_w or 0.0 if known is None else 0.0
    value, low, high = (max(watts, least) * float(idle_falls(clock, law)) for watts in ends)
    return value, low, high


def longer(demand: Demand, law: Watts) -> Callable[[Array | float], Array]:
    """Times that calls take at a clock, relative to the highest, [rows], as a function of the clock."""
    cores = np.maximum(demand.compute_s, law.cores_beside_memory * demand.memory_s)
    cores = np.where(cores > 0, cores, 1.0)  # calls without work follow the clock
    before = (cores**POWER + demand.memory_s**POWER) ** (1 / POWER)

    def at(clock: Array | float) -> Array:
        return np.asarray(((cores / clock) ** POWER + demand.memory_s**POWER) ** (1 / POWER) / before)

    return at


def as_set(found: Estimates, columns: Layer, hardware: Hardware, device: str, setting: Setting) -> Estimates:
    """The estimates of calls on a device at a clock and below a power limit: longer, with fewer watts.

    A trained power at the board's limit says that the clock had fallen already: times are relative to that.
    """
    limit, t = hardware.board_w, found.runtime_s
    if limit is None or not len(t):
        return found
    law, demand = shipped_watts(), Demand.of(columns, hardware)
    by_law, cores = unlimited_w(demand, t, Board.of(hardware, device, law), law)
    reached = found.power_w >= AT_LIMIT * limit
    full = np.where(reached, np.maximum(by_law, found.power_w), found.power_w)
    stretched_at = longer(demand, law)
    drawn = drawn_at(full, cores, stretched_at, idle_power(hardware)[0], law)
    most = min(setting.limit_w or limit, limit)
    before, after = clock_below(drawn, 1.0, limit, t.shape), clock_below(drawn, setting.clock, most, t.shape)
    times = stretched_at(after) / stretched_at(before)
    ratio = drawn(after) / np.maximum(drawn(before), 1e-9)
    floor = idle_power(hardware, setting.clock)[1]
    watts = {
        name: np.clip(getattr(found, name) * ratio, min(floor, most), most)
        for name in ("power_w", "power_low_w", "power_high_w")
    }
    stretched = {name: getattr(found, name) * times for name in ("runtime_s", "low_s", "high_s")}
    return replace(found, **watts, **stretched)


def drawn_at(
    full: Array, cores: Array, stretched_at: Callable[[Array | float], Array], idle: Array | float, law: Watts
) -> Callable[[Array], Array]:
    """Watts at a clock of calls that draw `full` at the highest, `cores` of them by the cores, [rows]."""

    def drawn(clock: Array) -> Array:
        squared = voltage(clock, law) ** 2
        bytes_j = law.dram + (1 - law.dram) * squared
        works = cores * clock * squared + (1 - cores) * bytes_j / stretched_at(clock)
        return np.asarray(idle * idle_falls(clock, law) + np.maximum(full - idle, 0.0) * works)

    return drawn


def at_full_pace(hardware: Hardware, device: str, clock: float, limit: float) -> tuple[float, float]:
    """(Clock that a limit leaves, watts at `clock`) of the work that draws least at its peak or bandwidth.

    By the lower of the law's 90 % bounds.
    """
    law, rows = shipped_watts(), len(WORKS)
    computing = np.array([name in (PRODUCTS, ATTENTION) for name in WORKS])
    demand = Demand(computing.astype(float), (~computing).astype(float), np.arange(rows))
    full, cores = unlimited_w(demand, np.ones(rows), Board.of(hardware, device, law), law)
    full = full * math.exp(-NINETY * law.network_doubt)
    drawn = drawn_at(full, cores, longer(demand, law), idle_power(hardware)[1], law)
    watts = drawn(np.full(rows, clock))
    least = int(watts.argmin())
    return float(clock_below(drawn, clock, limit, (rows,))[least]), float(watts[least])


def clock_below(drawn: Callable[[Array], Array], clock: float, limit: float, shape: tuple[int, ...]) -> Array:
    """The highest clocks up to `clock` at which calls draw no more than a limit, [rows]."""
    high = np.full(shape, clock)
    low, kept = np.full(shape, LOWEST_CLOCK), drawn(high) <= limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = drawn(middle) <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(kept, clock, low)
