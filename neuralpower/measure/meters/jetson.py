"""Watts of NVIDIA's Jetson modules: INA3221 monitors of their rails, through Linux hwmon.

    /sys/class/hwmon/hwmonN/name          ina3221
                            in1_label     VDD_GPU_SOC, ...: the rail of channel 1
                            in1_input     millivolts
                            curr1_input   milliamperes

VDD_IN is the whole module (Orin NX and Nano); elsewhere the rails that feed it add up to it. NVML has no
power of these GPUs. Sources: Linux, Documentation/hwmon/ina3221.rst; NVIDIA, Jetson Linux Developer Guide,
"Platform Power and Performance", sections on the power monitors.
"""

from __future__ import annotations

from neuralpower.measure.meters.base import MeterUnavailable, Reading, power_meter
from neuralpower.measure.meters.meter import Meter, chips, number_in, text_in

WHOLE = ("VDD_IN", "POM_5V_IN", "VIN")  # of a module
# A rail behind one of the others, an unused channel, and the chip's own sum of shunt voltages
PARTS = ("VDDQ_VDD2_1V8AO", "NC", "sum of shunt voltages")
CHANNELS = (1, 2, 3)


@power_meter("jetson")
class JetsonMeter(Meter):
    """The module: processor, GPU and memory together."""

    sees = ("cpu", "cuda")
    source, scope, counts = "jetson_ina3221_integrated", "module", False

    @classmethod
    def absent(cls) -> str:
        """Other machines have no such monitor."""
        return (
            "" if chips(cls.place, "ina3221") else "no INA3221 under /sys/class/hwmon: this is not a Jetson"
        )

    def open(self) -> None:
        """Find the rails; raises MeterUnavailable."""
        rails = {
            label: (chip / f"in{channel}_input", chip / f"curr{channel}_input")
            for chip in chips(self.root, "ina3221")
            for channel in CHANNELS
            if (label := text_in(chip / f"in{channel}_label")) and label not in PARTS
        }
        whole = [label for label in rails if label in WHOLE]
        self.rails = {label: rails[label] for label in whole[:1] or rails}
        if not self.rails:
            text = f"jetson: no INA3221 with a named rail under {self.root}; choose another meter"
            raise MeterUnavailable("no_meter", text)
        self.domains = tuple(self.rails)
        self.read()

    def read(self) -> list[Reading]:
        """Watts of each rail, None where a file has no number; raises MeterUnavailable."""
        readings = []
        for label, files in self.rails.items():
            before = self.clock_ns()
            milli = [number_in(file, "jetson") for file in files]
            volts, amperes = (None if value is None else value / 1e3 for value in milli)
            watts = None if volts is None or amperes is None else volts * amperes
            readings.append(Reading(label, None, watts, (before + self.clock_ns()) // 2))
        return readings
