"""Work of matrix decompositions and Fourier transforms, which have no layer kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuralpower.late import Tensor

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
