"""What a report is made from, and the JSON file that keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from neuralpower.errors import InputError
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, read_json
from neuralpower.files.paths import check_regular

SCHEMA = 1
MEASURED, PREDICTED = "measured", "predicted"
OK, MEMORY, BUDGET, FAILED = "ok", "out of memory", "over the time budget", "failed"
FILE = "data.json"


@dataclass(frozen=True)
class Network:
    """One network; `label` is its short name in charts."""

    model: str
    label: str
    input: str
    parameters: int
    parameter_bytes: int


@dataclass(frozen=True)
class Calls:
    """Equal layer calls together."""

    kind: str
    count: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Work:
    """What one forward pass of a batch does: FLOP, bytes that must cross memory, most bytes that live at once."""

    model: str
    batch_size: int
    flops: int
    bytes_moved: int
    peak_bytes: int | None  # weights, inputs and activations; None where it could not be counted
    calls: tuple[Calls, ...]

    @property
    def intensity(self) -> float | None:
        """FLOP per byte moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def call_count(self) -> int:
        """Of layers."""
        return sum(c.count for c in self.calls)

    @property
    def footprint_intensity(self) -> float | None:
        """FLOP per byte of the memory footprint."""
        return self.flops / self.peak_bytes if self.peak_bytes else None


@dataclass(frozen=True)
class Roof:
    """Peak FLOP/s and B/s of a device, and where they come from."""

    device: str
    origin: str  # measured here, or data sheet
    flops_per_s: float
    bytes_per_s: float
    how: str
    samples: int = 0  # of each, where measured

    @property
    def ridge(self) -> float:
        """FLOP per byte from which on a kernel can reach the peak."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """FLOP/s of the roof above an intensity (Williams, Waterman, Patterson, CACM 52(4), 2009)."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


@dataclass(frozen=True)
class Device:
    """What networks are timed on, or predicted for."""

    name: str
    basis: str
    memory_bytes: float | None = None
    predictor: str | None = None
    unknown_kinds: tuple[str, ...] = ()  # of layers in the networks that the predictor never saw

    @property
    def label(self) -> str:
        """The name, with how its times came about."""
        return f"{self.name} ({self.basis})"


@dataclass(frozen=True)
class Point:
    """The forward pass of one network on one device at one batch size."""

    model: str
    device: str
    batch_size: int
    basis: str
    status: str
    runtime_s: float | None = None
    samples_s: tuple[float, ...] = ()
    coverage: float | None = (
        None  # of a prediction: share of the time that regressors of its kinds account for
    )
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """All calls of a kind in one phase of a training step."""

    phase: str
    kind: str
    runtime_s: float | None
    flops: int
    memory_bytes: int  # what the calls' results take


@dataclass(frozen=True)
class Training:
    """One training step: forward and backward pass; times None where only the work is known."""

    model: str
    device: str
    batch_size: int
    basis: str
    status: str
    forward_flops: int | None = None
    backward_flops: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    samples: int = 0
    kinds: tuple[Kind, ...] = ()
    reason: str = ""

    @property
    def flops_ratio(self) -> float | None:
        """Backward FLOP over forward FLOP."""
        return (
            self.backward_flops / self.forward_flops if self.forward_flops and self.backward_flops else None
        )

    @property
    def time_ratio(self) -> float | None:
        """Backward time over forward time."""
        return self.backward_s / self.forward_s if self.forward_s and self.backward_s else None

    @property
    def distance(self) -> float:
        """How far the ratio of times lies from that of FLOP."""
        return abs((self.time_ratio or 0) - (self.flops_ratio or 0))


@dataclass
class Data:
    """Everything gathered so far."""

    settings: dict[str, Any] = field(default_factory=dict)  # what figures of one report must have in common
    environment: dict[str, Any] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    roofs: list[Roof] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def network(self, model: str) -> Network | None:
        """Of that name."""
        return _found(self.networks, model=model)

    def work(self, model: str, batch_size: int) -> Work | None:
        """Of that network and batch."""
        return _found(self.works, model=model, batch_size=batch_size)

    def point(self, model: str, device: str, batch_size: int) -> Point | None:
        """Of that network, device and batch."""
        return _found(self.points, model=model, device=device, batch_size=batch_size)

    def training(self, model: str, device: str) -> Training | None:
        """Of that network and device."""
        return _found(self.trainings, model=model, device=device)

    def put(self, record: Record) -> None:
        """Add a record in the place of the one that it replaces."""
        name, keys = PLACES[type(record)]
        records: list[Any] = getattr(self, name)
        records[:] = [*(r for r in records if any(getattr(r, k) != getattr(record, k) for k in keys)), record]


Record = Device | Roof | Network | Work | Point | Training
AnyRecord = TypeVar("AnyRecord", bound=Record)
# The list of each record, and the fields that tell it from others.
PLACES: Mapping[type[Record], tuple[str, tuple[str, ...]]] = {
    Device: ("devices", ("name",)),
    Roof: ("roofs", ("device", "origin")),
    Network: ("networks", ("model",)),
    Work: ("works", ("model", "batch_size")),
    Point: ("points", ("model", "device", "batch_size")),
    Training: ("trainings", ("model", "device")),
}


def _found(records: Iterable[AnyRecord], **key: str | int) -> AnyRecord | None:
    return next((r for r in records if all(getattr(r, name) == value for name, value in key.items())), None)


def write(data: Data, folder: Path) -> None:
    """Write `folder/data.json` so that it is always whole; raises InputError, or DeviceError for a full disk."""
    content = {"schema": SCHEMA, **asdict(data)}
    replace_file(folder / FILE, json_text(content, indent=1) + "\n")


def read(folder: Path) -> Data | None:
    """What an earlier run has left in a folder; None for nothing. Raises InputError for what is no such file."""
    path = folder / FILE
    check_regular(path)
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); move it away, or choose another --out") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(
            f"{path}: is no report's data of schema {SCHEMA}; move it away, or choose another --out"
        )
    try:
        return msgspec.convert({f.name: content[f.name] for f in fields(Data)}, Data)
    except (KeyError, msgspec.ValidationError) as error:
        raise InputError(
            f"{path}: lacks or has too much ({error}); move it away, or choose another --out"
        ) from None
