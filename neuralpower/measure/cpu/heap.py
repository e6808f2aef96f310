"""A process's heap: kept while layers are timed, as usual while a network is; and what fresh memory costs.

A loop that a user types runs under glibc's defaults. Blocks above a threshold, and the end of the heap where
much of it is free, go back to the system with every pass. The next pass gets fresh pages for them: each is a
page fault, and the system fills it with zeros. One layer that is repeated sees little of that, a network
with large activations pays for it in every pass.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # M_... of malloc.h
USUAL_MMAP_MAX = 65_536
HOLE_BYTES = 1 << 20  # holes of this size and more serve activations
# Windows's mmap has no flags, and no glibc either: nothing is measured there.
PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
# Blocks are as large as activations, and quickly written: larger ones are interrupted by others' work. On an
# EPYC of Zen 4, blocks of 4 to 64 MiB cost 0.4 ns of processor time a byte, and networks' fresh memory 0.5.
BLOCK_BYTES = 4 << 20
ROUNDS = 40


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
    for _ in range(ROUNDS):
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
