"""The data of a report, its JSON file, and the real runs on a device that it holds."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import nn

from neuralpower.devices.host import read_cpu
from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.errors import InputError, ModelError, first_line, quoted
from neuralpower.files.atomic import replace_file
from neuralpower.files.json_files import json_text, read_json
from neuralpower.files.paths import check_regular
from neuralpower.layers import KINDS
from neuralpower.layers.base import Call, torch_dtype
from neuralpower.measure import ROUNDS
from neuralpower.measure.cpu.timer import SLOW_CALL_S, Sentinel, prepare_process, time_calls
from neuralpower.measure.rig import failure
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.known_values import tensors_of
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.networks.users_code import raised, users_code
from neuralpower.prediction.memory.peak import peak
from neuralpower.profiling import Keywords, profile
from neuralpower.profiling.result import NetworkProfile
from neuralpower.profiling.steps import clock_of, title_of
from neuralpower.suites.roofs import Roof, measured_roof
from neuralpower.suites.steps import elapsed_s, free_bytes
from neuralpower.trace.lifetimes import WORKSPACE
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

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
    kind: str
    count: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Work:
    """The work of one forward pass of a batch."""

    model: str
    batch_size: int
    flops: int
    bytes_moved: int  # that must cross memory
    peak_bytes: int | None  # weights, inputs and activations that live at once; None if not countable
    calls: tuple[Calls, ...]

    @property
    def intensity(self) -> float | None:
        return self.flops / self.bytes_moved if self.bytes_moved else None

    def memory_share(self, roof: Roof) -> float:
        """Share of the least time on the roof, summed over calls, that goes to calls below the ridge."""
        seconds = [max(c.flops / roof.flops_per_s, c.bytes / roof.bytes_per_s) for c in self.calls]
        memory = sum(s for s, c in zip(seconds, self.calls, strict=True) if c.flops < c.bytes * roof.ridge)
        return memory / sum(seconds) if sum(seconds) else 0.0

    @property
    def call_count(self) -> int:
        return sum(c.count for c in self.calls)

    @property
    def footprint_intensity(self) -> float | None:
        """FLOP per byte of the memory footprint."""
        return self.flops / self.peak_bytes if self.peak_bytes else None


@dataclass(frozen=True)
class Device:
    """A device on which networks are timed or predicted."""

    name: str
    basis: str
    memory_bytes: float | None = None
    predictor: str | None = None
    unknown_kinds: tuple[str, ...] = ()  # of layers in the networks that the predictor was not trained on

    @property
    def label(self) -> str:
        """The name, and whether its times are measured or predicted."""
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
    bounds_s: tuple[float, ...] = ()  # of a prediction: both ends
    coverage: float | None = None  # of a prediction: share of the time that was trained
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """All calls of a kind in one phase of a training step."""

    phase: str
    kind: str
    runtime_s: float | None
    flops: int
    memory_bytes: int  # bytes of the calls' results


@dataclass(frozen=True)
class Training:
    """One training step: forward and backward pass; times None if only the work is known."""

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
        forward, backward = self.forward_flops, self.backward_flops
        return backward / forward if forward and backward else None

    @property
    def time_ratio(self) -> float | None:
        return self.backward_s / self.forward_s if self.forward_s and self.backward_s else None

    @property
    def by_kind(self) -> dict[tuple[str, str], dict[str, float]]:
        """(phase; time, FLOP or memory) -> kind -> s, FLOP or bytes; 0 if unknown."""
        return {
            (phase, what): {k.kind: float(getattr(k, name) or 0) for k in self.kinds if k.phase == phase}
            for phase in ("forward", "backward")
            for what, name in (("time", "runtime_s"), ("FLOP", "flops"), ("memory", "memory_bytes"))
        }


Record = Device | Roof | Network | Work | Point | Training
AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass
class Data:
    """Everything gathered so far."""

    settings: dict[str, Any] = field(default_factory=dict)  # settings that all numbers of one report share
    environment: dict[str, Any] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    roofs: list[Roof] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def find(self, kind: type[AnyRecord], *key: str | int) -> AnyRecord | None:
        """The record of a kind with that key, as PLACES defines it."""
        name, _ = PLACES[kind]
        return next((record for record in getattr(self, name) if _key(record) == key), None)

    def get(self, kind: type[AnyRecord], *key: str | int) -> AnyRecord:
        """The same as `find`; raises InputError if there is none, as in a file that was changed."""
        found = self.find(kind, *key)
        if found is None:
            what = f"no {kind.__name__.lower()} of {', '.join(map(str, key))}"
            raise InputError(f"{FILE}: has {what}; move it away, or choose another --out")
        return found

    def put(self, record: Record) -> None:
        """Add a record, or replace the one with the same key."""
        records: list[Any] = getattr(self, PLACES[type(record)][0])
        records[:] = [*(other for other in records if _key(other) != _key(record)), record]


# The list of each record, and its key: the fields that identify it.
PLACES: Mapping[type[Any], tuple[str, tuple[str, ...]]] = {
    Device: ("devices", ("name",)),
    Roof: ("roofs", ("device", "origin")),
    Network: ("networks", ("model",)),
    Work: ("works", ("model", "batch_size")),
    Point: ("points", ("model", "device", "batch_size")),
    Training: ("trainings", ("model", "device")),
}


def _key(record: Record) -> tuple[str | int, ...]:
    return tuple(getattr(record, name) for name in PLACES[type(record)][1])


def write(data: Data, folder: Path) -> None:
    """Write `folder/data.json`, never a part of it; raises InputError, or DeviceError for a full disk."""
    content = {"schema": SCHEMA, **asdict(data)}
    replace_file(folder / FILE, json_text(content, indent=1) + "\n")


def read(folder: Path) -> Data | None:
    """The data of an earlier run in a folder; None without. Raises InputError for another file."""
    path = folder / FILE
    way_out = "move it away, or choose another --out"
    check_regular(path)
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {way_out}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"{path}: is not a report's data of schema {SCHEMA}; {way_out}")
    try:
        return msgspec.convert({f.name: content[f.name] for f in fields(Data)}, Data)
    except (KeyError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: has missing or unknown fields ({error}); {way_out}") from None


# ---- FLOP, traffic and memory of a network, from a pass over meta tensors ----


class Sketch:
    """One network on the meta device, traced at any batch size."""

    def __init__(self, model: str, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.source = resolve(model)
        self.module = self.source.build("meta", dtype)

    def inputs(self, batch_size: int) -> Inputs:
        return self.source.inputs(self.module, InputRequest(batch_size, dtype=self.dtype), "meta")

    def trace(self, batch_size: int) -> Trace:
        inputs = self.inputs(batch_size)
        return trace(self.module, inputs.args, inputs.kwargs)

    def network(self, label: str) -> Network:
        inputs = self.inputs(1)
        first = next(iter(tensors_of((inputs.args, inputs.kwargs))), None)
        shape = "" if first is None else "x".join(map(str, first.shape[1:]))
        tokens = "tokens" if first is not None and not first.is_floating_point() else ""
        parameters = list(self.module.parameters())
        return Network(
            self.model,
            label,
            f"{shape} {tokens}".strip(),
            sum(p.numel() for p in parameters),
            sum(p.numel() * p.element_size() for p in parameters),
        )

    def work(self, batch_size: int, traced: Trace) -> Work:
        """Work of a traced forward pass; its memory is unknown if meta tensors fail."""
        calls = [
            Calls(la.kind, n, n * int(la.flops()), n * int(sum(la.bytes())))
            for la, n in Counter(traced.layers).items()
        ]
        calls += [Calls("unmodelled", 1, 0, u.bytes) for u in traced.unmodelled]
        flops, moved = sum(c.flops for c in calls), sum(c.bytes for c in calls)
        tensors = [storage for storage in traced.storages if storage.part != WORKSPACE]
        most = peak(tensors)[0] if traced.method == "meta" else None
        return Work(self.model, batch_size, flops, moved, most, tuple(calls))

    def training(self, batch_size: int) -> NetworkProfile:
        """A training step, counted and not run."""
        inputs = self.inputs(batch_size)
        module = self.source.build("meta", self.dtype).train()
        return profile(module, inputs.args, inputs.kwargs, phase="training", runtime=False, name=self.model)


def kinds_of(profile: NetworkProfile) -> tuple[Kind, ...]:
    """FLOP, time and memory by phase and kind; operators that are not layers are "other"."""
    timed = profile.runs is not None
    kinds: dict[tuple[str, str], Kind] = {}
    for row in profile.rows:
        if row.phase not in ("forward", "backward") or not row.explains:
            continue
        key = (row.phase, row.kind if row.kind in KINDS else "other")
        known = kinds.get(key, Kind(*key, 0.0 if timed else None, 0, 0))
        kinds[key] = Kind(
            *key,
            (known.runtime_s or 0.0) + max(row.runtime_s or 0.0, 0.0) if timed else None,
            known.flops + (row.matmul_flops or 0) + (row.elementwise_flops or 0),
            known.memory_bytes + ((row.activation_bytes if timed else row.bytes_written) or 0),
        )
    return tuple(kinds.values())


# Times of real runs on a device, warmed up and synchronised; and the device's measured roof.

CUDA_SAMPLES = 20
CUDA_LIMIT_S = 2.0  # after which no further sample begins, once there are five
TRAINING_REPEATS = 3
Sizes = Mapping[str, tuple[int, ...]]  # by type of device
PRODUCTS: Sizes = {"cpu": (1024, 2048, 3072), "cuda": (4096, 8192, 16384)}
TRIADS: Sizes = {"cpu": (2**26, 2**27), "cuda": (2**30, 2**31)}  # bytes of an array: beyond any cache


class Runner:
    """One device of this machine."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.products, self.triads = PRODUCTS[place.type], TRIADS[place.type]
        self.generator = random.Random(0)
        self.sentinel: Sentinel | None = None

    @property
    def name(self) -> str:
        return title_of(self.place)

    def check(self, dtype: str) -> None:
        """Raises InputError for a dtype that the device cannot multiply."""
        if dtype == TENSORFLOAT32:
            if self.place.type == "cpu":
                raise InputError("dtype tensorfloat32: a CPU has none; choose --dtype float32")
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        try:
            one = torch.ones(2, 2, device=self.place).to(torch_dtype(dtype))
            torch.relu(torch.mm(one, one)).add(1)
        except (RuntimeError, TypeError) as error:
            text = f"dtype {dtype} on {self.place}: {first_line(error)}; choose --dtype float32"
            raise InputError(text) from None

    def prepare(self) -> None:
        """Prepare the measuring process, and warm up the sentinel."""
        if self.place.type == "cpu":
            prepare_process(read_cpu().cores)
            self.sentinel = Sentinel().settle(10)

    def free_bytes(self) -> int | None:
        """Memory that a run can take; None if unknown."""
        return free_bytes(self.place)

    def cost(self, runtime_s: float) -> float:
        if self.place.type == "cuda":
            return runtime_s * (2 + max(5, min(CUDA_SAMPLES, CUDA_LIMIT_S / max(runtime_s, 1e-9))))
        return runtime_s * (1 + ROUNDS // 3 if runtime_s > SLOW_CALL_S else 2 + ROUNDS)

    def samples(self, call: Call) -> tuple[float, ...]:
        """Times of one call (s); raises what it raises."""
        if self.place.type == "cuda":
            return self._cuda_samples(call)
        if self.sentinel is None:
            self.prepare()
        assert self.sentinel is not None  # `prepare` made it
        timing = time_calls([call], self.sentinel, self.generator)[0]
        if isinstance(timing, Exception):
            raise timing
        return timing.samples_s

    def _cuda_samples(self, call: Call) -> tuple[float, ...]:
        clock = clock_of(self.place)
        samples: list[float] = []
        with torch.inference_mode():
            elapsed_s(call, clock, 2)
            begun = time.perf_counter()
            while len(samples) < 5 or (
                len(samples) < CUDA_SAMPLES and time.perf_counter() - begun < CUDA_LIMIT_S
            ):
                samples.append(elapsed_s(call, clock))
        return tuple(samples)

    def statistic(self, samples: Sequence[float]) -> float:
        """10th percentile on a CPU, since other load only makes it slower; median on a GPU."""
        return float(np.percentile(samples, 10 if self.place.type == "cpu" else 50))

    def forward(self, model: str, batch_size: int, dtype: str) -> tuple[float, ...]:
        """Times of a forward pass (s); raises MemoryError, or ModelError if it fails otherwise."""
        try:
            call = self._call(model, batch_size, dtype)
            with users_code(f"{model}: its forward"):
                return self.samples(call)
        except Exception as refused:
            error = raised(refused)
            if failure(error)["status"] == "oom":
                raise MemoryError(first_line(error)) from None
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{model}: its forward raises {quoted(error)}") from error
        finally:
            if self.place.type == "cuda":
                torch.cuda.empty_cache()

    def training(self, model: str, batch_size: int, dtype: str) -> NetworkProfile:
        """A training step, with rows. Raises what `forward` raises."""
        try:
            call = self._call(model, batch_size, dtype)
            assert isinstance(call.function, nn.Module)
            how: Keywords = {"phase": "training", "warmup": 1, "repeat": TRAINING_REPEATS, "power": "none"}
            return profile(call.function.train(), call.args, call.kwargs, **how)
        except Exception as error:
            if failure(error)["status"] == "oom":
                raise MemoryError(first_line(error)) from None
            raise

    def _call(self, model: str, batch_size: int, dtype: str) -> Call:
        request = InputRequest(batch_size, dtype=torch_dtype(dtype))
        return resolve(model).call(request, device=str(self.place))

    def roof(self, dtype: str) -> Roof:
        sizes = self.products, self.triads
        return measured_roof(self.name, self.samples, self.place, torch_dtype(dtype), *sizes)
