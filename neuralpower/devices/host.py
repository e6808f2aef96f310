"""The machine at hand, read from Linux's files; needs no torch.

Every root is an argument, so that a test can bring a machine of its own; what cannot be read is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, unknown

PROC = Path("/proc")
SYS = Path("/sys")
MODEL = ("cores", "l1d_bytes", "l2_bytes", "llc_bytes")  # since virtual machines give several models one name


@dataclass(frozen=True)
class Cpu:
    """A CPU as this process may use it."""

    name: str
    cores: int  # physical cores that this process may run on
    threads: int  # logical ones
    l1d_bytes: int | None  # of one core
    l2_bytes: int | None  # of one core
    llc_bytes: int | None  # the last level, of one chip
    memory_bytes: int | None
    flags: tuple[str, ...]  # vector extensions
    virtual: bool

    @property
    def slug(self) -> str:
        """A folder name: the model in lower case and the number of cores."""
        words = re.sub(r"\(r\)|\(tm\)|@.*|\bcpu\b|\bprocessor\b|\d+-core", " ", self.name.lower())
        return re.sub(r"[^a-z0-9]+", "-", words).strip("-") + f"-{self.cores}c"

    def to_json(self) -> dict[str, Any]:
        """The fields, flags as a list."""
        return {**asdict(self), "flags": list(self.flags)}


def unlike(there: Mapping[str, Any], here: Mapping[str, Any], by_flags: bool = True) -> list[str]:
    """Differences of two CPUs as text, from their known values (`Cpu.to_json`); empty where they are alike.

    A CPU's flags also depend on the kernel: use `by_flags` only where a choice or a word follows.
    """
    known = [name for name in ("name", *MODEL) if there.get(name) and here.get(name)]
    apart = [f"{name} {there[name]} there, {here[name]} here" for name in known if there[name] != here[name]]
    flags = [set(cpu.get("flags") or ()) for cpu in (there, here)]
    if by_flags and all(flags):
        for only, place in ((flags[0] - flags[1], "there"), (flags[1] - flags[0], "here")):
            apart += [f"{', '.join(sorted(only))} only {place}"] if only else []
    return apart


def read_cpu(proc: Path = PROC, sys: Path = SYS) -> Cpu:
    """The CPU under `proc` and `sys`, limited to the cores of this process's affinity."""
    text = text_of(proc / "cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cpus = sys / "devices/system/cpu"
    cores = {text_of(cpus / f"cpu{cpu}/topology/core_cpus_list") or str(cpu) for cpu in allowed}
    caches = {level: _cache_bytes(sys, level, min(allowed)) for level in (1, 2, 3)}
    memory = re.search(r"^MemTotal:\s*(\d+) kB", text_of(proc / "meminfo"), re.M)
    words = (flags.group(1) if flags else "").split()
    return Cpu(
        name=name.group(1).strip() if name else platform.processor() or platform.machine(),
        cores=len(cores),
        threads=len(allowed),
        l1d_bytes=caches[1],
        l2_bytes=caches[2],
        llc_bytes=caches[3] or caches[2],
        memory_bytes=int(memory.group(1)) * 1024 if memory else None,
        flags=tuple(f for f in words if re.match(r"avx|amx|fma|f16c|sve|asimd|neon|bf16", f)),
        virtual="hypervisor" in words,
    )


def _cache_bytes(sys: Path, level: int, cpu: int) -> int | None:
    for index in sorted((sys / f"devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        said = {name: text_of(index / name).strip() for name in ("level", "type", "size")}
        size = re.match(r"(\d+)([KMG]?)", said["size"])
        if size and said["level"] == str(level) and said["type"] != "Instruction":
            return int(size.group(1)) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size.group(2)]
    return None


def text_of(path: Path) -> str:
    """The text of a system file; "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def clock_hz(proc: Path = PROC) -> float | None:
    """Mean clock of all cores now; None where the kernel does not say, as on most virtual ARM machines."""
    mhz = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text_of(proc / "cpuinfo"), re.M)]
    return 1e6 * sum(mhz) / len(mhz) if mhz else None


def steal_ticks(proc: Path = PROC) -> tuple[int, int]:
    """(stolen, all) clock ticks of all cores since boot: time that other tenants of a shared machine took."""
    fields = [int(v) for v in (text_of(proc / "stat") or "cpu 0").splitlines()[0].split()[1:]]
    return (fields[7] if len(fields) > 7 else 0), sum(fields[:8])


def waits_s(proc: Path = PROC) -> dict[str, float]:
    """Seconds that each of this process's threads, by its number, has waited for a core that others had.

    Empty where the system does not tell. Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    tasks = {file.parent.name: text_of(file).split() for file in proc.glob("self/task/*/schedstat")}
    return {name: int(fields[1]) / 1e9 for name, fields in tasks.items() if len(fields) > 1}


def worker_environment(threads: int) -> dict[str, str]:
    """Environment of a measuring process: its thread counts must be set before torch is imported."""
    # GOMP_CPU_AFFINITY would bind the children's threads, too
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_CPU_AFFINITY"}
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    return {**quiet, **environment, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def cuda_number(name: str) -> int | None:
    """1 for "cuda:1", 0 for "cuda", None for "cpu", there or not; raises InputError for another name."""
    found = re.fullmatch(r"cpu|cuda(?::(0|[1-9][0-9]{0,8}))?", name)
    if not found:
        raise unknown("device", name, ["cpu", "cuda", "cuda:0"])
    return None if name == "cpu" else int(found[1] or 0)


def own_memory() -> float:
    """Bytes of this machine's memory; raises InputError if unknown."""
    found = read_cpu().memory_bytes
    if found is None:
        raise InputError("this machine's memory is unknown; give memory, such as '24GB'")
    return float(found)


# ---- The card behind "cuda:0", from NVIDIA's driver, without torch and without a context on the card ----
# Source: CUDA driver API, "Initialization" and "Device Management".


LIBRARY = "libcuda.so.1"


def index_of(device: str) -> int:
    """1 of "cuda:1", 0 of "cuda"."""
    return int(device.partition(":")[2] or 0)


def card_uuid(device: str, driver: Any = None) -> str | None:
    """UUID of the card ("GPU-...") behind "cuda:0" under CUDA_VISIBLE_DEVICES; None where no driver answers.

    A part of a split card (MIG) has its card's: parts share power, and more or less the bandwidth.
    """
    with contextlib.suppress(OSError, AttributeError):  # no driver here, or one of another make
        driver = driver or ctypes.CDLL(LIBRARY)
        handle, answer = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if (
            driver.cuInit(0) == 0
            and driver.cuDeviceGet(ctypes.byref(handle), index_of(device)) == 0
            and driver.cuDeviceGetUuid(ctypes.byref(answer), handle) == 0
        ):
            return f"GPU-{uuid.UUID(bytes=bytes(answer))}"
    return None
