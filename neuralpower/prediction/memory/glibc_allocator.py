"""The heap of a process on Linux: what glibc's allocator holds of memory, replayed block by block.

The rules are those of malloc/malloc.c up to glibc 2.37, for one thread; all sizes in bytes:

    chunk      a block with 8 bytes before it, in multiples of 16; neighbours that are free become one chunk
    aligned    64 + 32 more are requested, and the parts in front and behind are given back: the hole that a
               tensor leaves is too small for another of the same size, unless a free neighbour adds to it
    free       a request takes an exact fit among what was freed since the last one, then the smallest chunk
               that is large enough, then the end of the heap, which grows; the remainder is its own chunk
    mapped     what finds no free chunk and reaches the threshold is mapped by itself and given back when
               freed; that raises the threshold to its size, up to 32 MiB, for later blocks of that size
    trimmed    the end of the heap is given back where it is free and reaches twice the threshold
    small      freed blocks up to 1,032 wait for the next of their size, 7 of each, and do not join their
               neighbours; so do all up to 120, until a large request comes

A page that was written to stays in memory until the heap is trimmed below it: the heap's extent counts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable

PAGE = 4096
OVERHEAD = 8  # of a chunk
LEAST = 32  # bytes of a chunk
# chunks of a size that wait for the next request, and their largest size (tcache)
WAITING, WAITING_BYTES = 7, 1040
FAST_BYTES = 128  # chunks that do not join their neighbours (fastbins)
SMALL_BYTES = 1024  # chunks below: of equal ones the oldest is taken
JOINED = 65_536  # a free chunk that large has the fast ones joined, and the end of the heap trimmed
PADDING = 131_072  # that the heap grows by beyond the request, and keeps when it is trimmed
THRESHOLD = 131_072  # for mapping, at first
LARGEST = 32 << 20  # threshold, at most
ALIGNMENT = 64  # of a tensor's memory
MAPPED = 1 << 60  # handles from here on are of mapped blocks


def _chunk_bytes(size: int) -> int:
    """Bytes of the chunk that a request takes."""
    return max((size + OVERHEAD + 15) & -16, LEAST)


def _pages(size: int) -> int:
    """Bytes of the pages that hold `size` bytes."""
    return -(-size // PAGE) * PAGE


class Heap:
    """A heap that nothing is in; `threshold`: what earlier blocks have raised it to."""

    def __init__(self, threshold: int = THRESHOLD) -> None:
        self.threshold = threshold
        self.trim_bytes = 2 * threshold if threshold > THRESHOLD else THRESHOLD
        self.peak = 0  # the most bytes so far, of the heap and mapped
        self.mapped_bytes = 0
        self.fresh_bytes = 0  # that the system has given so far, with pages that nobody wrote to
        self._mapped: dict[int, int] = {}
        self._handle = MAPPED
        self._top = self._end = self._touched = 0  # the chunk at the heap's end, its end, what was written to
        self._used: dict[int, int] = {}  # address -> chunk's bytes; among them what waits
        self._free: dict[int, int] = {}
        self._before: dict[int, int] = {}  # end of a free chunk -> its address
        self._recent: OrderedDict[int, int] = OrderedDict()  # freed since the last request
        self._sizes: list[int] = []  # of free chunks that are not recent, sorted
        self._of_size: dict[int, list[int]] = {}
        self._waiting: dict[int, list[int]] = {}
        self._fast: dict[int, list[int]] = {}
        self._remainder = -1

    @property
    def bytes(self) -> int:
        return self._touched + self.mapped_bytes

    def small(self, size: int) -> int:
        """A handle of a new block."""
        chunk = _chunk_bytes(size)
        waiting = self._waiting.get(chunk)
        return waiting.pop() if waiting else self._request(chunk)

    def tensor(self, size: int) -> int:
        """A handle of a new block that is aligned as a tensor's."""
        chunk = _chunk_bytes(size)
        at = self._request(chunk + ALIGNMENT + LEAST)
        if at >= MAPPED:
            return at
        have = self._used.pop(at)
        lead = -(at + 16) % ALIGNMENT
        if lead:
            lead += ALIGNMENT if lead < LEAST else 0
            self._give(at, lead)
            at, have = at + lead, have - lead
        if have > chunk + LEAST:
            self._give(at + chunk, have - chunk)
            have = chunk
        self._used[at] = have
        return at

    def free_all(self, handles: Iterable[int | None]) -> None:
        """Give blocks back in their order; None is none."""
        for handle in handles:
            if handle is not None:
                self.free(handle)

    def free(self, handle: int) -> None:
        if handle < MAPPED:
            self._give(handle, self._used.pop(handle))
            return
        size = self._mapped.pop(handle)
        self.mapped_bytes -= size
        if self.threshold < size <= LARGEST:
            self.threshold, self.trim_bytes = size, 2 * size

    def _request(self, chunk: int) -> int:
        """A chunk for a request that nothing waits for."""
        if chunk <= FAST_BYTES and (fast := self._fast.get(chunk)):
            at = fast.pop()
            waiting = self._waiting.setdefault(chunk, [])
            while fast and len(waiting) < WAITING:
                waiting.append(fast.pop())
            if not fast:
                del self._fast[chunk]
            return at
        if chunk < SMALL_BYTES:
            if chunk in self._of_size:
                return self._exact(chunk)
        elif self._fast:
            self._join_fast()
        while True:
            found = self._sorted(chunk)
            if found is None:
                found = self._best(chunk)
            if found is not None:
                return found
            if self._end - self._top >= chunk + LEAST:
                return self._grow(chunk)
            if not self._fast:
                break
            self._join_fast()
        if chunk >= self.threshold:
            return self._map(chunk)
        self._end += _pages(chunk + PADDING + LEAST - (self._end - self._top))
        return self._grow(chunk)

    def _exact(self, chunk: int) -> int:
        """The oldest of several small ones; others of them wait for the next request."""
        at = self._taken(chunk)
        waiting = self._waiting.setdefault(chunk, [])
        while chunk in self._of_size and len(waiting) < WAITING:
            waiting.append(self._taken(chunk))
        return at

    def _taken(self, size: int) -> int:
        at = self._of_size[size][-1]
        self._unlink(at, size)
        self._used[at] = size
        return at

    def _sorted(self, chunk: int) -> int | None:
        """Put what was freed lately where it belongs; an exact fit on the way."""
        waiting = self._waiting.setdefault(chunk, []) if chunk <= WAITING_BYTES else None
        fitted = False
        while self._recent:
            at, size = next(iter(self._recent.items()))
            last = len(self._recent) == 1 and at == self._remainder
            if last and chunk < SMALL_BYTES and size > chunk + LEAST:
                self._unlink(at, size)
                return self._split(at, size, chunk)
            if size != chunk:
                del self._recent[at]
                self._file(at, size)
                continue
            self._unlink(at, size)
            self._used[at] = size
            if waiting is None or len(waiting) >= WAITING:
                return at
            waiting.append(at)
            fitted = True
        return waiting.pop() if fitted and waiting else None

    def _best(self, chunk: int) -> int | None:
        """The smallest that is large enough."""
        place = bisect_left(self._sizes, chunk)
        if place == len(self._sizes):
            return None
        size = self._sizes[place]
        same = self._of_size[size]
        at = same[1] if len(same) > 1 and size >= SMALL_BYTES else same[-1]
        self._unlink(at, size)
        return self._split(at, size, chunk)

    def _split(self, at: int, size: int, chunk: int) -> int:
        left = size - chunk
        if left >= LEAST:
            size, rest = chunk, at + chunk
            self._free[rest], self._before[rest + left], self._recent[rest] = left, rest, left
            if chunk < SMALL_BYTES:
                self._remainder = rest
        self._used[at] = size
        return at

    def _grow(self, chunk: int) -> int:
        at = self._top
        self._used[at] = chunk
        self._top += chunk
        if self._top > self._touched:
            self.fresh_bytes += self._top - self._touched
            self._touched = self._top
            self.peak = max(self.peak, self.bytes)
        return at

    def _map(self, chunk: int) -> int:
        size = _pages(chunk + OVERHEAD)
        self._handle += 1
        self._mapped[self._handle] = size
        self.mapped_bytes += size
        self.fresh_bytes += size
        self.peak = max(self.peak, self.bytes)
        return self._handle

    def _give(self, at: int, size: int) -> None:
        """Take back a chunk of the heap."""
        if size <= WAITING_BYTES:
            waiting = self._waiting.setdefault(size, [])
            if len(waiting) < WAITING:
                self._used[at] = size
                waiting.append(at)
                return
        if size <= FAST_BYTES:
            self._used[at] = size
            self._fast.setdefault(size, []).append(at)
            return
        if self._joined(at, size) < JOINED:
            return
        self._join_fast()
        if self._end - self._top >= self.trim_bytes:
            spare = self._end - self._top - LEAST - 1 - PADDING
            self._end -= max(spare, 0) // PAGE * PAGE
            self._touched = min(self._touched, self._end)

    def _join_fast(self) -> None:
        for size in sorted(self._fast):
            for at in reversed(self._fast[size]):
                del self._used[at]
                self._joined(at, size)
        self._fast.clear()

    def _joined(self, at: int, size: int) -> int:
        """Bytes of the free chunk that it makes with its free neighbours."""
        before = self._before.get(at)
        if before is not None:
            size += at - before
            self._unlink(before, at - before)
            at = before
        if at + size == self._top:
            self._top = at
            return self._end - at
        behind = self._free.get(at + size)
        if behind is not None:
            self._unlink(at + size, behind)
            size += behind
        self._free[at], self._before[at + size], self._recent[at] = size, at, size
        return size

    def _file(self, at: int, size: int) -> None:
        same = self._of_size.get(size)
        if same is None:
            self._of_size[size] = [at]
            insort(self._sizes, size)
        else:
            same.insert(0 if size < SMALL_BYTES else 1, at)

    def _unlink(self, at: int, size: int) -> None:
        del self._free[at], self._before[at + size]
        if at in self._recent:
            del self._recent[at]
            return
        same = self._of_size[size]
        same.remove(at)
        if not same:
            del self._of_size[size]
            self._sizes.pop(bisect_left(self._sizes, size))
