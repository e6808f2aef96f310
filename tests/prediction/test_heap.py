"""glibc's heap block by block, and the same under the lifetimes of tensors."""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys

import pytest

from neuralpower.prediction.memory.allocator_replay import PASS, STEP, heap_peak
from neuralpower.prediction.memory.glibc_allocator import MAPPED, Heap
from neuralpower.trace.lifetimes import ACTIVATIONS, CACHE, OPTIMIZER, WEIGHTS, WORKSPACE, Storage

MIB = 1 << 20


def test_a_hole_does_not_fit_another_tensor_of_its_size() -> None:
    # a chunk of 1,000,000 + 8, in multiples of 16: 1,000,016 B; 96 B more are asked for, of which the first
    # tensor leaves 48 in front; so the hole of 1,000,016 B that it leaves is too small for 1,000,112, and the
    # next one is put at the end
    heap = Heap(MIB * 4)
    first, second = heap.tensor(1_000_000), heap.tensor(1_000_000)
    heap.free(first)
    third = heap.tensor(1_000_000)
    assert first < second < third
    heap.free(third)
    assert heap.tensor(900_000) == first  # the start of the hole
    assert heap.peak >= 3_000_000


def test_free_neighbours_become_one_hole() -> None:
    # blocks that need no alignment leave nothing between them: 2 x 1,000,016 B, enough for 2,000,016
    heap = Heap(MIB * 4)
    first, second, _ = (heap.small(1_000_000) for _ in range(3))
    heap.free(first)
    heap.free(second)
    before = heap.bytes
    assert heap.small(2_000_000) == first
    assert heap.bytes == before


def test_what_waits_between_two_holes_keeps_them_apart() -> None:
    # in front of the second tensor are 48 B that alignment left and that wait for a small request
    heap = Heap(MIB * 4)
    first, second, _ = (heap.tensor(1_000_000) for _ in range(3))
    heap.free(first)
    heap.free(second)
    assert heap.tensor(1_900_000) > second


def test_of_two_holes_the_smaller_that_is_large_enough_is_taken() -> None:
    heap = Heap(MIB * 4)
    wide, _, narrow, _ = (heap.tensor(size) for size in (2_000_000, 5000, 1_000_000, 5000))
    heap.free(wide)
    heap.free(narrow)
    assert heap.tensor(900_000) == narrow


def test_large_blocks_are_mapped_until_one_has_been_freed() -> None:
    # 1 MiB and its chunk's 16 + 96 B and the mapping's 8 are 257 pages: 1,052,672 B
    heap = Heap()
    block = heap.tensor(MIB)
    assert block >= MAPPED
    assert heap.bytes == heap.mapped_bytes == 1_052_672
    heap.free(block)
    assert (heap.bytes, heap.threshold, heap.trim_bytes) == (0, 1_052_672, 2_105_344)
    assert heap.tensor(MIB) < MAPPED


def test_blocks_beyond_32_mib_are_always_mapped_and_given_back() -> None:
    heap = Heap()
    for _ in range(2):
        block = heap.tensor(33 * MIB)
        assert block >= MAPPED
        heap.free(block)
    assert (heap.bytes, heap.threshold) == (0, 131_072)


def test_the_end_of_the_heap_is_trimmed_when_it_reaches_twice_the_threshold() -> None:
    heap = Heap(4 * MIB)
    blocks = [heap.small(3 * MIB) for _ in range(3)]
    for block in blocks[:1:-1]:
        heap.free(block)
    assert heap.bytes > 9 * MIB  # 3 MiB at the end are below twice the threshold
    for block in blocks[1::-1]:
        heap.free(block)
    assert heap.bytes < 300_000


def test_small_blocks_wait_for_the_next_of_their_size() -> None:
    heap = Heap()
    blocks = [heap.small(40) for _ in range(9)]
    for block in blocks:
        heap.free(block)
    # seven wait, the last one first; the other two are in line behind them, the last one first
    assert [heap.small(40) for _ in range(8)] == [*blocks[6::-1], blocks[8]]


class Arena(ctypes.Structure):
    """`struct mallinfo2`, the beginning of it."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd rest0 rest1 rest2 rest3 rest4".split()
    ]


SCRIPT = """
import ctypes, json, sys
from tests.prediction.test_heap import Arena
libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Arena
libc.free.argtypes = [ctypes.c_void_p]
events, living = json.loads(sys.stdin.read()), {}
for _ in range(20_000):  # takes what is free of that size; the next comes from what alignment leaves
    libc.malloc(ctypes.c_size_t(40))
held = lambda: (now := libc.mallinfo2()).arena + now.hblkhd
for _ in range(500):  # takes the holes of a tensor's size that imports leave, more or fewer from run to run
    before = held()
    libc.posix_memalign(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64), ctypes.c_size_t(1_000_000))
    if held() > before:
        break
start = held()
for name, size in events:
    if size:
        place = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(place), ctypes.c_size_t(64), ctypes.c_size_t(size)) == 0
        living[name] = place
        libc.malloc(ctypes.c_size_t(40))
    else:
        libc.free(living.pop(name))
print(held() - start)
"""


@pytest.mark.skipif(
    platform.libc_ver() < ("glibc", "2.33") or platform.libc_ver() >= ("glibc", "2.38"),
    reason="the replay is of glibc up to 2.37, and 2.33 is the first that says how large its heap is",
)
def test_the_real_heap_is_as_large() -> None:
    # 2 MiB that come and go raise the threshold; of 40 tensors every other one is freed, and 20 more do not
    # fit those holes
    size = 1_000_000
    events = [(0, 2 * MIB), (0, 0), *((i, size) for i in range(1, 41)), *((i, 0) for i in range(1, 41, 2))]
    events += [(i, size) for i in range(41, 61)]
    heap, handles = Heap(), {}
    for name, size in events:
        if size:
            handles[name] = heap.tensor(size)
            heap.small(40)  # an object that takes what alignment has left
        else:
            heap.free(handles.pop(name))
    asked = [sys.executable, "-c", SCRIPT]
    real = int(
        subprocess.run(asked, input=json.dumps(events), capture_output=True, text=True, check=True).stdout
    )
    assert heap.bytes == pytest.approx(real, rel=0.05)
    assert real > 55 * size


def test_tensors_that_only_stay_take_what_they_are() -> None:
    # two mapped blocks, each rounded up to pages with 120 B of its own
    stored = [Storage(0, None, 8 * MIB, WEIGHTS), Storage(0, None, 4 * MIB, WEIGHTS)]
    assert heap_peak(stored, PASS) == 12 * MIB + 2 * 4096


def test_what_comes_and_goes_leaves_holes_that_a_second_pass_does_not_fill() -> None:
    chain = [Storage(i, i + 1, 4 * MIB, ACTIVATIONS) for i in range(1, 30)]
    assert 8 * MIB < heap_peak(chain, PASS) < 29 * 4 * MIB
    assert heap_peak(chain, PASS) == heap_peak(chain, PASS)  # what is drawn is drawn alike
    assert heap_peak(chain, STEP) > 8 * MIB


def test_an_optimizers_state_is_made_once() -> None:
    once = heap_peak([Storage(5, None, 40 * MIB, OPTIMIZER)], STEP)
    assert 40 * MIB <= once < 41 * MIB


def test_a_decoders_step_finds_a_new_cache_every_time() -> None:
    # one pass alone: old and new keys of a layer; were it repeated, the third step would find the second's in
    # the heap
    stored = [Storage(0, 1, 4 * MIB, CACHE), Storage(1, None, 4 * MIB, CACHE)]
    assert heap_peak(stored, PASS) == pytest.approx(8 * MIB, rel=0.01)


def test_copies_for_a_kernel_are_given_back_before_its_output_but_for_the_last() -> None:
    # copies of input and weights, 3 MiB each, and one of the output, 40 MiB, that is there beside the output
    # of 40 MiB
    stored = [
        Storage(1, 1, 40 * MIB, WORKSPACE, (3 * MIB, 3 * MIB, 40 * MIB)),
        Storage(1, None, 40 * MIB, ACTIVATIONS),
    ]
    # and a few holes of 3 MiB from the passes before
    assert 80 * MIB < heap_peak(stored, PASS) < 95 * MIB


def test_nothing_takes_nothing() -> None:
    assert heap_peak([], PASS) == heap_peak([], STEP) == 0
