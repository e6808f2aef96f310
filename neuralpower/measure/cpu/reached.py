"""What a CPU reaches: the rate of a copy that no cache holds, and of a large product in each dtype.

Beyond the layers that were measured, no call is much slower than these rates allow (`learn.unmeasured.laws`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from neuralpower.data.schema import COPIED, FRESH, PRODUCTS
from neuralpower.devices.hardware import BEYOND_CACHES, Hardware
from neuralpower.devices.host import Cpu
from neuralpower.devices.spec import FLOPS
from neuralpower.measure.cpu.heap import fresh_s_per_byte, keep_heap

MULTIPLIED = ("float32", "bfloat16", "float16")  # dtypes of layers that a CPU multiplies
SIDE = 1024  # of the square products: on two cores of an EPYC they reach as much as the fastest linear layer
ROUNDS, LONGEST_S = 15, 0.3  # of each; a dtype without instructions of its own takes 100 times as long


def reached(cpu: Cpu) -> dict[str, Any]:
    """What the processor reaches, and what memory fresh from the system costs under glibc."""
    return {
        FRESH: fresh_s_per_byte() if keep_heap() else None,
        COPIED: copied_bytes_per_s(cpu.llc_bytes or Hardware.llc_bytes),
        PRODUCTS: product_flops_per_s(MULTIPLIED),
    }


def copied_bytes_per_s(llc_bytes: int, clock_ns: Callable[[], int] = time.perf_counter_ns) -> float:
    """Bytes that a copy reads and writes in a second, beyond the last-level cache."""
    source = torch.ones(max(BEYOND_CACHES * llc_bytes // 8, 1))
    target = torch.empty_like(source)
    return 2 * source.nbytes / _shortest_s(lambda: target.copy_(source), clock_ns)


def product_flops_per_s(
    dtypes: Iterable[str], side: int = SIDE, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> dict[str, float]:
    """FLOP/s of large products by dtype, without those in which torch has none or a very slow one."""
    found = {}
    for name in dtypes:
        operand = torch.ones(side, side, dtype=getattr(torch, name))
        try:
            seconds = _shortest_s(lambda operand=operand: operand @ operand, clock_ns)  # type: ignore[misc]
        except RuntimeError:  # no such product
            continue
        found[name] = 2 * side**3 / seconds
    return {name: rate for name, rate in found.items() if rate >= FLOPS.low}


def _shortest_s(call: Callable[[], object], clock_ns: Callable[[], int]) -> float:
    """Seconds of a call, the 10th percentile, as of all times; the first only warms up."""
    call()
    taken = list[float]()
    while len(taken) < ROUNDS and sum(taken) < LONGEST_S:
        start = clock_ns()
        call()
        taken.append((clock_ns() - start) / 1e9)
    return float(max(np.percentile(taken, 10), 1e-9))
