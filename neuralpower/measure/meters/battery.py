"""Watts that a battery gives: those of the whole machine, screen included, while it is unplugged.

    /sys/class/power_supply/BAT0/type          Battery
                                 scope         Device for one of a mouse; else of the machine
                                 status        Discharging, Charging, Full, Not charging
                                 power_now     microwatts; or
                                 voltage_now   microvolts
                                 current_now   microamperes

Source: Linux, Documentation/ABI/testing/sysfs-class-power.
"""

from __future__ import annotations

from pathlib import Path

from neuralpower.measure.meters.base import MeterUnavailable, Reading, power_meter
from neuralpower.measure.meters.meter import Meter, number_in, text_in


@power_meter("battery")
class BatteryMeter(Meter):
    """All batteries; `auto` does not take them, since other parts than the processor draw from them."""

    by_name = True
    place = Path("/sys/class/power_supply")
    source, scope, counts = "battery_integrated", "machine", False

    @classmethod
    def absent(cls) -> str:
        """Servers and desktops have none."""
        return "" if _batteries(cls.place) else "no battery under /sys/class/power_supply"

    def open(self) -> None:
        """Find the batteries, which must give power; raises MeterUnavailable."""
        self.batteries = _batteries(self.root)
        if not self.batteries:
            raise MeterUnavailable("no_meter", f"battery: none under {self.root}; choose another meter")
        self.domains = tuple(battery.name for battery in self.batteries)
        if all(reading.power_w is None for reading in self.read()):
            text = "battery: its driver has neither power_now nor current_now and voltage_now"
            raise MeterUnavailable("not_supported", f"{text}; choose another meter")

    def read(self) -> list[Reading]:
        """Watts of each, None where it does not say; raises MeterUnavailable while one is plugged in."""
        readings = []
        for battery in self.batteries:
            before = self.clock_ns()
            status = text_in(battery / "status")
            if status != "Discharging":
                text = f"battery: {battery.name} is {status.lower() or 'gone'}, so that others give the power"
                raise MeterUnavailable("plugged_in", f"{text}; unplug it, or choose another meter")
            watts = _watts(battery)
            readings.append(Reading(battery.name, None, watts, (before + self.clock_ns()) // 2))
        return readings


def _batteries(root: Path) -> list[Path]:
    """The machine's batteries; a mouse has one, too."""
    return [
        one
        for one in sorted(root.glob("*"))
        if text_in(one / "type") == "Battery" and text_in(one / "scope") != "Device"
    ]


def _watts(battery: Path) -> float | None:
    if (power := battery / "power_now").exists():
        micro = number_in(power, "battery")
        return None if micro is None else abs(micro) / 1e6
    files = [battery / name for name in ("voltage_now", "current_now")]
    micro_of = [number_in(file, "battery") if file.exists() else None for file in files]
    volts, amperes = (None if one is None else abs(one) / 1e6 for one in micro_of)
    return None if volts is None or amperes is None else volts * amperes
