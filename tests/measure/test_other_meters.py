"""Meters of other makers on made-up files and libraries, and those of other packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neuralpower.errors import InputError
from neuralpower.measure.meters import (
    METERS,
    Description,
    Meter,
    MeterUnavailable,
    NullMeter,
    Reading,
    meter_status,
    open_meter,
    opening,
    power_meter,
)
from neuralpower.measure.meters.amd import AmdMeter
from neuralpower.measure.meters.apple import AppleMeter
from neuralpower.measure.meters.battery import BatteryMeter
from neuralpower.measure.meters.intel import IntelMeter
from neuralpower.measure.meters.jetson import JetsonMeter
from neuralpower.measure.meters.meter import Counter
from neuralpower.measure.power.counter import Unreliable, window_power
from tests.program import done

ZERO = {"clock_ns": lambda: 0}


def files(folder: Path, **texts: object) -> Path:
    """A folder of sysfs, with a file for each name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def refused(meter: Any, reason: str, text: str, step: str = "open") -> None:
    with pytest.raises(MeterUnavailable, match=text) as raised:
        getattr(meter, step)()
    assert raised.value.reason == reason and "\n" not in str(raised.value)


# ---- Jetson: Documentation/hwmon/ina3221.rst ----


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    """An AGX Orin's two monitors, beside a temperature."""
    rails = {"in1_label": "VDD_GPU_SOC", "in2_label": "VDD_CPU_CV", "in3_label": "VIN_SYS_5V0"}
    milli = {"in1_input": 20000, "curr1_input": 1500, "in2_input": 20000, "curr2_input": 400}
    files(tmp_path / "hwmon1", name="ina3221", **rails, **milli, in3_input=5000, curr3_input=600)
    files(
        tmp_path / "hwmon2",
        name="ina3221",
        in1_label="NC",
        in2_label="VDDQ_VDD2_1V8AO",
        in2_input=1,
        curr2_input=1,
    )
    files(tmp_path / "hwmon3", name="thermal", in1_label="VDD_IN", in1_input=5000, curr1_input=1)
    return tmp_path


def test_the_rails_that_feed_a_jetson_are_read_and_their_parts_are_not(orin: Path) -> None:
    meter = JetsonMeter("cuda:0", orin, **ZERO)
    meter.open()
    assert [(one.domain, one.power_w, one.energy_j) for one in meter.read()] == [
        ("VDD_GPU_SOC", 30.0, None),
        ("VDD_CPU_CV", 8.0, None),
        ("VIN_SYS_5V0", 3.0, None),
    ]
    assert meter.describe() == Description(
        "none", "module", None, "jetson_ina3221_integrated", ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
    )


def test_the_rail_of_the_whole_module_stands_for_all(tmp_path: Path) -> None:
    names = {"in1_label": "VDD_IN", "in2_label": "VDD_CPU_GPU_CV", "in3_label": "VDD_SOC"}
    inputs = {f"{what}{i}_input": 5000 if what == "in" else 900 for what in ("in", "curr") for i in (1, 2, 3)}
    files(tmp_path / "hwmon0", name="ina3221", **names, **inputs)
    meter = JetsonMeter("cpu", tmp_path, **ZERO)
    meter.open()
    assert meter.read() == [Reading("VDD_IN", None, 4.5, 0)]


def test_a_jetson_that_says_nothing_or_goes_is_a_reason(orin: Path, tmp_path: Path) -> None:
    meter = JetsonMeter("cpu", orin, **ZERO)
    meter.open()
    (orin / "hwmon1/in1_input").write_text("\n")
    readings = [*meter.read(), *meter.read()]
    assert readings[0].power_w is None
    with pytest.raises(Unreliable, match="power_anomaly: unreadable|no_counter"):
        window_power(readings)
    (orin / "hwmon1/curr2_input").unlink()
    refused(meter, "meter_lost", "curr2_input cannot be read", "read")
    refused(JetsonMeter("cpu", tmp_path / "nowhere"), "no_meter", "no INA3221 with a named rail")


# ---- Intel: sysfs-driver-intel-xe-hwmon, sysfs-driver-intel-i915-hwmon ----


@pytest.fixture
def arc(tmp_path: Path) -> Path:
    """A card under xe, which counts its package, too, and one under i915."""
    counters = {
        "energy1_input": 2_000_000,
        "energy1_label": "card",
        "energy2_input": 9,
        "energy2_label": "pkg",
    }
    files(tmp_path / "hwmon4", name="xe", **counters, power1_max=190_000_000)
    files(tmp_path / "hwmon7", name="i915", energy1_input=5_000_000)
    return tmp_path


def test_the_counter_of_the_card_is_read(arc: Path) -> None:
    meter = IntelMeter("xpu:0", arc, **ZERO)
    meter.open()
    (arc / "hwmon4/energy1_input").write_text("3500000\n")
    assert meter.read() == [Reading("board", 3.5, None, 0)]
    assert meter.describe() == Description("intel_hwmon_energy", "board", 190.0, "none", ("board",))
    second = IntelMeter("xpu:1", arc, **ZERO)
    second.open()
    assert second.read()[0].energy_j == 5.0 and second.limit_w is None
    refused(IntelMeter("xpu:2", arc), "gpu_not_found", "2 cards with an energy counter")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([3_000_000] * 9, "counter_anomaly: stands still"),
        ([3_000_000, 4_000_000, 1_000_000, 2_000_000], "counter_anomaly: unreadable"),  # it jumped back
        ([3_000_000, "", 4_000_000, 5_000_000], "counter_anomaly: unreadable"),  # it says nothing
        ([3_000_000, 4_000_000, 10**18, 10**18 + 10**6], "counter_anomaly: jumps"),
    ],
)
def test_a_counter_that_fails_while_it_is_measured_gives_a_reason(
    arc: Path, values: list[object], said: str
) -> None:
    now = iter(range(0, 10**12, 5_000_000))
    meter = IntelMeter("xpu:0", arc, clock_ns=lambda: next(now))
    meter.open()
    readings = []
    for value in values:
        (arc / "hwmon4/energy1_input").write_text(f"{value}\n")
        readings += meter.read()
    with pytest.raises(Unreliable, match=said):
        window_power(readings, limit_w=190)


def test_a_counter_goes_on_where_it_wraps() -> None:
    counter = Counter(1.0, wraps_at=100)
    assert [counter.advance(raw) for raw in (90, 98, 3, 10)] == [90, 98, 103, 110]
    assert [Counter(1.0, last=5, total=5).advance(raw) for raw in (None, 3)] == [None, None]


# ---- battery: sysfs-class-power ----


def test_an_unplugged_battery_gives_the_machines_watts(tmp_path: Path) -> None:
    battery = files(tmp_path / "BAT0", type="Battery", status="Discharging", power_now=12_500_000)
    files(
        tmp_path / "BAT1",
        type="Battery",
        status="Discharging",
        voltage_now=11_000_000,
        current_now=-2_000_000,
    )
    files(tmp_path / "hidpp_0", type="Battery", scope="Device", status="Discharging")
    files(tmp_path / "AC", type="Mains", online=0)
    meter = BatteryMeter("cpu", tmp_path, **ZERO)
    meter.open()
    assert meter.read() == [Reading("BAT0", None, 12.5, 0), Reading("BAT1", None, 22.0, 0)]
    assert meter.describe().scope == "machine"
    (battery / "status").write_text("Charging\n")
    refused(meter, "plugged_in", "BAT0 is charging", "read")
    refused(BatteryMeter("cpu", tmp_path), "plugged_in", "unplug it")
    refused(BatteryMeter("cpu", tmp_path / "none"), "no_meter", "none under")


def test_a_battery_without_power_is_refused(tmp_path: Path) -> None:
    files(tmp_path / "BAT0", type="Battery", status="Discharging", capacity=90)
    refused(BatteryMeter("cpu", tmp_path), "not_supported", "neither power_now nor")


# ---- Apple: zeus-apple-silicon ----


def apple(**metrics: Any) -> Any:
    told = SimpleNamespace(**metrics)
    monitor = SimpleNamespace(get_cumulative_energy=lambda: told)
    return SimpleNamespace(AppleEnergyMonitor=lambda: monitor), told


def test_apples_parts_are_read_by_device() -> None:
    library, told = apple(cpu_total_mj=2000, gpu_mj=500, gpu_sram_mj=None, dram_mj=100, ane_mj=0)
    gpu, cpu = AppleMeter("mps", library, **ZERO), AppleMeter("cpu", library, **ZERO)
    gpu.open()
    cpu.open()
    told.gpu_mj, told.cpu_total_mj = 1500, 4000
    assert gpu.read() == [Reading("gpu", 1.5, None, 0), Reading("dram-0", 0.1, None, 0)]
    assert cpu.read()[0] == Reading("cpu", 4.0, None, 0)
    assert gpu.describe().domains == ("gpu", "dram-0")
    told.gpu_mj = 100
    assert gpu.read()[0].energy_j is None, "it jumped back"


def test_apples_library_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    library, told = apple(cpu_total_mj=None, gpu_mj=None, gpu_sram_mj=None, dram_mj=100)
    refused(AppleMeter("mps", library), "not_supported", "does not report the energy of its gpu")
    refused(AppleMeter("mps"), "no_library", r"pip install zeus-apple-silicon")

    def broken() -> Any:
        raise RuntimeError("IOReport subscription failed")

    refused(AppleMeter("mps", SimpleNamespace(AppleEnergyMonitor=broken)), "not_supported", "IOReport")
    told.gpu_mj = 5
    meter = AppleMeter("mps", library)
    meter.open()
    meter.monitor.get_cumulative_energy = broken
    refused(meter, "meter_lost", "subscription failed", "read")


# ---- AMD: AMD SMI's Python API ----


class AmdSmiError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class AmdSmi:
    """A library with one GPU; `failing` raises a code in the functions that it names."""

    AmdSmiException = AmdSmiError

    def __init__(self, **failing: int) -> None:
        self.failing, self.raw, self.open = failing, 10**9, 0
        self.watts: dict[str, Any] = {"current_socket_power": 300}

    def told(self, name: str, answer: Any) -> Any:
        if name in self.failing:
            raise AmdSmiError(self.failing[name])
        return answer

    def amdsmi_init(self) -> None:
        self.open += self.told("init", 1)

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> Any:
        return self.told("handles", ["card"])

    def amdsmi_get_energy_count(self, handle: str) -> Any:
        count = {"energy_accumulator": self.raw, "counter_resolution": 15.259, "timestamp": 1}
        return self.told("energy", count)

    def amdsmi_get_power_info(self, handle: str) -> Any:
        return self.told("power", {"average_socket_power": "N/A", **self.watts})

    def amdsmi_get_power_cap_info(self, handle: str) -> Any:
        return self.told("cap", {"power_cap": 750_000_000})


def test_amds_accumulator_times_its_resolution_is_joules() -> None:
    library = AmdSmi()
    meter = AmdMeter("cuda:0", library, **ZERO)
    meter.open()
    library.raw += 10**6
    (reading,) = meter.read()
    assert reading.energy_j == pytest.approx((10**9 + 10**6) * 15.259e-6) and reading.power_w == 300
    assert meter.describe() == Description("amdsmi_energy_counter", "board", 750.0, "none", ("board",))
    meter.close()
    meter.close()
    assert library.open == 0


def test_what_amds_card_does_not_support_is_not_known() -> None:
    library = AmdSmi(cap=2)
    meter = AmdMeter("cuda:0", library)
    meter.open()
    library.failing = {"energy": 2}
    library.watts = {"current_socket_power": "N/A", "average_socket_power": 90}
    (reading,) = meter.read()
    assert (reading.energy_j, reading.power_w, meter.limit_w) == (None, 90, None)
    library.failing = {"power": 13}
    refused(meter, "meter_lost", "amdsmi_get_power_info: error 13", "read")


@pytest.mark.parametrize(
    ("failing", "reason", "text"),
    [
        ({"init": 34}, "no_driver", "amdsmi_init: error 34"),
        ({"energy": 2, "power": 2}, "not_supported", "neither energy nor power"),
        ({"energy": 10}, "no_permission", "amdsmi_get_energy_count"),
    ],
)
def test_amds_refusals_are_reasons(failing: dict[str, int], reason: str, text: str) -> None:
    library = AmdSmi(**failing)
    refused(AmdMeter("cuda:0", library), reason, text)
    assert library.open == 0
    refused(AmdMeter("cuda:1", AmdSmi()), "gpu_not_found", "lists 1 GPUs")
    refused(AmdMeter(), "no_library", r"pip install amdsmi")


# ---- other packages ----


class Simple(Meter):
    """The two methods."""

    source, scope = "simple", "board"
    domains = ("board",)

    def open(self) -> None:
        """Nothing to find."""

    def read(self) -> list[Reading]:
        return [Reading("board", 1.0, None, self.clock_ns())]


def entry(name: str, found: Any) -> Any:
    def load() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(name=name, value=f"a_package:{name}", load=load)


def test_a_meter_of_another_package_is_registered_and_one_that_fails_is_told() -> None:
    entries = [
        entry("broken", ImportError("no module named vendor\nmore")),
        entry("mine", Simple),
        entry("rapl", Simple),
        entry("number", 7),
    ]
    meters = dict(METERS)
    failed = opening.registered(entries, meters)
    assert meters["mine"] is Simple and meters["rapl"] is METERS["rapl"]
    assert failed["broken"].startswith("a_package:broken raises ImportError: no module named vendor;")
    assert "has the name of another meter" in failed["rapl"] and "has no for_device" in failed["number"]


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A meter that raises when it is opened, one that works, and one that cannot be imported."""

    class Raises(Simple):
        def open(self) -> None:
            raise ValueError("of the vendor's")

    table = {name: METERS[name] for name in ("battery", "rapl")}
    monkeypatch.setattr("neuralpower.measure.meters.base.METERS", table)
    monkeypatch.setattr("neuralpower.measure.meters.opening.METERS", table)
    found = [entry("aaa", Raises), entry("mine", Simple), entry("gone", OSError("libvendor.so"))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found * (group == opening.GROUP))
    opening.plugged.cache_clear()
    yield
    opening.plugged.cache_clear()


def test_others_go_on_where_one_fails(plugged: None) -> None:
    assert isinstance(open_meter("auto", "cpu"), Simple), "not the battery, nor the one that raises"
    with pytest.raises(MeterUnavailable, match="aaa: raises ValueError: of the vendor's"):
        open_meter("aaa", "cpu")
    with pytest.raises(MeterUnavailable, match="gone: a_package:gone raises OSError: libvendor.so"):
        open_meter("gone", "cpu")
    with pytest.raises(InputError, match="unknown power meter"):
        open_meter("nosuch", "cpu")
    assert isinstance(open_meter("none", "cpu"), NullMeter)
    status = meter_status("aaa", "cpu")
    assert status is not None and status.reason == "plugin"


def test_where_none_works_those_that_cannot_be_imported_are_told(plugged: None) -> None:
    meter = open_meter("auto", "tpu")
    assert isinstance(meter, NullMeter) and "gone: a_package:gone raises OSError: libvendor.so" in meter.text


def test_devices_tells_each_meter_and_why_it_is_not_there(plugged: None) -> None:
    told = {one["name"]: one for one in json.loads(done("devices", "--json"))["meters"]}
    assert told["mine"]["works"] and not told["aaa"]["works"]
    assert told["gone"]["reason"] == "plugin" and "libvendor.so" in told["gone"]["text"]
    assert told["battery"]["text"]


def test_every_meter_says_why_a_machine_lacks_it() -> None:
    told = {one["name"] for one in json.loads(done("devices", "--json"))["meters"]}
    assert {"amd", "apple", "battery", "intel", "jetson", "nvml", "rapl"} <= told


def test_a_class_may_be_registered_by_both_ways() -> None:
    meter = power_meter("both")(Simple)
    try:
        assert opening.registered([entry("both", meter)], METERS) == {}
    finally:
        del METERS["both"]
