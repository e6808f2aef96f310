"""The blocks of a cache: held by requests, or freed and still readable until others need their place.

Freed blocks queue up; a request takes them from the front. The blocks of one request queue with its last ones
in front, so that its first tokens are found the longest (vLLM's free queue).
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
