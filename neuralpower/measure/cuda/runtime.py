"""The little of CUDA and of NVML that measuring needs, behind small classes that a test can stand in for.

A rig talks to `Cuda`; nothing else touches `torch.cuda`. All work goes to one side stream: capture needs one
that is not the default, and libraries set up handles and workspaces per stream, so a call that is warm on it
is warm when it is captured. Autograd runs each operator's backward on the stream of its forward.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from neuralpower.devices.host import cuda_number
from neuralpower.errors import DeviceError, LostDeviceError, first_line
from neuralpower.measure.calls import Step

# clocks event reasons of nvml.h: hardware slow-down, thermal by software, by hardware, power brake
THERMAL = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
GONE = (15, 16)  # nvml.h: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED


class NotCapturable(Exception):  # noqa: N818  # a verdict on a call, not a fault
    """A call that a graph cannot hold, and why: it waits for the device, or its shapes depend on data."""


@dataclass(frozen=True)
class Properties:
    name: str
    uuid: str  # as NVML writes it
    cores: int  # streaming multiprocessors
    l2_bytes: int
    memory_bytes: int
    capability: str  # such as 9.0


@dataclass(frozen=True)
class Mark:
    """A point in the queue: a CUDA event with a time stamp."""

    event: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped


@dataclass(frozen=True)
class Cuda:
    """One device and one stream of it, through `torch.cuda`; `open_cuda` makes one."""

    device: torch.device
    side: torch.cuda.Stream

    def properties(self) -> Properties:
        p = torch.cuda.get_device_properties(self.device)
        uuid = str(getattr(p, "uuid", ""))
        return Properties(
            name=p.name,
            uuid=uuid if uuid.startswith(("GPU-", "MIG-")) or not uuid else f"GPU-{uuid}",
            cores=p.multi_processor_count,
            l2_bytes=p.L2_cache_size,
            memory_bytes=p.total_memory,
            capability=f"{p.major}.{p.minor}",
        )

    def free_bytes(self) -> int:
        """Memory that the driver has left, and that torch's allocator keeps unused."""
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0]) + int(kept)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Inside, work goes to the side stream, behind all that other streams have queued."""
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            yield

    def capture(self, steps: Sequence[Step]) -> torch.cuda.CUDAGraph:
        """A graph of these steps, each of which has run before; raises NotCapturable.

        A call that waits for the device while it is captured spoils the capture, and torch's allocator and
        generators with it. One run of the first step under torch's own check finds that out before.
        """
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            steps[0]()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            raise NotCapturable(first_line(error)) from None
        finally:
            torch.cuda.set_sync_debug_mode(before)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
                for step in steps:
                    step()  # its outputs are freed here, and their memory is taken again within the graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotCapturable(first_line(error)) from None
        return graph

    def mark(self) -> Mark:
        """A mark behind all that is queued on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
        event.record()
        return Mark(event)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Device time between two marks that have been passed."""
        return float(start.event.elapsed_time(end.event)) / 1e3

    def synchronize(self) -> None:
        """Wait for all that is queued on the side stream."""
        self.side.synchronize()

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def works(self) -> bool:
        """Whether the context computes, captures and draws random numbers: never after a sticky error."""
        try:
            torch.cuda.synchronize(self.device)
            with self.stream():
                x = torch.ones(4, device=self.device)
                graph = self.capture([lambda: x.add_(1)])  # adds once before it captures
                graph.replay()
                torch.randn(1, device=self.device)
                return x.tolist() == [3.0] * 4
        except (RuntimeError, NotCapturable):
            return False


def device_named(name: str) -> torch.device:
    """The device of that name; raises InputError for an unknown one, DeviceError for one that is not here."""
    number = cuda_number(name)
    if number is not None and number >= torch.cuda.device_count():  # torch keeps eight bits of a number
        raise DeviceError(
            f"device {name}: torch finds no such CUDA device here; choose one of `neuralpower devices`"
        )
    return torch.device(name)


def open_cuda(device: torch.device) -> Cuda:
    """Set the process up to measure on a device; raises DeviceError where there is none."""
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{device}: this process sees {torch.cuda.device_count()} CUDA devices; "
            "`neuralpower devices` says why"
        )
    device = torch.device("cuda", device.index or 0)
    torch.cuda.set_device(device)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # as above
    gc.collect()
    gc.freeze()  # older versions of torch collect garbage before each capture; all present objects stay
    return Cuda(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # as above


@dataclass(frozen=True)
class Condition:
    """Clocks and temperature at one moment; None where the driver does not say."""

    temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    pstate: int | None = None
    reasons: int | None = None  # bits of nvml.h: why the clocks are held down

    @property
    def throttled(self) -> bool:
        """Whether heat or the power supply slows the device down."""
        return bool((self.reasons or 0) & THERMAL)

    @property
    def power_capped(self) -> bool:
        """Whether the power limit sets the clock, as it does for large products."""
        return bool((self.reasons or 0) & POWER_CAP)


class NvmlCondition:
    """Reads a device's condition through a module such as `pynvml`; opened once, by UUID, and kept open."""

    _handle: Any = None

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.nvml, self.uuid = nvml, uuid

    def open(self) -> None:
        """Find the device; raises the module's own NVMLError."""
        self.nvml.nvmlInit()
        self._handle = self.nvml.nvmlDeviceGetHandleByUUID(self.uuid)

    def __call__(self) -> Condition:
        """The condition now, None for unreadable values; raises LostDeviceError where the device is gone."""
        n, handle = self.nvml, self._handle
        reasons = None
        # the newer name, and the one of older drivers and modules
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if reasons is None and hasattr(n, name):
                reasons = self._read(getattr(n, name), handle)
        return Condition(
            temperature_c=self._read(n.nvmlDeviceGetTemperature, handle, n.NVML_TEMPERATURE_GPU),
            sm_mhz=self._read(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_SM),
            memory_mhz=self._read(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_MEM),
            pstate=self._read(n.nvmlDeviceGetPerformanceState, handle),
            reasons=reasons,
        )

    def about(self) -> dict[str, Any]:
        """Settings that decide the device's speed besides its model, for `describe`; no unreadable values."""
        n, handle = self.nvml, self._handle

        def ask(name: str, *args: Any, convert: Callable[[Any], Any] = lambda value: value) -> Any:
            try:
                return convert(getattr(n, name)(*args))
            except (n.NVMLError, AttributeError):  # another device, driver or module does not know it
                return None

        def watts(milli: int) -> float | None:
            return milli / 1e3 if milli else None

        def text(value: str | bytes) -> str:  # older modules answer in bytes
            return value.decode() if isinstance(value, bytes) else value

        def current(modes: Sequence[int]) -> bool:  # of (current, pending)
            return bool(modes[0])

        facts = {
            "driver": ask("nvmlSystemGetDriverVersion", convert=text),
            "limit_w": ask("nvmlDeviceGetEnforcedPowerLimit", handle, convert=watts),  # as set
            "limit_default_w": ask("nvmlDeviceGetPowerManagementDefaultLimit", handle, convert=watts),
            "persistence": ask("nvmlDeviceGetPersistenceMode", handle, convert=bool),
            "uuid_hash": hashlib.sha256(self.uuid.encode()).hexdigest()[:12],  # which card, not its number
            "vbios": ask("nvmlDeviceGetVbiosVersion", handle, convert=text),
            "ecc": ask("nvmlDeviceGetEccMode", handle, convert=current),
            "mig": ask("nvmlDeviceGetMigMode", handle, convert=current),
            "sm_mhz_limit": ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_SM),
            "mem_mhz_limit": ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_MEM),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _read(self, function: Callable[..., Any], *args: Any) -> int | None:
        try:
            return int(function(*args))
        except self.nvml.NVMLError as error:
            if error.value in GONE:
                raise LostDeviceError(
                    f"{self.uuid}: the driver has lost the device ({error}); other configurations "
                    "can be collected with the same command once it is back"
                ) from None
            return None


def open_condition(uuid: str) -> NvmlCondition | None:
    """A reader of the device's condition; None without NVML, or where it does not know the device."""
    try:
        import pynvml
    except ImportError:
        return None
    reader = NvmlCondition(pynvml, uuid)
    try:
        reader.open()
    except pynvml.NVMLError:
        return None
    return reader


def to_columns(before: Condition, after: Condition) -> dict[str, Any]:
    """Both as columns of a row; clocks as their range and mean."""
    clocks = [c.sm_mhz for c in (before, after) if c.sm_mhz is not None]
    bits = [c.reasons for c in (before, after) if c.reasons is not None]
    return {
        "temp_before_c": before.temperature_c,
        "temp_after_c": after.temperature_c,
        "sm_mhz_min": min(clocks, default=None),
        "sm_mhz_med": sum(clocks) / len(clocks) if clocks else None,
        "sm_mhz_max": max(clocks, default=None),
        "mem_mhz": after.memory_mhz,
        "pstate": after.pstate,
        "throttle_bits": (bits[0] | bits[-1]) if bits else None,
    }


def describe(properties: Properties, condition: Callable[[], Condition] = Condition) -> dict[str, Any]:
    """The device and its driver for `dataset.json`; peaks come from its spec sheet."""
    known = asdict(properties)
    cuda = torch.version.cuda
    return {
        "type": "gpu",
        "platform": "nvidia",
        "accelerator": True,
        **{name: known[name] for name in ("name", "cores", "l2_bytes", "memory_bytes", "capability")},
        "llc_bytes": properties.l2_bytes,
        **({"cuda": cuda} if cuda is not None else {}),
        **(condition.about() if isinstance(condition, NvmlCondition) else {}),
    }
