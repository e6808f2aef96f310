"""Keys of equal measurements: configuration, device, software and protocol; needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from neuralpower.devices.host import MODEL
from neuralpower.devices.machine import installed
from neuralpower.version import __version__

PROTOCOL_VERSION = 5
LIBRARIES = ("torch", "transformers", "numpy", "scikit-learn")
MEASURED = ("torch", "cuda", "driver")  # software that decides how long a call takes


def versions() -> dict[str, str]:
    """Versions of neuralpower and of the installed libraries."""
    return {"neuralpower": __version__, **installed(LIBRARIES)}


def device_key(hardware: Mapping[str, Any]) -> str:
    """Equal for all devices of one model and size."""
    told_by = ("type", "name", *MODEL) if hardware.get("type") == "cpu" else ("type", "name", "cores")
    return _key({name: hardware.get(name) for name in told_by})


def software_key(hardware: Mapping[str, Any], libraries: Mapping[str, Any]) -> str:
    """Equal where torch and the device's driver are the same."""
    return _key({name: libraries.get(name, hardware.get(name)) for name in MEASURED})


def plan_hash(plan: Sequence[Mapping[str, Any]]) -> str:
    """Equal for the same configurations in the same order."""
    return _key({"plan": [item["config_id"] for item in plan]})


def share(config_id: str, purpose: str) -> float:
    """A number in [0, 1) that depends on the configuration's name and on the purpose alone."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {config_id}".encode()).digest()[:6], "big") / 2**48


def _key(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
