"""How many bytes live during each operator call of a pass or a step, from its storages' lifetimes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuralpower.trace.lifetimes import OPTIMIZER, PARTS, Storage


def steady(storages: Sequence[Storage]) -> list[Storage]:
    """The lifetimes of a step that is not the first: the optimizer's state is there from the beginning."""
    return [storage._replace(birth=0) if storage.part == OPTIMIZER else storage for storage in storages]


def alive(storages: Sequence[Storage], calls: int = 0) -> np.ndarray:
    """Bytes that live during each operator call: 0 is before the first, the end after the last change.

    At least `calls` numbers.
    """
    last = max((max(s.birth, s.death or 0) for s in storages), default=0)
    change = np.zeros(max(last + 2, calls), dtype=np.int64)
    for storage in storages:
        change[storage.birth] += storage.bytes
        if storage.death is not None:
            change[storage.death + 1] -= storage.bytes
    return np.cumsum(change)


def peak(storages: Sequence[Storage]) -> tuple[int, dict[str, int]]:
    """(the most bytes that live during one operator call, the same by part)."""
    if not storages:
        return 0, dict.fromkeys(PARTS, 0)
    total = alive(storages)
    when = int(np.argmax(total))
    parts = dict.fromkeys(PARTS, 0)
    for storage in storages:
        if storage.birth <= when and (storage.death is None or when <= storage.death):
            parts[storage.part] += storage.bytes
    return int(total[when]), parts
