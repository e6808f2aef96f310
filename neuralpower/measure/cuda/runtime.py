"""The little of CUDA and of NVML that measuring needs, behind small interfaces that a test can stand in for.

`Cuda` is what a rig talks to, `TorchCuda` its only implementation here; nothing else touches `torch.cuda`. All work goes
to one side stream: capture needs one that is not the default, and libraries set up handles and workspaces per stream, so
what is warmed up on it is warm when it is captured. Autograd runs each operator's backward on the stream of its forward.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from neuralpower.devices.host import cuda_number
from neuralpower.errors import DeviceError, LostDeviceError, first_line

Step = Callable[[], Any]

THERMAL = (
    0x8 | 0x20 | 0x40 | 0x80
)  # nvml.h: hardware slow-down, thermal by software, by hardware, power brake
POWER_CAP = 0x4  # nvml.h: nvmlClocksEventReasonSwPowerCap
LIMITS = ("EnforcedPowerLimit", "PowerManagementDefaultLimit")  # as set, and as shipped
GONE = (15, 16)  # nvml.h: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED


class NotCapturable(Exception):  # noqa: N818  # a verdict on a call, not a fault
    """A call that a graph cannot hold: it waits for the device, or its shapes depend on data; the text says which."""


@dataclass(frozen=True)
class Properties:
    """What a device says of itself."""

    name: str
    uuid: str  # as NVML has it
    cores: int  # streaming multiprocessors
    l2_bytes: int
    memory_bytes: int
    capability: str  # such as 9.0


class Graph(Protocol):
    """A captured sequence of calls."""

    def replay(self) -> None:
        """Queue all of them at once."""


class Mark(Protocol):
    """A point in the queue."""

    def done(self) -> bool:
        """Whether the device has passed it."""


class Cuda(Protocol):
    """One device, one stream."""

    def properties(self) -> Properties:
        """What it is."""

    def free_bytes(self) -> int:
        """Memory that is to be had."""

    def stream(self) -> AbstractContextManager[Any]:
        """Inside, work goes to the stream that is measured."""

    def capture(self, steps: Sequence[Step]) -> Graph:
        """A graph of these steps, each of which has run before; raises NotCapturable."""

    def mark(self) -> Mark:
        """A mark behind all that is queued."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Device time between two marks that have been passed."""

    def synchronize(self) -> None:
        """Wait for all that is queued."""

    def release(self) -> None:
        """Give memory back that nothing holds."""

    def works(self) -> bool:
        """Whether the context still computes and captures; after a sticky error it does not, and never will."""


@dataclass(frozen=True)
class TorchMark:
    """A CUDA event with a time stamp."""

    event: torch.cuda.Event

    def done(self) -> bool:
        """Whether the device has passed it."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped


@dataclass(frozen=True)
class TorchCuda:
    """A device through `torch.cuda`; `open_cuda` makes one."""

    device: torch.device
    side: torch.cuda.Stream

    def properties(self) -> Properties:
        """As the driver has them."""
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
        """What the driver has left, and what torch's allocator keeps unused."""
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0]) + int(kept)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """The side stream, behind what other streams have queued."""
        self.side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.side):
            yield

    def capture(self, steps: Sequence[Step]) -> Graph:
        """Capture them, after one run that would tell of a synchronisation.

        A call that waits for the device while it is captured spoils the capture, and torch's allocator and generators
        with it; so it is found out before, by torch's own check.
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

    def mark(self) -> TorchMark:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # as above
        event.record()
        return TorchMark(event)

    def elapsed_s(self, start: TorchMark, end: TorchMark) -> float:
        """From torch's milliseconds."""
        return float(start.event.elapsed_time(end.event)) / 1e3

    def synchronize(self) -> None:
        """Wait for the side stream."""
        self.side.synchronize()

    def release(self) -> None:
        """Empty the allocator's cache."""
        gc.collect()
        torch.cuda.empty_cache()

    def works(self) -> bool:
        """Whether a small sum comes out right, eager and captured, and random numbers can be drawn."""
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
    """The device of that name, cpu or cuda; raises InputError where none has it, DeviceError where this machine has not."""
    number = cuda_number(name)
    if number is not None and number >= torch.cuda.device_count():  # torch keeps eight bits of a number
        raise DeviceError(
            f"device {name}: torch finds no such CUDA device here; choose one of `neuralpower devices`"
        )
    return torch.device(name)


def open_cuda(device: torch.device) -> TorchCuda:
    """Set the process up to measure on a device; raises DeviceError where there is none."""
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{device}: this process sees {torch.cuda.device_count()} CUDA devices; `neuralpower devices` says why"
        )
    device = torch.device("cuda", device.index or 0)
    torch.cuda.set_device(device)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # as above
    gc.collect()
    gc.freeze()  # older versions of torch collect garbage before each capture; what is here now stays
    return TorchCuda(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # as above


@dataclass(frozen=True)
class Condition:
    """Clocks and temperature at one moment; None where the driver does not say."""

    temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    pstate: int | None = None
    reasons: int | None = None  # bits of nvml.h: what holds the clocks down

    @property
    def throttled(self) -> bool:
        """Whether heat or a fault of the supply slows the device down."""
        return bool((self.reasons or 0) & THERMAL)

    @property
    def power_capped(self) -> bool:
        """Whether the power limit sets the clock, as it does for large products."""
        return bool((self.reasons or 0) & POWER_CAP)


class NvmlCondition:
    """Reads a device's condition through a module such as `pynvml`; opened once, by UUID, and kept open."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.nvml, self.uuid = nvml, uuid
        self._handle: Any = None

    def open(self) -> None:
        """Find the device; raises the module's own NVMLError."""
        self.nvml.nvmlInit()
        self._handle = self.nvml.nvmlDeviceGetHandleByUUID(self.uuid)

    def __call__(self) -> Condition:
        """The condition now; raises LostDeviceError where the device is gone, else what cannot be read is None."""
        n, handle = self.nvml, self._handle
        reasons = None
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if reasons is None and hasattr(
                n, name
            ):  # the newer name, and what older drivers and modules have
                reasons = self._read(getattr(n, name), handle)
        return Condition(
            temperature_c=self._read(n.nvmlDeviceGetTemperature, handle, n.NVML_TEMPERATURE_GPU),
            sm_mhz=self._read(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_SM),
            memory_mhz=self._read(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_MEM),
            pstate=self._read(n.nvmlDeviceGetPerformanceState, handle),
            reasons=reasons,
        )

    def about(self) -> dict[str, Any]:
        """What decides how fast the device is beside its model, as `describe` adds it; what cannot be read is left out."""
        n, handle = self.nvml, self._handle

        def ask(name: str, *args: Any) -> Any:
            try:
                return getattr(n, name)(*args)
            except (n.NVMLError, AttributeError):  # another device, driver or module does not know it
                return None

        limits_mw = [ask(f"nvmlDeviceGet{name}", handle) for name in LIMITS]
        limit_w, limit_default_w = (limit / 1e3 if limit else None for limit in limits_mw)
        found = {
            "driver": _text(ask("nvmlSystemGetDriverVersion")),
            "limit_w": limit_w,
            "limit_default_w": limit_default_w,
            "persistence": _flag(ask("nvmlDeviceGetPersistenceMode", handle)),
            "uuid_hash": hashlib.sha256(self.uuid.encode()).hexdigest()[
                :12
            ],  # which card, and not its number
            "vbios": _text(ask("nvmlDeviceGetVbiosVersion", handle)),
            "ecc": _flag(_first(ask("nvmlDeviceGetEccMode", handle))),
            "mig": _flag(_first(ask("nvmlDeviceGetMigMode", handle))),
            "sm_mhz_limit": ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_SM),
            "mem_mhz_limit": ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_MEM),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _read(self, function: Callable[..., Any], *args: Any) -> int | None:
        try:
            return int(function(*args))
        except self.nvml.NVMLError as error:
            if error.value in GONE:
                raise LostDeviceError(
                    f"{self.uuid}: the driver has lost the device ({error}); the rest stays unmeasured, "
                    "and can be collected with the same command once it is back"
                ) from None
            return None


def _text(value: Any) -> str | None:
    """Older modules answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _first(modes: Any) -> Any:
    """The current of (current, pending)."""
    return modes[0] if modes is not None else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def open_condition(uuid: str) -> NvmlCondition | None:
    """A reader of the device's condition; None where NVML or the device is not to be had."""
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
    """Both as columns of a row; clocks as their extent and mean."""
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
    """What `dataset.json` says of the device and of what drives it; peaks come from its spec sheet."""
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
