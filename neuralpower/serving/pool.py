"""The blocks of a cache: held by requests, or freed and still readable until others need their place.

Freed blocks queue up; a request takes them from the front. The blocks of one request queue with its last ones
in front, so that its first tokens are found the longest (vLLM's free queue). Blocks with the beginning of a
prompt that several requests have are shared: they are freed with the last of these requests.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class BlockPool:
    """Blocks of a cache; freed ones are found again by the name of what they hold."""

    blocks: int
    free: int = field(init=False)
    _blank: int = field(init=False)  # free blocks that hold nothing
    _kept: OrderedDict[int, int] = field(init=False, default_factory=OrderedDict)  # name -> freed blocks
    _shared: dict[int, int] = field(init=False, default_factory=dict)  # name -> requests that hold its blocks

    def __post_init__(self) -> None:
        """All blocks are free."""
        self.free = self._blank = self.blocks

    def take(self, count: int) -> bool:
        """Take blocks from the front of the queue; False, and none, where too few are free."""
        if count > self.free:
            return False
        self.free -= count
        blank = min(count, self._blank)
        self._blank -= blank
        count -= blank
        while count:
            name, held = next(iter(self._kept.items()))
            used = min(held, count)
            count -= used
            if used == held:
                del self._kept[name]
            else:
                self._kept[name] = held - used
        return True

    def give(self, count: int, name: int | None = None) -> None:
        """Free blocks; under a name they are found again."""
        self.free += count
        if name is None or not count:
            self._blank += count
        else:
            self._kept[name] = self._kept.pop(name, 0) + count

    def found(self, name: int) -> int:
        """Blocks that are still there of what was freed under a name; they stay free."""
        return self._kept.get(name, 0)

    def reuse(self, name: int, most: int) -> int:
        """Take the blocks of a name out of the queue, at most `most`; returns how many."""
        held = self._kept.pop(name, 0)
        used = min(held, most)
        if held > used:
            self._blank += held - used
        self.free -= used
        return used

    # ---- blocks that several requests hold ----

    def join(self, name: int, count: int) -> bool:
        """Hold the `count` blocks of a name with others, or alone; False where not all of them are there."""
        if name in self._shared:
            self._shared[name] += 1
        elif self._kept.get(name, 0) == count:
            self.reuse(name, count)
            self._shared[name] = 1
        else:
            return False
        return True

    def share(self, name: int) -> bool:
        """Let others join blocks that a request holds; False where others have the same under that name."""
        if name in self._shared:
            return False
        self._blank += self._kept.pop(name, 0)  # fewer than all of them
        self._shared[name] = 1
        return True

    def part(self, name: int, count: int) -> None:
        """Stop holding the blocks of a name; the last one frees them."""
        self._shared[name] -= 1
        if not self._shared[name]:
            del self._shared[name]
            self.give(count, name)
