"""What a process and its devices use while a benchmark runs, from /proc and the power meters, so many times a second."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from neuralpower.devices.host import PROC, text_of
from neuralpower.errors import writing
from neuralpower.files.atomic import aside
from neuralpower.measure.meters import MeterUnavailable, NullMeter, PowerMeter, Reading, open_meter

COLUMNS = ("process_pid", "time", "virt", "res", "shrd", "cpu", "mem", "power")
"""Processor time (s), bytes of virtual, resident and shared memory, % of a core, % of memory, W of the CPU's packages."""

Sample = tuple[float | int | None, ...]


class ProcessReader:
    """What the kernel says of one process; `cpu` is since the last time."""

    def __init__(self, pid: int, proc: Path = PROC, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pid, self.proc, self.clock = pid, proc, clock
        self.tick_s, self.page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: tuple[float, float] | None = None
        total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(proc / "meminfo"), re.M)
        self.memory = int(total.group(1)) * 1024 if total else None

    def read(self) -> Sample:
        """Pid, time, virt, res, shrd, cpu, mem; None for what cannot be read."""
        used_s, now = self._used_s(), self.clock()
        pages = text_of(self.proc / str(self.pid) / "statm").split()
        virt, res, shared = (int(count) * self.page for count in pages[:3]) if len(pages) >= 3 else (None, None, None)
        cpu = None
        if used_s is not None and self._before is not None and now > self._before[1]:
            cpu = 100 * (used_s - self._before[0]) / (now - self._before[1])
        if used_s is not None:
            self._before = (used_s, now)
        mem = 100 * res / self.memory if res is not None and self.memory else None
        return (self.pid, used_s, virt, res, shared, cpu, mem)

    def _used_s(self) -> float | None:
        fields = text_of(self.proc / str(self.pid) / "stat").rpartition(")")[2].split()  # a name may hold blanks
        return (int(fields[11]) + int(fields[12])) * self.tick_s if len(fields) > 12 else None


class PowerReader:
    """Watts of a meter: what it says itself, or its counter's joules since the last time."""

    def __init__(self, meter: PowerMeter) -> None:
        self.meter = meter
        self._before: dict[str, Reading] = {}

    def read(self) -> float | None:
        """Watts of all its domains but the memory within another; None where they are not known."""
        try:
            readings = self.meter.read()
        except MeterUnavailable:
            return None
        watts = [w for r in readings if not r.domain.startswith("dram") and (w := self._watts(r)) is not None]
        self._before = {r.domain: r for r in readings}
        return sum(watts) if watts else None

    def _watts(self, reading: Reading) -> float | None:
        before = self._before.get(reading.domain)
        if reading.power_w is not None:
            return reading.power_w
        if before is None or before.energy_j is None or reading.energy_j is None or reading.t_ns <= before.t_ns:
            return reading.average_w
        return (reading.energy_j - before.energy_j) / (reading.t_ns - before.t_ns) * 1e9


class Monitor:
    """Samples in a thread of its own, between `start` and `stop`; a frequency of 0 does nothing.

    Args:
        frequency: samples per second.
        gpus: "cuda:0" and so on.
        process: what reads the process; this one by default.
        meters: of the CPU and of each GPU; the first that works by default.
    """

    def __init__(
        self,
        frequency: float,
        gpus: Sequence[str] = (),
        process: ProcessReader | None = None,
        meters: Sequence[PowerMeter] | None = None,
    ) -> None:
        self.frequency, self.gpus = frequency, tuple(gpus)
        self.columns = (*COLUMNS, *(f"gpu{number}_power" for number in range(len(gpus))))
        self.samples: list[Sample] = []
        self._process, self._given = process, meters
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the meters and begin."""
        if not self.frequency:
            return
        self._process = self._process or ProcessReader(os.getpid())
        self._meters = list(self._given) if self._given is not None else [_meter(d) for d in ("cpu", *self.gpus)]
        self._powers = [PowerReader(meter) for meter in self._meters]
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self.sample()
            if self._ended.wait(1 / self.frequency):
                return

    def sample(self) -> None:
        """Take one sample."""
        assert self._process is not None  # made by `start`
        self.samples.append((*self._process.read(), *(power.read() for power in self._powers)))

    def stop(self) -> None:
        """End, and give the meters back."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        for meter in self._meters:
            with contextlib.suppress(MeterUnavailable):
                meter.close()

    def write(self, path: Path) -> None:
        """A line of blank-separated names, then one per sample, "-" for what is not known; raises InputError."""
        lines = [self.columns, *([_cell(value) for value in sample] for sample in self.samples)]
        with writing(path, "--monitor_file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside(path) as new:
                new.write_text("".join(" ".join(line) + "\n" for line in lines))


def _meter(device: str) -> PowerMeter:
    try:
        return open_meter("auto", device)
    except MeterUnavailable as error:
        return NullMeter(error.reason)


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
