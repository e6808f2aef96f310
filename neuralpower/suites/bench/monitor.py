"""Monitor a process and its devices during a benchmark, from /proc and the power meters."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuralpower.devices.host import PROC, text_of
from neuralpower.errors import writing
from neuralpower.files.atomic import aside
from neuralpower.measure.meters import MeterUnavailable, PowerMeter, Reading, open_meter

COLUMNS = ("process_pid", "time", "virt", "res", "shrd", "cpu", "mem", "power")
"""Processor time (s), virtual, resident, shared memory (bytes), % of a core, % of memory, CPU packages' W."""

Sample = tuple[float | int | None, ...]


class ProcessReader:
    """The kernel's counters of one process; `cpu` counts since the last sample."""

    def __init__(self, pid: int, proc: Path = PROC, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pid, self.folder, self.clock = pid, proc / str(pid), clock
        self.tick_s, self.page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: tuple[float, float] | None = None
        total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(proc / "meminfo"), re.M)
        self.memory = int(total.group(1)) * 1024 if total else None

    def read(self) -> Sample:
        """Pid, time, virt, res, shrd, cpu, mem; None for a value that cannot be read."""
        fields = text_of(self.folder / "stat").rpartition(")")[2].split()  # a name may hold blanks
        used_s = (int(fields[11]) + int(fields[12])) * self.tick_s if len(fields) > 12 else None
        now, cpu = self.clock(), None
        sizes = [int(pages) * self.page for pages in text_of(self.folder / "statm").split()[:3]]
        virt, res, shared = sizes if len(sizes) == 3 else (None, None, None)
        if used_s is not None:
            if self._before is not None and now > self._before[1]:
                cpu = 100 * (used_s - self._before[0]) / (now - self._before[1])
            self._before = (used_s, now)
        mem = 100 * res / self.memory if res is not None and self.memory else None
        return (self.pid, used_s, virt, res, shared, cpu, mem)


class PowerReader:
    """Watts of a meter: its own reading, or its counter's joules since the last sample."""

    def __init__(self, meter: PowerMeter) -> None:
        self.meter = meter
        self._before: dict[str, Reading] = {}

    def read(self) -> float | None:
        """Watts of all its domains except memory within another; None if unknown."""
        try:
            readings = self.meter.read()
        except MeterUnavailable:
            return None
        watts = [w for r in readings if not r.domain.startswith("dram") and (w := self._watts(r)) is not None]
        self._before = {r.domain: r for r in readings}
        return sum(watts) if watts else None

    def _watts(self, reading: Reading) -> float | None:
        if reading.power_w is not None:
            return reading.power_w
        joules, before = reading.energy_j, self._before.get(reading.domain)
        if joules is None or before is None or before.energy_j is None or reading.t_ns <= before.t_ns:
            return reading.average_w
        return (joules - before.energy_j) / (reading.t_ns - before.t_ns) * 1e9


@dataclass
class Monitor:
    """Sample in a separate thread, between `start` and `stop`; a frequency of 0 does nothing."""

    frequency: float  # samples per second
    gpus: Sequence[str] = ()  # "cuda:0" and so on
    process: ProcessReader | None = None  # reader of the process; None: of this process
    meters: Sequence[PowerMeter] | None = None  # of the CPU and of each GPU; None: the first that works
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Name the columns."""
        self.columns = (*COLUMNS, *(f"gpu{number}_power" for number in range(len(self.gpus))))
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the meters and begin."""
        if not self.frequency:
            return
        if self.meters is None:
            self.meters = [open_meter("auto", device) for device in ("cpu", *self.gpus)]
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        process = self.process or ProcessReader(os.getpid())
        powers = [PowerReader(meter) for meter in self.meters or ()]
        while not self.samples or not self._ended.wait(1 / self.frequency):
            self.samples.append((*process.read(), *(power.read() for power in powers)))

    def stop(self) -> None:
        """End, and release the meters."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        for meter in self.meters or ():
            with contextlib.suppress(MeterUnavailable):
                meter.close()

    def write(self, path: Path) -> None:
        """Write a line of names, then one per sample, "-" for an unknown value; raises InputError."""
        lines = [self.columns, *(map(_cell, sample) for sample in self.samples)]
        with writing(path, "--monitor-file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside(path) as new:
                new.write_text("".join(" ".join(line) + "\n" for line in lines))


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
