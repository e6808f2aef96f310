"""The choice of a power meter, and what `devices` says of each."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from neuralpower.errors import quoted, unknown
from neuralpower.measure.meters import base
from neuralpower.measure.meters.base import (
    CHOICES,
    METERS,
    MeterUnavailable,
    NullMeter,
    PowerMeter,
    RegisteredMeter,
    told,
)


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
    failed = plugged()
    if choice != "auto":
        if choice in failed:
            raise MeterUnavailable("plugin", f"{choice}: {failed[choice]}")
        if choice not in base.METERS:
            raise unknown("power meter", choice, [*base.METERS, *CHOICES])
        return _opened(choice, device)
    failures: list[MeterUnavailable] = []
    for name in base.METERS:
        if getattr(base.METERS[name], "by_name", False):
            continue
        try:
            return _opened(name, device)
        except MeterUnavailable as error:
            if error.reason != "no_meter":
                failures.append(error)
    failures += [MeterUnavailable("plugin", f"{name}: {why}") for name, why in failed.items()]
    if not failures:
        return NullMeter("no_meter", f"no power meter is known for {device}")
    return NullMeter(failures[0].reason, "; ".join(str(failure) for failure in failures))


def _opened(name: str, device: str) -> PowerMeter:
    with told(name):
        meter = base.METERS[name].for_device(device)
    if meter is None:
        why = f" ({absent})" if (absent := absence(name)) else ""
        raise MeterUnavailable(
            "no_meter", f"{name} does not see the power of {device}{why}; use --power auto or none"
        )
    with told(name):
        meter.open()
    return meter


def absence(name: str) -> str:
    """Why this machine has no such meter; "" where it has, or where the meter does not say."""
    says = getattr(base.METERS[name], "absent", None)
    return "" if says is None else str(says())


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
    try:
        with told(name):
            if (meter := base.METERS[name].for_device(device)) is None:
                return None
            meter.open()
    except MeterUnavailable as error:
        return MeterStatus(name, device, error.reason, str(error))
    with contextlib.closing(meter):
        description = meter.describe()
    limit = f", limit {description.limit_w:g} W" if description.limit_w is not None else ""
    source = description.source if description.source != "none" else description.sampled_source
    return MeterStatus(name, device, None, f"{source}, {' '.join(description.domains)}{limit}")


# ---- Meters of other packages, by the entry-point group GROUP; a failed one stops no other ----

GROUP = "neuralpower.meters"
NEEDED = ("for_device", "open", "read", "describe", "close")


@functools.cache
def plugged() -> dict[str, str]:
    """Register the meters of other packages; name -> why it cannot be used, of those that failed."""
    return registered(importlib.metadata.entry_points(group=GROUP), METERS)


def known_meters() -> dict[str, type[RegisteredMeter]]:
    """All meters by name, those of other packages included."""
    plugged()
    return METERS


def registered(entries: Iterable[Any], meters: dict[str, type[RegisteredMeter]]) -> dict[str, str]:
    """Load entry points into a table of meters, and say which failed."""
    failed: dict[str, str] = {}
    for entry in entries:
        try:
            meter = entry.load()
        except Exception as error:  # whatever a stranger's module does
            failed[entry.name] = f"{entry.value} raises {quoted(error):.300}; update or uninstall it"
            continue
        missing = [name for name in NEEDED if not callable(getattr(meter, name, None))]
        if missing:
            failed[entry.name] = f"{entry.value} has no {', '.join(missing)}; derive it from Meter"
        elif entry.name in CHOICES or meters.get(entry.name, meter) is not meter:
            failed[entry.name] = f"{entry.value} has the name of another meter; rename it"
        else:
            meters[entry.name] = meter
    return failed
