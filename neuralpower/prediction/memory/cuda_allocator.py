"""PyTorch's caching allocator for CUDA, replayed block by block.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.4 to 2.11), for one device and one stream;
all sizes in bytes:

    rounding   a request takes a multiple of 512
    pools      requests up to 1 MiB are small, others large; each pool has segments of its own
    segment    what the driver gives: 2 MiB for small requests, 20 MiB for those below 10 MiB, the request
               rounded up to 2 MiB for others
    fit        the smallest free block that is large enough, and of these the one of the lowest address
    split      a block gives back what it has beyond the request: 512 bytes or more (small pool), more than
               1 MiB (large pool)
    free       a block joins its free neighbours of the same segment; segments stay reserved
    limits     a block above `max_split_bytes` is not split, and serves only requests above it, with at most
               20 MiB to spare
    full       where a new segment does not fit into the device, free segments are given back first
    expandable one segment a pool grows by pages of 2 or 20 MiB, and is split and joined as any other

*Allocated* counts the blocks in use, *reserved* the segments. `nvidia-smi` shows the reserved bytes and what
CUDA itself takes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from neuralpower.errors import InputError
from neuralpower.trace.lifetimes import CACHE, INPUTS, OPTIMIZER, WEIGHTS, WORKSPACE, Storage

ROUND = 512  # kMinBlockSize
SMALL = 2**20  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * 2**20  # kSmallBuffer
LARGE_SEGMENT = 20 * 2**20  # kLargeBuffer
OWN_SEGMENT = 10 * 2**20  # kMinLargeAlloc: requests from here on have a segment of their size
ROUND_SEGMENT = 2 * 2**20  # kRoundLarge
STEPS = 2  # the first makes the optimizer's state, the second finds it there
SPARE = 20 * 2**20  # kLargeBuffer: how much larger an unsplit block may be than its request
HANDLE, WORK = -1, -2  # what asks besides the storages: a library's handle, a kernel

Record = Callable[[str, int, int], None]
"""Receives (action, address, bytes), with the actions of PyTorch's own memory history."""


@dataclass(frozen=True)
class Settings:
    """`PYTORCH_CUDA_ALLOC_CONF`; raises InputError for what PyTorch refuses."""

    max_split_bytes: int | None = None  # max_split_size_mb
    expandable_segments: bool = False
    collect_from: float = 0.0  # garbage_collection_threshold, a share of the device's memory; 0: never

    def __post_init__(self) -> None:
        if self.max_split_bytes is not None and self.max_split_bytes <= LARGE_SEGMENT:
            raise InputError(
                f"max_split_size_mb {self.max_split_bytes >> 20}: "
                "PyTorch takes more than 20; choose 21 or more"
            )
        if not 0 <= self.collect_from < 1:
            raise InputError(
                f"garbage_collection_threshold {self.collect_from}: PyTorch takes a share between 0 and 1"
            )


class OutOfMemoryError(Exception):
    """A request finds no free block, and no segment fits into the device."""


class _Block:
    """A part of a segment, free or in use, between its neighbours."""

    __slots__ = ("address", "bytes", "following", "free", "large", "preceding")

    def __init__(self, address: int, size: int, large: bool) -> None:
        self.address, self.bytes, self.large = address, size, large
        self.free = False
        self.preceding: _Block | None = None
        self.following: _Block | None = None


class CachingAllocator:
    """Nothing is in it at first; `device_bytes` is what segments may take, None for no limit."""

    def __init__(
        self,
        device_bytes: int | None = None,
        settings: Settings = Settings(),
        record: Record = lambda action, address, size: None,
    ) -> None:
        self.device_bytes, self.settings, self._record = device_bytes, settings, record
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.given_back = 0  # segments that were returned to the driver for others
        self._used: dict[int, _Block] = {}  # by address
        self._free: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # (bytes, address), sorted
        self._blocks: dict[int, _Block] = {}  # free ones by address
        self._next = 0  # address of the next segment; gaps keep segments from joining
        self._end: dict[bool, _Block | None] = {False: None, True: None}  # last block of expandable segments

    def allocate(self, size: int) -> int:
        """The address of a new block; raises OutOfMemoryError."""
        size = rounded(size)
        large = size > SMALL
        block = self._fitting(size, large) or self._segment(size, large)
        self._split(block, size)
        block.free = False
        self._used[block.address] = block
        self.allocated += block.bytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self._record("alloc", block.address, block.bytes)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back to its pool, joined with its free neighbours."""
        block = self._used.pop(address)
        self.allocated -= block.bytes
        self._record("free", address, block.bytes)
        block.free = True
        for other in (block.preceding, block.following):
            if other is not None and other.free:
                self._take(other)
                block = _joined(block, other)
        self._keep(block)

    def empty_cache(self) -> None:
        """Give all free segments back to the driver (`torch.cuda.empty_cache`)."""
        for block in [*self._blocks.values()]:
            if block.preceding is None and block.following is None:
                self._give_back(block)

    # ---- pools

    def _fitting(self, size: int, large: bool) -> _Block | None:
        """The smallest free block that is large enough, out of its pool."""
        pool, most = self._free[large], self.settings.max_split_bytes
        place = bisect_left(pool, (size, -1))
        if place == len(pool):
            return None
        found, address = pool[place]
        if large and most is not None:
            oversize = size >= most
            if (not oversize and found >= most) or (oversize and found >= size + SPARE):
                return None
        return self._take(self._blocks[address])

    def _split(self, block: _Block, size: int) -> None:
        """Keep what a block has beyond a request as a free block, where it is large enough."""
        rest, most = block.bytes - size, self.settings.max_split_bytes
        if not block.large or self.settings.expandable_segments:
            splits = rest >= ROUND
        else:
            splits = rest > SMALL and (most is None or size < most)
        if not splits:
            return
        other = _Block(block.address + size, rest, block.large)
        other.free, other.preceding, other.following = True, block, block.following
        if block.following is not None:
            block.following.preceding = other
        block.following, block.bytes = other, size
        if self._end[block.large] is block:
            self._end[block.large] = other
        self._keep(other)

    def _keep(self, block: _Block) -> None:
        self._blocks[block.address] = block
        insort(self._free[block.large], (block.bytes, block.address))

    def _take(self, block: _Block) -> _Block:
        pool = self._free[block.large]
        del pool[bisect_left(pool, (block.bytes, block.address))]
        return self._blocks.pop(block.address)

    # ---- segments

    def _segment(self, size: int, large: bool) -> _Block:
        """A block from the driver, in a segment of its own or at the end of an expandable one."""
        if self.settings.expandable_segments:
            return self._expanded(size, large)
        took = segment_bytes(size)
        self._make_room(took)
        block = _Block(self._next, took, large)
        self._next += took + ROUND_SEGMENT
        self._record("segment_alloc", block.address, took)
        return block

    def _expanded(self, size: int, large: bool) -> _Block:
        """The end of the pool's expandable segment, grown by whole pages."""
        page = LARGE_SEGMENT if large else SMALL_SEGMENT
        end = self._end[large]
        there = end.bytes if end is not None and end.free else 0
        grown = -(-(size - there) // page) * page
        self._make_room(grown)
        if end is not None and end.free:
            block = self._take(end)
            self._record("segment_map", block.address + block.bytes, grown)
            block.bytes += grown
            return block
        address = end.address + end.bytes if end is not None else (1 << (61 if large else 60))
        block = _Block(address, grown, large)
        self._record("segment_map", address, grown)
        if end is not None:
            end.following, block.preceding = block, end
        self._end[large] = block
        return block

    def _make_room(self, size: int) -> None:
        """Reserve `size` bytes; free segments are given back where they would not fit."""
        limit = self.device_bytes
        collect = self.settings.collect_from
        if limit is not None and collect and self.reserved + size > collect * limit:
            self.empty_cache()
        if limit is not None and self.reserved + size > limit:
            self.empty_cache()
            if self.reserved + size > limit:
                raise OutOfMemoryError
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _give_back(self, block: _Block) -> None:
        self._take(block)
        self._record("segment_free", block.address, block.bytes)
        self.reserved -= block.bytes
        self.given_back += 1
        if self._end[block.large] is block:
            self._end[block.large] = None


def rounded(size: int) -> int:
    """Bytes of the block that a request takes: a multiple of 512."""
    return max(-(-size // ROUND), 1) * ROUND


def segment_bytes(size: int) -> int:
    """Bytes of the segment that the driver gives for a block of `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUND_SEGMENT) * ROUND_SEGMENT


def _joined(block: _Block, other: _Block) -> _Block:
    first, second = (block, other) if block.address < other.address else (other, block)
    first.bytes += second.bytes
    first.following = second.following
    if second.following is not None:
        second.following.preceding = first
    first.free = True
    return first


class Ask(NamedTuple):
    """What a step asks of the allocator."""

    step: int  # from 0
    call: int  # operator call of the step
    place: int  # among the storages; HANDLE or WORK
    bytes: int | None  # of a new block; None: the place's block is freed


def asked(storages: Sequence[Storage], handles: Sequence[int] = ()) -> Iterator[Ask]:
    """What two passes or steps ask of the allocator, in order; arguments as in `replayed`."""
    for size in handles:
        yield Ask(0, 0, HANDLE, size)
    end = max((max(s.birth, s.death or 0) for s in storages), default=0) + 1
    born: dict[int, list[int]] = defaultdict(list)
    dead: dict[int, list[int]] = defaultdict(list)
    work: dict[int, tuple[int, ...]] = {}
    for place, storage in enumerate(storages):
        if storage.part == WORKSPACE:
            work[storage.birth] = storage.blocks or (storage.bytes,)
            continue
        if storage.birth == 0 and storage.part in (WEIGHTS, INPUTS, CACHE):
            yield Ask(0, 0, place, storage.bytes)
            continue
        born[storage.birth].append(place)
        if storage.part != OPTIMIZER:
            dead[end if storage.death is None else storage.death].append(place)
    for step in range(STEPS):
        for call in range(end + 1):
            for place, size in zip_longest(born[call], work.get(call, ())):
                # an optimizer's state stays
                if place is not None and (step == 0 or storages[place].part != OPTIMIZER):
                    yield Ask(step, call, place, storages[place].bytes)
                if size:  # of the kernel that fills this output
                    yield Ask(step, call, WORK, size)
                    yield Ask(step, call, WORK, None)
            for place in dead[call]:
                yield Ask(step, call, place, None)


def replayed(
    storages: Sequence[Storage], settings: Settings = Settings(), handles: Sequence[int] = ()
) -> CachingAllocator:
    """The allocator after two passes or steps: its peaks are those of all that follow.

    Args:
        storages: with the work space of the device's library alone; its blocks come and go one by one.
        settings: of the allocator.
        handles: bytes of cuBLAS's work spaces, one for each thread that multiplies; they stay.
    """
    allocator, living = CachingAllocator(settings=settings), dict[int, int]()
    for one in asked(storages, handles):
        if one.bytes is not None:
            living[one.place] = allocator.allocate(one.bytes)
        else:
            allocator.free(living.pop(one.place))
    return allocator
