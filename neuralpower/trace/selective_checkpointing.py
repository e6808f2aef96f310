"""Selective checkpointing: attention's scores alone are freed and made once more."""

from __future__ import annotations

from collections.abc import Sequence

from neuralpower.trace.lifetimes import ACTIVATIONS, Storage


def scores_made_again(
    storages: Sequence[Storage], scores: Sequence[tuple[int, int]], ends: Sequence[int]
) -> tuple[Storage, ...]:
    """The storages, those of attention's scores freed after the forward pass and made again for the backward.

    Args:
        storages: of a step.
        scores: (first, last) operator call that makes them, of each attention.
        ends: the passes' ends, as `StepLifetimes.passes`.
    """
    found = list(storages)
    for first, last in scores:
        end = next(end for end in ends[::2] if last <= end)
        kept = [
            (place, one)
            for place, one in enumerate(found)
            if first <= one.birth <= last and one.part == ACTIVATIONS and (one.death or end + 1) > end
        ]
        again = min((one.death for _, one in kept if one.death is not None), default=end + 1)
        for place, one in kept:
            found[place] = one._replace(birth=again)
            found.append(one._replace(death=last))
    return tuple(found)
