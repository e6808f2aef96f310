"""Energy counter and power of NVIDIA GPUs through NVML (nvidia-ml-py, imported when a meter is opened).

The counter holds millijoules since the driver was loaded (Volta and later) and moves every 10 to 100 ms:
windows run from one of its ticks to another. Power comes with it: field 186 is averaged over some tens of
milliseconds, field 185 over about a second. `nvmlDeviceGetPowerUsage` is the latter on Ampere and most later
GPUs, and the former before; it serves where a driver does not know the fields. Source: NVML API reference,
"Field Value Enums" and "Device Queries".
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from neuralpower.devices.host import card_uuid, index_of
from neuralpower.measure.meters.base import Description, MeterUnavailable, Reading, power_meter

ENERGY, POWER_INSTANT, POWER_AVERAGE = 83, 186, 185  # NVML_FI_DEV_*
AMPERE = 7  # NVML_DEVICE_ARCH_AMPERE
SUCCESS, NOT_SUPPORTED, NO_FUNCTION, GPU_IS_LOST, RESET_REQUIRED = 0, 3, 13, 15, 16  # nvmlReturn_t

# nvmlReturn_t -> (reason, meaning and remedy)
FAILURES = {
    NOT_SUPPORTED: (
        "not_supported",
        "this GPU or driver does not offer it; use another device, or --power none",
    ),
    4: ("no_permission", "the system refuses access; ask the administrator, or use --power none"),
    6: ("gpu_not_found", "the driver has no such GPU; `neuralpower devices` lists the known ones"),
    9: ("no_driver", "the NVIDIA driver is not loaded; ask the administrator, or use --power none"),
    12: ("no_driver", "no NVIDIA driver (libnvidia-ml.so.1 not found); install one, or use another device"),
    NO_FUNCTION: (
        "stale_library",
        "the driver is older than the library; update it, or install an older nvidia-ml-py by pip",
    ),
    GPU_IS_LOST: (
        "gpu_lost",
        "the GPU fell off the bus or is inaccessible; the administrator must reset or reboot",
    ),
    RESET_REQUIRED: (
        "reset_required",
        "the GPU must be reset before it can be used again; ask the administrator",
    ),
    18: (
        "driver_mismatch",
        "driver and library have different versions, as after an update; reboot, or reload the driver",
    ),
}


def _failure(code: int, what: str, text: str) -> MeterUnavailable:
    reason, way_out = FAILURES.get(code, ("nvml_error", f"{text}; use --power none"))
    return MeterUnavailable(reason, f"nvml: {what and f'{what}: '}{way_out} (NVML error {code})")


@contextmanager
def _translated(nvml: Any, what: str = "") -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise _failure(error.value, what, str(error)) from None


def load_nvml(nvml: Any = None) -> Any:
    """The `pynvml` module of nvidia-ml-py, or the one given, initialised; raises MeterUnavailable."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        raise MeterUnavailable(
            "no_library", "nvml: nvidia-ml-py is not installed; pip install nvidia-ml-py"
        ) from None
    if not hasattr(nvml, "nvmlDeviceGetFieldValues") or not hasattr(nvml, "NVML_FI_DEV_POWER_INSTANT"):
        raise MeterUnavailable(
            "stale_library",
            f"nvml: the module at {getattr(nvml, '__file__', 'pynvml')} is old or the unofficial pynvml "
            "package; pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
        )
    with _translated(nvml):
        nvml.nvmlInit()
    return nvml


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it."""

    name: str
    uuid: str
    memory_bytes: int | None  # None where it shares the host's
    driver: str


def list_gpus(nvml: Any = None) -> list[Gpu]:
    """All GPUs of the machine; raises MeterUnavailable where NVML does not answer."""
    nvml = load_nvml(nvml)
    try:
        with _translated(nvml):
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            driver = nvml.nvmlSystemGetDriverVersion()
            return [
                Gpu(nvml.nvmlDeviceGetName(h), nvml.nvmlDeviceGetUUID(h), _memory_bytes(nvml, h), driver)
                for h in handles
            ]
    finally:
        nvml.nvmlShutdown()


def _memory_bytes(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError as error:
        if error.value == NOT_SUPPORTED:
            return None
        raise


def uuid_of(device: str) -> str:
    """UUID of "cuda:0" as the CUDA driver counts: NVML ignores CUDA_VISIBLE_DEVICES. Raises MeterUnavailable.

    Torch is asked where the driver does not answer by itself; it may begin to use CUDA then.
    """
    if (found := card_uuid(device)) is not None:
        return found
    import torch

    index = index_of(device)
    if index >= torch.cuda.device_count():
        raise MeterUnavailable(
            "gpu_not_found", f"nvml: torch sees no {device}; `neuralpower devices` lists the GPUs"
        )
    return f"GPU-{str(torch.cuda.get_device_properties(index).uuid).removeprefix('GPU-')}"


@power_meter("nvml")
class NvmlMeter:
    """The board of one GPU, named by its UUID ("GPU-...") or as torch names it ("cuda:0").

    Open it before the process makes its CUDA context: whatever computes on the GPU then is somebody else.
    """

    def __init__(
        self,
        device: str = "cuda:0",
        nvml: Any = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        processes: Path = Path("/proc"),
    ) -> None:
        self.device, self.clock_ns, self.processes = device, clock_ns, processes
        self.nvml, self.initialised = nvml, False

    @classmethod
    def for_device(cls, device: str) -> Self | None:
        return cls(device) if device.startswith(("cuda", "GPU-", "MIG-")) else None

    def open(self) -> None:
        """Find the GPU, and try its meter; raises MeterUnavailable, also for a split or shared GPU."""
        if self.device.startswith("MIG-"):
            self._refuse_mig()
        self.nvml = load_nvml(self.nvml)
        self.initialised = True
        begun = _has_context()
        try:
            before = self._listed()  # now: reading the UUID may start CUDA in torch, which is then listed
            uuid = uuid_of(self.device) if self.device.startswith("cuda") else self.device
            with _translated(self.nvml, uuid):
                self.handle = self.nvml.nvmlDeviceGetHandleByUUID(uuid)
            if (self._asked("nvmlDeviceGetMigMode") or (0, 0))[0]:
                self._refuse_mig()
            self.refuse_others(before[uuid] if uuid in before else self._running(), begun)
            self._try_all()
        except MeterUnavailable:
            self.close()
            raise

    def _refuse_mig(self) -> None:
        raise MeterUnavailable(
            "mig",
            f"nvml: {self.device} is split (MIG) and its meter counts the whole card; "
            "measure on a GPU that is not split, or use --power none",
        )

    def _asked(self, function: str) -> Any:
        """An NVML function's answer for this GPU; None if it is not supported. Raises MeterUnavailable."""
        try:
            return getattr(self.nvml, function)(self.handle)
        except self.nvml.NVMLError as error:
            if error.value in (NOT_SUPPORTED, NO_FUNCTION):
                return None
            raise _failure(error.value, function, str(error)) from None

    def _listed(self) -> dict[str, set[int]]:
        """The processes on each GPU, by UUID, except GPUs that cannot be asked."""
        listed: dict[str, set[int]] = {}
        with suppress(self.nvml.NVMLError):
            for index in range(self.nvml.nvmlDeviceGetCount()):
                with suppress(self.nvml.NVMLError):
                    handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
                    processes = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                    listed[str(self.nvml.nvmlDeviceGetUUID(handle))] = {process.pid for process in processes}
        return listed

    def _running(self) -> set[int]:
        return {process.pid for process in self._asked("nvmlDeviceGetComputeRunningProcesses") or ()}

    def refuse_others(self, running: Set[int], begun: bool) -> None:
        """Raise MeterUnavailable where another process computes on the GPU: its energy would count as ours.

        `begun` says that this process has a context on it, and is among the `running` itself.
        """
        others = set(running) - {os.getpid()}
        # In a container the driver may list us under the host's number, which is not a process here.
        unseen = {pid for pid in others if not (self.processes / str(pid)).exists()}
        if begun and len(unseen) == 1 and os.getpid() not in running:
            others -= unseen
        if others:
            listed = f"process{'es' * (len(others) > 1)} (PID {', '.join(map(str, sorted(others)))})"
            raise MeterUnavailable(
                "shared",
                f"nvml: {len(others)} other {listed} on {self.device}; "
                "wait until the GPU is free, or use --power none",
            )

    def _try_all(self) -> None:
        """Find the calls that give counter and power; raises MeterUnavailable where neither works."""
        energy_j, instant_w, _ = self._fields()
        self.counter_call = energy_j is None and bool(self._asked("nvmlDeviceGetTotalEnergyConsumption"))
        self.usage_call = instant_w is None and self._asked("nvmlDeviceGetPowerUsage") is not None
        architecture = self._asked("nvmlDeviceGetArchitecture")
        self.usage_is_slow = architecture is None or architecture >= AMPERE
        if energy_j is None and instant_w is None and not self.counter_call and not self.usage_call:
            raise _failure(NOT_SUPPORTED, f"energy and power of {self.device}", "")

    def _fields(self) -> tuple[float | None, float | None, float | None]:
        """Joules, and watts over the short and the long time, in one call; None for a value with an error."""
        try:
            values = self.nvml.nvmlDeviceGetFieldValues(self.handle, [ENERGY, POWER_INSTANT, POWER_AVERAGE])
        except self.nvml.NVMLError as error:
            if error.value in (NOT_SUPPORTED, NO_FUNCTION):
                return None, None, None
            raise _failure(error.value, self.device, str(error)) from None
        lost = next((v.nvmlReturn for v in values if v.nvmlReturn in (GPU_IS_LOST, RESET_REQUIRED)), None)
        if lost is not None:
            raise _failure(lost, self.device, "")
        energy, instant, average = (
            _positive(getattr(v.value, part)) if v.nvmlReturn == SUCCESS else None
            for v, part in zip(values, ("ullVal", "uiVal", "uiVal"), strict=True)
        )
        return energy, instant, average

    def read(self) -> list[Reading]:
        """The board's joules and watts; raises MeterUnavailable where the GPU is lost."""
        before = self.clock_ns()
        energy_j, power_w, average_w = self._fields()
        if self.counter_call:
            energy_j = _positive(self._asked("nvmlDeviceGetTotalEnergyConsumption"))
        middle = (before + self.clock_ns()) // 2
        if self.usage_call:
            usage_w = _positive(self._asked("nvmlDeviceGetPowerUsage"))
            power_w, average_w = (None, usage_w) if self.usage_is_slow else (usage_w, average_w)
        return [Reading("board", energy_j, power_w, middle, average_w)]

    def describe(self) -> Description:
        """The board and its enforced power limit."""
        limit_w = _positive(self._asked("nvmlDeviceGetEnforcedPowerLimit"))
        return Description("nvml_energy_counter", "board", limit_w, "nvml_power_integrated", ("board",))

    def close(self) -> None:
        if self.initialised:
            self.initialised = False
            self.nvml.nvmlShutdown()


def _positive(milli: int | None) -> float | None:
    """Joules or watts of a value in thousandths; None for nothing and for 0, which no card draws."""
    return milli / 1e3 if milli is not None and milli > 0 else None


def _has_context() -> bool:
    """Whether this process has begun to use CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
