"""Families of devices, one file each: `PLATFORMS`, by name. The special rules of each are in its file.

A file in this folder that has a `PLATFORM` is found by itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import unknown
from neuralpower.platforms.base import Framework, Overhead, Platform
from neuralpower.platforms.cpu import PLATFORM as CPU
from neuralpower.platforms.views import View

_FOUND = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
PLATFORMS: Mapping[str, Platform] = MappingProxyType(
    {module.PLATFORM.name: module.PLATFORM for module in _FOUND if hasattr(module, "PLATFORM")}
)


def platform_named(name: str) -> Platform:
    """The platform of that name; raises InputError where there is none."""
    if name not in PLATFORMS:
        raise unknown("platform", name, PLATFORMS)
    return PLATFORMS[name]


def platform_of(hardware: Hardware) -> Platform:
    """The platform of a device: that of its name or maker, else the one of all devices that run kernels."""
    found = PLATFORMS.get(hardware.platform)
    made = (p for p in PLATFORMS.values() if hardware.platform in p.makers)
    return (found or next(made, PLATFORMS["accelerator"])).of(hardware)


def platform_name(said: Mapping[str, Any], default: str = "cpu") -> str:
    """The platform of a device in a file; older files have `accelerator`, true or false."""
    if said.get("platform"):
        return str(said["platform"])
    if said.get("accelerator") is None:
        return default
    return "accelerator" if said["accelerator"] else "cpu"


def hardware_of(said: Mapping[str, Any]) -> Hardware:
    """A device from a file, with `accelerator` besides or instead of `platform`; other keys do not count."""
    known = {f.name: said[f.name] for f in dataclasses.fields(Hardware) if f.name in said}
    return Hardware(**{**known, "platform": platform_name(said)})


def hardware_to_json(hardware: Hardware) -> dict[str, Any]:
    """The same for a file."""
    return {**dataclasses.asdict(hardware), "accelerator": platform_of(hardware).family != "cpu"}


def platform_for(device: str) -> Platform:
    """The platform that runs a device of torch's, "cpu" or "cuda:0"; raises InputError for another name."""
    kind = str(device).partition(":")[0]
    for platform in PLATFORMS.values():
        if kind and platform.torch_type == kind:
            return platform
    known = [name for p in PLATFORMS.values() if p.torch_type for name in p.device_names]
    raise unknown("device", str(device), known)


__all__ = [
    "CPU",
    "PLATFORMS",
    "Framework",
    "Overhead",
    "Platform",
    "View",
    "hardware_of",
    "hardware_to_json",
    "platform_for",
    "platform_name",
    "platform_named",
    "platform_of",
]
