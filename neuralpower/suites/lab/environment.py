"""The machine and the software that a lab report speaks of."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from neuralpower.devices.host import read_cpu
from neuralpower.devices.machine import installed
from neuralpower.version import __version__

PACKAGES = ("torch", "numpy", "scikit-learn", "tensorboard", "matplotlib")


def environment() -> dict[str, Any]:
    """Hardware and software; what there is not is None."""
    cpu = read_cpu()
    return {
        "cpu": cpu.name,
        "cores": cpu.cores,
        "vcpus": cpu.threads,
        "memory_bytes": cpu.memory_bytes,
        "virtual": cpu.virtual,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "neuralpower": __version__,
        "packages": dict.fromkeys(PACKAGES) | installed(PACKAGES),
    }


def rows(found: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(what, value) as a report shows them."""
    names = found["gpus"]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    cpu = f"{found['cpu']}, {found['vcpus']} vCPUs on {found['cores']} cores{' (virtual)' if found['virtual'] else ''}"
    return (
        ("CPU", cpu),
        ("GPU", gpus or "none"),
        ("operating system", found["system"]),
        ("Python and packages", f"Python {found['python']}, neuralpower {found['neuralpower']}, {packages}"),
        ("CUDA", found["cuda"] or "none (torch was built without)"),
        ("threads", str(found["threads"])),
    )
