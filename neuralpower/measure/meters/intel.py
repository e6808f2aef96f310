"""Energy counters of Intel's GPUs, through Linux hwmon: microjoules that never fall.

    /sys/class/hwmon/hwmonN/name            xe, or i915
                            energy1_input   the card (xe: energy1_label card), microjoules
                            power1_max      the card's limit, microwatts

Sources: Linux, Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and sysfs-driver-intel-i915-hwmon.
"""

from __future__ import annotations

from pathlib import Path

from neuralpower.measure.meters.base import MeterUnavailable, Reading, power_meter
from neuralpower.measure.meters.meter import Counter, Meter, chips, number_in, text_in

DRIVERS = ("xe", "i915")


@power_meter("intel")
class IntelMeter(Meter):
    """The card of one GPU, "xpu:0" in the order of the cards' addresses."""

    sees = ("xpu",)
    source, scope = "intel_hwmon_energy", "board"
    domains = ("board",)

    @classmethod
    def absent(cls) -> str:
        """Its driver makes the counters."""
        return (
            "" if chips(cls.place, *DRIVERS) else "no hwmon of xe or i915: no GPU of Intel's with a counter"
        )

    def open(self) -> None:
        """Find the card's counter; raises MeterUnavailable."""
        cards = [
            (str((chip / "device").resolve()), chip, counter)
            for chip in chips(self.root, *DRIVERS)
            if (counter := _counter(chip)) is not None
        ]
        if self.index >= len(cards):
            text = f"intel: {len(cards)} cards with an energy counter under {self.root}, and no {self.device}"
            raise MeterUnavailable("gpu_not_found", f"{text}; choose one of them, or --power none")
        _, chip, self.file = sorted(cards)[self.index]
        limit_uw = number_in(file, "intel") if (file := chip / "power1_max").exists() else None
        self.limit_w = limit_uw / 1e6 if limit_uw else None
        self.counter = Counter(1e-6)
        self.read()

    def read(self) -> list[Reading]:
        """Joules of the card; raises MeterUnavailable."""
        before = self.clock_ns()
        raw = number_in(self.file, "intel")
        return [
            Reading("board", self.counter.advance(raw), None, (before + self.clock_ns()) // 2),
        ]


def _counter(chip: Path) -> Path | None:
    """The counter of the card; of older drivers the only one."""
    counters = sorted(chip.glob("energy*_input"))
    labels = {text_in(file.with_name(file.name.replace("input", "label"))): file for file in counters}
    return labels.get("card") or (counters[0] if counters else None)
