"""What a result holds for: versions, processor, memory and GPUs, as they stand at the head of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from neuralpower import __version__
from neuralpower.devices.host import read_cpu
from neuralpower.devices.machine import installed, read_machine
from neuralpower.measure.meters import MeterUnavailable
from neuralpower.measure.meters.nvml import list_gpus

PACKAGES = ("numpy", "pillow", "lmdb", "transformers")


def described() -> Iterator[tuple[str, Any]]:
    """Names and values of software and hardware; a GPU list that cannot be had is its reason."""
    yield "neuralpower.version", __version__
    yield "torch.version", torch.__version__
    yield "cuda.version", torch.version.cuda
    yield "cudnn.version", torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    yield "sys.software", {**read_machine(), **installed(PACKAGES)}
    yield "sys.cpu", read_cpu().to_json()
    try:
        yield "sys.gpus", [dataclasses.asdict(gpu) for gpu in list_gpus()]
    except MeterUnavailable as error:
        yield "sys.gpus", error.reason
    yield "sys.threads", torch.get_num_threads()
