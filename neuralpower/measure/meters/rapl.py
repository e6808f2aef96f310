"""Energy counters of Intel and AMD CPUs (RAPL) through Linux powercap: microjoules that wrap around.

    /sys/class/powercap/intel-rapl:0        package-0    read: all that the socket draws
                        intel-rapl:0:0      core         not read: a part of the package
                        intel-rapl:0:1      uncore       not read: a part of the package
                        intel-rapl:0:2      dram         read, and kept separate
                        intel-rapl:1        psys         not read: the whole board, packages included
                        intel-rapl-mmio:0   package-0    not read: the same counter by another way

AMD's zones have the same names (kernel 5.8 on). Source: Linux, Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Self

from neuralpower.measure.meters.base import Description, MeterUnavailable, Reading, power_meter

ROOT = Path("/sys/class/powercap")


@dataclass
class _Counter:
    """One zone's counter and how far it has come, wrap-arounds included."""

    domain: str
    file: Path
    range_uj: int | None  # where it wraps around; None: not readable
    last_uj: int | None = None
    total_uj: int = 0

    def advance(self, raw_uj: int) -> float | None:
        """Joules up to this raw value; None where it fell and no wrap-around explains it."""
        step = raw_uj if self.last_uj is None else raw_uj - self.last_uj
        if step < 0 and self.range_uj is not None:
            step += self.range_uj
        self.last_uj = raw_uj
        if step < 0:
            return None  # the total stands still: the energy meanwhile is unknown
        self.total_uj += step
        return self.total_uj / 1e6


@power_meter("rapl")
class RaplMeter:
    """Packages and DRAM of this machine; a test owns `root`, `clock_ns` and `read_text`.

    It must be read once per wrap-around, which takes minutes: 65,700 J last 219 s at 300 W.
    """

    def __init__(
        self,
        root: Path = ROOT,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        read_text: Callable[[Path], str] = Path.read_text,
    ) -> None:
        self.root, self.clock_ns, self.read_text = root, clock_ns, read_text
        self.counters: list[_Counter] = []

    @classmethod
    def for_device(cls, device: str) -> Self | None:
        return cls() if device == "cpu" else None

    def open(self) -> None:
        """Find the zones and read each once; raises MeterUnavailable."""
        zones = self._zones()
        if not any(domain.startswith("package") for domain in zones):
            raise MeterUnavailable(
                "no_rapl",
                f"rapl: no package zone under {self.root}; virtual machines seldom offer one, on bare metal "
                "an administrator can load it (modprobe intel_rapl_msr); --power none measures runtime alone",
            )
        self.counters = [
            _Counter(domain, zone / "energy_uj", self._number(zone / "max_energy_range_uj"))
            for domain, zone in zones.items()
        ]
        packages = [zone for name, zone in zones.items() if name.startswith("package")]
        self.limits_w = [self._number(zone / "constraint_0_max_power_uw") for zone in packages]
        self.read()

    def _zones(self) -> dict[str, Path]:
        """Folder of each domain that is read, by name, the first of each."""
        zones: dict[str, Path] = {}
        for zone in sorted(self.root.glob("intel-rapl:*")):
            name = self._text(zone / "name") or ""
            parent, _, child = zone.name.rpartition(":")
            if name.startswith("package"):
                zones.setdefault(name, zone)
            elif name == "dram" and child:
                package = self._text(self.root / parent / "name") or f"package-{child}"
                zones.setdefault(package.replace("package", "dram"), zone)
        return zones

    def _text(self, file: Path) -> str | None:
        try:
            return self.read_text(file).strip()
        except OSError:
            return None

    def _number(self, file: Path) -> int | None:
        text = self._text(file)
        return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None

    def read(self) -> list[Reading]:
        """Joules per domain, None where a file has no number; raises MeterUnavailable if it is unreadable."""
        return [self._reading(counter) for counter in self.counters]

    def _reading(self, counter: _Counter) -> Reading:
        before = self.clock_ns()
        try:
            text = self.read_text(counter.file).strip()
        except PermissionError:
            raise MeterUnavailable(
                "no_permission",
                f"rapl: {counter.file} is readable by root only (CVE-2020-8694); ask the administrator for "
                "read access to it, or run as root; --power none measures runtime alone",
            ) from None
        except OSError as error:
            raise MeterUnavailable(
                "unreadable", f"rapl: {counter.file} cannot be read ({error.strerror}); use --power none"
            ) from None
        middle = (before + self.clock_ns()) // 2
        energy_j = counter.advance(int(text)) if text.isdecimal() else None
        return Reading(counter.domain, energy_j, None, middle)

    def describe(self) -> Description:
        """The domains found, and the packages' power limit where every one of them names it."""
        known = [limit for limit in self.limits_w if limit is not None]
        limit_w = sum(known) / 1e6 if len(known) == len(self.limits_w) else None
        domains = tuple(counter.domain for counter in self.counters)
        return Description("rapl", "package", limit_w, domains=domains)

    def close(self) -> None:
        """Nothing is held open."""
