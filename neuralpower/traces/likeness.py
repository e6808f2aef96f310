"""Operators of kernels that a trace has without: of graphs, and of launches before the trace begins.

A capture of the same graph says its kernels in order (ROCm names them at their launch). Else a kernel is
of the call that launches one of the same name and grid elsewhere in the trace, and takes about as long.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from neuralpower.traces.events import BEFORE, GRAPHED, Mark, Operator, Ran, Recording, step_at

ABOUT = 1.3  # times that a kernel's time may differ from those of its name


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
    """A kernel of the name and grid of others is of their call, if it takes about as long."""
    # (name, grid) -> call -> [its kernels' time, their number]
    times: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0]))
    example: dict[int, Operator] = {}
    of_call: dict[int, list[str]] = defaultdict(list)  # the kernels of the example
    for one in ran:
        if one.owner >= 0:
            operator = operators[one.owner]
            example.setdefault(operator.key, operator)
            for grid in {one.grid, ""}:
                whole = times[one.name, grid][operator.key]
                whole[0] += one.took
                whole[1] += 1
            if example[operator.key].start == operator.start:
                of_call[operator.key].append(one.name)
    last: tuple[int, int, list[str]] | None = None  # key, position, kernels that its call still lacks
    for i, one in enumerate(ran):
        if one.owner >= 0 or one.library not in (BEFORE, GRAPHED):
            last = None if one.owner >= 0 else last
            continue
        key = _nearest(one, times.get((one.name, one.grid), {}))
        if key is None:
            continue
        if last is not None and last[0] == key and one.name in last[2]:
            last[2].remove(one.name)
            ran[i] = one._replace(owner=last[1])
            continue
        position = len(operators)
        operators.append(_moved(example[key], one))
        left = list(of_call[key])
        if one.name in left:
            left.remove(one.name)
        last = key, position, left
        ran[i] = one._replace(owner=position)


def _nearest(one: Ran, times: dict[int, list[float]]) -> int | None:
    """The call whose kernels take most nearly as long; None where none takes about as long."""

    def ratio(whole: Sequence[float]) -> float:
        mean = max(whole[0] / whole[1], 1e-9)
        return max(one.took / mean, mean / max(one.took, 1e-9))

    key = min(times, key=lambda key: ratio(times[key]), default=None)
    return key if key is not None and ratio(times[key]) <= ABOUT else None


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
