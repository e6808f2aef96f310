"""What one benchmark is asked to do: the flags of the command line, their defaults and their limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuralpower.dtypes import DTYPES as REGISTRY
from neuralpower.dtypes import NETWORK_DTYPES
from neuralpower.errors import InputError, unknown

PHASES = ("training", "inference", "data_ingestion")
DATA = ("synthetic", "synthetic/pinned", "synthetic/pageable", "synthetic/device", "synthetic/gpu")
BACKENDS = ("caffe_lmdb", "image_folder")
DTYPES = {text: name for name in NETWORK_DTYPES for text in (name, *REGISTRY[name].aliases)}
TRUE, FALSE = ("true", "on", "t", "1"), ("false", "off", "f", "0")


@dataclass(frozen=True)
class Options:
    """One benchmark; a library's defaults are shorter than the command line's: 10 warm-up and 10 timed batches of 16."""

    model: str
    batch_size: int = 16
    """Per device."""
    forward_only: bool = False
    num_batches: int = 10
    num_warmup_batches: int = 10
    num_gpus: int = 1
    """Processes, each with a device of its own."""
    device: str = "cpu"
    dtype: str = "float"
    autocast: bool = False
    data_dir: str = ""
    """Empty: synthetic data."""
    data: str = "synthetic"
    data_backend: str = "caffe_lmdb"
    data_shuffle: bool = False
    data_loader_only: bool = False
    cudnn_benchmark: bool = True
    cudnn_fastest: bool = False
    num_loader_threads: int = 4
    dist_backend: str = "nccl"
    local_rank: int = 0
    master_port: int = 0
    """0: any that is free."""
    input_shape: tuple[int, ...] | None = None
    seq_len: int | None = None
    seed: int = 0
    monitor_frequency: float = 0.0
    """Samples per second; 0 is off."""

    @property
    def phase(self) -> str:
        """training, inference or data_ingestion."""
        if self.data_loader_only:
            return "data_ingestion"
        return "inference" if self.forward_only else "training"

    @property
    def numbers(self) -> str:
        """The full name of the dtype."""
        return DTYPES[self.dtype]

    @property
    def kind(self) -> str:
        """Cpu or gpu, in small letters."""
        return "cpu" if self.device == "cpu" else "gpu"

    def checked(self) -> Options:
        """The options themselves; raises InputError for a value, or two together, that make no sense."""
        for name, value, known in (
            ("dtype", self.dtype, DTYPES),
            ("data", self.data, DATA),
            ("data backend", self.data_backend, BACKENDS),
            ("distributed backend", self.dist_backend, ("nccl", "gloo")),
        ):
            if value not in known:
                raise unknown(name, value, known)
        if self.device not in ("cpu", "gpu") and self.device.partition(":")[0] != "cuda":
            raise unknown("device", self.device, ("cpu", "gpu", "cuda", "cuda:0"))
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name} {value}: must be {least} or more; choose --{name} {max(least, 1)}")
        if not self.master_port < 2**16:
            raise InputError(f"master_port {self.master_port}: a port is below 65536; choose another, or 0 for any")
        if self.data_loader_only and not self.data_dir:
            raise InputError("data_loader_only without a data_dir: there is nothing to load; give --data_dir FOLDER")
        if self.num_gpus > 1 and ":" in self.device:
            raise InputError(
                f"device {self.device} for {self.num_gpus} processes: each has its own; choose --device gpu"
            )
        if self.forward_only and self.num_gpus > 1:
            raise InputError(f"inference on {self.num_gpus} GPUs: it runs on one; leave out --num_gpus, or train")
        return self


LEAST = {
    "batch_size": 1,
    "num_batches": 1,
    "num_warmup_batches": 0,
    "num_gpus": 1,
    "num_loader_threads": 0,
    "local_rank": 0,
    "master_port": 0,
    "monitor_frequency": 0,
}
FIELDS = {field.name: field for field in dataclasses.fields(Options)}
COMMAND_LINE = {"num_batches": 100, "num_warmup_batches": 1}
"""Defaults of the command line where they are not the library's."""


def boolean(text: str | bool) -> bool:
    """True for true, on, t or 1, False for false, off, f or 0; raises InputError."""
    word = str(text).strip().lower()
    if word not in (*TRUE, *FALSE):
        raise InputError(f"{str(text)!r} is no truth value: write {', '.join(TRUE)} or {', '.join(FALSE)}")
    return word in TRUE


def value_of(name: str, text: Any) -> Any:
    """The value of option `name` that a text stands for; raises InputError."""
    if name not in FIELDS:
        raise unknown("option", name, FIELDS)
    kind = str(FIELDS[name].type)
    try:
        if kind == "bool":
            return boolean(text)
        if name == "input_shape":
            return tuple(int(size) for size in str(text).lower().split("x"))
        if kind.startswith("int"):
            return int(str(text))
        return float(text) if kind == "float" else str(text)
    except ValueError:
        raise InputError(f"{name} {str(text)!r}: must be {'a whole number' if 'int' in kind else 'a number'}") from None


def options_of(values: Mapping[str, Any]) -> Options:
    """Options of the command line from texts or values by name; raises InputError."""
    found = {name: value_of(name, value) for name, value in values.items() if value is not None}
    for required in ("model", "batch_size"):
        if required not in found:
            raise InputError(f"no {required}: it must be given; add --{required}")
    return Options(**{**COMMAND_LINE, **found}).checked()


def arguments(options: Options) -> list[str]:
    """The command line of these options; what is a default is left out."""
    given = []
    for name, field in FIELDS.items():
        value = getattr(options, name)
        if name not in ("model", "batch_size") and value == COMMAND_LINE.get(name, field.default):
            continue
        if isinstance(value, tuple):
            value = "x".join(map(str, value))
        given.append(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
    return given
