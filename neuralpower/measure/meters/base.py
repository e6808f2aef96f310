"""Power meters: their protocol, their table and the choice of one; only `open` imports vendor libraries.

A meter reads and says where its numbers come from. `neuralpower.measure.power` turns readings into power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from typing_extensions import Self

from neuralpower.errors import DeviceError, unknown


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
    not_supported, gpu_not_found, gpu_lost, reset_required, mig, shared, meter_lost, no_meter.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


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


def open_meter(choice: str = "auto", device: str = "cpu") -> PowerMeter:
    """A meter of the device, open.

    Args:
        choice: "auto" takes the first that works, "none" takes none, a name takes that one.
        device: "cpu", "cuda:0", or a GPU's UUID.

    Returns:
        The meter; a `NullMeter` with the reason for "none", and for "auto" where none works.

    Raises:
        MeterUnavailable: the meter of that name does not work, or does not see the device.
        InputError: there is no meter of that name.
    """
    if choice == "none":
        return NullMeter("not_asked", "no meter was requested")
    if choice != "auto":
        if choice not in METERS:
            raise unknown("power meter", choice, [*METERS, *CHOICES])
        return _opened(choice, device)
    failures: list[MeterUnavailable] = []
    for name in METERS:
        try:
            return _opened(name, device)
        except MeterUnavailable as error:
            if error.reason != "no_meter":
                failures.append(error)
    if not failures:
        return NullMeter("no_meter", f"no power meter is known for {device}")
    return NullMeter(failures[0].reason, "; ".join(str(failure) for failure in failures))


def _opened(name: str, device: str) -> PowerMeter:
    meter = METERS[name].for_device(device)
    if meter is None:
        raise MeterUnavailable(
            "no_meter", f"{name} does not see the power of {device}; use --power auto or none"
        )
    meter.open()
    return meter


@dataclass(frozen=True)
class MeterStatus:
    """Whether a meter works on a device; if not, why, and what the user can do."""

    meter: str
    device: str
    reason: str | None  # None: it works
    text: str

    @property
    def works(self) -> bool:
        return self.reason is None


def meter_status(name: str, device: str) -> MeterStatus | None:
    """Try the meter on the device; None where it has nothing to do with it."""
    meter = METERS[name].for_device(device)
    if meter is None:
        return None
    try:
        meter.open()
    except MeterUnavailable as error:
        return MeterStatus(name, device, error.reason, str(error))
    with contextlib.closing(meter):
        description = meter.describe()
    limit = f", limit {description.limit_w:g} W" if description.limit_w is not None else ""
    return MeterStatus(name, device, None, f"{description.source}, {' '.join(description.domains)}{limit}")
