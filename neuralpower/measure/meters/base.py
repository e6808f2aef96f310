"""Power meters: their protocol and their table; only `open` imports vendor libraries.

A meter reads and says where its numbers come from. `neuralpower.measure.power` turns readings into power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from typing_extensions import Self

from neuralpower.errors import DeviceError, quoted


class Reading(NamedTuple):
    """The values of one domain of a meter at one moment; None where it does not say."""

    domain: str  # board, package-0, dram-0, ...
    energy_j: float | None  # counted since some start and never falling: a meter corrects its own wrap-around
    power_w: float | None  # averaged over some tens of milliseconds at most
    t_ns: int  # of the clock that the meter was given
    average_w: float | None = None  # averaged over about a second: too slow for a window; for the self-test


@dataclass(frozen=True)
class Description:
    """Where a meter's numbers come from, in the words of a dataset's columns."""

    source: str  # power_source of power from the counter
    scope: str  # board, module, package
    limit_w: float | None = None  # what the device may draw by its own settings, all domains together
    sampled_source: str = "none"  # power_source of power from integrated samples
    domains: tuple[str, ...] = ()


class PowerMeter(Protocol):
    """A meter; `open` before, `close` after."""

    def open(self) -> None:
        """Find the counters and try them; raises MeterUnavailable."""

    def read(self) -> list[Reading]:
        """One reading per domain; raises MeterUnavailable where the meter is lost."""

    def describe(self) -> Description:
        """Where the numbers come from, once open."""

    def close(self) -> None:
        """Give back what `open` took."""


class RegisteredMeter(PowerMeter, Protocol):
    """A meter that can be chosen by name or found by itself."""

    @classmethod
    def for_device(cls, device: str) -> Self | None:
        """The meter, not opened, of "cpu", "cuda:0" or a GPU's UUID; None for a device that it cannot see."""


class MeterUnavailable(DeviceError):  # noqa: N818  # a state of the meter, seldom a fault
    """A meter that cannot be read: `reason` is one word for a table, the text one line for the user.

    Reasons: no_rapl, no_permission, unreadable, no_driver, no_library, stale_library, driver_mismatch,
    not_supported, gpu_not_found, gpu_lost, reset_required, mig, shared, meter_lost, no_meter, plugged_in,
    plugin.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Say which meter raised what is not a MeterUnavailable, as one of another package may."""
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        text = f"{name}: raises {quoted(error):.300}; update its package, or use --power none"
        raise MeterUnavailable("plugin", text) from error


def readings_of(meter: PowerMeter) -> list[Reading]:
    """What an open meter says; raises MeterUnavailable, whatever a meter of another package raises."""
    with told(type(meter).__name__):
        return meter.read()


@dataclass(frozen=True)
class NullMeter:
    """No meter, and why; it reads nothing."""

    reason: str
    text: str = ""

    def open(self) -> None:
        """Nothing to open."""

    def read(self) -> list[Reading]:
        return []

    def describe(self) -> Description:
        return Description(source="none", scope="none")

    def close(self) -> None:
        """Nothing is held open."""


def no_power(reason: str | None = None) -> dict[str, Any]:
    """The columns of a row whose power was not measured."""
    return {"power_w": None, "energy_j": None, "power_source": "none", "power_reason": reason}


METERS: dict[str, type[RegisteredMeter]] = {}
CHOICES = ("auto", "none")

M = TypeVar("M", bound=RegisteredMeter)


def power_meter(name: str) -> Callable[[type[M]], type[M]]:
    """Register a meter under `name`, as `--power` knows it; raises ValueError twice."""

    def register(meter: type[M]) -> type[M]:
        if name in CHOICES:
            raise ValueError(f"power meter {name!r}: the name is reserved; choose another")
        if name in METERS:
            raise ValueError(f"power meter {name!r} is already defined by {METERS[name].__module__}")
        METERS[name] = meter
        return meter

    return register
