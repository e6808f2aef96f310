"""Operator calls as layers, and the work of decompositions and Fourier transforms, which are none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError, Unmodelled
from neuralpower.layers import BY_OPERATOR, KINDS, Layer
from neuralpower.layers.base import of_real
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.tensors import check_output, common_dtype, tensors_in, torchs_dtype_name
from neuralpower.networks.caches import key_of
from neuralpower.networks.refusals import refused
from neuralpower.networks.running import name_of
from neuralpower.trace.operators.quantised_calls import plain_call
from neuralpower.trace.parts.routing import Routing

REAL = {name: dtype.parts for name, dtype in DTYPES.items() if dtype.parts}  # of complex numbers
BY_TAG = {torch.Tag.pointwise: "elementwise", torch.Tag.reduction: "reduction"}


class Descriptions:
    """The layers that calls are, each made once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Layer | str] = {}
        self._fitting: set[Hashable] = set()  # operators with types and axes that PyTorch takes
        self.have_run = False  # calls that were recorded elsewhere: their types are not tried

    def of(self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = ()) -> Layer | str:
        """The layer that a call is, or the reason why no kind describes it; of equal calls the same."""
        key = key_of(operator, output, args, kwargs)
        if key is None:
            return _description(operator, output, args, kwargs, tags)
        call = (key, *tags)
        if call not in self._made:
            self._made[call] = _description(operator, output, args, kwargs, tags)
        return self._made[call]

    def check_types(self, where: str, func: Any, args: Any, kwargs: Any) -> None:
        """Raise InputError where PyTorch refuses the types of a call without values; once for each sort.

        `where` is the path of the module that calls, for the message.
        """
        if self.have_run:
            return
        sort = (func, *((t.dtype, t.dim()) for t in tensors_in((args, kwargs))))
        if sort in self._fitting:
            return
        name = name_of(func).split(".", 1)[-1]
        if said := refused(name, func, args, kwargs):
            types = ", ".join(dict.fromkeys(torchs_dtype_name(t) for t in tensors_in((args, kwargs))))
            raise InputError(
                f"{where}: {name} of {types} is refused by PyTorch "
                f"({said}); give inputs of its type, such as floating numbers in the dtype of the "
                "weights, ids as int64"
            )
        self._fitting.add(sort)


def _description(operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any]) -> Layer | str:
    fields: Mapping[str, Any] = {}
    try:
        plain = plain_call(operator, args, kwargs, output)
        if plain is not None:
            operator, args, kwargs, fields = plain.operator, plain.args, {}, plain.fields
            output = output if plain.output is None else plain.output
            tags = (torch.Tag.pointwise,)
        by_tag = (KINDS[kind] for tag, kind in BY_TAG.items() if tag in tags)
        kind = BY_OPERATOR.get(operator) or next(by_tag, None)
        if kind is None:
            return "no layer kind knows this operator"
        layer = kind.from_call(operator, output, *args, **kwargs)
        check_output(layer, operator, output)
        dtype = common_dtype(args, kwargs, output)
        if layer.multiplies and dtype in REAL:
            layer, dtype = of_real(layer), REAL[dtype]
    except Unmodelled as reason:
        return str(reason)
    return dataclasses.replace(layer, **{"dtype": dtype, **fields})


class Experts:
    """The products with the weights of the experts that the tokens are taken to reach."""

    def __init__(self, routing: Routing, placed: Set[str]) -> None:
        self.routing = routing
        self.per_token = 1  # the last choice of the largest that was made
        self._placed = placed  # experts of a rank, by path: there is no choice left

    def reached(self, layer: Matmul, path: str, pairs: int, experts: int) -> tuple[Matmul, str]:
        """One kernel for the products of a module of that path, and the assumption as text."""
        whole = pairs % self.per_token == 0 and self.per_token <= experts and path not in self._placed
        per_token = self.per_token if whole else 1
        reached, rows = self.routing.grouped(pairs, per_token, experts)
        grouped = dataclasses.replace(layer, batch=reached, rows=rows)
        return grouped, self.routing.note(pairs, per_token, experts)


# FLOP in the time of a byte's way to memory: devices have 5 to 15 at their peaks, such work reaches a third
FLOPS_PER_BYTE = 2.0
# FLOP of an m x n matrix, m >= n, with vectors (Golub, Van Loan, "Matrix Computations", 4th ed., 3.2 to 8.6)
WORK: Mapping[str, Callable[[int, int], float]] = {
    "inv": lambda m, n: 2 * n**3,
    "cholesky": lambda m, n: n**3 / 3,
    "qr": lambda m, n: 4 * n**2 * (m - n / 3),
    "lstsq": lambda m, n: 2 * n**2 * (m - n / 3),
    **dict.fromkeys(("svd", "pinv"), lambda m, n: 6 * m * n**2 + 20 * n**3),
    "eigh": lambda m, n: 9 * n**3,
    "eig": lambda m, n: 25 * n**3,
    "matrix_exp": lambda m, n: 16 * n**3,
    **dict.fromkeys(("solve", "lu", "det", "slogdet", "ldl"), lambda m, n: n**2 * (m - n / 3)),
}


def equivalent_bytes(operator: str, size: int, args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes that memory moves while `aten.linalg_inv_ex` or its like runs; at least its tensors' `size`."""
    name = operator.split(".", 1)[-1].removeprefix("_").removeprefix("linalg_")
    of = WORK.get(name.removesuffix("_ex").removesuffix("_factor"))
    if not args or not isinstance(args[0], Tensor) or not args[0].numel():
        return size
    shape = tuple(args[0].shape)
    if of is not None and len(shape) > 1:
        *batch, rows, columns = shape
        flops = math.prod(batch) * of(max(rows, columns), min(rows, columns))
        if name in ("solve_ex", "lstsq"):  # for each right-hand side
            flops += 2 * args[1].numel() * min(rows, columns)
    elif of is None and name.startswith("fft_"):
        numbers = max(math.prod(shape), *(tensor.numel() for tensor in outputs))
        length = math.prod(shape[dim] for dim in args[1])
        flops = 5 * numbers * math.log2(max(length, 2))  # as FFTW counts them
    else:
        return size
    return max(size, round(flops / FLOPS_PER_BYTE))
