"""Read a profiler's trace: what ran on the device, and the operator, module and library that launched it.

Kernels know their launch by a correlation number, and the launch lies within an operator on its thread. Times
are microseconds, as the profiler writes them.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from neuralpower.errors import InputError
from neuralpower.traces.libraries import AUTOGRAD, STEP, knows
from neuralpower.traces.stream import EventStream

ATEN = "aten::"
ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))  # categories of what runs on a device
LAUNCHES = frozenset(("cuda_runtime", "cuda_driver"))  # HIP's launches have these names, too
OVER_BUS = ("HtoD", "DtoH")  # in names of copies over the bus
OF_TF32 = ("tf32", "s1688gemm", "tensorop_s")  # in names of kernels that use TF32
ENGINE = "autograd::engine"  # what runs a backward pass, around its operators
NODE = "CppNode<"  # in names of backward passes of functions in C++, which have gradients alone as inputs
HALVES = ("c10::BFloat16", "c10::Half")
# that autocast runs in 16 bits (torch/csrc/autograd, autocast_mode.h), by their outermost names
LOWERED = frozenset(
    """
    linear matmul mm addmm bmm baddbmm addbmm einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d _convolution scaled_dot_product_attention prelu lstm gru rnn_tanh rnn_relu
    """.split()
)
GRAPH = "GraphLaunch"  # in names of launches of a whole graph
SYNCHRONISES = ("Synchronize", "cudaMemcpy", "hipMemcpyWithStream")  # beginnings or parts of waits' names
MODULE = "nn.Module: "
INPUTS = ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")
EXCHANGE = "exchange"  # input of an exchange between devices: values of EXCHANGED
EXCHANGED = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
MOST_DISTINCT = 200_000  # calls with different inputs whose inputs are kept
# A launch takes the host 2 to 20 us: a median above this is in other units.
LONGEST_LAUNCH_US = 1000.0
EARLY_US, EARLY_SHARE = 50.0, 0.05  # kernels before their launch, which clocks that differ show
BEFORE, GRAPHED = "launched before the trace", "graph"  # instead of the library of a kernel's launch
OF_GPUS = frozenset(("aten::record_stream", "record_param_comms", "aten::pin_memory", "aten::is_pinned"))
"""Operators of programs that use a GPU."""
SHORTEST_WAIT_US = 20.0  # of a copy that waits for the device: others return at once
Thread = tuple[str, str]


class Ran(NamedTuple):
    """A kernel, a copy or a fill of a device: or, in a trace of a CPU, an operator."""

    name: str
    start: float
    took: float
    owner: int  # position of its operator in `Recording.operators`; -1: none
    library: str  # of what launched it, where no operator of aten did
    stream: str = ""
    launched: float = math.nan  # when the host launched it
    over_bus: bool = False
    grid: str = ""

    @property
    def end(self) -> float:
        return self.start + self.took


class Operator(NamedTuple):
    """An outermost operator of aten, or of a library that has a rule, as it was recorded."""

    name: str  # without "aten::"
    inputs: Mapping[str, Sequence[Any]]  # by INPUTS
    key: int  # equal for equal names and inputs
    start: float
    took: float
    path: str = ""  # of the module that called it, where the trace says so
    backward: bool = False  # whether autograd's engine called it
    step: str = ""  # annotation around an operator of a library that says its requests
    of_aten: bool = True  # else a library's


class Mark(NamedTuple):
    """What the host did: a wait, an annotation, a loader of data."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Recording:
    """A trace: what ran, in order, and what the host did meanwhile."""

    device: str  # the device's name; "" where the trace does not say it
    on_cpu: bool  # nothing ran on a device: the operators themselves are what ran
    ran: tuple[Ran, ...]
    operators: tuple[Operator, ...]  # those that launched something, in order
    waits: tuple[Mark, ...] = ()
    marks: tuple[Mark, ...] = ()  # annotations
    asked: tuple[float, ...] = ()  # when the host read a number of a tensor
    clocks_agree: bool = True
    notes: tuple[str, ...] = ()
    has_operators: bool = True  # whether operators were recorded at all
    captured: tuple[tuple[str, int], ...] = ()  # (kernel, operator) of launches that ran nothing
    ranks: int = 0  # processes that ran together; 0: not said


@dataclass
class _Spans:
    """Spans of one thread, which lie within each other or apart."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def add(self, name: str, start: float, end: float, key: int = -1) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.names.append(name)
        self.keys.append(key)

    def sort(self) -> None:
        """Order them, and find what each lies in."""
        order = sorted(range(len(self.starts)), key=lambda i: (self.starts[i], -self.ends[i]))
        for name in ("starts", "ends", "names", "keys"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in order])
        open_: list[int] = []
        self.above = []
        for i, start in enumerate(self.starts):
            while open_ and self.ends[open_[-1]] <= start and self.starts[open_[-1]] < start:
                open_.pop()
            self.above.append(open_[-1] if open_ else -1)
            open_.append(i)

    def around(self, at: float) -> Iterator[int]:
        """Positions of the spans around a moment, the innermost first."""
        i = bisect.bisect_right(self.starts, at) - 1
        while i >= 0:
            if self.ends[i] >= at:
                yield i
            i = self.above[i]


class _Reader:
    """What is kept of the events of a trace."""

    def __init__(self) -> None:
        self.operators: dict[Thread, _Spans] = defaultdict(_Spans)
        self.modules: dict[Thread, _Spans] = defaultdict(_Spans)
        self.launches: dict[int, tuple[float, Thread, bool, str]] = {}
        self.kernels: list[tuple[str, float, float, int, Any, str, str]] = []
        self.waits: list[Mark] = []
        self.marks: list[Mark] = []
        self.asked: list[float] = []
        self.inputs: list[Mapping[str, Sequence[Any]]] = [{}]
        self.known: dict[bytes, int] = {}
        self.launch_took: list[float] = []
        self.names: dict[str, str] = {}
        self.dropped = False

    def take(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if not isinstance(category, str) or not _times(event):
            return
        if category == "cpu_op":
            self._operator(event)
        elif category in ON_DEVICE:
            said = _said(event)
            number = said.get("correlation")
            number = number if isinstance(number, int) else -1
            device = said.get("device", event.get("pid"))
            stream = str(said.get("stream", event.get("tid")))
            grid = self.names.setdefault(str(said.get("grid") or ""), str(said.get("grid") or ""))
            span = float(event["ts"]), float(event["dur"])
            self.kernels.append((self._name(event), *span, number, device, stream, grid))
        elif category in LAUNCHES:
            self._launch(event)
        elif category == "python_function":
            name = str(event.get("name"))
            if name.startswith(MODULE):
                self.modules[_thread(event)].add(name.removeprefix(MODULE), *_span(event))
        elif category == "user_annotation":
            self.marks.append(Mark(self._name(event), *_span(event)))

    def with_those_within(self, spans: _Spans, i: int) -> tuple[int, Mapping[str, Sequence[Any]]]:
        """(key, inputs) of an operator together with those of the operators in it."""
        known = [key for key in dict.fromkeys([spans.keys[i], *self._within(spans, i)]) if key > 0]
        inputs = {one: [v for key in known for v in self.inputs[key].get(one, ())] for one in INPUTS}
        return self._key((spans.names[i], inputs), inputs), inputs

    def lowered(self, spans: _Spans, i: int) -> tuple[int, Mapping[str, Sequence[Any]]]:
        """(key, inputs) of an operator in the type of 16 bits that autocast runs it in, if it does."""
        key = spans.keys[i]
        inputs = self.inputs[max(key, 0)]
        types = inputs.get("Input type", ())
        within = (kind for one in self._within(spans, i) for kind in self._types(one) if kind in HALVES)
        short = next(within, None) if "float" in types else None
        if short is None:
            return key, inputs
        inputs = {**inputs, "Input type": [short if kind == "float" else kind for kind in types]}
        return self._key((spans.names[i], inputs), inputs), inputs

    def _types(self, key: int) -> Sequence[Any]:
        return self.inputs[max(key, 0)].get("Input type", ())

    def _within(self, spans: _Spans, i: int) -> Iterator[int]:
        """Keys of the operators in another."""
        for inner in range(i + 1, len(spans.starts)):
            if spans.starts[inner] > spans.ends[i]:
                return
            yield spans.keys[inner]

    def _key(self, said: tuple[str, Mapping[str, Any]], inputs: Mapping[str, Sequence[Any]]) -> int:
        """The number of an operator's name with its inputs; 0 past MOST_DISTINCT of them."""
        try:
            text = msgspec.json.encode(said)
        except (ValueError, TypeError, UnicodeEncodeError, RecursionError):
            text, inputs = said[0].encode("utf-8", "replace"), {}
        key = self.known.get(text, -1)
        if key < 0 and len(self.known) < MOST_DISTINCT:
            key = self.known[text] = len(self.inputs)
            self.inputs.append(inputs)
        elif key < 0:
            key, self.dropped = 0, True
        return key

    def _name(self, event: Mapping[str, Any]) -> str:
        """The event's name; equal ones are kept once."""
        name = str(event.get("name"))
        return self.names.setdefault(name, name)

    def _operator(self, event: dict[str, Any]) -> None:
        name = self._name(event)
        key = -1
        said = _said(event)
        if name.startswith(ATEN) or isinstance(said.get("Input Dims"), list):
            inputs = {one: said[one] for one in INPUTS if isinstance(said.get(one), list)}
            inputs |= {EXCHANGE: [said.get(one) for one in EXCHANGED]} if "Group size" in said else {}
            key = self._key((name, inputs), inputs)
            if name in ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense"):
                self.asked.append(float(event["ts"]))
        elif "DataLoader" in name:
            self.marks.append(Mark(name, *_span(event)))
        self.operators[_thread(event)].add(name, *_span(event), key)

    def _launch(self, event: dict[str, Any]) -> None:
        name, said = self._name(event), _said(event)
        number, kernel = said.get("correlation"), str(said.get("kernel") or "")
        if isinstance(number, int):
            kernel = self.names.setdefault(kernel, kernel)
            self.launches[number] = float(event["ts"]), _thread(event), GRAPH in name, kernel
        if "Launch" in name and len(self.launch_took) < 10_000:
            self.launch_took.append(float(event["dur"]))
        copies = "Memcpy" in name and float(event["dur"]) < SHORTEST_WAIT_US
        if not copies and any(one in name for one in SYNCHRONISES):
            self.waits.append(Mark(name, *_span(event)))


def read_recording(path: Path) -> Recording:
    """What a trace says, packed by gzip or not.

    Raises InputError: as `EventStream`, or it has nothing that ran, or times in other units.
    """
    stream, reader = EventStream(path), _Reader()
    for event in stream:
        reader.take(event)
    launch_us = statistics.median(reader.launch_took or [0.0])
    if len(reader.launch_took) > 20 and launch_us > LONGEST_LAUNCH_US:
        raise InputError(
            f"{path}: a launch takes {launch_us:,.0f} us in it, so that its times are "
            "nanoseconds; divide ts and dur by 1000, or export it by prof.export_chrome_trace"
        )
    for spans in (*reader.operators.values(), *reader.modules.values()):
        spans.sort()
    if reader.kernels:
        return _on_device(reader, stream.about)
    if not any(name.startswith(ATEN) for spans in reader.operators.values() for name in spans.names):
        raise InputError(
            f"{path}: neither kernels nor operators are in it; profile the step itself, with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    ops = {name for spans in reader.operators.values() for name in spans.names}
    if reader.launches or _devices(stream.about) or ops & OF_GPUS:
        raise InputError(
            f"{path}: no kernels are in it, although a GPU was used; add ProfilerActivity.CUDA to "
            "activities, and end the step with torch.cuda.synchronize()"
        )
    return _on_cpu(reader)


def _on_device(reader: _Reader, about: Mapping[str, Any]) -> Recording:
    """The recording of the device that was busiest."""
    notes = []
    took: Counter[Any] = Counter()
    for kernel in reader.kernels:
        took[str(kernel[4])] += kernel[2]  # type: ignore[assignment]  # seconds, too, can be counted
    device, _ = took.most_common(1)[0]
    if len(took) > 1:
        notes.append(f"{len(took)} devices are in the trace; device {device}, the busiest, is explained")
    kernels = sorted((one for one in reader.kernels if str(one[4]) == device), key=lambda one: one[1])
    owners: dict[tuple[Thread, int], int] = {}
    operators: list[Operator] = []
    ran = []
    early = launched = 0
    used: dict[int, Any] = {}  # launches that ran something
    for name, start, length, number, _, stream, grid in kernels:
        launch = reader.launches.pop(number, None) or used.get(number)
        owner, library = -1, "" if launch else BEFORE
        if launch is not None:
            used[number] = launch
            launched += 1
            early += start < launch[0] - EARLY_US
            owner, library = _owner(reader, launch, owners, operators)
        bus = any(word in name for word in OVER_BUS)
        at = launch[0] if launch else math.nan
        ran.append(Ran(name, start, length, owner, library, stream, at, bus, grid))
    captured = [
        (launch[3], _owner(reader, launch, owners, operators)[0])
        for launch in sorted(reader.launches.values())
        if launch[3] and not launch[2]
    ]
    agree = early <= EARLY_SHARE * launched
    if not agree:
        notes.append(f"{early:,} kernels begin before their launch: clocks differ, and gaps have no cause")
    has = any(name.startswith(ATEN) for spans in reader.operators.values() for name in spans.names)
    return Recording(
        _name_of(about, device),
        False,
        tuple(ran),
        tuple(operators),
        tuple(sorted(reader.waits, key=lambda one: one.start)),
        tuple(reader.marks),
        tuple(sorted(reader.asked)),
        agree,
        (*notes, *_dropped(reader)),
        has,
        tuple(captured),
        _ranks(about),
    )


def _owner(
    reader: _Reader,
    launch: tuple[float, Thread, bool, str],
    owners: dict[tuple[Thread, int], int],
    operators: list[Operator],
) -> tuple[int, str]:
    """(operator that launched something, library of what did if none of aten did)."""
    at, thread, graph, _ = launch
    spans = reader.operators.get(thread)
    chain = list(spans.around(at)) if spans is not None else []
    if graph or spans is None:
        return -1, GRAPHED if graph else ""
    outermost = next((i for i in reversed(chain) if _prices(reader, spans, i)), -1)
    if outermost < 0:  # a library without a rule: the innermost that says its tensors
        outermost = next((i for i in chain if _says_tensors(reader, spans, i)), -1)
    if outermost < 0:
        return -1, next((spans.names[i] for i in chain if not spans.names[i].startswith(ENGINE)), "")
    if (thread, outermost) not in owners:
        owners[thread, outermost] = len(operators)
        operators.append(_operator(reader, thread, outermost, chain))
    return owners[thread, outermost], ""


def step_at(marks: Sequence[Mark], at: float) -> str:
    """The annotation around a moment that says an engine's requests; "" for none."""
    return next((one.name for one in marks if one.start <= at <= one.end and STEP.search(one.name)), "")


def _prices(reader: _Reader, spans: _Spans, i: int) -> bool:
    """Whether an operator is aten's, or a library's with a rule and sizes."""
    name = spans.names[i]
    return name.startswith(ATEN) or (knows(name) and _sized(reader, spans, i))


def _says_tensors(reader: _Reader, spans: _Spans, i: int) -> bool:
    """Whether an operator of a library without a rule says its tensors; a node of autograd says gradients."""
    name = spans.names[i]
    own = "::" in name and (NODE in name or AUTOGRAD not in name)
    return own and _sized(reader, spans, i)


def _sized(reader: _Reader, spans: _Spans, i: int) -> bool:
    inputs = reader.inputs[max(spans.keys[i], 0)]
    return EXCHANGE in inputs or any(inputs.get("Input Dims", ()))


def _operator(reader: _Reader, thread: Thread, i: int, chain: Sequence[int]) -> Operator:
    spans = reader.operators[thread]
    modules = reader.modules.get(thread)
    start = spans.starts[i]
    path = ""
    if modules is not None:
        path = ".".join(reversed([modules.names[one] for one in modules.around(start)]))
    backward = any(spans.names[one].startswith(ENGINE) for one in chain)
    name, key = spans.names[i].removeprefix(ATEN), spans.keys[i]
    inputs, step, of_aten = reader.inputs[max(key, 0)], "", spans.names[i].startswith(ATEN)
    if not of_aten:
        step = step_at(reader.marks, start)
    if name in LOWERED:
        key, inputs = reader.lowered(spans, i)
    if NODE in name and "lookup" in name.lower():  # whose indices are tensors of operators in it alone
        key, inputs = reader.with_those_within(spans, i)
    return Operator(name, inputs, key, start, spans.ends[i] - start, path, backward, step, of_aten)


def _on_cpu(reader: _Reader) -> Recording:
    """The recording of a CPU: its outermost operators are what ran, those of loaders' aside."""
    loads = [mark for mark in reader.marks if "DataLoader" in mark.name]
    operators: list[Operator] = []
    ran = []
    for thread, spans in reader.operators.items():
        end = -math.inf
        for i, name in enumerate(spans.names):
            start = spans.starts[i]
            if not name.startswith(ATEN) or start < end:
                continue
            end = spans.ends[i]
            if any(mark.start <= start <= mark.end for mark in loads):
                continue
            above = [one for one in spans.around(start) if spans.starts[one] <= start]
            ran.append(
                Ran(f"{ATEN}{name.removeprefix(ATEN)}", start, end - start, len(operators), "", thread[1])
            )
            operators.append(_operator(reader, thread, i, above))
    ran.sort(key=lambda one: one.start)
    marks = tuple(reader.marks)
    asked = tuple(sorted(reader.asked))
    return Recording("", True, tuple(ran), tuple(operators), (), marks, asked, True, _dropped(reader))


def _dropped(reader: _Reader) -> tuple[str, ...]:
    if not reader.dropped:
        return ()
    return (f"more than {MOST_DISTINCT:,} different calls: inputs of the others are not read",)


def _times(event: Mapping[str, Any]) -> bool:
    """Whether an event has a beginning and a duration."""
    start, took = event.get("ts"), event.get("dur")
    if type(start) not in (int, float) or type(took) not in (int, float):
        return False
    return bool(-1e19 < start < 1e19 and 0 <= took < 1e15)  # type: ignore[operator]  # both are numbers


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _said(event: Mapping[str, Any]) -> Mapping[str, Any]:
    said = event.get("args")
    return said if isinstance(said, dict) else {}


def _thread(event: Mapping[str, Any]) -> Thread:
    return str(event.get("pid")), str(event.get("tid"))


def _devices(about: Mapping[str, Any]) -> list[Any]:
    devices = about.get("deviceProperties")
    return devices if isinstance(devices, list) else []


def _ranks(about: Mapping[str, Any]) -> int:
    """The processes that ran together, where the trace says so."""
    said = about.get("distributedInfo")
    size = said.get("world_size") if isinstance(said, dict) else None
    return size if isinstance(size, int) and 0 < size < 1_000_000 else 0


def _name_of(about: Mapping[str, Any], number: str) -> str:
    """The name of the device of that number, else of the first."""
    devices = [one for one in _devices(about) if isinstance(one, dict)]
    mine = [one for one in devices if str(one.get("id")) == number] or devices[:1]
    return str(mine[0].get("name") or "") if mine else ""
