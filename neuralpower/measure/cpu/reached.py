"""What a CPU reaches: the rate of a copy that no cache holds, of a large product, and of fresh memory.

Beyond the layers that were measured, no call is much slower than these rates allow (`learn.unmeasured.laws`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from neuralpower.data.schema import COPIED, FRESH, PRODUCTS
from neuralpower.devices.hardware import BEYOND_CACHES, Hardware
from neuralpower.devices.host import Cpu
from neuralpower.devices.spec import FLOPS
from neuralpower.measure.calls import seconds_of

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
        taken.append(seconds_of(call, clock_ns))
    return float(max(np.percentile(taken, 10), 1e-9))


# ---- A process's heap: kept while layers are timed, as usual while a network is ----
# A loop that a user types runs under glibc's defaults. Blocks above a threshold, and the end of the heap
# where much of it is free, go back to the system with every pass. The next pass gets fresh pages for them:
# each is a page fault, and the system fills it with zeros. One layer that is repeated sees little of that, a
# network with large activations pays for it in every pass.

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # M_... of malloc.h
USUAL_MMAP_MAX = 65_536
HOLE_BYTES = 1 << 20  # holes of this size and more serve activations
# Windows's mmap has no flags, and no glibc either: nothing is measured there.
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
# Blocks are as large as activations, and quickly written: larger ones are interrupted by others' work. On an
# EPYC of Zen 4, blocks of 4 to 64 MiB cost 0.4 ns of processor time a byte, and networks' fresh memory 0.5.
BLOCK_BYTES = 4 << 20
BLOCKS = 40  # written one after the other


def keep_heap() -> bool:
    """Have glibc keep freed memory instead of giving it back; False where the C library is another.

    What a pass fetches afresh depends on all that the process has allocated before: the same forward pass
    took 68 or 124 ms. Layers and networks are timed without it, so that their times add up.
    """
    return _set((MMAP_MAX, 0), (TRIM_THRESHOLD, -1))


@contextlib.contextmanager
def usual_heap(threshold_bytes: int) -> Iterator[bool]:
    """Have glibc give memory back as in a process that only repeats a pass; False where it is another.

    `threshold_bytes`: what the pass's freed blocks raise the threshold for mapping to. Holes that are in the
    heap are filled meanwhile: they would serve what a loop fetches from the system.
    """
    limits = (MMAP_THRESHOLD, threshold_bytes), (TRIM_THRESHOLD, 2 * threshold_bytes)
    usual = _set((MMAP_MAX, USUAL_MMAP_MAX), *limits)
    filled = _filled(ctypes.CDLL(None)) if usual else []
    try:
        yield usual
    finally:
        for block in filled:
            ctypes.CDLL(None).free(ctypes.c_void_p(block))


def _filled(library: ctypes.CDLL) -> list[int]:
    """Addresses of blocks, which nobody writes to, in the heap's holes and in what is free at its end."""
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    end, blocks = library.sbrk(0), list[int]()
    while (block := library.malloc(ctypes.c_size_t(HOLE_BYTES))) is not None:
        blocks.append(block)
        if block + HOLE_BYTES > end:
            break
    return blocks


def _set(*limits: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all([bool(mallopt(name, value)) for name, value in limits])


def fresh_s_per_byte(
    fresh: Callable[[], mmap.mmap] = lambda: mmap.mmap(-1, BLOCK_BYTES, flags=PRIVATE),
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> float:
    """Seconds that a byte of fresh memory costs: its first write beyond the second, and giving it back.

    The 10th percentile of the rounds, as of all times.
    """
    taken = []
    for _ in range(BLOCKS):
        memory = fresh()
        tensor = torch.frombuffer(memory, dtype=torch.float32)
        times = [clock_ns()]
        for _ in range(2):
            tensor.fill_(1.0)
            times.append(clock_ns())
        size = tensor.nbytes
        del tensor  # its memory can be given back then
        before = clock_ns()
        memory.close()
        first, again = times[1] - times[0], times[2] - times[1]
        taken.append((first - again + clock_ns() - before) / 1e9 / size)
    return max(float(np.percentile(taken, 10)), 0.0)
