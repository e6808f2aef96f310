"""Kernels that stand for each other in steps, and operators of kernels that a trace has without.

A capture of the same graph says its kernels in order (ROCm names them at their launch). Else kernels
are of the call that launches those of the same names and grids elsewhere in the trace, in the same order,
and takes about as long.
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuralpower.traces.events import BEFORE, GRAPHED, Mark, Operator, Ran, Recording, step_at

# Whose each moment of a trace is: what runs alone or first, and why nothing runs.

DATA, SYNC, HOST = "waiting for data", "synchronisation", "launched one by one"
BETWEEN, UNKNOWN, LATENCY = "between operators", "of unknown cause", "latency of the device"
NEAR_US = 10.0  # between the end of a wait and the launch that it kept back
LEAST_US = 0.5  # gaps below are the device's own
# Kernels this short end before the next is launched: a graph or a compiler launches them together.
SHORT_US = 25.0


@dataclass(frozen=True)
class Gap:
    start: float  # us
    end: float
    cause: str

    @property
    def took(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """The span from the first to the last that ran, shared out: [ran] microseconds, and gaps."""

    start: float
    end: float
    owned: Sequence[float]  # of each, without what ran at the same time and comes first
    gaps: Sequence[Gap]


def timeline(recording: Recording) -> Timeline:
    """Share out each moment: what computes comes before copies, and these before communication."""
    ran = recording.ran
    owned = _owned(ran)
    gaps, end = [], ran[0].start
    causes = _Causes(recording)
    for one in ran:
        if one.start > end:
            gaps.append(Gap(end, one.start, causes.of(end, one)))
        end = max(end, one.end)
    return Timeline(ran[0].start, end, owned, gaps)


def _owned(ran: Sequence[Ran]) -> list[float]:
    """Microseconds of each, in order of their starts: each moment belongs to one of those that run then."""
    owned = [0.0] * len(ran)
    active: list[tuple[int, float, int]] = []  # order, start, position

    def spend(start: float, end: float) -> None:
        while active and start < end:
            _, _, i = active[0]
            until = min(end, ran[i].end)
            if until > start:
                owned[i] += until - start
                start = until
            if ran[i].end <= start:
                heapq.heappop(active)

    at = -math.inf
    for i, one in enumerate(ran):
        spend(at, one.start)
        at = one.start
        heapq.heappush(active, (_order(one), one.start, i))
    spend(at, math.inf)
    return owned


def _order(one: Ran) -> int:
    if one.over_bus or one.name.startswith(("Memcpy", "Memset")):
        return 1
    return 2 if kernel_kind(one.name) == COMMUNICATION else 0


class _Causes:
    """Why nothing ran before something did."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.loads = sorted(
            (mark for mark in recording.marks if "DataLoader" in mark.name), key=lambda mark: mark.start
        )
        self.waits = sorted(recording.waits, key=lambda mark: mark.end)
        self.ends = [mark.end for mark in self.waits]

    def of(self, start: float, after: Ran) -> str:
        """The cause of a gap from `start` to what ran after it."""
        if self._loading(start, after.start) > (after.start - start) / 2:
            return DATA
        if self.recording.on_cpu:
            return BETWEEN
        if not self.recording.clocks_agree or math.isnan(after.launched):
            return UNKNOWN
        if after.launched < start - NEAR_US or after.start - start < LEAST_US:
            return LATENCY
        i = bisect.bisect_right(self.ends, after.launched) - 1
        waited = i >= 0 and self.ends[i] >= start - NEAR_US
        return SYNC if waited and self._kept(self.waits[i], start) else HOST

    def _kept(self, wait: Mark, start: float) -> bool:
        """Whether the host waited for what ran before the gap."""
        return wait.start <= start <= wait.end + NEAR_US

    def _loading(self, start: float, end: float) -> float:
        return sum(max(min(end, mark.end) - max(start, mark.start), 0.0) for mark in self._near(start, end))

    def _near(self, start: float, end: float) -> Sequence[Mark]:
        first = max(bisect.bisect_left(self.loads, start, key=lambda mark: mark.start) - 1, 0)
        last = bisect.bisect_right(self.loads, end, key=lambda mark: mark.start)
        return self.loads[first:last]


ABOUT = 1.3  # times that the time of kernels may differ from that of their like


@dataclass
class _Equal:
    """Calls of equal inputs that ran equal kernels."""

    example: Operator
    took: float = 0.0
    count: int = 0


def with_owners(recording: Recording, capture: Recording | None = None) -> Recording:
    """The recording whose kernels without operators have those of like kernels, where there are such."""
    ran, operators = list(recording.ran), list(recording.operators)
    if capture is not None:
        _by_order(ran, operators, capture, recording.marks)
    _by_likeness(ran, operators)
    return replace(recording, ran=tuple(ran), operators=tuple(operators))


def _by_order(ran: list[Ran], operators: list[Operator], capture: Recording, marks: Sequence[Mark]) -> None:
    """The n-th kernel of a name in a graph is the n-th of that name in its capture, again and again."""
    owners: dict[str, list[int]] = defaultdict(list)
    for name, owner in capture.captured:
        owners[name].append(owner)
    count: dict[str, int] = defaultdict(int)
    made: dict[tuple[int, int], int] = {}  # (turn, operator of the capture) -> position
    for i, one in enumerate(ran):
        if one.library != GRAPHED or not owners.get(one.name):
            continue
        turn, place = divmod(count[one.name], len(owners[one.name]))
        count[one.name] += 1
        owner = owners[one.name][place]
        if owner < 0:
            continue
        if (turn, owner) not in made:
            made[turn, owner] = len(operators)
            moved = _moved(capture.operators[owner], one)
            operators.append(moved if moved.of_aten else moved._replace(step=step_at(marks, one.launched)))
        ran[i] = one._replace(owner=made[turn, owner])


def _by_likeness(ran: list[Ran], operators: list[Operator]) -> None:
    """Kernels with the names and grids of others, in their order, are of their call, if they take as long."""
    calls = _calls_by_kernels(ran, operators)
    lengths: dict[Look, list[int]] = defaultdict(list)  # by the first kernel, the longest first
    for kernels in sorted(calls, key=len, reverse=True):
        lengths[kernels[0]].append(len(kernels))
    for row in _without_owners(ran):
        looks = tuple(_look(ran[i]) for i in row)
        place = 0
        while place < len(row):
            for length in dict.fromkeys(lengths[looks[place]]):
                took = sum(ran[i].took for i in row[place : place + length])
                example = _nearest(took, calls.get(looks[place : place + length], {}))
                if example is not None:
                    break
            else:
                place += 1
                continue
            operators.append(_moved(example, ran[row[place]]))
            for i in row[place : place + length]:
                ran[i] = ran[i]._replace(owner=len(operators) - 1)
            place += length


Look = tuple[str, str]  # a kernel's name and grid


def _look(one: Ran) -> Look:
    return one.name, one.grid


def _calls_by_kernels(
    ran: Sequence[Ran], operators: Sequence[Operator]
) -> dict[tuple[Look, ...], dict[int, _Equal]]:
    """The kernels of calls in order, with their grids and without, -> equal calls by their key."""
    of_call: dict[int, list[Ran]] = defaultdict(list)
    for one in ran:
        if one.owner >= 0:
            of_call[one.owner].append(one)
    calls: dict[tuple[Look, ...], dict[int, _Equal]] = defaultdict(dict)
    for owner, kernels in of_call.items():
        operator = operators[owner]
        for looks in {tuple(map(_look, kernels)), tuple((one.name, "") for one in kernels)}:
            equal = calls[looks].setdefault(operator.key, _Equal(operator))
            equal.took += sum(one.took for one in kernels)
            equal.count += 1
    return calls


def _without_owners(ran: Sequence[Ran]) -> list[list[int]]:
    """Positions of kernels without operators, those of a stream between two that have one together."""
    rows: dict[str, list[list[int]]] = defaultdict(lambda: [[]])
    for i, one in enumerate(ran):
        if one.owner < 0 and one.library in (BEFORE, GRAPHED):
            rows[one.stream][-1].append(i)
        elif rows[one.stream][-1]:
            rows[one.stream].append([])
    return [row for some in rows.values() for row in some]


def _nearest(took: float, calls: Mapping[int, _Equal]) -> Operator | None:
    """The call that takes most nearly as long; None where none takes about as long."""

    def ratio(equal: _Equal) -> float:
        mean = max(equal.took / equal.count, 1e-9)
        return max(took / mean, mean / max(took, 1e-9))

    nearest = min(calls.values(), key=ratio, default=None)
    return nearest.example if nearest is not None and ratio(nearest) <= ABOUT else None


def _moved(operator: Operator, one: Ran) -> Operator:
    return operator._replace(start=one.start, took=one.took)


# ---- What a kernel without an operator does, by its name: the library or the kind, never nothing ----


COMMUNICATION = "communication"
COPIES = {"HtoD": "copies from the host", "DtoH": "copies to the host", "DtoD": "copies", "PtoP": "copies"}
KINDS: Sequence[tuple[str, str]] = (
    # first that matches; libraries before kinds
    (r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|sendrecv", COMMUNICATION),
    (r"memset", "fills"),
    (r"^triton_|^_?_?triton", "Triton (Inductor)"),
    (r"flash|fmha|attn|attention|mha_|unified_attention|mla_", "attention"),
    (r"moe|topk_?softmax|routing|_matmul_ogs|grouped_gemm|expert", "mixture of experts"),
    (r"split_embedding|fbgemm|jagged|recat_", "fbgemm"),
    (r"^cijk_|tensile|hipblas", "product (Tensile)"),
    (r"gemm|cutlass|nvjet|xmma|_mma|matmul|^sm\d+_|ampere_|volta_|hopper_|cublas|split_?k", "product"),
    (r"conv|implicit_|winograd|igemm|cudnn|miopen", "convolution"),
    (r"norm", "norm"),
    (r"multi_tensor_apply", "optimizer"),
    (r"rope|rotary", "rotary positions"),
    (r"quant|fp8|mxfp|per_token", "quantisation"),
    (r"reshape_and_cache|cache|paged", "cache of keys and values"),
    (r"softmax", "softmax"),
    (r"act_and_mul|silu|gelu|swiglu", "activation"),
    (r"embedding|gather|index", "gather"),
    (r"sort|cub::|rocprim|thrust", "sort and scan"),
    (r"at::native|at_cuda", "PyTorch"),
)
NAME = re.compile(r"[A-Za-z_][\w:]*")


def kernel_kind(name: str) -> str:
    """The library or kind of a kernel; the first word of its name where none is known."""
    for copy, kind in COPIES.items():
        if copy in name:
            return kind
    for pattern, kind in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    words = NAME.search(name.removeprefix("void "))
    return (words[0] if words else name)[:60] or "without a name"
