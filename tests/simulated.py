"""A device of known power, a counter with every flaw that counters have, and a clock that a test turns."""

from __future__ import annotations

import bisect
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from neuralpower.measure.meters import Description, MeterUnavailable, Reading
from neuralpower.measure.meters.rapl import RaplMeter
from neuralpower.measure.power.energy import Clock


class Time:
    """Simulated time: it passes where something says that it takes time."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def now_ns(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    @property
    def clock(self) -> Clock:
        """The clock of measurements; a sleep is a little longer than requested, like a real one."""
        return Clock(self.now_ns, lambda seconds: self.pass_s(seconds + 6e-5))


class Device:
    """Draws `idle_w`, and more while it works; its energy up to any moment is known exactly."""

    def __init__(self, time: Time, idle_w: float = 50.0) -> None:
        self.time, self.idle_w = time, idle_w
        self.starts: list[float] = []  # of stretches of work, in ns, in order and apart
        self.ends: list[float] = []
        self.extra_w: list[float] = []
        self.extra_j: list[float] = [0.0]  # up to each stretch's start

    def add(self, start_ns: float, seconds: float, power_w: float) -> float:
        """Work from then on; when it ends (ns)."""
        end_ns = start_ns + seconds * 1e9
        self.starts.append(start_ns)
        self.ends.append(end_ns)
        self.extra_w.append(power_w - self.idle_w)
        self.extra_j.append(self.extra_j[-1] + (power_w - self.idle_w) * seconds)
        return end_ns

    def work(self, seconds: float, power_w: float) -> None:
        """Work while the host waits, as a CPU does."""
        self.time.now = round(self.add(self.time.now, seconds, power_w))

    def energy_j(self, t_ns: float) -> float:
        """Joules since time 0."""
        i = bisect.bisect_right(self.starts, t_ns)
        extra_j = self.extra_j[i]
        if i and t_ns < self.ends[i - 1]:
            extra_j -= (self.ends[i - 1] - t_ns) / 1e9 * self.extra_w[i - 1]
        return self.idle_w * t_ns / 1e9 + extra_j


class Queue:
    """A device that works by itself on up to `depth` queued runs of `calls` calls."""

    def __init__(
        self, device: Device, seconds: float, power_w: float, calls: int = 1, depth: int = 4
    ) -> None:
        self.device, self.seconds, self.power_w, self.calls, self.depth = (
            device,
            seconds,
            power_w,
            calls,
            depth,
        )
        self.ends: deque[float] = deque()

    def run_once(self) -> int:
        ended = self._ended()
        if len(self.ends) < self.depth:
            self.device.time.pass_s(5e-6)
            start = max(self.ends[-1] if self.ends else 0.0, self.device.time.now)
            self.ends.append(self.device.add(start, self.seconds, self.power_w))
        return ended

    def _ended(self) -> int:
        ended = 0
        while self.ends and self.ends[0] <= self.device.time.now:
            self.ends.popleft()
            ended += self.calls
        return ended

    def drain(self) -> int:
        if self.ends:
            self.device.time.now = max(self.device.time.now, round(self.ends[-1]))
        return self._ended()


class Counter:
    """Joules that move every `period_s`: at each tick by the mean power of the last `part_s`, with noise."""

    def __init__(
        self,
        device: Device,
        period_s: float = 0.1,
        phase_s: float = 0.0,
        part_s: float | None = None,
        noise: float = 0.0,
        gain: float = 1.0,
        start_j: float = 1000.0,
        seed: int = 0,
    ) -> None:
        self.device, self.period_ns, self.noise, self.gain = device, period_s * 1e9, noise, gain
        self.part_ns = (part_s or period_s) * 1e9
        self.total_j, self.sample_w = start_j, 0.0
        self.random = random.Random(seed)
        self.next_ns = device.time.now - self.period_ns + phase_s * 1e9
        self.catch_up()

    def mean_w(self, t_ns: float, seconds: float) -> float:
        """Mean power of the last `seconds` before `t_ns`, as the counter's gain has it."""
        return self.gain * (self.device.energy_j(t_ns) - self.device.energy_j(t_ns - seconds * 1e9)) / seconds

    def catch_up(self) -> float:
        """Joules as the counter shows them now."""
        while self.next_ns <= self.device.time.now:
            self.sample_w = self.mean_w(self.next_ns, self.part_ns / 1e9) * (
                1 + self.random.gauss(0, self.noise)
            )
            self.total_j += self.sample_w * self.period_ns / 1e9
            self.next_ns += self.period_ns
        return self.total_j


Fault = Callable[[int, float], float | None]  # (number of the read, true joules) -> what the meter says


class SimulatedMeter:
    """A GPU's meter: one board, joules and watts; `fault` spoils its joules and `lost_at` ends it."""

    def __init__(
        self,
        counter: Counter,
        read_s: float = 3e-5,
        fault: Fault = lambda _, energy_j: energy_j,
        sample_w: Callable[[int, float], float | None] = lambda _, power_w: power_w,
        lost_at: int | None = None,
        limit_w: float | None = 700.0,
    ) -> None:
        self.counter, self.read_s, self.fault, self.sample_w = counter, read_s, fault, sample_w
        self.lost_at, self.limit_w, self.reads = lost_at, limit_w, 0

    def open(self) -> None:
        """Nothing to open."""

    def read(self) -> list[Reading]:
        time = self.counter.device.time
        self.reads += 1
        if self.lost_at is not None and self.reads >= self.lost_at:
            raise MeterUnavailable("gpu_lost", "nvml: the GPU fell off the bus")
        time.pass_s(self.read_s / 2)
        energy_j, t_ns = self.counter.catch_up(), time.now
        time.pass_s(self.read_s / 2)
        said_w = self.sample_w(self.reads, self.counter.sample_w)
        slow_w = self.sample_w(self.reads, self.counter.mean_w(t_ns, 1.0))
        return [Reading("board", self.fault(self.reads, energy_j), said_w, t_ns, slow_w)]

    def describe(self) -> Description:
        return Description("nvml_energy_counter", "board", self.limit_w, "nvml_power_integrated", ("board",))

    def close(self) -> None:
        """Nothing is held open."""


def simulated_rapl(
    counters: dict[str, Counter], range_j: float, root: Path, read_s: float = 2e-5
) -> RaplMeter:
    """The real RAPL meter over counters served as powercap's files; `root` needs the zones' folders only."""
    time = next(iter(counters.values())).device.time
    for number, name in enumerate(counters):
        (root / f"intel-rapl:{number}").mkdir(parents=True, exist_ok=True)
        assert name.startswith("package")

    def read_text(file: Path) -> str:
        name, counter = list(counters.items())[int(file.parent.name.split(":")[1])]
        if file.name == "name":
            return name + "\n"
        if file.name == "max_energy_range_uj":
            return f"{round(range_j * 1e6)}\n"
        if file.name == "energy_uj":
            time.pass_s(read_s)
            return f"{round(counter.catch_up() * 1e6) % round(range_j * 1e6)}\n"
        raise FileNotFoundError(file)

    return RaplMeter(root, time.now_ns, read_text)


def hundred_watts(root: Path) -> RaplMeter:
    """An open meter of a processor that always draws 100 W, in ticks of 1 ms of the real clock."""
    zone = root / "intel-rapl:0"
    zone.mkdir()
    for name, text in {"name": "package-0", "max_energy_range_uj": str(10**12), "energy_uj": ""}.items():
        (zone / name).write_text(text)

    def read_text(file: Path) -> str:
        return str(time.perf_counter_ns() // 10**6 * 10**5) if file.name == "energy_uj" else file.read_text()

    meter = RaplMeter(root, read_text=read_text)
    meter.open()
    return meter
