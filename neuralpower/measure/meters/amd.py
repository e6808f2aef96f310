"""Energy counter and power of AMD's GPUs by AMD SMI (MIT; `pip install neuralpower[amd]`).

The counter is an accumulator times its resolution, 15.3 uJ on most cards, and stands in 64 bits. It does not
move in virtual machines, and on some cards not at all: `counter.py` finds that. Power is the socket's at this
moment, or on older cards an average. Source: ROCm, AMD SMI Python API, `amdsmi_get_energy_count`,
`amdsmi_get_power_info`, `amdsmi_get_power_cap_info`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuralpower.measure.meters.base import MeterUnavailable, Reading, power_meter
from neuralpower.measure.meters.meter import Counter, Meter

NOT_SUPPORTED = (2, 3)  # AMDSMI_STATUS_NOT_SUPPORTED, AMDSMI_STATUS_NOT_YET_IMPLEMENTED
NO_PERMISSION = 10  # AMDSMI_STATUS_NO_PERM
BITS = 64
POWERS = ("current_socket_power", "average_socket_power")  # W, the first that is there


@power_meter("amd")
class AmdMeter(Meter):
    """The board of one GPU, which ROCm's torch calls "cuda:0", too."""

    sees = ("cuda",)
    source, scope = "amdsmi_energy_counter", "board"
    domains = ("board",)

    def __init__(
        self,
        device: str = "cuda:0",
        library: Any = None,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        super().__init__(device, clock_ns=clock_ns)
        self.library, self.begun = library, False

    @classmethod
    def absent(cls) -> str:
        """The driver is a module of Linux."""
        there = Path("/sys/module/amdgpu").exists()
        return "" if there else "the driver amdgpu is not loaded: no GPU of AMD's"

    def open(self) -> None:
        """Find the GPU, and try its meter; raises MeterUnavailable."""
        try:
            self.library = self.library or importlib.import_module("amdsmi")
        except (ImportError, OSError, KeyError):  # it looks for ROCm's library when it is imported
            text = "amd: amdsmi is not installed, or does not find ROCm; pip install neuralpower[amd]"
            raise MeterUnavailable("no_library", text) from None
        self._asked(self.library.amdsmi_init, needed=True)
        self.begun = True
        try:
            handles = self._asked(self.library.amdsmi_get_processor_handles, needed=True)
            if self.index >= len(handles):
                text = f"amd: AMD SMI lists {len(handles)} GPUs, and no {self.device}"
                raise MeterUnavailable("gpu_not_found", f"{text}; choose one of them")
            self.handle, self.counter = handles[self.index], Counter(1.0, 2**BITS)
            cap = self._asked(self.library.amdsmi_get_power_cap_info, self.handle) or {}
            limit_uw = _number(cap.get("power_cap"))
            self.limit_w = None if limit_uw is None else limit_uw / 1e6
            (reading,) = self.read()
            if reading.energy_j is None and reading.power_w is None:
                text = f"amd: {self.device} has neither energy nor power; use --power none"
                raise MeterUnavailable("not_supported", text)
        except MeterUnavailable:
            self.close()
            raise

    def _asked(self, function: Callable[..., Any], *given: Any, needed: bool = False) -> Any:
        """A function's answer; None where it is not supported. Raises MeterUnavailable."""
        try:
            return function(*given)
        except self.library.AmdSmiException as error:
            code = getattr(error, "get_error_code", lambda: None)()
            if code in NOT_SUPPORTED and not needed:
                return None
            reason = "no_permission" if code == NO_PERMISSION else "meter_lost" if self.begun else "no_driver"
            name = getattr(function, "__name__", "AMD SMI")
            raise MeterUnavailable(reason, f"amd: {name}: error {code}; use --power none") from None

    def read(self) -> list[Reading]:
        """The board's joules and watts, None for what is not supported; raises MeterUnavailable."""
        before = self.clock_ns()
        counted = self._asked(self.library.amdsmi_get_energy_count, self.handle) or {}
        power = self._asked(self.library.amdsmi_get_power_info, self.handle) or {}
        middle = (before + self.clock_ns()) // 2
        raw = _number(counted.get("energy_accumulator", counted.get("power")))
        each_uj = _number(counted.get("counter_resolution"))
        energy_j = None
        if raw and each_uj:
            self.counter.joules_each = each_uj / 1e6
            energy_j = self.counter.advance(int(raw))
        watts = next((value for name in POWERS if (value := _number(power.get(name)))), None)
        return [Reading("board", energy_j, watts, middle)]

    def close(self) -> None:
        if self.begun:
            self.begun = False
            self.library.amdsmi_shut_down()


def _number(value: Any) -> float | None:
    """A number; None for the "N/A" of a card that does not know it."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
