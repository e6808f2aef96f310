"""Meters: readings, refusals, and messages to the user."""

import ctypes
import json
import os
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuralpower.errors import DeviceError, InputError
from neuralpower.measure.meters import (
    METERS,
    Description,
    MeterUnavailable,
    NullMeter,
    Reading,
    absence,
    meter_status,
    open_meter,
    power_meter,
)
from neuralpower.measure.meters.nvml import FAILURES, NvmlMeter, list_gpus, load_nvml, uuid_of
from neuralpower.measure.meters.rapl import RaplMeter
from neuralpower.measure.power.counter import window_power
from neuralpower.measure.power.energy import Clock, watch
from tests.program import done, run

RANGE_UJ = 262_143_328_850  # of Intel's packages: 262 kJ


def refused(meter: Any, reason: str, match: str) -> str:
    """The line of a meter that does not open, or is lost."""
    with pytest.raises(MeterUnavailable, match=match) as raised:
        meter.open()
    assert raised.value.reason == reason
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ---- RAPL ----


def zone(
    root: Path, folder: str, name: str, energy_uj: int | str = 1_000_000, range_uj: int | None = RANGE_UJ
) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    if range_uj is not None:
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path / "energy_uj"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two packages, and all other folders that Linux lists."""
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}", 1_000_000 * (package + 1))
        zone(tmp_path, f"intel-rapl:{package}:0", "core")
        zone(tmp_path, f"intel-rapl:{package}:1", "uncore")
        zone(tmp_path, f"intel-rapl:{package}:2", "dram", 5_000_000)
        (tmp_path / f"intel-rapl:{package}/constraint_0_max_power_uw").write_text("205000000\n")
    zone(tmp_path, "intel-rapl:2", "psys")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 7_000_000)
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def test_packages_and_dram_are_read_and_their_parts_and_duplicates_are_not(server: Path) -> None:
    meter = RaplMeter(server, clock_ns=lambda: 7)
    meter.open()
    assert meter.read() == [
        Reading("package-0", 1.0, None, 7),
        Reading("dram-0", 5.0, None, 7),
        Reading("package-1", 2.0, None, 7),
        Reading("dram-1", 5.0, None, 7),
    ]
    # two packages of 205 W
    assert meter.describe() == Description(
        "rapl", "package", 410.0, domains=("package-0", "dram-0", "package-1", "dram-1")
    )


def test_amds_zones_have_no_dram_and_name_no_limit(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", range_uj=65_532_610_987)
    zone(tmp_path, "intel-rapl:0:0", "core")
    meter = RaplMeter(tmp_path)
    meter.open()
    assert [reading.domain for reading in meter.read()] == ["package-0"]
    assert meter.describe().limit_w is None


def test_a_package_that_is_listed_twice_is_read_once(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:1", "package-0", 9_000_000)
    meter = RaplMeter(tmp_path)
    meter.open()
    assert [(reading.domain, reading.energy_j) for reading in meter.read()] == [("package-0", 1.0)]


def energies(file: Path, meter: RaplMeter, values: list[int | str]) -> Iterator[Any]:
    for value in values:
        file.write_text(f"{value}\n")
        yield meter.read()[0].energy_j


def test_a_wrap_around_is_corrected_when_it_is_read(tmp_path: Path) -> None:
    start = RANGE_UJ - 20_000_000
    file = zone(tmp_path, "intel-rapl:0", "package-0", start)
    meter = RaplMeter(tmp_path)
    meter.open()
    # 10 J up to the last but 10, then past the end to 50 J: 10 + 50 = 60 J more, then 1 J
    first, second, third, fourth = energies(file, meter, [start, start + 10_000_000, 50_000_000, 51_000_000])
    assert first == start / 1e6
    assert [second - first, third - second, fourth - third] == pytest.approx([10.0, 60.0, 1.0])


@pytest.mark.parametrize("range_uj", [None, 0])
def test_a_fall_without_a_readable_range_is_no_number(tmp_path: Path, range_uj: int | None) -> None:
    file = zone(tmp_path, "intel-rapl:0", "package-0", 60_000_000, range_uj)
    meter = RaplMeter(tmp_path)
    meter.open()
    # what was counted at the fall is not known; from there it counts on
    assert list(energies(file, meter, [61_000_000, 1_000_000, 3_000_000])) == [61.0, None, 63.0]


def test_a_fall_by_more_than_the_range_is_no_number(tmp_path: Path) -> None:
    file = zone(tmp_path, "intel-rapl:0", "package-0", 90_000_000, range_uj=50_000_000)
    meter = RaplMeter(tmp_path)
    meter.open()
    assert list(energies(file, meter, [1_000_000])) == [None]


@pytest.mark.parametrize("text", ["", "-5", "nan", "1e6", "0x10"])
def test_what_is_no_count_of_microjoules_is_no_number(tmp_path: Path, text: str) -> None:
    file = zone(tmp_path, "intel-rapl:0", "package-0", 90_000_000)
    meter = RaplMeter(tmp_path)
    meter.open()
    assert list(energies(file, meter, [text])) == [None]


def test_without_zones_the_user_learns_what_could_be_done(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "psys")
    refused(
        RaplMeter(tmp_path), "no_rapl", "no package zone under .*virtual machines.*modprobe intel_rapl_msr"
    )
    refused(RaplMeter(tmp_path / "missing"), "no_rapl", "no package zone")


def reader(fails: Callable[[Path], OSError | None]) -> Callable[[Path], str]:
    def read_text(file: Path) -> str:
        error = fails(file)
        if error is not None:
            raise error
        return file.read_text()

    return read_text


def test_counters_for_root_only_are_left_as_they_are(server: Path) -> None:
    before = {file: file.stat().st_mode for file in server.rglob("*")}
    denied = reader(lambda file: PermissionError(13, "denied") if file.name == "energy_uj" else None)
    line = refused(RaplMeter(server, read_text=denied), "no_permission", "energy_uj is readable by root only")
    assert "ask the administrator" in line
    assert {file: file.stat().st_mode for file in server.rglob("*")} == before


def test_a_counter_that_fails_names_its_file(server: Path) -> None:
    broken = reader(lambda file: OSError(61, "No data available") if file.name == "energy_uj" else None)
    refused(
        RaplMeter(server, read_text=broken), "unreadable", "energy_uj cannot be read .No data available.; use"
    )


def test_rapl_serves_the_cpu_alone() -> None:
    assert RaplMeter.for_device("cuda:0") is None
    assert isinstance(RaplMeter.for_device("cpu"), RaplMeter)


# ---- NVML ----


class FieldValue(ctypes.Union):
    _fields_ = (("uiVal", ctypes.c_uint), ("ullVal", ctypes.c_ulonglong))


class FakeError(Exception):
    """As `pynvml.NVMLError`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """As `pynvml` of nvidia-ml-py: functions, codes, and one error class per code below NVMLError."""

    NVML_FI_DEV_POWER_INSTANT = 186
    CODES = {
        "NOT_SUPPORTED": 3,
        "NO_PERMISSION": 4,
        "NOT_FOUND": 6,
        "DRIVER_NOT_LOADED": 9,
        "LIBRARY_NOT_FOUND": 12,
        "FUNCTION_NOT_FOUND": 13,
        "GPU_IS_LOST": 15,
        "RESET_REQUIRED": 16,
        "LIB_RM_VERSION_MISMATCH": 18,
        "UNKNOWN": 999,
    }

    FUNCTIONS = {
        "nvmlDeviceGetMigMode": "mig",
        "nvmlDeviceGetComputeRunningProcesses": "processes",
        "nvmlDeviceGetTotalEnergyConsumption": "energy",
        "nvmlDeviceGetPowerUsage": "usage",
        "nvmlDeviceGetArchitecture": "architecture",
        "nvmlDeviceGetEnforcedPowerLimit": "limit",
    }
    NVMLError = FakeError

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "init": None,
            "handle": "handle",
            "mig": [0, 0],
            "processes": [],
            "fields": {83: (0, 5_000_000), 186: (0, 412_500), 185: (0, 410_000)},  # (code, thousandths)
            "energy": self.error("NOT_SUPPORTED"),
            "usage": self.error("NOT_SUPPORTED"),
            "architecture": 9,
            "limit": 700_000,
            **answers,
        }
        self.open = 0
        self.asked: list[str] = []
        for function, name in self.FUNCTIONS.items():
            setattr(self, function, lambda handle, name=name: self.answer(name))

    @classmethod
    def error(cls, name: str) -> Exception:
        title = "NVMLError_" + string.capwords(name, "_").replace("_", "")
        return type(title, (cls.NVMLError,), {})(cls.CODES[name])

    def answer(self, name: str) -> Any:
        self.asked.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own names here and below
        self.answer("init")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid.startswith("GPU-")
        return self.answer("handle")

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:  # noqa: N802
        values = self.answer("fields")
        return [
            SimpleNamespace(nvmlReturn=values[field][0], value=FieldValue(ullVal=values[field][1]))
            for field in fields
        ]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self.answer("handle")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.86"

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return "GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=self.answers.get("memory", 141 * 2**30))


def gpu(nvml: Any, **settings: Any) -> NvmlMeter:
    return NvmlMeter("GPU-1", nvml, clock_ns=lambda: 7, **settings)


def test_energy_and_both_powers_come_in_one_call() -> None:
    nvml = FakeNvml()
    meter = gpu(nvml)
    meter.open()
    nvml.asked.clear()
    # 5,000,000 mJ, 412,500 mW, 410,000 mW
    assert meter.read() == [Reading("board", 5000.0, 412.5, 7, 410.0)]
    assert nvml.asked == ["fields"]
    assert meter.describe().limit_w == 700.0
    meter.close()
    meter.close()
    assert nvml.open == 0


def test_where_the_field_is_not_supported_the_counter_has_a_call_of_its_own() -> None:
    meter = gpu(FakeNvml(fields={83: (3, 0), 186: (0, 412_500), 185: (3, 0)}, energy=6_000_000))
    meter.open()
    assert meter.read() == [Reading("board", 6000.0, 412.5, 7, None)]


def test_a_driver_without_fields_answers_by_calls() -> None:
    meter = gpu(
        FakeNvml(fields=FakeNvml.error("NOT_SUPPORTED"), energy=6_000_000, usage=300_000, architecture=6)
    )
    meter.open()
    assert meter.read() == [Reading("board", 6000.0, 300.0, 7, None)]


def test_a_power_that_is_averaged_over_a_second_is_not_taken_for_a_momentary_one() -> None:
    meter = gpu(FakeNvml(fields={83: (0, 1), 186: (3, 0), 185: (3, 0)}, usage=300_000, architecture=8))
    meter.open()
    assert meter.read() == [Reading("board", 0.001, None, 7, 300.0)]


def test_a_field_that_fails_or_says_zero_is_no_number() -> None:
    nvml = FakeNvml()
    meter = gpu(nvml)
    meter.open()
    nvml.answers["fields"] = {83: (999, 5), 186: (0, 0), 185: (0, 410_000)}
    assert meter.read() == [Reading("board", None, None, 7, 410.0)]


@pytest.mark.parametrize(
    ("answers", "reason", "match"),
    [
        ({"init": "LIBRARY_NOT_FOUND"}, "no_driver", "no NVIDIA driver.*NVML error 12"),
        ({"init": "DRIVER_NOT_LOADED"}, "no_driver", "not loaded"),
        ({"init": "LIB_RM_VERSION_MISMATCH"}, "driver_mismatch", "different versions.*reboot"),
        ({"init": "NO_PERMISSION"}, "no_permission", "ask the administrator"),
        ({"init": "UNKNOWN"}, "nvml_error", "code 999; use --power none"),
        ({"handle": "NOT_FOUND"}, "gpu_not_found", "GPU-1: .*neuralpower devices"),
        ({"handle": "GPU_IS_LOST"}, "gpu_lost", "fell off the bus"),
        ({"mig": "RESET_REQUIRED"}, "reset_required", "must be reset"),
        ({"fields": "NOT_SUPPORTED"}, "not_supported", "energy and power of GPU-1.*does not offer it"),
    ],
)
def test_every_failure_has_its_reason_and_a_way_out(answers: dict[str, str], reason: str, match: str) -> None:
    nvml = FakeNvml(**{name: FakeNvml.error(code) for name, code in answers.items()})
    refused(gpu(nvml), reason, match)
    assert nvml.open == 0


def test_the_codes_are_those_of_the_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert set(FakeNvml.CODES.values()) - {999} == set(FAILURES)
    for name, code in FakeNvml.CODES.items():
        assert getattr(pynvml, f"NVML_ERROR_{name}") == code
    fields = ("TOTAL_ENERGY_CONSUMPTION", "POWER_INSTANT", "POWER_AVERAGE")
    assert [getattr(pynvml, f"NVML_FI_DEV_{field}") for field in fields] == [83, 186, 185]
    assert pynvml.NVML_DEVICE_ARCH_AMPERE == 7
    for function in dir(FakeNvml()):
        assert not function.startswith("nvml") or hasattr(pynvml, function)


def test_a_split_card_is_refused() -> None:
    refused(gpu(FakeNvml(mig=[1, 1])), "mig", "counts the whole card; measure on a GPU that is not split")
    refused(NvmlMeter("MIG-7", FakeNvml()), "mig", "MIG-7 is split")


def test_a_card_without_mig_and_without_a_list_of_processes_is_taken() -> None:
    unsupported = FakeNvml.error("NOT_SUPPORTED")
    gpu(FakeNvml(mig=unsupported, processes=unsupported, limit=unsupported)).open()


def test_a_card_that_others_use_is_refused() -> None:
    ours, other = SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=4242)
    gpu(FakeNvml(processes=[ours])).open()
    refused(
        gpu(FakeNvml(processes=[ours, other])), "shared", r"1 other process .PID 4242. on GPU-1; wait until"
    )


def test_ourselves_under_the_hosts_number_are_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SimpleNamespace(pid=999_999)  # no folder of this number below `processes`: seen from a container
    refused(gpu(FakeNvml(processes=[host]), processes=tmp_path), "shared", "999999")
    monkeypatch.setattr("neuralpower.measure.meters.nvml._has_context", lambda: True)
    gpu(FakeNvml(processes=[host]), processes=tmp_path).open()
    two = [host, SimpleNamespace(pid=999_998)]
    refused(gpu(FakeNvml(processes=two), processes=tmp_path), "shared", "2 other processes")
    (tmp_path / "999999").mkdir()
    refused(gpu(FakeNvml(processes=[host]), processes=tmp_path), "shared", "999999")


def test_a_device_by_its_number_is_the_one_that_torch_means(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def properties(index: int) -> Any:
        asked.append(index)
        return SimpleNamespace(uuid="1")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    meter = NvmlMeter.for_device("cuda:1")
    assert meter is not None
    meter.nvml = FakeNvml()
    meter.open()
    assert asked == [1]
    assert uuid_of("cuda:1") == "GPU-1"
    with pytest.raises(MeterUnavailable, match="torch sees no cuda:2"):
        uuid_of("cuda:2")


def test_torch_is_not_asked_where_the_driver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuralpower.measure.meters.nvml.card_uuid", lambda device: f"GPU-of-{device}")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("torch was asked"))
    assert uuid_of("cuda:1") == "GPU-of-cuda:1"


def test_a_context_that_torch_makes_while_it_is_asked_is_not_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml()

    def properties(index: int) -> Any:  # from here on the driver lists us, by the host's number
        nvml.answers["processes"] = [SimpleNamespace(pid=999_999)]
        return SimpleNamespace(uuid="1")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    NvmlMeter("cuda:0", nvml, processes=tmp_path).open()
    nvml.answers["processes"] = [SimpleNamespace(pid=4242)]  # who was there before is
    refused(NvmlMeter("cuda:0", nvml, processes=tmp_path), "shared", "4242")


def test_nvml_serves_gpus_alone() -> None:
    assert NvmlMeter.for_device("cpu") is None
    assert isinstance(NvmlMeter.for_device("GPU-1"), NvmlMeter)


@pytest.mark.parametrize(
    ("code", "reason"), [("GPU_IS_LOST", "gpu_lost"), ("RESET_REQUIRED", "reset_required")]
)
def test_a_gpu_that_is_lost_while_it_is_read_ends_the_reading(code: str, reason: str) -> None:
    nvml = FakeNvml()
    meter = gpu(nvml)
    meter.open()
    fields = nvml.answers["fields"]
    for answer in (FakeNvml.error(code), {**fields, 186: (FakeNvml.CODES[code], 0)}):
        nvml.answers["fields"] = answer
        with pytest.raises(MeterUnavailable) as raised:
            meter.read()
        assert raised.value.reason == reason
        assert isinstance(raised.value, DeviceError)


def test_an_unofficial_module_of_the_same_name_is_told_from_the_real_one() -> None:
    with pytest.raises(MeterUnavailable, match="pip uninstall pynvml, then pip install") as raised:
        load_nvml(SimpleNamespace(__file__="/old/pynvml.py"))
    assert raised.value.reason == "stale_library"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    refused(NvmlMeter("GPU-1"), "no_library", r"pip install nvidia-ml-py")


def test_gpus_are_listed_with_their_memory_and_driver() -> None:
    nvml = FakeNvml()
    (card,) = list_gpus(nvml)
    assert (card.name, card.uuid, card.memory_bytes, card.driver) == (
        "NVIDIA H200",
        "GPU-1",
        141 * 2**30,
        "570.86",
    )
    assert nvml.open == 0
    lost = FakeNvml(handle=FakeNvml.error("GPU_IS_LOST"))
    with pytest.raises(MeterUnavailable, match="fell off"):
        list_gpus(lost)
    assert lost.open == 0


# ---- choice ----


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A table of meters of a test's own."""
    table: dict[str, Any] = {}
    monkeypatch.setattr("neuralpower.measure.meters.base.METERS", table)
    return table


def fake_meter(name: str, device: str, reason: str | None = None) -> Any:
    class Fake(NullMeter):
        @classmethod
        def for_device(cls, wanted: str) -> Any:
            return cls(name) if wanted == device else None

        def open(self) -> None:
            if reason is not None:
                raise MeterUnavailable(reason, f"{name}: broken; use another")

        def describe(self) -> Description:
            return Description("joules", "board", 250.0, domains=("a", "b"))

    return power_meter(name)(Fake)


def test_the_shipped_meters_find_themselves() -> None:
    assert list(METERS) == "amd apple battery intel jetson nvml rapl".split()


def test_a_name_is_taken_once(meters: dict[str, Any]) -> None:
    fake_meter("mine", "cpu")
    with pytest.raises(ValueError, match="'mine' is already defined by .*test_meters"):
        fake_meter("mine", "cpu")
    with pytest.raises(ValueError, match="'auto': the name is reserved"):
        fake_meter("auto", "cpu")


def test_auto_takes_the_first_that_works(meters: dict[str, Any]) -> None:
    fake_meter("a", "cpu", reason="no_permission")
    fake_meter("b", "cuda:0")
    fake_meter("c", "cpu")
    chosen = open_meter("auto", "cpu")
    assert isinstance(chosen, NullMeter)
    assert chosen.reason == "c"


def test_auto_without_a_meter_says_why_and_reads_nothing(meters: dict[str, Any]) -> None:
    fake_meter("a", "cpu", reason="no_permission")
    fake_meter("b", "cpu", reason="no_rapl")
    assert open_meter("auto", "cpu") == NullMeter(
        "no_permission", "a: broken; use another; b: broken; use another"
    )
    nothing = open_meter("auto", "tpu")
    assert nothing == NullMeter("no_meter", "no power meter is known for tpu")
    assert nothing.read() == []
    assert open_meter("none", "cpu").read() == []


def test_a_meter_that_was_asked_for_must_work(meters: dict[str, Any]) -> None:
    fake_meter("a", "cpu", reason="no_permission")
    with pytest.raises(MeterUnavailable, match="a: broken") as raised:
        open_meter("a", "cpu")
    assert raised.value.exit_code == 4
    with pytest.raises(MeterUnavailable, match="a does not see the power of cuda:0; use"):
        open_meter("a", "cuda:0")
    with pytest.raises(InputError, match="unknown power meter 'watts': known: a, auto, none"):
        open_meter("watts", "cpu")


def test_a_status_says_what_works(meters: dict[str, Any]) -> None:
    fake_meter("a", "cpu", reason="no_permission")
    fake_meter("b", "cpu")
    good, bad = meter_status("b", "cpu"), meter_status("a", "cpu")
    assert good is not None
    assert bad is not None
    assert (good.works, good.text) == (True, "joules, a b, limit 250 W")
    assert (bad.works, bad.reason, bad.text) == (False, "no_permission", "a: broken; use another")
    assert meter_status("a", "cuda:0") is None


# ---- `neuralpower devices` ----


@pytest.fixture
def no_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped predictors take seconds to read."""
    monkeypatch.setattr("neuralpower.learn.files.predictor_files.known_predictors", dict)


@pytest.mark.usefixtures("no_predictors")
def test_devices_and_meters_are_listed_with_what_the_user_can_do(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RaplMeter, "for_device", classmethod(lambda cls, d: cls(server) if d == "cpu" else None)
    )
    nvml = FakeNvml(processes=[SimpleNamespace(pid=4242)])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    lines = [" ".join(line.split()) for line in done("devices", "-v").splitlines()]
    assert "gpu NVIDIA H200, 141 GiB, driver 570.86, GPU-1" in lines
    assert "meter rapl of cpu works: rapl, package-0 dram-0 package-1 dram-1, limit 410 W" in lines
    shared = "meter nvml of GPU-1 no (shared): nvml: 1 other process (PID 4242)"
    assert any(line.startswith(shared) for line in lines)
    listed = json.loads(done("devices", "--json"))
    assert [device["name"] for device in listed["devices"]][1:] == ["NVIDIA H200"]
    assert [(m["name"], m["device"], m["works"], m["reason"]) for m in listed["meters"] if m["device"]] == [
        ("rapl", "cpu", True, None),
        ("nvml", "GPU-1", False, "shared"),
    ]


@pytest.mark.usefixtures("no_predictors")
def test_a_machine_without_a_driver_has_one_line_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(init=FakeNvml.error("LIBRARY_NOT_FOUND"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    ran = run("devices")
    assert ran.code == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("gpu ")]
    assert line.split()[:3] == ["gpu", "none", "found"] and line.endswith("no NVIDIA driver")
    (told,) = [one for one in json.loads(done("devices", "--json"))["meters"] if one["name"] == "nvml"]
    assert (told["device"], told["works"], told["reason"]) == ("cuda", False, "no_driver")


# ---- meters of this machine ----


@pytest.mark.hardware
@pytest.mark.parametrize("name", METERS)
def test_a_meter_of_this_machine_reads_an_idle_power(name: str) -> None:
    try:
        gpus = [card.uuid for card in list_gpus()]
    except MeterUnavailable:
        gpus = ["GPU-0"]
    if why := absence(name):
        pytest.skip(why)
    places = ("cpu", *gpus, "cuda:0", "xpu:0", "mps")
    device = next(device for device in places if METERS[name].for_device(device) is not None)
    try:
        meter = open_meter(name, device)
    except MeterUnavailable as error:
        pytest.skip(str(error))
    limit_w = meter.describe().limit_w
    power_w = window_power(watch(meter, Clock(), 1.0), limit_w=limit_w).power_w
    meter.close()
    assert 1 < power_w < (limit_w or 1000)
