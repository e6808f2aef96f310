"""Operators of kernels that a trace has without: of graphs, and of launches before the trace begins.

A capture of the same graph says its kernels in order (ROCm names them at their launch). Else kernels
are of the call that launches those of the same names and grids elsewhere in the trace, in the same order,
and takes about as long.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuralpower.traces.events import BEFORE, GRAPHED, Mark, Operator, Ran, Recording, step_at

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
