"""A meter of two methods, `open` and `read`: all else is said in its class.

Packages of others register such a class under the entry-point group `neuralpower.meters`:

    [project.entry-points."neuralpower.meters"]
    mine = "my_package.meters:MyMeter"
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import Self

from neuralpower.measure.meters.base import Description, MeterUnavailable, Reading

HWMON = Path("/sys/class/hwmon")


class Meter(ABC):
    """What meters have in common; `open` sets `domains` and, where it is known, `limit_w`."""

    sees: ClassVar[tuple[str, ...]] = ("cpu",)  # devices: cpu, cuda, xpu, mps
    source: ClassVar[str]  # power_source of a dataset's rows
    scope: ClassVar[str]  # board, module, package
    counts: ClassVar[bool] = True  # joules; False: watts alone, which are integrated
    by_name: ClassVar[bool] = False  # whether `auto` leaves it out
    place: ClassVar[Path] = HWMON  # of its files
    domains: tuple[str, ...] = ()
    limit_w: float | None = None

    def __init__(
        self,
        device: str = "cpu",
        root: Path | None = None,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.device, self.clock_ns, self.root = device, clock_ns, root or self.place

    @classmethod
    def absent(cls) -> str:
        """Why this machine has no such meter, and the way out; "" where it has one."""
        return ""

    @classmethod
    def for_device(cls, device: str) -> Self | None:
        """The meter of a device that it sees on a machine that has it."""
        return cls(device) if device.partition(":")[0] in cls.sees and not cls.absent() else None

    @abstractmethod
    def open(self) -> None:
        """Find the counters and try them; raises MeterUnavailable."""

    @abstractmethod
    def read(self) -> list[Reading]:
        """One reading per domain, None for what it does not say; raises MeterUnavailable where it is lost."""

    def describe(self) -> Description:
        sources = (self.source, "none") if self.counts else ("none", self.source)
        return Description(sources[0], self.scope, self.limit_w, sources[1], self.domains)

    def close(self) -> None:  # noqa: B027  # most hold nothing open
        """Give back what `open` took."""

    @property
    def index(self) -> int:
        """The number of the device among those of its sort."""
        number = self.device.partition(":")[2]
        return int(number) if number.isdecimal() else 0


@dataclass
class Counter:
    """A cumulative counter of integers, and how far it has come since it was first read."""

    joules_each: float
    wraps_at: int | None = None  # None: never, or it is not known where
    last: int | None = None
    total: int = 0

    def advance(self, raw: int | None) -> float | None:
        """Joules up to a raw value; None where there is none, or it fell and no wrap-around explains it."""
        if raw is None:
            return None
        step = raw if self.last is None else raw - self.last
        if step < 0 and self.wraps_at is not None:
            step += self.wraps_at
        self.last = raw
        if step < 0:
            return None  # the energy meanwhile is not known
        self.total += step
        return self.total * self.joules_each


def number_in(file: Path, meter: str) -> int | None:
    """The whole number in a file; None where it has none. Raises MeterUnavailable: it cannot be read."""
    try:
        text = file.read_text().strip()
    except PermissionError:
        raise MeterUnavailable(
            "no_permission",
            f"{meter}: {file} is not readable; ask the administrator for read access, or use --power none",
        ) from None
    except OSError as error:
        raise MeterUnavailable(
            "meter_lost", f"{meter}: {file} cannot be read ({error.strerror}); use --power none"
        ) from None
    return int(text) if text.lstrip("-").isdecimal() else None


def text_in(file: Path) -> str:
    """The text of a file; "" where there is none."""
    try:
        return file.read_text(errors="replace").strip().strip("\0")
    except OSError:
        return ""


def chips(root: Path, *names: str) -> list[Path]:
    """The folders of hwmon chips of these names."""
    return [folder for folder in sorted(root.glob("hwmon*")) if text_in(folder / "name") in names]
