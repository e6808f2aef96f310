"""Meters of other packages, by the entry-point group `neuralpower.meters`; a failed one stops no other."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable
from typing import Any

from neuralpower.errors import quoted
from neuralpower.measure.meters.base import CHOICES, METERS, RegisteredMeter

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
