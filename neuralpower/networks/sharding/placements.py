"""Where the numbers of a tensor lie on the ranks of a group, and how it is turned into another placement."""

from __future__ import annotations

from torch import Tensor

from neuralpower.networks.sharding.exchanges import Group, copied, gathered, reduce_scattered, reduced, sliced

Placement = str | int
"""WHOLE, PARTIAL, BETWEEN, or the axis that is split."""
WHOLE, PARTIAL = "whole", "partial"
BETWEEN = "between"  # as tensors lie between pairs of products: whole, or split along the tokens


def turned(x: Tensor, before: Placement, after: Placement, group: Group, *, partial: bool = False) -> Tensor:
    """A tensor in another placement; `partial`: each rank makes a part of the gradient of a whole tensor."""
    if isinstance(after, int):
        if before == WHOLE:
            return sliced(x, group, after)
        if before == PARTIAL:
            return reduce_scattered(x, group, after)
        if before == after or before % x.dim() == after % x.dim():
            return x
        whole = gathered(x, group, int(before))
        return sliced(whole, group, after)
    if isinstance(before, int):
        return gathered(x, group, before, partial=partial)
    if before == PARTIAL:
        return reduced(x, group) if after == WHOLE else x
    return copied(x, group) if partial else x
