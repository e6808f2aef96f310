"""Power meters, one file each; every file in this folder is imported, so adding a meter touches one file."""

import importlib
import pkgutil

from neuralpower.measure.meters.base import (
    CHOICES,
    METERS,
    Description,
    MeterUnavailable,
    NullMeter,
    PowerMeter,
    Reading,
    power_meter,
    readings_of,
)
from neuralpower.measure.meters.meter import Meter
from neuralpower.measure.meters.opening import (
    MeterStatus,
    absence,
    known_meters,
    meter_status,
    open_meter,
    plugged,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
for _name in sorted(METERS):  # whichever file imports which
    METERS[_name] = METERS.pop(_name)

__all__ = [
    "CHOICES",
    "METERS",
    "Description",
    "Meter",
    "MeterStatus",
    "MeterUnavailable",
    "NullMeter",
    "PowerMeter",
    "Reading",
    "absence",
    "known_meters",
    "meter_status",
    "open_meter",
    "plugged",
    "power_meter",
    "readings_of",
]
