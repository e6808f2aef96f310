"""Energy counters of Apple's processors, by zeus-apple-silicon (Apache-2.0).

They are millijoules that IOReport has counted since the monitor was made, of CPU, GPU, neural engine and
DRAM; None for a part that a processor does not report. No rights of an administrator are needed. Source:
ml-energy/zeus-apple-silicon, `AppleEnergyMonitor.get_cumulative_energy` and `AppleEnergyMetrics`.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from neuralpower.measure.meters.base import MeterUnavailable, Reading, power_meter
from neuralpower.measure.meters.meter import Counter, Meter

# domain -> fields of the metrics that add up to it, by the device
PARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cpu": {"cpu": ("cpu_total_mj",), "dram-0": ("dram_mj",)},
    "mps": {"gpu": ("gpu_mj", "gpu_sram_mj"), "dram-0": ("dram_mj",)},
}


@power_meter("apple")
class AppleMeter(Meter):
    """The processor's cores, or its GPU; DRAM apart."""

    sees = ("cpu", "mps")
    source, scope = "apple_ioreport_energy", "package"

    def __init__(
        self,
        device: str = "mps",
        library: Any = None,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__(device, clock_ns=clock_ns)
        self.library = library
        self.parts = PARTS[device.partition(":")[0]]

    @classmethod
    def absent(cls) -> str:
        """Macs before 2020 and other systems have no such counters."""
        here = sys.platform == "darwin" and platform.machine() == "arm64"
        return "" if here else "this is not a Mac with a processor of Apple's"

    def open(self) -> None:
        """Make a monitor; raises MeterUnavailable."""
        try:
            library = self.library or importlib.import_module("zeus_apple_silicon")
        except ImportError:
            text = "apple: zeus-apple-silicon is not installed; pip install zeus-apple-silicon"
            raise MeterUnavailable("no_library", text) from None
        try:
            self.monitor = library.AppleEnergyMonitor()
        except Exception as error:  # it raises what C++ throws
            text = f"apple: IOReport gives no counters ({error}); use --power none"
            raise MeterUnavailable("not_supported", text) from None
        self.counters = {domain: Counter(1e-3) for domain in self.parts}
        known = [reading.domain for reading in self.read() if reading.energy_j is not None]
        if not any(not domain.startswith("dram") for domain in known):
            text = f"apple: this processor does not report the energy of its {next(iter(self.parts))}"
            raise MeterUnavailable("not_supported", f"{text}; use --power none")
        self.domains = tuple(known)

    def read(self) -> list[Reading]:
        """Joules of each domain, None where it is not reported; raises MeterUnavailable."""
        before = self.clock_ns()
        try:
            told = self.monitor.get_cumulative_energy()
        except Exception as error:
            raise MeterUnavailable("meter_lost", f"apple: {error}; use --power none") from None
        middle = (before + self.clock_ns()) // 2
        readings = []
        for domain, names in self.parts.items():
            known = [value for name in names if (value := getattr(told, name, None)) is not None]
            energy_j = self.counters[domain].advance(sum(map(int, known)) if known else None)
            if energy_j is not None or not domain.startswith("dram"):
                readings.append(Reading(domain, energy_j, None, middle))
        return readings
