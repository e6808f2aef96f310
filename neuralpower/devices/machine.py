"""The machine that a process measures on, as a dataset's session record has it; needs no torch.

Source of the files: Linux, Documentation/admin-guide/pm/cpufreq.rst, cgroup-v1/ and cgroup-v2.rst,
sysfs-devices-node. What cannot be read is None, and nothing names a person or a host.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
import socket
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neuralpower.devices.host import PROC, SYS, read_cpu, text_of

CGROUPS = SYS / "fs/cgroup"
UNLIMITED = 2**62  # bytes: version 1 writes a number of about 2^63 where there is no limit


def read_machine(proc: Path = PROC, sys: Path = SYS, cgroups: Path = CGROUPS) -> dict[str, Any]:
    """Operating system, processor and limits of this process."""
    cpu, info = read_cpu(proc, sys), _text(proc / "cpuinfo") or ""
    microcode = re.search(r"^microcode\s*:\s*(\S+)$", info, re.M)
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "hostname_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        "boot_id": _text(proc / "sys/kernel/random/boot_id"),
        "virtualisation": _virtualisation(info, sys),
        "cpu": cpu.name,
        "cores": cpu.cores,
        "threads": cpu.threads,
        "smt": _flag(sys / "devices/system/cpu/smt/active"),
        "governor": _text(sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(sys / "devices/system/cpu"),
        "microcode": microcode.group(1) if microcode else None,
        "numa_nodes": len(list((sys / "devices/system/node").glob("node[0-9]*"))) or None,
        "memory_bytes": cpu.memory_bytes,
        **cgroup_limits(proc, cgroups),
    }


def up_since(proc: Path = PROC) -> str | None:
    """A text that changes with every start of the machine or of this process's container; None: unknown."""
    boot, first = _text(proc / "sys/kernel/random/boot_id"), _text(proc / "1/stat")
    # proc_pid_stat(5): starttime is the 22nd field; the second one, in brackets, may hold blanks
    after_name = first.rpartition(")")[2].split() if first else []
    return None if boot is None else f"{boot} {after_name[19] if len(after_name) > 19 else ''}".rstrip()


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those that are installed here."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def cgroup_limits(proc: Path = PROC, cgroups: Path = CGROUPS) -> dict[str, float | int | None]:
    """CPUs' worth of time and bytes of memory that this process's control groups allow; None: no limit."""
    cpus: list[float] = []
    sizes: list[int] = []
    for line in (_text(proc / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for folder in _upwards(cgroups / controllers if controllers else cgroups, path):
            quota = (_text(folder / "cpu.max") or _first_version(folder)).split()
            if len(quota) == 2 and quota[0].isdigit():  # else "max", or -1
                cpus.append(int(quota[0]) / int(quota[1]))
            for name in ("memory.max", "memory.limit_in_bytes"):
                size = _text(folder / name) or ""
                sizes += [int(size)] if size.isdigit() and int(size) < UNLIMITED else []
    return {"cgroup_cpus": min(cpus, default=None), "cgroup_memory_bytes": min(sizes, default=None)}


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUPS) -> int | None:
    """Bytes of memory that the system and its control group still leave to this process; None if unknown."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text(proc / "meminfo") or "", re.M)
    free = [int(found.group(1)) * 1024] if found else []
    limit, used = (_text(cgroup / name) or "" for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        free.append(max(int(limit) - int(used), 0))
    return min(free, default=None)


def _first_version(folder: Path) -> str:
    """The quota and its period as version 2 writes them; microseconds both."""
    return " ".join(_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """A group and all above it; those that cannot be seen from here have no files."""
    folder = root / path.strip("/")
    while folder != root:
        yield folder
        folder = folder.parent
    yield root


def _virtualisation(info: str, sys: Path) -> str | None:
    """The hypervisor of a virtual machine, "none" for a real one; None where it is not known."""
    if not re.search(r"^flags\s*:", info, re.M):
        return None
    if not re.search(r"^flags\s*:.*\bhypervisor\b", info, re.M):
        return "none"
    return _text(sys / "class/dmi/id/sys_vendor") or _text(sys / "hypervisor/type") or "unknown"


def _turbo(cpus: Path) -> bool | None:
    """Whether cores may run above their base clock."""
    held_back = _flag(cpus / "intel_pstate/no_turbo")
    return _flag(cpus / "cpufreq/boost") if held_back is None else not held_back


def _flag(path: Path) -> bool | None:
    return {"0": False, "1": True}.get(_text(path) or "")


def _text(path: Path) -> str | None:
    return text_of(path).strip() or None
